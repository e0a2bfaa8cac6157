// The header of a token file as it lies in the file: shared by reader and writer.
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
  std::uint64_t checksum;
};
static_assert(sizeof(TokenHeader) == 64);

constexpr std::uint64_t token_flag_mask = 1;  ///< has a loss mask; no other flag is known

std::uint32_t token_bytes_for(std::uint64_t vocabulary);
std::uint64_t header_checksum(const TokenHeader& h);

/// Where the table of documents lies: at the next multiple of 8 after `tokens_bytes` of tokens.
constexpr std::uint64_t table_offset(std::uint64_t tokens_bytes) {
  return (sizeof(TokenHeader) + tokens_bytes + 7) / 8 * 8;
}

/// Of the loss mask: a bit a token, the first in the lowest of the first byte; what is left of the last byte is zero.
constexpr std::uint64_t mask_bytes(std::uint64_t tokens) { return tokens / 8 + (tokens % 8 > 0 ? 1 : 0); }

}  // namespace sluice
