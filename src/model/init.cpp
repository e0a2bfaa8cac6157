#include "src/model/init.h"

#include <algorithm>

#include "sluice/random.h"

namespace sluice {
namespace {

/// out = elements [first, first + out.size()) of the tensor
void fill(const TensorSpec& tensor, std::uint64_t seed, std::uint64_t first, std::span<float> out) {
  switch (tensor.init) {
    case TensorSpec::Init::ones: std::fill(out.begin(), out.end(), 1.0f); return;
    case TensorSpec::Init::zeros: std::fill(out.begin(), out.end(), 0.0f); return;
    case TensorSpec::Init::normal: break;
  }
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(tensor.init_std * philox_normal(seed, first + i, tensor.index));
}

}  // namespace

void initial_weights(const UnitSpec& unit, std::uint64_t seed, std::uint64_t first, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const std::uint64_t last = first + out.size();
  for (const TensorSpec& t : unit.tensors) {
    const std::uint64_t a = std::max(first, t.offset), b = std::min(last, t.offset + t.numel);
    if (a < b) fill(t, seed, a - t.offset, out.subspan(a - first, b - a));
  }
}

}  // namespace sluice
