// The header of a token file as it lies in the file, and its checksums: shared by reader and writer.
#pragma once

#include <cstdint>

namespace sluice {

constexpr char token_magic[9] = "SLUICTOK";

struct TokenHeader {
  char magic[8];
  std::uint32_t schema_version;
  std::uint32_t token_bytes;
  std::uint64_t vocabulary;
  std::uint64_t count;
  std::uint64_t documents;  ///< from version 2 on; zero before
  std::uint64_t flags;      ///< from version 3 on; zero before
  std::uint64_t sequence;   ///< from version 3 on; zero before
  std::uint64_t checksum;   ///< of the 56 bytes before
};
static_assert(sizeof(TokenHeader) == 64);

/// From version 4 on.
struct SealedTokenHeader {
  TokenHeader header;
  std::uint64_t sums;  ///< XXH3 of the table of checksums; in version 5 of that and `tokenizer` behind it
};
static_assert(sizeof(SealedTokenHeader) == 72);

/// Version 5.
struct NamedTokenHeader {
  SealedTokenHeader sealed;
  std::uint64_t tokenizer;  ///< not 0: which one made the tokens
};
static_assert(sizeof(NamedTokenHeader) == 80);

constexpr std::uint64_t token_header_bytes(std::uint32_t schema_version) {
  return schema_version < 4    ? sizeof(TokenHeader)
         : schema_version == 4 ? sizeof(SealedTokenHeader)
                               : sizeof(NamedTokenHeader);
}

constexpr std::uint64_t token_block_bytes = 65536;  ///< that one checksum is of; the last block may be shorter

constexpr std::uint64_t token_flag_mask = 1;  ///< has a loss mask; no other flag is known

std::uint32_t token_bytes_for(std::uint64_t vocabulary);
std::uint64_t header_checksum(const TokenHeader& h);

/// Whether there is a table of documents.
bool has_table(const TokenHeader& h);
/// The header that the same tokens have in a file without checksums: what follows it is the same.
TokenHeader unsealed(TokenHeader h);

/// Where a table lies, of documents or of checksums: at the next multiple of 8.
constexpr std::uint64_t table_offset(std::uint64_t end_before) { return (end_before + 7) / 8 * 8; }

/// Of the loss mask: a bit a token, the first in the lowest of the first byte; what is left of the last byte is zero.
constexpr std::uint64_t mask_bytes(std::uint64_t tokens) { return tokens / 8 + (tokens % 8 > 0 ? 1 : 0); }

}  // namespace sluice
