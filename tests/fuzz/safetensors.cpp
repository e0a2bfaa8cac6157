// A file of tensors: refused, or tensors that lie in it.
#include "io/weights/safetensors.h"

#include <array>

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  const std::string path = folder.write("model.safetensors", {data, size});
  const auto file = sluice::SafeTensors::open(path);
  if (!file.ok()) {
    sluice::fuzz::check_refusal(file.error());
    return 0;
  }
  for (const auto& [name, entry] : file->entries()) {
    SLUICE_CHECK(entry.offset <= size && entry.bytes <= size - entry.offset, "(%s lies outside)", name.c_str());
    std::array<std::byte, 64> start;
    const std::size_t n = std::min<std::uint64_t>(start.size(), entry.bytes);
    SLUICE_CHECK(file->read(entry, 0, std::span(start).first(n)).ok(), "(%s can not be read)", name.c_str());
  }
  return 0;
}
