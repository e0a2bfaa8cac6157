#include "kernels/cpu/attention.h"

#include <omp.h>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/parallel.h"
#include "sluice/status.h"

namespace sluice::kernels {
namespace {

void check_shape(const AttentionShape& s) {
  const bool placed = s.shift.has_value() ? s.keys > 0 : s.keys >= s.queries;
  SLUICE_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && placed && s.head_dim > 0 && s.window >= 0,
               "heads %lld, kv heads %lld, queries %lld, keys %lld", static_cast<long long>(s.heads),
               static_cast<long long>(s.kv_heads), static_cast<long long>(s.queries), static_cast<long long>(s.keys));
}

/// The team: the calling thread's, but no more than the workspace has room for.
int team_size(const AttentionWorkspace& w, std::span<std::byte> workspace) {
  const auto floats = static_cast<std::int64_t>(workspace.size() / sizeof(float));
  const std::int64_t room = (floats - w.shared_floats()) / w.thread_floats;
  SLUICE_CHECK(room >= 1, "attention workspace of %zu bytes is too small", workspace.size());
  return static_cast<int>(std::min<std::int64_t>(room, omp_get_max_threads()));
}

}  // namespace

std::uint64_t attention_workspace_bytes(const AttentionShape& shape, Dtype) {
  const std::int64_t threads = machine_cores();
  return std::max(workspace_bytes(forward_workspace(shape, threads), threads),
                  workspace_bytes(backward_workspace(shape, threads), threads));
}

template <class T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* lse,
                       std::span<std::byte> workspace) {
  check_shape(shape);
  if (shape.batch == 0 || shape.queries == 0) return;
  AttentionCall<T> call{};
  call.shape = shape;
  call.shape.shift = shape.offset();
  call.q = q, call.k = k, call.v = v;
  call.out_mutable = out, call.lse_mutable = lse;
  call.layout = forward_workspace(shape, machine_cores());
  call.workspace = reinterpret_cast<float*>(workspace.data());
  call.threads = team_size(call.layout, workspace);
  attention_forward_blocks(call);
}

template <class T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* lse, T* dq, T* dk, T* dv, std::span<std::byte> workspace) {
  check_shape(shape);
  if (shape.batch == 0 || shape.queries == 0) return;
  AttentionCall<T> call{};
  call.shape = shape;
  call.shape.shift = shape.offset();
  call.q = q, call.k = k, call.v = v, call.out = out, call.d_out = d_out, call.lse = lse;
  call.dq = dq, call.dk = dk, call.dv = dv;
  call.layout = backward_workspace(shape, machine_cores());
  call.workspace = reinterpret_cast<float*>(workspace.data());
  call.threads = team_size(call.layout, workspace);
  attention_backward_blocks(call);
}

template void attention_forward<float>(const AttentionShape&, const float*, const float*, const float*, float*, float*,
                                       std::span<std::byte>);
template void attention_forward<bf16>(const AttentionShape&, const bf16*, const bf16*, const bf16*, bf16*, float*,
                                      std::span<std::byte>);
template void attention_backward<float>(const AttentionShape&, const float*, const float*, const float*, const float*,
                                        const float*, const float*, float*, float*, float*, std::span<std::byte>);
template void attention_backward<bf16>(const AttentionShape&, const bf16*, const bf16*, const bf16*, const bf16*,
                                       const bf16*, const float*, bf16*, bf16*, bf16*, std::span<std::byte>);

}  // namespace sluice::kernels
