#include "src/model/weights_name.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace sluice {
namespace {

std::string head_of(const std::string& path) {
  std::array<char, 16> bytes{};
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<std::size_t>(in.gcount())};
}

/// A length of JSON, and then JSON.
bool is_safetensors(const std::string& head, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  if (head.size() < 9) return false;
  std::memcpy(&length, head.data(), sizeof length);
  return length >= 2 && length <= file_bytes - sizeof length && head[8] == '{';
}

std::string ending_of(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

}  // namespace

std::optional<std::string> weights_instead_of_config(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  const std::string head = head_of(path), ending = ending_of(path);
  const auto begins = [&](std::string_view mark) { return std::string_view(head).starts_with(mark); };
  const auto ends = [&](std::initializer_list<std::string_view> endings) {
    return std::ranges::find(endings, ending) != endings.end();
  };
  const std::string give = "give the directory that holds ";
  const std::string other = ", which is not read; " + give + "the model as config.json and safetensors";
  if (ending == ".safetensors" || (ending != ".json" && is_safetensors(head, bytes)))
    return "is a file of weights; " + give + "it with its config.json";
  if (begins("GGUF") || ending == ".gguf") return "is a GGUF file" + other;
  if (begins("\x89HDF") || ends({".h5", ".hdf5", ".keras"})) return "is an HDF5 file of weights" + other;
  if (begins("PK\x03\x04") && !ends({".bin", ".pt", ".pth", ".ckpt"})) return "is a zip archive" + other;
  if (begins("PK\x03\x04") || begins("\x80\x02") || ends({".bin", ".pt", ".pth", ".ckpt"}))
    return "is a pickle of weights, as PyTorch saves them" + other + " (save_pretrained of transformers writes them)";
  if (ends({".onnx", ".msgpack", ".npz", ".tflite", ".pb"})) return "is a file of weights" + other;
  return std::nullopt;
}

}  // namespace sluice
