#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

template <class T>
struct EmbedForward {
  static constexpr int n = pack_numel<T>;
  const std::int32_t *tokens, *token_positions;
  const T *table, *positions;
  T* out;
  std::int64_t sequence, position0, width;
  struct In {
    Pack<T, n> word, place;
  };
  __device__ In load(std::int64_t t, std::int64_t c, Part part) const {
    In in;
    const std::int64_t token = tokens[t];
    if (token >= 0) in.word = Pack<T, n>::load(table + token * width + c, part);
    if (positions != nullptr) {
      const std::int64_t p = token_positions != nullptr ? token_positions[t] : position0 + t % sequence;
      in.place = Pack<T, n>::load(positions + p * width + c, part);
    }
    return in;
  }
  __device__ void finish(std::int64_t t, std::int64_t c, Part part, const In& in) const {
    T* to = out + t * width + c;
    if (positions == nullptr) {  // bit for bit
      in.word.store(to, part);
      return;
    }
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in.word[j] + in.place[j];
    Pack<T, n>::of(v).store(to, part);
  }
};

constexpr unsigned scatter_threads = 256, scatter_warps = scatter_threads / warp_threads;
/// Tokens that a thread compares at once.
constexpr int looks = 4;

/// Rows of d_out that are on their way while those before are added.
constexpr int depth = 4;

/// One row of the table: a pack of its columns in registers.
template <class T>
struct RowSum {
  static constexpr int n = pack_numel<T>;
  const T* d_out;
  std::int64_t width;
  Part part;
  float sum[n];

  /// Adds rows row_of(0), row_of(1), ... row_of(total - 1) in this order.
  template <class RowOf>
  __device__ void add_rows(std::int64_t total, const RowOf& row_of) {
    for (std::int64_t i = 0; i < total; i += depth) {
      Pack<T, n> rows[depth];
#pragma unroll
      for (int q = 0; q < depth; ++q)
        if (i + q < total) rows[q] = Pack<T, n>::load(d_out + row_of(i + q) * width, part);
#pragma unroll
      for (int q = 0; q < depth; ++q)
        if (i + q < total) {
#pragma unroll
          for (int j = 0; j < n; ++j) sum[j] += rows[q][j];
        }
    }
  }
};

/// d_rows[ids[t], :] += d_out[t, :] in the order of t, without sorting ids: block t does the work of its id if t is the
/// first token that has it, and finds the others itself, `chunk` tokens at a time. The comparisons are count^2 / 2 at
/// most, all from the cache, where a sort would take several passes and a workspace. Without ids, t's is t % sequence.
template <class T>
__global__ void __launch_bounds__(scatter_threads)
    scatter_rows_kernel(const std::int32_t* ids, std::int64_t count, std::int64_t sequence, const T* d_out,
                        std::int64_t width, float* d_rows, bool aligned) {
  constexpr int n = pack_numel<T>;
  constexpr std::int64_t chunk = std::int64_t{looks} * scatter_threads;
  __shared__ std::uint32_t found[2][looks][scatter_warps];
  __shared__ std::uint16_t list[chunk];
  const unsigned lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
  int turn = 0;
  for (std::int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const std::int64_t id = ids != nullptr ? ids[t] : t;
    if (id < 0 || (ids == nullptr && t >= sequence)) continue;
    bool before = false;
    if (ids != nullptr)
      for (std::int64_t begin = 0; begin < t && !before; begin += chunk) {
        bool hit = false;
#pragma unroll
        for (int k = 0; k < looks; ++k) {
          const std::int64_t s = begin + std::int64_t{k} * scatter_threads + threadIdx.x;
          hit |= s < t && ids[s] == id;
        }
        before = __syncthreads_or(hit) != 0;
      }
    if (before) continue;

    const std::int64_t column = (std::int64_t{blockIdx.y} * scatter_threads + threadIdx.x) * n;
    RowSum<T> row{d_out + column, width, column < width ? part_of<n>(column, width, aligned) : Part{}, {}};
    float* const to = d_rows + id * width + column;
    const Pack<float, n> start = Pack<float, n>::load(to, row.part);
#pragma unroll
    for (int j = 0; j < n; ++j) row.sum[j] = start[j];

    if (ids == nullptr) {
      row.add_rows(divide_up(count - t, sequence), [=](std::int64_t i) { return t + i * sequence; });
    } else {
      for (std::int64_t begin = t; begin < count; begin += chunk) {
        std::uint32_t mask[looks];
#pragma unroll
        for (int k = 0; k < looks; ++k) {
          const std::int64_t s = begin + std::int64_t{k} * scatter_threads + threadIdx.x;
          mask[k] = __ballot_sync(all_lanes, s < count && ids[s] == id);
          if (lane == 0) found[turn][k][warp] = mask[k];
        }
        __syncthreads();
        // Where this thread's hits come in the chunk's order, and how many there are.
        int total = 0;
#pragma unroll
        for (int k = 0; k < looks; ++k)
          for (unsigned w = 0; w < scatter_warps; ++w) {
            if (w == warp && (mask[k] >> lane & 1u) != 0)
              list[total + __popc(mask[k] & ((1u << lane) - 1))] =
                  static_cast<std::uint16_t>(k * scatter_threads + threadIdx.x);
            total += __popc(found[turn][k][w]);
          }
        turn = 1 - turn;  // the next chunk's masks may be written before all have read these
        if (total == 0) continue;
        __syncthreads();  // the list is written again behind the next chunk's first barrier
        row.add_rows(total, [=](std::int64_t i) { return begin + list[i]; });
      }
    }
    Pack<float, n>::of(row.sum).store(to, row.part);
  }
}

