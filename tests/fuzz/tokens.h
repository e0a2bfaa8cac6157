// Reads a token file as far as it goes: what it hands out lies in its vocabulary, and its documents in the file.
#pragma once

#include <vector>

#include "io/tokens/token_file.h"
#include "tests/fuzz/input.h"

namespace sluice::fuzz {

/// `bytes_max`: no file of so many bytes has more tokens.
inline void open_and_read(const std::string& path, std::size_t bytes_max) {
  const auto file = TokenFile::open(path);
  if (!file.ok()) return check_refusal(file.error());
  SLUICE_CHECK(file->count() <= bytes_max, "%llu tokens in %zu bytes", static_cast<unsigned long long>(file->count()),
               bytes_max);
  std::vector<std::int32_t> tokens(file->count());
  const Status read = file->read(0, tokens);
  if (!read.ok()) check_refusal(read.error());
  const auto hash = file->hash();
  const Status verified = file->verify();
  SLUICE_CHECK(hash.ok() == verified.ok(), "a hash of what is damaged");
  if (!verified.ok()) check_refusal(verified.error());
  for (const std::int32_t t : tokens)
    SLUICE_CHECK(!read.ok() || (t >= 0 && static_cast<std::uint64_t>(t) < file->vocabulary()), "token %d", t);
  std::vector<std::uint8_t> mask(file->count());
  const Status masked = file->read_mask(0, mask);
  if (!masked.ok()) return check_refusal(masked.error());
  for (const std::uint8_t counts : mask) SLUICE_CHECK(counts == 1 || (counts == 0 && file->has_mask()), "%d", counts);
  const std::uint64_t n = file->packed_sequence();
  SLUICE_CHECK(n == 0 || file->count() % n == 0, "sequences");
  for (std::uint64_t i = 0; i < file->documents() && i < 1000; ++i) {
    const auto document = file->document(i);
    if (!document.ok()) return check_refusal(document.error());
    SLUICE_CHECK(document->begin <= document->end && document->end <= file->count(), "document %llu",
                 static_cast<unsigned long long>(i));
  }
  if (file->count() > 0) {
    const auto range = file->documents_in(file->count() / 2, file->count() - file->count() / 2);
    if (!range.ok()) return check_refusal(range.error());
    SLUICE_CHECK(range->first <= range->last && range->last <= file->documents(), "documents of a window");
  }
}

}  // namespace sluice::fuzz
