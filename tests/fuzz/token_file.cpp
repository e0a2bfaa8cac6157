// A token file of our own.
#include "tests/fuzz/tokens.h"
#include "tests/token_seal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  sluice::fuzz::open_and_read(folder.write("text.tokens", {data, size}), size);
  if (size < sizeof(sluice::TokenHeader)) return 0;
  // And with the checksums that its header, and what is behind that, should have, or neither is ever got past.
  const std::string bytes(data, data + size);
  for (const std::string& file : {sluice::resigned(bytes), sluice::resealed(bytes)})
    sluice::fuzz::open_and_read(
        folder.write("text.tokens", {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()}), size);
  return 0;
}
