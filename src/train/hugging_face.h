// Weights of a Hugging Face directory as the flat buffers of units.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/safetensors.h"
#include "src/model/model.h"

namespace sluice {

class HuggingFaceWeights {
 public:
  /// `directory`: model.safetensors or its sharded index. The tensors must be those of the model, with their shapes:
  /// bad_request otherwise, before anything is written. Only headers are read; of a tied model that stores its head too
  /// also both matrices, which must be equal.
  static Result<HuggingFaceWeights> open(const std::string& directory, const ModelSpec& model);
  /// Elements [first, first + out.size()) of the unit's flat buffer as fp32.
  Status read(const UnitSpec& unit, std::uint64_t first, std::span<float> out) const;

 private:
  SafeTensors file_;
};

}  // namespace sluice
