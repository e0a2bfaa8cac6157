// Weights as a Hugging Face directory that transformers loads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/train/states/whole_weights.h"

namespace sluice {

struct ExportOptions {
  std::string directory;       ///< where to; must not exist, or be empty
  std::optional<Dtype> dtype;  ///< f32, bf16 or f16; none: that of the parameters
  std::uint64_t shard_bytes_max = 5'000'000'000;
  bool optimizer = false;  ///< the moments too, in fp32: see src/train/states/moment_files.h
  bool force = false;      ///< an earlier export in the directory is replaced
};

struct ExportResult {
  std::uint64_t step = 0, parameters = 0, data_bytes = 0;
  Dtype dtype = Dtype::f32;
  std::vector<std::string> files;  ///< names, weights first
};

/// Writes the weights, config.json, generation_config.json, and copies of the tokenizer's files that are among their
/// companions. All of it is in the directory, or nothing is. bf16 are the parameters that a bf16 run
/// computes with; f32 and f16 are made from the fp32 masters; everything is rounded to nearest even.
/// bad_request before anything is written when the target does not serve, lacks the room, or the dtype or moments can
/// not be had, and when a value is beyond float16; fault when writing fails. `listener.watch` hears the progress.
Result<ExportResult> export_weights(WholeWeights& weights, const ExportOptions& options,
                                    const RestoreListener& listener);

/// Nothing is there, or what `force` may replace: bad_request otherwise.
Status check_export_target(const std::string& directory, bool force);

}  // namespace sluice
