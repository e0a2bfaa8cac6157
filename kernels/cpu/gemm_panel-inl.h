// Register tile and operand packing shared by gemm and attention, compiled once per SIMD target.
//
// The scheme is that of GotoBLAS (Goto and van de Geijn, TOMS 2008): the right operand is packed into panels a few
// vectors wide whose columns stay in registers, the left operand is broadcast element by element.

#if defined(SLUICE_KERNELS_GEMM_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_GEMM_PANEL_INL_H_
#undef SLUICE_KERNELS_GEMM_PANEL_INL_H_
#else
#define SLUICE_KERNELS_GEMM_PANEL_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sluice/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr std::int64_t lanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));
/// A register tile is tile_rows x up to tile_vectors vectors: as many accumulators as the register file holds.
inline constexpr std::int64_t tile_rows = lanes >= 16 ? 8 : 4;
inline constexpr std::int64_t tile_vectors = 3;
inline constexpr std::int64_t tile_columns = tile_vectors * lanes;
inline constexpr std::int64_t row_panel_padding = 16;

// --- element access ------------------------------------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto half = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
}
HWY_INLINE float load_one(const float* p) { return *p; }
HWY_INLINE float load_one(const bf16* p) { return to_float(*p); }

template <class D>
HWY_INLINE void store_narrowed(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
/// Nearest even, NaN quiet: the same bits as to_bf16.
template <class D>
HWY_INLINE void store_narrowed(D, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto u = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(d32, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 0x8000u)), hn::Set(d32, 0x7fc0u));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16, reinterpret_cast<std::uint16_t*>(p));
}
HWY_INLINE void store_one(float v, float* p) { *p = v; }
HWY_INLINE void store_one(float v, bf16* p) { *p = to_bf16(v); }

// --- packing -------------------------------------------------------------------------------------------------------

/// One operand seen as panels: `outer` runs over rows of the left or columns of the right operand, depth over k.
template <class T>
struct PackSource {
  const T* data;
  std::int64_t ld;
  bool depth_contiguous;  ///< element (outer, depth) lies at outer * ld + depth, else at depth * ld + outer
  std::int64_t outers;    ///< outers at or beyond this are packed as zeros
};

/// Elements of a cache line, and how many rows ahead packing asks for memory when it walks down columns.
template <class T>
inline constexpr std::int64_t line_elements = 64 / static_cast<std::int64_t>(sizeof(T));
inline constexpr std::int64_t prefetch_depth = 16;

#if HWY_TARGET == HWY_SCALAR
/// Outers and depths that SIMD packs; the rest goes element by element.
template <class T>
HWY_INLINE std::int64_t pack_quads(const PackSource<T>&, const T*, std::int64_t, std::int64_t, std::int64_t, float*) {
  return 0;
}
#else
template <class T>
HWY_INLINE void transpose_4x4(const T* src, std::int64_t ld, float* dst, std::int64_t dst_ld) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d2;
  const auto r0 = load_widened(d, src), r1 = load_widened(d, src + ld);
  const auto r2 = load_widened(d, src + 2 * ld), r3 = load_widened(d, src + 3 * ld);
  const auto a = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1)), b = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
  const auto c = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3)), e = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, a, c)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, a, c)), d, dst + dst_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, b, e)), d, dst + 2 * dst_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, b, e)), d, dst + 3 * dst_ld);
}

/// Pack the outers below `full` (a multiple of 4), four at a time. Returns how many depths it packed.
template <class T>
HWY_INLINE std::int64_t pack_quads(const PackSource<T>& s, const T* src, std::int64_t full, std::int64_t width,
                                   std::int64_t depth, float* HWY_RESTRICT dst) {
  if (s.depth_contiguous) {
    const std::int64_t even_depth = depth / 4 * 4;
    for (std::int64_t j = 0; j < full; j += 4)
      for (std::int64_t p = 0; p < even_depth; p += 4) {
        const T* at = src + j * s.ld + p;
        // The next four rows, at this depth: rows are too short here for the hardware to have seen a stream.
        if (p % line_elements<T> == 0)
          for (std::int64_t r = 4; r < 8; ++r) hwy::Prefetch(at + r * s.ld);
        transpose_4x4(at, s.ld, dst + p * width + j, width);
      }
    return even_depth;
  }
  const hn::FixedTag<float, 4> d;
  for (std::int64_t p = 0; p < depth; ++p)
    for (std::int64_t j = 0; j < full; j += 4) hn::StoreU(load_widened(d, src + p * s.ld + j), d, dst + p * width + j);
  return depth;
}
#endif

