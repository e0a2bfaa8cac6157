#include "src/device/cuda/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/copy.h"
#include "sluice/round.h"
#include "src/device/cuda/sublayers.h"

namespace sluice {
namespace {

/// More than the device's cache holds. Its bytes are written before what is timed, which gives the host a lead too: the
/// device finds all of an op's kernels in its queue.
std::uint64_t eviction_bytes(const CudaDevice& device) {
  return 2 * std::max<std::uint64_t>(device.cache_bytes(), 1u << 18);
}

/// Passes over so many bytes that keep any device busy for that long: none writes more in a second.
int passes_for(double seconds, std::uint64_t bytes) {
  constexpr double bytes_per_second = 8e12;
  return static_cast<int>(std::clamp(std::ceil(seconds * bytes_per_second / static_cast<double>(bytes)), 1.0, 32.0));
}

constexpr int runs_min = 5, runs_max = 48;
static_assert(runs_max < static_cast<int>(DeviceQueue::marks_in_flight));
constexpr double load_seconds = 0.3;

/// Of operands in one area.
std::uint64_t aligned(std::uint64_t bytes) { return round_up(bytes, 256); }

}  // namespace

Result<std::byte*> CudaBench::Area::at_least(std::uint64_t bytes, Dtype dtype) {
  if (bytes <= bytes_ && dtype == filled_) return data_;
  if (bytes > bytes_) {
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
  }
  filled_ = dtype;
  SLUICE_TRY(fill_random(device_, data_, bytes_, dtype, 1));
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
  SLUICE_TRY(mark());
  return queue->await(marks);
}

Result<std::unique_ptr<DeviceBench>> CudaBench::create(CudaDevice& device, const KernelChoices& made) {
  std::unique_ptr<CudaBench> bench(new CudaBench(device));
  SLUICE_TRY(device.make_current());
  SLUICE_ASSIGN(bench->libraries_, CudaLibraries::open(made, true));
  SLUICE_ASSIGN(bench->compute_.queue, device.make_queue(false));
  SLUICE_ASSIGN(bench->down_.queue, device.make_queue(true));
  SLUICE_ASSIGN(bench->up_.queue, device.make_queue(true));
  bench->stream_ = std::make_unique<kernels::cuda::Stream>(bench->compute_.queue->stream());
  if (!bench->stream_->status().ok()) return bench->stream_->status().error();
  bench->kernels_ = std::make_unique<CudaKernels>(*bench->stream_, bench->libraries_);
  return std::unique_ptr<DeviceBench>(std::move(bench));
}

Status CudaBench::evict(int passes) {
  SLUICE_ASSIGN(std::byte * memory, areas_[1].at_least(eviction_bytes(device_)));
  SLUICE_TRY(device_.make_current());
  for (int i = 0; i < passes; ++i) kernels_->zero(memory, eviction_bytes(device_));
  return kernels_->status();
}

Status CudaBench::run(OpKind op, const SublayerArgs& args) {
  SLUICE_TRY(compute_.queue->begin());
  SLUICE_TRY(run_sublayer_on_cuda(*kernels_, op, args));
  const Result<DeviceQueue::Ran> ran = compute_.mark_and_await();
  return ran.ok() ? success() : Status(ran.error());
}

/// Behind one another, so that the device has the clock of a long step and not that of a burst. What the host needs to
/// put an op of many kernels into the queue may be longer than the device needs for it: the device is kept busy for as
/// long ahead of it.
Result<double> CudaBench::op_seconds(OpKind op, const SublayerArgs& args) {
  SLUICE_TRY(run(op, args));
  std::vector<double> seconds;
  int lead = 1;
  for (int runs = 1; static_cast<int>(seconds.size()) < runs_min;
       runs = std::clamp(static_cast<int>(load_seconds / std::max(seconds.front(), 1e-6)), runs_min, runs_max)) {
    seconds.clear();
    const std::uint64_t first = compute_.marks + 1;
    for (int i = 0; i < runs; ++i) {
      SLUICE_TRY(evict(lead));
      SLUICE_TRY(compute_.queue->begin());
      const auto begun = std::chrono::steady_clock::now();
      SLUICE_TRY(run_sublayer_on_cuda(*kernels_, op, args));
      const std::chrono::duration<double> host = std::chrono::steady_clock::now() - begun;
      SLUICE_TRY(compute_.mark());
      if (runs == 1) lead = passes_for(host.count(), eviction_bytes(device_));
    }
    for (std::uint64_t mark = first; mark <= compute_.marks; ++mark) {
      SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.queue->await(mark));
      seconds.push_back(ran.end - ran.start);
    }
  }
  // Of the later half.
  seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

Result<double> CudaBench::copy_seconds(Way way, std::uint64_t bytes, int copies) {
  SLUICE_ASSIGN(std::byte* const device_down, areas_[0].at_least(bytes));
  // What evicts is there too: it may not grow, and move, behind the pointer.
  SLUICE_ASSIGN(std::byte* const device_up, areas_[1].at_least(std::max(bytes, eviction_bytes(device_))));
  std::byte *host_down = nullptr, *host_up = nullptr;
  if (way == Way::down || way == Way::both) {
    SLUICE_ASSIGN(host_down, areas_[2].at_least(bytes));
  }
  if (way == Way::up || way == Way::both) {
    SLUICE_ASSIGN(host_up, areas_[3].at_least(bytes));
  }
  // The device is busy until all copies are in their queues.
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.mark());
  const bool down = host_down != nullptr, up = host_up != nullptr;
  if (down) SLUICE_TRY(down_.queue->wait_for(*compute_.queue, compute_.marks));
  if (up) SLUICE_TRY(up_.queue->wait_for(*compute_.queue, compute_.marks));
  for (int i = 0; i < copies; ++i) {
    if (down) SLUICE_TRY(down_.queue->copy(device_down, host_down, bytes));
    if (up) SLUICE_TRY(up_.queue->copy(host_up, device_up, bytes));
    if (way == Way::within) SLUICE_TRY(compute_.queue->copy(device_down, device_up, bytes));
  }
  if (down) SLUICE_TRY(down_.mark());
  if (up) SLUICE_TRY(up_.mark());
  if (way == Way::within) SLUICE_TRY(compute_.mark());
  double seconds = 0;
  for (Lane* lane : {&down_, &up_, &compute_}) {
    if (lane == &compute_ ? way != Way::within : lane == &down_ ? !down : !up) continue;
    SLUICE_ASSIGN(const DeviceQueue::Ran ran, lane->queue->await(lane->marks));
    seconds = std::max(seconds, ran.end - ran.start);
  }
  return seconds / copies;
}

