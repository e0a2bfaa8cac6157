// Weights of a Hugging Face directory as the flat buffers of units.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/weights/safetensors.h"
#include "src/model/split.h"
#include "src/train/states/weight_pieces.h"

namespace sluice {

class HuggingFaceWeights {
 public:
  /// `directory`: model.safetensors or its sharded index; or one of such files. The tensors must be those of the model, with their shapes:
  /// bad_request otherwise, before anything is written. Only headers are read; of a tied model that stores its head too
  /// also both matrices, which must be equal. `model` outlives it.
  static Result<HuggingFaceWeights> open(const std::string& directory, const ModelSpec& model);
  std::size_t file_count() const { return file_.files().size(); }
  bool all_stored_as(Dtype dtype) const;

 private:
  friend class WeightStream;
  /// A tensor of the model, where it is stored.
  struct Source {
    const TensorSpec* tensor = nullptr;
    const TensorEntry* entry = nullptr;
    Dtype dtype = Dtype::f32;
  };
  std::uint64_t element_bytes_max() const;

  SafeTensors file_;
  std::vector<std::vector<Source>> units_;  ///< in the order of the model's
};

/// The weights piece by piece. Reading runs ahead, and widening has a thread of its own beside the caller's.
/// Needs 8 MiB, and of the widest element type in the files 17 pieces: with pieces of half a million elements less
/// than 48 MiB.
class WeightStream {
 public:
  /// The pieces in their order; `weights`, and `split` where they are of parts, outlive the stream. As fp32, or where
  /// bf16 is wanted and every tensor is stored so, as they are.
  static Result<std::unique_ptr<WeightStream>> open(const HuggingFaceWeights& weights, WeightPieces pieces,
                                                    Dtype wanted = Dtype::f32, const SplitModel* split = nullptr);
  ~WeightStream();

  /// The next piece, which there must be; padding is zero. It stays until the next call. fault when it can not be read.
  Result<WeightValues> next();

 private:
  struct Part;
  class Reader;
  explicit WeightStream(std::unique_ptr<Reader> reader);
  std::unique_ptr<Reader> reader_;
};

}  // namespace sluice
