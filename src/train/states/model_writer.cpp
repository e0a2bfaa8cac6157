#include "src/train/states/model_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/files/publish.h"

namespace sluice {

std::string ModelWriter::shard_name(std::size_t number) const {
  if (shards_.size() == 1) return base_ + ".safetensors";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", base_, number, shards_.size());
}

Result<ModelWriter> ModelWriter::create(const ModelSpec& model, const std::string& directory, Dtype dtype,
                                        std::uint64_t shard_bytes_max, const std::string& base) {
  ModelWriter writer;
  writer.model_ = &model;
  writer.directory_ = directory;
  writer.base_ = base;
  writer.dtype_ = dtype;
  writer.divide(shard_bytes_max);
  return writer;
}

void ModelWriter::divide(std::uint64_t shard_bytes_max) {
  for (const UnitSpec& unit : model_->units)
    for (const TensorSpec& t : unit.tensors) {
      if (t.stored.first > 0) continue;  // of one that another tensor began
      std::uint64_t bytes = dtype_bytes(dtype_);
      for (const std::int64_t extent : t.stored.shape) bytes *= static_cast<std::uint64_t>(extent);
      if (shards_.empty() || shards_.back().data_bytes + bytes > shard_bytes_max) shards_.emplace_back();
      Shard& shard = shards_.back();
      shard.tensors.push_back({t.stored.name, to_tensor_dtype(dtype_), {t.stored.shape.begin(), t.stored.shape.end()}});
      shard.data_bytes += bytes;
      data_bytes_ += bytes;
    }
  for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].name = shard_name(i + 1);
}

Status ModelWriter::write(UnitId unit, std::uint64_t first, std::span<const std::byte> data) {
  const std::uint64_t size = dtype_bytes(dtype_);
  // A piece of the flat buffer may cover the ends of several tensors.
  for (const TensorSpec& t : model_->units[static_cast<std::size_t>(unit)].tensors) {
    const std::uint64_t begin = std::max(first, t.offset);
    const std::uint64_t end = std::min(first + data.size() / size, t.offset + t.numel);
    if (begin < end)
      SLUICE_TRY(write_tensor(t, begin - t.offset, data.subspan((begin - first) * size, (end - begin) * size)));
  }
  return success();
}

Status ModelWriter::write_tensor(const TensorSpec& tensor, std::uint64_t first, std::span<const std::byte> data) {
  SLUICE_CHECK(current_ < shards_.size(), "(%s comes after the end)", tensor.name.c_str());
  Shard& shard = shards_[current_];
  if (!writer_) {
    SLUICE_ASSIGN(writer_, SafeTensorsWriter::create(directory_ + "/" + shard.name, shard.tensors, {{"format", "pt"}}));
  }
  SLUICE_TRY(writer_->write(tensor.stored.name, (tensor.stored.first + first) * dtype_bytes(dtype_), data));
  shard.written += data.size();
  if (shard.written < shard.data_bytes) return success();
  SLUICE_TRY(writer_->finish());
  writer_.reset();
  ++current_;
  return success();
}

std::vector<std::string> ModelWriter::files() const {
  std::vector<std::string> names;
  for (const Shard& shard : shards_) names.push_back(shard.name);
  if (shards_.size() > 1) names.push_back(index_name());
  return names;
}

Status ModelWriter::finish() {
  SLUICE_CHECK(current_ == shards_.size(), "%zu of %zu files are written", current_, shards_.size());
  return shards_.size() > 1 ? publish_index() : success();
}

Status ModelWriter::publish_index() const {
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", data_bytes_}};
  for (const Shard& shard : shards_)
    for (const auto& tensor : shard.tensors) index["weight_map"][tensor.name] = shard.name;
  return publish_file(directory_ + "/" + index_name(), index.dump(2) + "\n");
}

}  // namespace sluice
