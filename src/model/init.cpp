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

void initial_weights(const SplitModel& split, RankId rank, UnitId unit, std::uint64_t seed, std::uint64_t first,
                     std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const std::uint64_t last = first + out.size();
  const std::vector<TensorSpec>& tensors = split.part().units[static_cast<std::size_t>(unit)].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& t = tensors[i];
    if (t.offset >= last || t.offset + t.numel <= first) continue;
    split.each_run(unit, i, rank, [&](const SplitModel::Run& run) {
      const std::uint64_t begin = t.offset + run.of_part;
      const std::uint64_t a = std::max(first, begin), b = std::min(last, begin + run.numel);
      if (a < b) fill(t, seed, run.of_whole + (a - begin), out.subspan(a - first, b - a));
    });
  }
}

}  // namespace sluice
