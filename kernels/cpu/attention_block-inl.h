// Pieces that attention's forward and backward share, compiled once per SIMD target.

#if defined(SLUICE_KERNELS_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_ATTENTION_BLOCK_INL_H_
#undef SLUICE_KERNELS_ATTENTION_BLOCK_INL_H_
#else
#define SLUICE_KERNELS_ATTENTION_BLOCK_INL_H_
#endif

#include "kernels/cpu/attention_exp-inl.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/gemm_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// dst[i] = src[i] * factor, for n elements.
template <class T>
HWY_INLINE void widen_scaled(const T* src, float factor, std::int64_t n, float* dst) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(load_widened(d, src + i), hn::Set(d, factor)), d, dst + i);
  for (; i < n; ++i) dst[i] = load_one(src + i) * factor;
}
/// dst[i] = src[i] * factor, narrowed to T.
template <class T>
HWY_INLINE void narrow_scaled(const float* src, float factor, std::int64_t n, T* dst) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_narrowed(d, hn::Mul(hn::LoadU(d, src + i), hn::Set(d, factor)), dst + i);
  for (; i < n; ++i) store_one(src[i] * factor, dst + i);
}
HWY_INLINE void scale_row(float* x, float factor, std::int64_t n) { narrow_scaled(x, factor, n, x); }

template <class T>
HWY_INLINE float dot(const T* a, const T* b, std::int64_t n) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(load_widened(d, a + i), load_widened(d, b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += load_one(a + i) * load_one(b + i);
  return total;
}

/// Rows of a head as a left operand: row-major fp32 times factor; rows up to a whole tile are zeros.
template <class T>
HWY_INLINE void widen_rows(const T* src, std::int64_t stride, std::int64_t rows, std::int64_t head_dim, float factor,
                           float* dst) {
  for (std::int64_t r = 0; r < rows; ++r) widen_scaled(src + r * stride, factor, head_dim, dst + r * head_dim);
  std::fill(dst + rows * head_dim, dst + round_up(rows, tile_rows) * head_dim, 0.0f);
}

/// Pack all columns of an operand over [depth0, depth0 + depth).
template <class T>
HWY_INLINE void pack_columns(const PackSource<T>& s, std::int64_t column0, std::int64_t columns, std::int64_t depth0,
                             std::int64_t depth, float* packed) {
  const ColumnPanels panels(columns);
  for (std::int64_t i = 0; i < panels.count(); ++i) pack_column_panel(s, panels, i, column0, depth0, depth, packed);
}

/// out = left x right (+ out) for `rows` rows, over the panels that hold columns of `range`.
HWY_INLINE void multiply_columns(const LeftOperand& left, std::int64_t rows, const RightOperand& right,
                                 const KeyRange& range, float* out, std::int64_t out_ld) {
  const ColumnPanels panels(right.columns);
  for (std::int64_t i = 0; i < panels.count(); ++i) {
    const std::int64_t start = panels.start_vector(i) * lanes, end = start + panels.width_vectors(i) * lanes;
    if (end <= range.first || start >= range.last) continue;
    for (std::int64_t r = 0; r < rows; r += tile_rows) {
      const LeftOperand a{left.data + r * left.row_step, left.row_step, left.depth_step};
      multiply_panel<float>(a, right, i, 0, right.depth, {nullptr, 0, out + r * out_ld, out_ld},
                            std::min(tile_rows, rows - r));
    }
  }
}

/// out += left x right for `rows` rows, over depths [depth0, depth0 + depth) of the right operand.
HWY_INLINE void multiply_add(const LeftOperand& left, std::int64_t rows, const RightOperand& right, std::int64_t depth0,
                             std::int64_t depth, float* out, std::int64_t out_ld) {
  const std::int64_t count = ColumnPanels(right.columns).count();
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t r = 0; r < rows; r += tile_rows) {
      const LeftOperand a{left.data + r * left.row_step, left.row_step, left.depth_step};
      float* at = out + r * out_ld;
      multiply_panel<float>(a, right, i, depth0, depth, {at, out_ld, at, out_ld}, std::min(tile_rows, rows - r));
    }
}

/// Columns [first, last) of a row of scores widened to whole vectors: [begin, end) holds them, and what lies outside
/// `visible` is set to `hidden`.
HWY_INLINE KeyRange hide_columns(float* row, const KeyRange& block, const KeyRange& visible, float hidden) {
  const KeyRange whole{block.first / lanes * lanes, round_up(block.last, lanes)};
  std::fill(row + whole.first, row + visible.first, hidden);
  std::fill(row + visible.last, row + whole.last, hidden);
  return whole;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
