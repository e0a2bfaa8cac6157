#include "src/train/states/diff_checkpoints.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "src/train/states/state_layout.h"
#include "src/train/states/state_source.h"

namespace sluice {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Of a state of a tensor, piece by piece.
class Comparison {
 public:
  void add(std::span<const std::byte> a, std::span<const std::byte> b) {
    const std::size_t n = a.size() / sizeof(float);
    const bool same = std::memcmp(a.data(), b.data(), a.size()) == 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float x = value(a, i);
      norm_ += static_cast<double>(x) * x;
      if (!same) add(x, value(b, i));
    }
  }
  std::uint64_t different() const { return different_; }
  double largest() const { return largest_; }
  double relative() const {
    if (squares_ == 0) return 0;
    const double ratio = std::sqrt(squares_) / std::sqrt(norm_);
    return std::isfinite(ratio) ? ratio : infinite;
  }

 private:
  static float value(std::span<const std::byte> data, std::size_t i) {
    float value;
    std::memcpy(&value, data.data() + i * sizeof value, sizeof value);
    return value;
  }
  void add(float x, float y) {
    if (std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y)) return;
    ++different_;
    const double difference = std::fabs(static_cast<double>(x) - static_cast<double>(y));
    largest_ = std::isfinite(difference) ? std::max(largest_, difference) : infinite;
    squares_ += std::isfinite(difference) ? difference * difference : infinite;
  }

  std::uint64_t different_ = 0;
  double largest_ = 0, squares_ = 0, norm_ = 0;
};

/// Whole tensors as flat buffers of their own.
std::vector<std::vector<TensorPiece>> whole_tensors(const std::vector<StoredTensor>& tensors,
                                                    const std::vector<std::uint32_t>& numbers) {
  std::vector<std::vector<TensorPiece>> all;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    all.push_back({{numbers[t], 0, 0, tensors[t].rows(), tensors[t].columns(), 0, tensors[t].columns()}});
  return all;
}

/// All windows of one checkpoint: tensor by tensor, state by state.
class TensorWindows {
 public:
  TensorWindows(const std::vector<StoredTensor>& tensors, const std::vector<std::vector<TensorPiece>>& pieces,
                std::span<const StateKind> kinds)
      : tensors_(tensors), pieces_(pieces), kinds_(kinds) {}
  std::optional<StateWindow> operator()() {
    if (tensor_ == tensors_.size()) return std::nullopt;
    const std::uint64_t all = tensors_[tensor_].rows() * tensors_[tensor_].columns();
    const StateWindow window{&pieces_[tensor_], kinds_[kind_], first_, std::min(state_window_numel, all - first_),
                             tensor_};
    if ((first_ += window.numel) < all) return window;
    first_ = 0;
    if (++kind_ < kinds_.size()) return window;
    kind_ = 0;
    ++tensor_;
    return window;
  }

 private:
  const std::vector<StoredTensor>& tensors_;
  const std::vector<std::vector<TensorPiece>>& pieces_;
  std::span<const StateKind> kinds_;
  std::size_t tensor_ = 0, kind_ = 0;
  std::uint64_t first_ = 0;
};

}  // namespace

Result<CheckpointDiff> diff_checkpoints(Checkpoint& a, Checkpoint& b, const QueueOptions& queue,
                                        const std::function<Status(double)>& watch) {
  const StoredFormats wide;  // fp32 values of everything
  StateSource first(a, wide, queue), second(b, wide, queue);
  const std::vector<StoredTensor>& tensors = a.manifest().tensors;
  SLUICE_ASSIGN(const std::vector<std::uint32_t> own, first.tensors(tensors));
  SLUICE_ASSIGN(const std::vector<std::uint32_t> others, second.tensors(tensors));
  const auto pieces_a = whole_tensors(tensors, own), pieces_b = whole_tensors(tensors, others);
  CheckpointDiff diff;
  if (first.has_moments() != second.has_moments()) diff.without_moments = first.has_moments() ? 2 : 1;
  const std::vector<StateKind> kinds = state_kinds(wide, false, first.has_moments() && second.has_moments());
  diff.tensors = tensors.size();
  for (const StoredTensor& t : tensors) diff.elements += t.rows() * t.columns() * kinds.size();
  SLUICE_TRY(first.begin(TensorWindows(tensors, pieces_a, kinds)));
  SLUICE_TRY(second.begin(TensorWindows(tensors, pieces_b, kinds)));
  Comparison comparison;
  std::uint64_t done = 0;
  for (;;) {
    SLUICE_ASSIGN(const auto x, first.take());
    if (!x) return diff;
    SLUICE_ASSIGN(const auto y, second.take());
    comparison.add(x->data, y->data);
    done += x->window.numel;
    if (watch) SLUICE_TRY(watch(static_cast<double>(done) / static_cast<double>(diff.elements)));
    const StoredTensor& tensor = tensors[x->window.target];
    const std::uint64_t numel = tensor.rows() * tensor.columns();
    if (x->window.first + x->window.numel < numel) continue;
    if (comparison.different() > 0)
      diff.differences.push_back(
          {tensor.name, x->window.kind, numel, comparison.different(), comparison.largest(), comparison.relative()});
    comparison = {};
  }
}

}  // namespace sluice
