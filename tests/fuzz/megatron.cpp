// An index of Megatron-LM beside 64 bytes of tokens.
#include <array>

#include "tests/fuzz/tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  std::array<std::uint8_t, 64> tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(i);
  folder.write("text.bin", tokens);
  sluice::fuzz::open_and_read(folder.write("text.idx", {data, size}), tokens.size());
  return 0;
}
