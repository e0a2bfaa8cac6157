#include "src/train/run/alike.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "io/checksum.h"

namespace sluice {
namespace {

constexpr std::uint64_t end_bytes = 64u << 10;

void add_text(StreamingChecksum& sum, const std::string& text) { sum.add(std::as_bytes(std::span(text))); }

void add_number(StreamingChecksum& sum, std::uint64_t value) { sum.add(std::as_bytes(std::span(&value, 1))); }

}  // namespace

Result<std::uint64_t> mark_of_sets(const std::vector<EvalSet>& sets) {
  StreamingChecksum sum;
  for (const EvalSet& set : sets) {
    add_text(sum, set.name);
    add_number(sum, set.windows_in_all);
    SLUICE_ASSIGN(const std::uint64_t tokens, set.tokens().hash());
    add_number(sum, tokens);
  }
  return sum.value();
}

std::uint64_t mark_of_weights(const std::string& path) {
  std::error_code ignored;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_regular_file(path, ignored)) files.emplace_back(path);
  for (std::filesystem::directory_iterator entry(path, ignored), end; !ignored && entry != end;
       entry.increment(ignored))
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  if (files.empty()) return 0;
  std::ranges::sort(files);
  StreamingChecksum sum;
  std::string part(end_bytes, 0);
  for (const std::filesystem::path& file : files) {
    const std::uint64_t bytes = std::filesystem::file_size(file, ignored);
    add_text(sum, file.filename());
    add_number(sum, bytes);
    std::ifstream in(file, std::ios::binary);
    for (const std::uint64_t at : std::array{std::uint64_t{0}, bytes > end_bytes ? bytes - end_bytes : 0}) {
      in.clear();
      in.seekg(static_cast<std::streamoff>(at));
      in.read(part.data(), static_cast<std::streamsize>(part.size()));
      sum.add(std::as_bytes(std::span(part)).first(static_cast<std::size_t>(in.gcount())));
    }
  }
  return sum.value();
}

}  // namespace sluice
