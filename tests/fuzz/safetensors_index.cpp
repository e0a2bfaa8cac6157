// An index of shards, beside two that are whole: it names no file outside of its folder.
#include <cstring>

#include "io/weights/safetensors.h"
#include "tests/fuzz/input.h"

namespace {

std::string shard(const std::string& name) {
  const std::string header = "{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::uint64_t bytes = header.size();
  std::string file(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  return file + header + std::string(8, '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  static const bool prepared = [] {
    for (const char* name : {"a", "b"}) {
      const std::string bytes = shard(name);
      folder.write(std::string(name) + ".safetensors",
                   {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    }
    return true;
  }();
  SLUICE_CHECK(prepared, "shards");
  folder.write("model.safetensors.index.json", {data, size});
  const auto file = sluice::SafeTensors::open(folder.path());
  if (!file.ok()) {
    sluice::fuzz::check_refusal(file.error());
    return 0;
  }
  for (const auto& [name, entry] : file->entries()) SLUICE_CHECK(name == "a" || name == "b", "(%s)", name.c_str());
  return 0;
}
