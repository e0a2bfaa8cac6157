// A Hugging Face directory as a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "io/checkpoint/manifest.h"
#include "io/drives/queue.h"

namespace sluice {

struct ImportRequest {
  std::string directory;       ///< config.json and safetensors
  std::string parent;          ///< directory of checkpoints
  std::optional<Dtype> dtype;  ///< f32 or bf16; none: bf16 where all weights are, else f32
  QueueOptions writes;
};

struct ImportResult {
  std::string path;
  std::uint64_t step = 0, parameters = 0, state_bytes = 0;
  Dtype dtype = Dtype::f32;
  bool has_moments = false;
};

/// Writes parent/step-0, for one rank, published whole or not at all: the parameters, which in bf16 have remainders, so
/// that masters are what the files have. Moments that an export has left beside them (src/train/states/moment_files.h)
/// come along in fp32, and then the step is the one that config.json is marked with. Needs less than 128 MiB.
/// bad_request before anything is written for files that are not the model's. `watch` hears the fraction that is done,
/// and may end it.
Result<ImportResult> import_checkpoint(const ImportRequest& request,
                                       const std::function<Status(double fraction)>& watch);

}  // namespace sluice
