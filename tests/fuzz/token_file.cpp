// A token file: refused, or every token of it is in its vocabulary or refused with its place.
#include "io/token_file.h"

#include <cstring>
#include <vector>

#include "io/token_header.h"
#include "tests/fuzz/input.h"

namespace {

void open_and_read(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  const std::string path = folder.write("text.tokens", {data, size});
  const auto file = sluice::TokenFile::open(path);
  if (!file.ok()) {
    sluice::fuzz::check_refusal(file.error());
    return;
  }
  SLUICE_CHECK(file->count() <= size, "%llu tokens in %zu bytes", static_cast<unsigned long long>(file->count()), size);
  std::vector<std::int32_t> tokens(file->count());
  const sluice::Status read = file->read(0, tokens);
  if (!read.ok()) sluice::fuzz::check_refusal(read.error());
  for (const std::int32_t t : tokens)
    SLUICE_CHECK(!read.ok() || (t >= 0 && static_cast<std::uint64_t>(t) < file->vocabulary()), "token %d", t);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  open_and_read(data, size);
  if (size < sizeof(sluice::TokenHeader)) return 0;
  // And with the checksum that its header should have, or nothing behind that is ever reached.
  std::vector<std::uint8_t> bytes(data, data + size);
  sluice::TokenHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = sluice::header_checksum(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  open_and_read(bytes.data(), bytes.size());
  return 0;
}
