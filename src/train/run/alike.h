// What the processes of a run must have alike, as numbers to compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/data/eval_sets.h"

namespace sluice {

/// Of the names, windows and tokens of the sets, which are read through.
Result<std::uint64_t> mark_of_sets(const std::vector<EvalSet>& sets);

/// Of the safetensors files at `path`, a file or a directory: their names, sizes, and first and last 64 KiB, which tell
/// other weights apart without reading all. 0: there are none.
std::uint64_t mark_of_weights(const std::string& path);

}  // namespace sluice
