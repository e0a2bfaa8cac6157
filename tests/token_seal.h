// Token files whose checksums are right, whatever else is wrong with them, and files without any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "io/checksum.h"
#include "io/token_header.h"

namespace sluice {

template <class Header>
Header token_header_of(const std::string& file) {
  Header h{};
  std::memcpy(&h, file.data(), std::min(file.size(), sizeof h));
  return h;
}

template <class Header>
void put_token_header(std::string& file, const Header& h) {
  std::memcpy(file.data(), &h, sizeof h);
}

/// Where tokens, documents and mask of a file of version 4 end, as its header has it; 0 if that is not in the file.
inline std::uint64_t token_content_end(const std::string& file) {
  const auto h = token_header_of<TokenHeader>(file);
  if (h.schema_version != 4 || h.token_bytes > 4 || h.count > file.size() || h.documents > file.size()) return 0;
  std::uint64_t end = sizeof(SealedTokenHeader) + h.count * h.token_bytes;
  if (has_table(h)) end = table_offset(end) + h.documents * 8;
  if ((h.flags & token_flag_mask) != 0) end += mask_bytes(h.count);
  return table_offset(end) <= file.size() ? end : 0;
}

/// The header signed anew.
inline std::string resigned(std::string file) {
  if (file.size() < sizeof(TokenHeader)) return file;
  auto h = token_header_of<TokenHeader>(file);
  h.checksum = header_checksum(h);
  put_token_header(file, h);
  return file;
}

/// And in version 4 with the checksums of what it has, where the header leaves room for that.
inline std::string resealed(std::string file) {
  file = resigned(std::move(file));
  const std::uint64_t end = table_offset(token_content_end(file));
  if (end == 0) return file;
  file.resize(end);
  BlockSums sums(token_block_bytes);
  sums.add(std::as_bytes(std::span(file)).subspan(sizeof(SealedTokenHeader)));
  const auto table = std::as_bytes(std::span(sums.close()));
  auto h = token_header_of<SealedTokenHeader>(file);
  h.sums = checksum(table);
  put_token_header(file, h);
  return file.append(reinterpret_cast<const char*>(table.data()), table.size());
}

/// What was written before there were checksums, of a whole file of version 4.
inline std::string without_sums(const std::string& file) {
  const TokenHeader h = unsealed(token_header_of<TokenHeader>(file));
  const std::uint64_t begin = sizeof(SealedTokenHeader);
  return std::string(reinterpret_cast<const char*>(&h), sizeof h) + file.substr(begin, token_content_end(file) - begin);
}

}  // namespace sluice
