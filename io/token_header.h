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
  std::uint64_t documents;  ///< version 2; zero before
  std::uint64_t zero[2];
  std::uint64_t checksum;
};
static_assert(sizeof(TokenHeader) == 64);

std::uint32_t token_bytes_for(std::uint64_t vocabulary);
std::uint64_t header_checksum(const TokenHeader& h);

/// Where the table of documents lies: at the next multiple of 8 after `tokens_bytes` of tokens.
constexpr std::uint64_t table_offset(std::uint64_t tokens_bytes) {
  return (sizeof(TokenHeader) + tokens_bytes + 7) / 8 * 8;
}

}  // namespace sluice
