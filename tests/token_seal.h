// Token files whose checksums are right, whatever else is wrong with them, and files without any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "io/checksum.h"
#include "io/tokens/token_header.h"

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

/// Where tokens, documents and mask of a file of version 4 or 5 end, as its header has it; 0 if that is not in the
/// file.
inline std::uint64_t token_content_end(const std::string& file) {
  const auto h = token_header_of<TokenHeader>(file);
  if (h.schema_version < 4 || h.schema_version > 5 || h.token_bytes > 4 || h.count > file.size() ||
      h.documents > file.size())
    return 0;
  std::uint64_t end = token_header_bytes(h.schema_version) + h.count * h.token_bytes;
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

/// And from version 4 on with the checksums of what it has, where the header leaves room for that.
inline std::string resealed(std::string file) {
  file = resigned(std::move(file));
  const std::uint64_t end = table_offset(token_content_end(file));
  if (end == 0) return file;
  file.resize(end);
  BlockSums sums(token_block_bytes);
  auto h = token_header_of<SealedTokenHeader>(file);
  sums.add(std::as_bytes(std::span(file)).subspan(token_header_bytes(h.header.schema_version)));
  const auto table = std::as_bytes(std::span(sums.close()));
  StreamingChecksum sum;
  sum.add(table);
  const std::uint64_t tokenizer = token_header_of<NamedTokenHeader>(file).tokenizer;
  if (h.header.schema_version >= 5) sum.add(std::as_bytes(std::span(&tokenizer, 1)));
  h.sums = sum.value();
  put_token_header(file, h);
  return file.append(reinterpret_cast<const char*>(table.data()), table.size());
}

/// What was written before there were checksums, of a whole file that has them.
inline std::string without_sums(const std::string& file) {
  const auto sealed = token_header_of<TokenHeader>(file);
  const TokenHeader h = unsealed(sealed);
  const std::uint64_t begin = token_header_bytes(sealed.schema_version);
  return std::string(reinterpret_cast<const char*>(&h), sizeof h) + file.substr(begin, token_content_end(file) - begin);
}

}  // namespace sluice