/// dst[p * width + j] = element (outer + j, depth0 + p), for one panel of `width` outers.
template <class T>
HWY_INLINE void pack_panel(const PackSource<T>& s, std::int64_t outer, std::int64_t width, std::int64_t depth0,
                           std::int64_t depth, float* HWY_RESTRICT dst) {
  const std::int64_t valid = std::clamp<std::int64_t>(s.outers - outer, 0, width);
  const std::int64_t outer_step = s.depth_contiguous ? s.ld : 1, depth_step = s.depth_contiguous ? 1 : s.ld;
  const T* src = s.data + outer * outer_step + depth0 * depth_step;
  if (!s.depth_contiguous && width % lanes == 0 && valid == width) {
    const FloatTag d;
    for (std::int64_t p = 0; p < depth; ++p) {
      hwy::Prefetch(src + (p + prefetch_depth) * depth_step);
      hwy::Prefetch(src + (p + prefetch_depth) * depth_step + width - 1);
      for (std::int64_t j = 0; j < width; j += lanes)
        hn::StoreU(load_widened(d, src + p * depth_step + j), d, dst + p * width + j);
    }
    return;
  }
  const std::int64_t full = valid / 4 * 4;
  const std::int64_t packed_depth = pack_quads(s, src, full, width, depth, dst);
  for (std::int64_t p = 0; p < depth; ++p)
    for (std::int64_t j = p < packed_depth ? full : 0; j < width; ++j)
      dst[p * width + j] = j < valid ? load_one(src + j * outer_step + p * depth_step) : 0.0f;
}

/// Packed rows lie in panels of tile_rows this far apart: a power of two would put all of them into few sets of the
/// cache.
constexpr std::int64_t row_panel_floats(std::int64_t depth) { return depth * tile_rows + row_panel_padding; }

/// Pack `rows` rows of a left operand from `row` on as panels of tile_rows.
template <class T>
HWY_INLINE void pack_row_panels(const PackSource<T>& s, std::int64_t row, std::int64_t rows, std::int64_t depth0,
                                std::int64_t depth, float* HWY_RESTRICT dst) {
  const std::int64_t stride = row_panel_floats(depth), panels = (rows + tile_rows - 1) / tile_rows;
  if (s.depth_contiguous || row + panels * tile_rows > s.outers) {
    for (std::int64_t i = 0; i < panels; ++i)
      pack_panel(s, row + i * tile_rows, tile_rows, depth0, depth, dst + i * stride);
    return;
  }
  // All panels at once, so that each cache line of the operand is touched once.
  const hn::CappedTag<float, static_cast<std::size_t>(tile_rows)> d;
  constexpr auto step = static_cast<std::int64_t>(hn::MaxLanes(d));
  for (std::int64_t p = 0; p < depth; ++p) {
    const T* src = s.data + (depth0 + p) * s.ld + row;
    for (std::int64_t j = 0; j < rows; j += line_elements<T>) hwy::Prefetch(src + 4 * s.ld + j);
    for (std::int64_t i = 0; i < panels; ++i)
      for (std::int64_t j = 0; j < tile_rows; j += step)
        hn::StoreU(load_widened(d, src + i * tile_rows + j), d, dst + i * stride + p * tile_rows + j);
  }
}

/// How `columns` are cut into panels of 2 or 3 vectors: fewer would leave the multipliers waiting for their own
/// results. A panel that begins at vector v lies at v * lanes * depth floats of the packed operand.
class ColumnPanels {
 public:
  explicit ColumnPanels(std::int64_t columns) : vectors_((columns + lanes - 1) / lanes) {}
  std::int64_t count() const { return (vectors_ + tile_vectors - 1) / tile_vectors; }
  std::int64_t start_vector(std::int64_t i) const {
    return vectors_ % 3 == 1 && vectors_ > 1 && i == count() - 1 ? vectors_ - 2 : i * tile_vectors;
  }
  std::int64_t width_vectors(std::int64_t i) const {
    return (i + 1 == count() ? vectors_ : start_vector(i + 1)) - start_vector(i);
  }
  std::int64_t padded_columns() const { return vectors_ * lanes; }

 private:
  std::int64_t vectors_;
};

