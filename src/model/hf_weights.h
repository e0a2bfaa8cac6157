// Weights under their Hugging Face names, as the flat buffers of units. Where they come from is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/dtype.h"
#include "sluice/status.h"
#include "src/model/model.h"

namespace sluice {

/// One stored tensor. `dtype` is empty where its element type is none that sluice knows.
struct HfTensor {
  std::optional<Dtype> dtype;
  std::vector<std::int64_t> shape;
};

/// The stored tensor of that exact name, if there is one.
using HfLookup = std::function<std::optional<HfTensor>(const std::string& name)>;

/// Every tensor of the model is stored, where its StoredPlace says, with its shape and a floating-point element type;
/// and of `stored`, the names of all that there are, each is one of the model's. bad_request with all that are missing,
/// wrong or unknown (of each the first 8, and how many more). Names may lack the prefix "model." or "transformer." (as
/// the files of openai/gpt2 do). Unknown tensors would be weights that are not computed; only tables that follow from
/// the config may lie there too, and the lm_head.weight of a tied model, which is not read.
Status check_hf_weights(const ModelSpec& model, const HfLookup& lookup, std::span<const std::string> stored = {});

/// Names under which the tensor may be stored, of which the first that there is counts.
std::vector<std::string> hf_names(const TensorSpec& tensor);

/// out[i] = the i-th of the elements, of f32, bf16 or f16, exactly. `elements` may have any alignment.
void widen(Dtype dtype, std::span<const std::byte> elements, std::span<float> out);

}  // namespace sluice
