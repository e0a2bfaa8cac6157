#include "src/model/init.h"

#include <algorithm>

#include "kernels/cpu/random.h"

namespace sluice {
namespace {

/// out = elements [first, first + out.size()) of the tensor
void fill(const TensorSpec& tensor, std::uint64_t seed, std::uint64_t first, std::span<float> out) {
  switch (tensor.init) {
    case TensorSpec::Init::ones: std::fill(out.begin(), out.end(), 1.0f); return;
    case TensorSpec::Init::zeros: std::fill(out.begin(), out.end(), 0.0f); return;
    case TensorSpec::Init::normal: break;
  }
  kernels::fill_normal(seed, tensor.index, first, static_cast<float>(tensor.init_std), out);
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