template <class T>
void scatter_rows(const char* name, const std::int32_t* ids, std::int64_t count, std::int64_t sequence, const T* d_out,
                  std::int64_t width, float* d_rows, Stream& stream) {
  if (count <= 0 || width <= 0) return;
  constexpr int n = pack_numel<T>;
  const std::int64_t firsts = ids != nullptr ? count : std::min(count, sequence);
  const dim3 blocks(static_cast<unsigned>(std::min<std::int64_t>(firsts, 1 << 20)),
                    static_cast<unsigned>(divide_up(width, std::int64_t{scatter_threads} * n)));
  launch(stream, name, scatter_rows_kernel<T>, blocks, dim3(scatter_threads), ids, count, sequence, d_out, width,
         d_rows, packs_aligned<n>(d_out, width) && packs_aligned<n>(d_rows, width));
}

}  // namespace

template <class T>
void embed_forward(const std::int32_t* tokens, std::int64_t count, std::int64_t sequence, std::int64_t position0,
                   const T* table, const T* positions, std::int64_t width, T* out, const std::int32_t* token_positions,
                   Stream& stream) {
  constexpr int n = pack_numel<T>;
  map(stream, "embed_forward",
      EmbedForward<T>{tokens, token_positions, table, positions, out, sequence, position0, width}, count, width,
      packs_aligned<n>(table, width) && packs_aligned<n>(positions, width) && packs_aligned<n>(out, width));
}

template <class T>
void embed_backward(const std::int32_t* tokens, std::int64_t count, std::int64_t sequence, const T* d_out,
                    std::int64_t width, float* d_table, float* d_positions, const std::int32_t* token_positions,
                    Stream& stream) {
  scatter_rows("embed_backward (tokens)", tokens, count, sequence, d_out, width, d_table, stream);
  if (d_positions != nullptr)
    scatter_rows("embed_backward (positions)", token_positions, count, sequence, d_out, width, d_positions, stream);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                       \
  template void embed_forward<T>(const std::int32_t*, std::int64_t, std::int64_t, std::int64_t, const T*, const T*, \
                                 std::int64_t, T*, const std::int32_t*, Stream&);                                   \
  template void embed_backward<T>(const std::int32_t*, std::int64_t, std::int64_t, const T*, std::int64_t, float*,  \
                                  float*, const std::int32_t*, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
