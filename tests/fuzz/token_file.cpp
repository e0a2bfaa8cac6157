// A token file of our own.
#include <cstring>

#include "io/token_header.h"
#include "tests/fuzz/tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  sluice::fuzz::open_and_read(folder.write("text.tokens", {data, size}), size);
  if (size < sizeof(sluice::TokenHeader)) return 0;
  // And with the checksum that its header should have, or nothing behind that is ever reached.
  std::vector<std::uint8_t> bytes(data, data + size);
  sluice::TokenHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = sluice::header_checksum(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  sluice::fuzz::open_and_read(folder.write("text.tokens", bytes), size);
  return 0;
}
