// The JSON of safetensors files and of their indexes, read in one pass and never as a tree: a header of 100,000 tensors
// takes a few megabytes, and one that is wrong is refused where it goes wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/safetensors.h"

namespace sluice::safetensors {

/// Headers and indexes beyond this are refused: the largest models that are published have some 10 MB.
constexpr std::uint64_t header_bytes_max = 16u << 20;

using Entries = std::map<std::string, TensorEntry, std::less<>>;

/// Tensors of one file with `data_bytes` of data, which they must fill without gaps; offsets are relative to the data.
/// bad_request without the file's name, in one line.
Result<Entries> parse_header(std::string_view text, std::uint64_t data_bytes);

/// Which file an index says each tensor is in.
struct Index {
  std::vector<std::string> files;
  std::map<std::string, std::uint32_t, std::less<>> tensors;  ///< index in `files`
};
Result<Index> parse_index(std::string_view text);

}  // namespace sluice::safetensors
