#include "src/train/hugging_face.h"

#include <algorithm>
#include <vector>

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

constexpr std::uint64_t compared_bytes = 1u << 20;

/// A tied model has one matrix: a second one beside it must be the same, or the file is of an untied model.
Status check_tied(const SafeTensors& file, const ModelSpec& model) {
  const TensorEntry* head = model.config.tied ? file.find("lm_head.weight") : nullptr;
  if (head == nullptr) return success();
  const std::string& name = model.units.front().tensors.front().name;
  const TensorEntry* embedding = file.find(name);
  if (embedding == nullptr) embedding = file.find(std::string_view(name).substr(name.find('.') + 1));
  const Error differs = bad_request("tie_word_embeddings is true, and lm_head.weight is not the same as " + name);
  if (embedding == nullptr || embedding->dtype != head->dtype || embedding->shape != head->shape) return differs;
  std::vector<std::byte> a(compared_bytes), b(compared_bytes);
  for (std::uint64_t at = 0; at < head->bytes; at += compared_bytes) {
    a.resize(std::min(compared_bytes, head->bytes - at));
    b.resize(a.size());
    SLUICE_TRY(file.read(*head, at, a));
    SLUICE_TRY(file.read(*embedding, at, b));
    if (a != b) return differs;
  }
  return success();
}

}  // namespace

Result<HuggingFaceWeights> HuggingFaceWeights::open(const std::string& directory, const ModelSpec& model) {
  HuggingFaceWeights w;
  SLUICE_ASSIGN(w.file_, SafeTensors::open(directory));
  std::vector<std::string> names;
  for (const auto& [name, entry] : w.file_.entries()) names.push_back(name);
  Status complete = check_hf_weights(model, lookup_in(w.file_), names);
  if (complete.ok()) complete = check_tied(w.file_, model);
  if (!complete.ok()) return complete.error().in(directory);
  return w;
}

Status HuggingFaceWeights::read(const UnitSpec& unit, std::uint64_t first, std::span<float> out) const {
  return read_hf_weights(unit, lookup_in(file_), first, out);
}

}  // namespace sluice
