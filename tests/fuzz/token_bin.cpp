// Token files of llm.c and nanoGPT.
#include "tests/fuzz/tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  sluice::fuzz::open_and_read(folder.write("text.bin", {data, size}), size);
  return 0;
}
