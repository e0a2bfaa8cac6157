// Weights as safetensors, in one file or in shards with an index, as transformers writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/weights/safetensors.h"
#include "src/model/model.h"

namespace sluice {

/// What is written first goes into the first shard: the data of the units in order, each from its first element on.
/// Memory does not grow with the model.
class ModelWriter {
 public:
  /// model.safetensors in the directory, which exists; or where the data is more than `shard_bytes_max`,
  /// model-00001-of-0000N.safetensors and so on, none with more data than that unless a single tensor has. Names begin
  /// with `base`.
  static Result<ModelWriter> create(const ModelSpec& model, const std::string& directory, Dtype dtype,
                                    std::uint64_t shard_bytes_max = ~0ull, const std::string& base = "model");

  /// Elements from `first` of the unit's flat buffer, in the file's dtype; padding between tensors is left out. `model`
  /// still lives.
  Status write(UnitId unit, std::uint64_t first, std::span<const std::byte> data);
  /// The index, where there are shards: last, so that where it is all of them are.
  Status finish();

  std::uint64_t data_bytes() const { return data_bytes_; }
  std::vector<std::string> files() const;  ///< names

 private:
  struct Shard {
    std::string name;
    std::vector<SafeTensorsWriter::Tensor> tensors;
    std::uint64_t data_bytes = 0, written = 0;
  };
  void divide(std::uint64_t shard_bytes_max);
  std::string shard_name(std::size_t number) const;
  std::string index_name() const { return base_ + ".safetensors.index.json"; }
  Status write_tensor(const TensorSpec& tensor, std::uint64_t first, std::span<const std::byte> data);
  Status publish_index() const;

  const ModelSpec* model_ = nullptr;
  std::string directory_, base_;
  Dtype dtype_ = Dtype::f32;
  std::uint64_t data_bytes_ = 0;
  std::vector<Shard> shards_;
  std::size_t current_ = 0;
  std::optional<SafeTensorsWriter> writer_;  ///< of the current shard
};

}  // namespace sluice
