#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned delta_warps = 8;

/// delta[row, head, query] = dot product of out and d_out, a warp each
template <class T>
__global__ void __launch_bounds__(delta_warps* warp_threads) delta_kernel(AttentionCall<T> call) {
  const std::int64_t i = std::int64_t{blockIdx.x} * delta_warps + threadIdx.x / warp_threads;
  const std::int64_t rows = std::int64_t{call.batch} * call.queries * call.heads;
  if (i >= rows) return;
  const std::int64_t token = i / call.heads, head = i % call.heads, at = token * call.out_stride + head * call.dim;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x % warp_threads) * 2; c < call.dim; c += 2 * warp_threads) {
    const int left = call.dim - c;
    const Part part{left < 2 ? left : 2, call.aligned && left >= 2};
    const auto x = Pack<T, 2>::load(call.out + at + c, part), y = Pack<T, 2>::load(call.d_out + at + c, part);
    sum = __fmaf_rn(x[0], y[0], __fmaf_rn(x[1], y[1], sum));
  }
  sum = warp_sum(sum);
  const auto row = static_cast<int>(token / call.queries);
  if (threadIdx.x % warp_threads == 0)
    call.delta[call.rows_of(row, static_cast<int>(head)) + token % call.queries] = sum;
}

template <class T>
AttentionCall<T> call_of(const AttentionShape& s, const T* q, const T* k, const T* v) {
  AttentionCall<T> call{};
  call.q = q, call.k = k, call.v = v;
  call.positions = s.positions;
  call.batch = static_cast<int>(s.batch), call.queries = static_cast<int>(s.queries);
  call.keys = static_cast<int>(s.keys), call.heads = static_cast<int>(s.heads);
  call.kv_heads = static_cast<int>(s.kv_heads), call.dim = static_cast<int>(s.head_dim);
  call.offset = static_cast<int>(s.offset());
  call.window = s.window < s.queries + s.offset() ? static_cast<int>(s.window) : 0;
  call.q_stride = s.q_stride, call.k_stride = s.k_stride, call.v_stride = s.v_stride, call.out_stride = s.out_stride;
  call.scale = s.scale;
  return call;
}

/// Whether 16 bytes from every multiple of 8 (4 in fp32) columns on can be one access. Arrays that are not there can.
template <class T>
bool rows_aligned(const AttentionCall<T>& c) {
  constexpr int n = pack_numel<T>;
  return packs_aligned<n>(c.q, c.q_stride) && packs_aligned<n>(c.dq, c.q_stride) && packs_aligned<n>(c.k, c.k_stride) &&
         packs_aligned<n>(c.dk, c.k_stride) && packs_aligned<n>(c.v, c.v_stride) &&
         packs_aligned<n>(c.dv, c.v_stride) && packs_aligned<n>(c.out, c.out_stride) &&
         packs_aligned<n>(c.d_out, c.out_stride) && c.dim % n == 0;
}

/// False if there is nothing to do, or if it cannot be done.
bool accepted(const AttentionShape& s, Stream& stream) {
  if (!attention_supports(s)) {
    stream.fail("CUDA attention has no kernel for " + std::to_string(s.queries) + " queries, " +
                    std::to_string(s.keys) + " keys and head_dim " + std::to_string(s.head_dim),
                cudaErrorInvalidValue);
    return false;
  }
  return s.batch > 0 && s.queries > 0;
}

}  // namespace

bool attention_supports(const AttentionShape& s) {
  constexpr std::int64_t most = 1 << 30, blocks = 0x7fffffff;
  const bool placed =
      s.shift.has_value() ? s.keys > 0 && -most < *s.shift && *s.shift < most - s.queries : s.queries <= s.keys;
  return s.head_dim > 0 && s.head_dim <= 128 && s.scale > 0 && placed && s.queries < most && s.keys < most &&
         s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.heads < most && s.batch < most &&
         s.batch * s.heads <= blocks / divide_up(std::max(s.queries, s.keys) + 1, 16);
}

std::uint64_t attention_workspace_bytes(const AttentionShape& s, Dtype) {
  return static_cast<std::uint64_t>(s.batch * s.heads * s.queries) * sizeof(float);
}

template <class T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* lse,
                       std::span<std::byte>, Stream& stream) {
  if (!accepted(shape, stream)) return;
  AttentionCall<T> call = call_of(shape, q, k, v);
  call.out = out, call.lse = lse;
  call.aligned = rows_aligned(call);
  attention_forward_pass(call, stream);
}

template <class T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* lse, T* dq, T* dk, T* dv, std::span<std::byte> workspace, Stream& stream) {
  if (!accepted(shape, stream)) return;
  SLUICE_CHECK(workspace.size() >= cuda::attention_workspace_bytes(shape, Dtype::f32), "%zu", workspace.size());
  AttentionCall<T> call = call_of(shape, q, k, v);
  call.out = const_cast<T*>(out), call.lse = const_cast<float*>(lse);  // the passes of backward only read them
  call.d_out = d_out, call.dq = dq, call.dk = dk, call.dv = dv;
  call.delta = reinterpret_cast<float*>(workspace.data());
  call.aligned = rows_aligned(call);
  const std::int64_t rows = shape.batch * shape.queries * shape.heads;
  launch(stream, "attention_backward (delta)", delta_kernel<T>,
         dim3(static_cast<unsigned>(divide_up(rows, delta_warps))), dim3(delta_warps * warp_threads), call);
  attention_keys_pass(call, stream);
  attention_queries_pass(call, stream);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                  \
  template void attention_forward<T>(const AttentionShape&, const T*, const T*, const T*, T*, float*,          \
                                     std::span<std::byte>, Stream&);                                           \
  template void attention_backward<T>(const AttentionShape&, const T*, const T*, const T*, const T*, const T*, \
                                      const float*, T*, T*, T*, std::span<std::byte>, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