Result<double> CudaBench::mark_seconds() {
  constexpr int marks = 32;
  SLUICE_ASSIGN(std::byte* const from, areas_[0].at_least(8192));
  SLUICE_TRY(evict());
  SLUICE_TRY(compute_.mark());
  for (int i = 0; i < marks; ++i) {
    SLUICE_TRY(compute_.queue->copy(from + 4096, from, 4096));
    SLUICE_TRY(compute_.mark());
  }
  double begin = 0, end = 0;
  for (std::uint64_t mark = compute_.marks - marks + 1; mark <= compute_.marks; ++mark) {
    SLUICE_ASSIGN(const DeviceQueue::Ran ran, compute_.queue->await(mark));
    if (begin == 0) begin = ran.start;
    end = ran.end;
  }
  return (end - begin) / marks;
}

Result<double> CudaBench::gemm_seconds(const GemmShape& s, Dtype dtype, Dtype result) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, Dtype t) {
    return aligned(static_cast<std::uint64_t>(rows * columns) * dtype_bytes(t));
  };
  const std::uint64_t a_bytes = bytes(s.m, s.k, dtype), b_bytes = bytes(s.k, s.n, dtype);
  const std::uint64_t c_bytes = bytes(s.m, s.n, result);
  const std::uint64_t workspace_bytes = cuda_kernel_sizes.gemm_bytes(s.m, s.n, s.k, dtype, result);
  SLUICE_ASSIGN(std::byte* const a, areas_[0].at_least(a_bytes + b_bytes + c_bytes + workspace_bytes, dtype));
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
  const std::uint64_t q_bytes = aligned(static_cast<std::uint64_t>(tokens * s.q_stride) * sizeof(bf16));
  const std::uint64_t k_bytes = aligned(static_cast<std::uint64_t>(tokens * s.k_stride) * sizeof(bf16));
  const std::uint64_t lse_bytes = aligned(static_cast<std::uint64_t>(tokens * s.heads) * sizeof(float));
  const std::uint64_t workspace_bytes = cuda_kernel_sizes.attention_bytes(s, Dtype::bf16);
  // q, out, d_out, dq; k, v, dk, dv; lse; workspace.
  SLUICE_ASSIGN(std::byte * at,
                areas_[0].at_least(4 * q_bytes + 4 * k_bytes + lse_bytes + workspace_bytes, Dtype::bf16));
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
