#include "src/model/hf_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace sluice {
namespace {

/// IEEE half precision, exactly.
float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

Result<HfTensor> find(const TensorSpec& tensor, const HfLookup& lookup) {
  std::optional<HfTensor> found = lookup(tensor.name);
  for (const std::string_view prefix : {"model.", "transformer."})
    if (!found && tensor.name.starts_with(prefix)) found = lookup(tensor.name.substr(prefix.size()));
  if (!found) return bad_request(fmt::format("tensor {} is missing from the weights", tensor.name));
  if (found->shape != tensor.shape)
    return bad_request(fmt::format("tensor {} has shape [{}], the config asks for [{}]", tensor.name,
                                   fmt::join(found->shape, ", "), fmt::join(tensor.shape, ", ")));
  if (found->dtype != Dtype::f32 && found->dtype != Dtype::bf16 && found->dtype != Dtype::f16)
    return bad_request(fmt::format("tensor {} is neither F32, BF16 nor F16", tensor.name));
  return std::move(*found);
}

/// 16-bit values lie in the second half of `out` and are widened from the front: a value is read before the float that
/// covers it is written.
void widen_in_place(Dtype dtype, std::span<float> out) {
  const std::byte* from = reinterpret_cast<const std::byte*>(out.data()) + 2 * out.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    out[i] = dtype == Dtype::bf16 ? to_float(bf16{bits}) : half_to_float(bits);
  }
}

/// out = elements [first, first + out.size()) of the tensor
Status read_tensor(const TensorSpec& tensor, const HfLookup& lookup, std::uint64_t first, std::span<float> out) {
  SLUICE_ASSIGN(const HfTensor stored, find(tensor, lookup));
  const std::span<std::byte> bytes = std::as_writable_bytes(out);
  if (*stored.dtype == Dtype::f32) return stored.read(4 * first, bytes);
  SLUICE_TRY(stored.read(2 * first, bytes.subspan(bytes.size() / 2)));
  widen_in_place(*stored.dtype, out);
  return success();
}

}  // namespace

Status check_hf_weights(const ModelSpec& model, const HfLookup& lookup) {
  for (const UnitSpec& unit : model.units)
    for (const TensorSpec& tensor : unit.tensors)
      if (auto stored = find(tensor, lookup); !stored) return stored.error();
  return success();
}

Status read_hf_weights(const UnitSpec& unit, const HfLookup& lookup, std::uint64_t first, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const std::uint64_t last = first + out.size();
  for (const TensorSpec& t : unit.tensors) {
    const std::uint64_t a = std::max(first, t.offset), b = std::min(last, t.offset + t.numel);
    if (a < b) SLUICE_TRY(read_tensor(t, lookup, a - t.offset, out.subspan(a - first, b - a)));
  }
  return success();
}

}  // namespace sluice
