#include "src/device/cuda/bench.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/copy.h"
#include "src/device/cuda/sublayers.h"

namespace sluice {
namespace {

/// More than a device's caches hold. Its bytes are written before what is timed, which gives the host a lead too: the
/// device finds all of an op's kernels in its queue.
constexpr std::uint64_t eviction_bytes = 128u << 20;

constexpr int algorithms_timed = 8;
constexpr std::uint64_t noise_bytes = 4u << 20;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<std::byte*> CudaBench::Area::at_least(std::uint64_t bytes) {
  if (bytes <= bytes_) return data_;
  release();
  if (on_host_) {
    SLUICE_ASSIGN(data_, map_pages(bytes));
    if (Status pinned = device_.pin(data_, bytes); !pinned.ok()) {
      unmap_pages(data_, bytes);
      data_ = nullptr;
      return pinned.error();
    }
  } else {
    SLUICE_ASSIGN(data_, device_.allocate(bytes));
  }
  bytes_ = bytes;
  SLUICE_ASSIGN(const Pages noise, Pages::make(noise_bytes));
  fill_random(noise, Dtype::f32, 1);
  for (std::uint64_t at = 0; at < bytes; at += noise_bytes)
    SLUICE_TRY(device_.copy(data_ + at, noise.data(), std::min(noise_bytes, bytes - at)));
  return data_;
}

void CudaBench::Area::release() {
  if (data_ == nullptr) return;
  if (on_host_) {
    device_.unpin(data_, bytes_);
    unmap_pages(data_, bytes_);
  } else {
    device_.free(data_, bytes_);
  }
  data_ = nullptr;
  bytes_ = 0;
}

Result<DeviceQueue::Ran> CudaBench::Lane::mark_and_await() {
  SLUICE_TRY(queue->mark(++marks));
  return queue->await(marks);
}

Result<std::unique_ptr<DeviceBench>> CudaBench::create(CudaDevice& device, const KernelChoices& made) {
  std::unique_ptr<CudaBench> bench(new CudaBench(device));
  SLUICE_TRY(device.make_current());
  SLUICE_ASSIGN(bench->gemm_, make_gemm(made, algorithms_timed));
  SLUICE_ASSIGN(bench->compute_.queue, device.make_queue(false));
  SLUICE_ASSIGN(bench->down_.queue, device.make_queue(true));
  SLUICE_ASSIGN(bench->up_.queue, device.make_queue(true));
  bench->stream_ = std::make_unique<kernels::cuda::Stream>(bench->compute_.queue->stream());
  if (!bench->stream_->status().ok()) return bench->stream_->status().error();
  bench->kernels_ = std::make_unique<CudaKernels>(*bench->stream_, *bench->gemm_);
  return std::unique_ptr<DeviceBench>(std::move(bench));
}

Status CudaBench::evict() {
  SLUICE_ASSIGN(std::byte * memory, areas_[1].at_least(eviction_bytes));
  SLUICE_TRY(device_.make_current());
  kernels_->zero(memory, eviction_bytes);
  return kernels_->status();
}

Result<double> CudaBench::op_seconds(OpKind op, const SublayerArgs& args) {
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.queue->begin());
  SLUICE_TRY(run_sublayer_on_cuda(*kernels_, op, args));
  SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.mark_and_await());
  return ran.end - ran.start;
}

KernelChoices CudaBench::used() {
  KernelChoices choices;
  for (const kernels::cuda::GemmChoice& choice : gemm_->used()) choices.insert(choice.to_words());
  return choices;
}

Result<double> CudaBench::copy_seconds(Way way, std::uint64_t bytes, int copies) {
  SLUICE_ASSIGN(std::byte* const device_down, areas_[0].at_least(bytes));
  SLUICE_ASSIGN(std::byte* const device_up, areas_[1].at_least(bytes));
  std::byte *host_down = nullptr, *host_up = nullptr;
  if (way == Way::down || way == Way::both) {
    SLUICE_ASSIGN(host_down, areas_[2].at_least(bytes));
  }
  if (way == Way::up || way == Way::both) {
    SLUICE_ASSIGN(host_up, areas_[3].at_least(bytes));
  }
  for (int i = 0; i < copies; ++i) {
    if (host_down != nullptr) SLUICE_TRY(down_.queue->copy(device_down, host_down, bytes));
    if (host_up != nullptr) SLUICE_TRY(up_.queue->copy(host_up, device_up, bytes));
    if (way == Way::within) SLUICE_TRY(compute_.queue->copy(device_down, device_up, bytes));
  }
  double seconds = 0;
  for (Lane* lane : {&down_, &up_, &compute_}) {
    const bool used = lane == &compute_ ? way == Way::within : (lane == &down_ ? host_down : host_up) != nullptr;
    if (!used) continue;
    SLUICE_ASSIGN(const DeviceQueue::Ran ran, lane->mark_and_await());
    seconds = std::max(seconds, ran.end - ran.start);
  }
  return seconds / copies;
}