template <class T>
HWY_INLINE void pack_column_panel(const PackSource<T>& s, const ColumnPanels& panels, std::int64_t i,
                                  std::int64_t column0, std::int64_t depth0, std::int64_t depth, float* packed) {
  const std::int64_t start = panels.start_vector(i) * lanes;
  pack_panel(s, column0 + start, panels.width_vectors(i) * lanes, depth0, depth, packed + start * depth);
}

// --- register tile -------------------------------------------------------------------------------------------------

/// Left operand of a tile: element (row, p) lies at data + row * row_step + p * depth_step. tile_rows rows are read.
struct LeftOperand {
  const float* data;
  std::int64_t row_step, depth_step;
};
/// out = product (+ partial, where it is not null). `partial` and `out` may be the same memory.
template <class Out>
struct TileResult {
  const float* partial;
  std::int64_t partial_ld;
  Out* out;
  std::int64_t out_ld;
};

template <std::int64_t vectors, class Out>
HWY_NOINLINE void multiply_tile(const LeftOperand& a, const float* HWY_RESTRICT b, std::int64_t depth,
                                const TileResult<Out>& r, std::int64_t rows, std::int64_t columns) {
  const FloatTag d;
  FloatVec sum[tile_rows][vectors];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  const std::int64_t row_step = a.row_step, depth_step = a.depth_step;
  const float* HWY_RESTRICT left = a.data;
  const float* partial = r.partial;
  Out* out = r.out;
  const std::int64_t partial_ld = r.partial_ld, out_ld = r.out_ld;
  const bool in_place = static_cast<const void*>(partial) == static_cast<const void*>(out);
  for (std::int64_t i = 0; i < rows; ++i) {  // wanted only after the loop below, which hides the misses
    hwy::Prefetch(out + i * out_ld);
    hwy::Prefetch(out + i * out_ld + columns - 1);
    if (partial == nullptr || in_place) continue;
    hwy::Prefetch(partial + i * partial_ld);
    hwy::Prefetch(partial + i * partial_ld + columns - 1);
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    FloatVec right[vectors];
    for (std::int64_t v = 0; v < vectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      const FloatVec x = hn::Set(d, left[i * row_step]);
      for (std::int64_t v = 0; v < vectors; ++v) sum[i][v] = hn::MulAdd(x, right[v], sum[i][v]);
    }
    left += depth_step;
    b += vectors * lanes;
  }
  if (rows == tile_rows && columns == vectors * lanes) {
    if (partial != nullptr)
      for (std::int64_t i = 0; i < tile_rows; ++i)
        for (std::int64_t v = 0; v < vectors; ++v)
          sum[i][v] = hn::Add(hn::LoadU(d, partial + i * partial_ld + v * lanes), sum[i][v]);
    for (std::int64_t i = 0; i < tile_rows; ++i)
      for (std::int64_t v = 0; v < vectors; ++v) store_narrowed(d, sum[i][v], out + i * out_ld + v * lanes);
    return;
  }
  HWY_ALIGN float whole[tile_rows * vectors * lanes];
  for (std::int64_t i = 0; i < tile_rows; ++i)
    for (std::int64_t v = 0; v < vectors; ++v) hn::Store(sum[i][v], d, whole + (i * vectors + v) * lanes);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const float product = whole[i * vectors * lanes + j];
      store_one(partial != nullptr ? partial[i * partial_ld + j] + product : product, out + i * out_ld + j);
    }
}

/// A packed right operand: columns cut by ColumnPanels, `depth` elements each.
struct RightOperand {
  const float* data;
  std::int64_t columns, depth;
};

/// One tile against panel i, over depth0 .. depth0 + depth of it. `a` begins at depth0; r points to column 0.
template <class Out>
HWY_INLINE void multiply_panel(const LeftOperand& a, const RightOperand& right, std::int64_t i, std::int64_t depth0,
                               std::int64_t depth, TileResult<Out> r, std::int64_t rows) {
  const ColumnPanels panels(right.columns);
  const std::int64_t start = panels.start_vector(i) * lanes, vectors = panels.width_vectors(i);
  const std::int64_t columns = std::min(right.columns - start, vectors * lanes);
  const float* b = right.data + start * right.depth + depth0 * vectors * lanes;
  r.out += start;
  if (r.partial != nullptr) r.partial += start;
  if (vectors == 3)
    multiply_tile<3>(a, b, depth, r, rows, columns);
  else if (vectors == 2)
    multiply_tile<2>(a, b, depth, r, rows, columns);
  else
    multiply_tile<1>(a, b, depth, r, rows, columns);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
