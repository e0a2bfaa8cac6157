#include "src/model/hf_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>

#include "sluice/half.h"

namespace sluice {
namespace {

constexpr std::size_t listed_max = 8;

/// What is wrong with the stored tensor for the model's, in a few words after its name; empty if nothing is.
std::string mismatch(const TensorSpec& tensor, const HfTensor& stored) {
  if (stored.shape != tensor.stored.shape)
    return fmt::format("has shape [{}], the config asks for [{}]", fmt::join(stored.shape, ", "),
                       fmt::join(tensor.stored.shape, ", "));
  if (stored.dtype != Dtype::f32 && stored.dtype != Dtype::bf16 && stored.dtype != Dtype::f16)
    return "is neither F32, BF16 nor F16";
  return {};
}

/// Of at most listed_max: "a, b and 3 more".
std::string listed(const std::vector<std::string>& items) {
  const std::size_t shown = std::min(items.size(), listed_max);
  const std::string text = fmt::format("{}", fmt::join(items.begin(), items.begin() + shown, ", "));
  return items.size() > shown ? fmt::format("{} and {} more", text, items.size() - shown) : text;
}

/// Tables that older versions of transformers saved with the weights: they follow from the config.
bool is_derived(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

template <class Convert>
void widen_16_bit(std::span<const std::byte> elements, std::span<float> out, const Convert& convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, elements.data() + 2 * i, sizeof bits);
    out[i] = convert(bits);
  }
}

}  // namespace

std::vector<std::string> hf_names(const TensorSpec& tensor) {
  const std::string& name = tensor.stored.name;
  std::vector<std::string> names{name};
  for (const std::string_view prefix : {"model.", "transformer."})
    if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
  return names;
}

Status check_hf_weights(const ModelSpec& model, const HfLookup& lookup, std::span<const std::string> stored) {
  std::vector<std::string> missing, wrong, unknown;
  std::set<std::string, std::less<>> used;
  for (const UnitSpec& unit : model.units)
    for (const TensorSpec& tensor : unit.tensors) {
      if (tensor.stored.first > 0) continue;  // of one that another tensor begins
      const std::vector<std::string> names = hf_names(tensor);
      const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return lookup(n).has_value(); });
      if (name == names.end()) {
        missing.push_back(tensor.stored.name);
        continue;
      }
      used.insert(*name);
      if (const std::string why = mismatch(tensor, *lookup(*name)); !why.empty()) wrong.push_back(*name + " " + why);
    }
  for (const std::string& name : stored)
    if (!used.contains(name) && !is_derived(name) && !(model.config.tied && name == "lm_head.weight"))
      unknown.push_back(name);
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back("missing: " + listed(missing));
  if (!wrong.empty()) parts.push_back("wrong: " + listed(wrong));
  if (!unknown.empty()) parts.push_back("not in the model that the config describes: " + listed(unknown));
  if (parts.empty()) return success();
  return bad_request(fmt::format("the tensors are not the model's; {}", fmt::join(parts, "; ")));
}

void widen(Dtype dtype, std::span<const std::byte> elements, std::span<float> out) {
  SLUICE_CHECK(elements.size() == out.size() * dtype_bytes(dtype), "%zu bytes for %zu elements", elements.size(),
               out.size());
  if (dtype == Dtype::f32)
    std::memcpy(out.data(), elements.data(), elements.size());
  else if (dtype == Dtype::bf16)
    widen_16_bit(elements, out, [](std::uint16_t bits) { return to_float(bf16{bits}); });
  else
    widen_16_bit(elements, out, half_to_float);
}

}  // namespace sluice