Result<double> CudaBench::gemm_seconds(const GemmShape& s, Dtype dtype, Dtype result) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, Dtype t) {
    return round_up(static_cast<std::uint64_t>(rows * columns) * dtype_bytes(t));
  };
  const std::uint64_t a_bytes = bytes(s.m, s.k, dtype), b_bytes = bytes(s.k, s.n, dtype);
  const std::uint64_t c_bytes = bytes(s.m, s.n, result);
  const std::uint64_t workspace_bytes = cuda_kernel_sizes.gemm_bytes(s.m, s.n, s.k, dtype, result);
  SLUICE_ASSIGN(std::byte* const a, areas_[0].at_least(a_bytes + b_bytes + c_bytes + workspace_bytes));
  std::byte* const b = a + a_bytes;
  std::byte* const c = b + b_bytes;
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.queue->begin());
  kernels_->gemm({a, dtype, s.a_transposed ? s.m : s.k, s.a_transposed},
                 {b, dtype, s.b_transposed ? s.k : s.n, s.b_transposed}, {c, result, s.n}, s.m, s.n, s.k, false,
                 {c + c_bytes, workspace_bytes});
  SLUICE_TRY(kernels_->status());
  SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.mark_and_await());
  return ran.end - ran.start;
}

Result<double> CudaBench::attention_seconds(const Attention& size, bool backward) {
  kernels::AttentionShape s;
  s.batch = size.batch;
  s.queries = s.keys = size.sequence;
  s.heads = size.heads;
  s.kv_heads = size.kv_heads;
  s.head_dim = size.head_dim;
  s.q_stride = s.out_stride = size.heads * size.head_dim;
  s.k_stride = s.v_stride = size.kv_heads * size.head_dim;
  s.scale = 1.0f / std::sqrt(static_cast<float>(size.head_dim));
  const std::int64_t tokens = size.batch * size.sequence;
  const std::uint64_t q_bytes = round_up(static_cast<std::uint64_t>(tokens * s.q_stride) * sizeof(bf16));
  const std::uint64_t k_bytes = round_up(static_cast<std::uint64_t>(tokens * s.k_stride) * sizeof(bf16));
  const std::uint64_t lse_bytes = round_up(static_cast<std::uint64_t>(tokens * s.heads) * sizeof(float));
  const std::uint64_t workspace_bytes = cuda_kernel_sizes.attention_bytes(s, Dtype::bf16);
  // q, out, d_out, dq; k, v, dk, dv; lse; workspace.
  SLUICE_ASSIGN(std::byte * at, areas_[0].at_least(4 * q_bytes + 4 * k_bytes + lse_bytes + workspace_bytes));
  const auto take = [&at](std::uint64_t bytes) { return reinterpret_cast<bf16*>(std::exchange(at, at + bytes)); };
  bf16 *const q = take(q_bytes), *const out = take(q_bytes), *const d_out = take(q_bytes), *const dq = take(q_bytes);
  bf16 *const k = take(k_bytes), *const v = take(k_bytes), *const dk = take(k_bytes), *const dv = take(k_bytes);
  auto* const lse = reinterpret_cast<float*>(take(lse_bytes));
  const std::span workspace(at, workspace_bytes);
  const auto forward = [&] {
    kernels_->attention_forward(s, static_cast<const bf16*>(q), static_cast<const bf16*>(k),
                                static_cast<const bf16*>(v), out, lse, workspace);
  };
  SLUICE_TRY(device_.make_current());
  if (backward) forward();  // its sums are what backward works from
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.queue->begin());
  if (backward)
    kernels_->attention_backward(s, static_cast<const bf16*>(q), static_cast<const bf16*>(k),
                                 static_cast<const bf16*>(v), static_cast<const bf16*>(out),
                                 static_cast<const bf16*>(d_out), static_cast<const float*>(lse), dq, dk, dv,
                                 workspace);
  else
    forward();
  SLUICE_TRY(kernels_->status());
  SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.mark_and_await());
  return ran.end - ran.start;
}

Result<double> CudaBench::adamw_seconds(std::int64_t numel) {
  const auto n = static_cast<std::uint64_t>(numel);
  // Parameter and remainder, two moments, gradient; and what counts the diverged.
  SLUICE_ASSIGN(std::byte* const memory, areas_[0].at_least(16 * n + sizeof(std::uint64_t)));
  SLUICE_TRY(device_.make_current());
  kernels_->zero(memory, 12 * n);
  AdamwRange range;
  range.exp_avg = memory;
  range.exp_avg_sq = memory + 4 * n;
  range.parameter = memory + 8 * n;
  range.remainder = reinterpret_cast<std::int16_t*>(memory + 10 * n);
  range.gradient = memory + 12 * n;
  range.numel = numel;
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.queue->begin());
  kernels::cuda::adamw(AdamwStep{}, range, reinterpret_cast<std::uint64_t*>(memory + 16 * n), *stream_);
  SLUICE_TRY(kernels_->status());
  SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.mark_and_await());
  return ran.end - ran.start;
}

}  // namespace sluice
