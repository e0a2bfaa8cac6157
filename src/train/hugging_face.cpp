#include "src/train/hugging_face.h"

#include "src/model/hf_weights.h"

namespace sluice {
namespace {

HfLookup lookup_in(const SafeTensors& file) {
  return [&file](const std::string& name) -> std::optional<HfTensor> {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) return std::nullopt;
    HfTensor t;
    t.dtype = to_dtype(entry->dtype);
    t.shape.assign(entry->shape.begin(), entry->shape.end());
    t.read = [&file, entry](std::uint64_t offset, std::span<std::byte> out) { return file.read(*entry, offset, out); };
    return t;
  };
}

}  // namespace

Result<HuggingFaceWeights> HuggingFaceWeights::open(const std::string& directory, const ModelSpec& model) {
  HuggingFaceWeights w;
  SLUICE_ASSIGN(w.file_, SafeTensors::open(directory));
  const Status complete = check_hf_weights(model, lookup_in(w.file_));
  if (!complete.ok()) return complete.error().in(directory);
  return w;
}

Status HuggingFaceWeights::read(const UnitSpec& unit, std::uint64_t first, std::span<float> out) const {
  return read_hf_weights(unit, lookup_in(file_), first, out);
}

}  // namespace sluice
