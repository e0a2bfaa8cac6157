// Moves of bytes within a device, or between devices that see each other's memory, in the order of a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

void copy(void* dst, const void* src, std::size_t bytes, Stream& stream);
void zero(void* dst, std::size_t bytes, Stream& stream);

/// x[i] = value for n elements.
void fill_f32(float* x, float value, std::int64_t n, Stream& stream);

/// `rows` rows of row_bytes, `src_stride` and `dst_stride` bytes apart (such as a tensor-parallel slice and its place
/// in a matrix). Rows do not overlap. Any alignment; the widest accesses that all of it allows.
void copy_rows(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride, std::int64_t row_bytes,
               std::int64_t rows, Stream& stream);

/// One contiguous piece of a gather.
struct CopyPiece {
  const void* src = nullptr;
  void* dst = nullptr;
  std::int64_t bytes = 0;
};

/// All pieces at once, such as the shards of a unit into its open buffer. `pieces`: [count] on the device; destinations
/// do not overlap each other or any source. Most even where pieces are about equal; `largest_bytes` is that of the
/// largest.
void copy_pieces(const CopyPiece* pieces, std::int64_t count, std::int64_t largest_bytes, Stream& stream);

}  // namespace sluice::kernels::cuda
