// Fused attention of cuDNN 9, which on Hopper uses instructions that our own kernels (attention.h) do not: the same
// meaning, for the shapes that it takes. bf16, causal, with as many keys as queries, grouped queries and sliding
// windows; no packed documents. Its bits are its own: which of the two computes a run's attention is a choice to be
// kept.
//
// The library is opened at run time (libcudnn.so.9 where the loader finds it); without it, or without its headers when
// sluice was built, create() says so and attention.h does the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/cpu/attention.h"
#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// For one device and one thread at a time. Plans are made when a shape is first met (which takes up to seconds, and
/// allocates) and kept.
class CudnnAttention {
 public:
  static Result<std::unique_ptr<CudnnAttention>> create();
  virtual ~CudnnAttention() = default;

  /// Bytes that a pass needs. Backward asks for 2 bytes for every pair of query and key: gradients of scores wait in
  /// memory, since sums of dq over blocks that finish in any order would not have the same bits every time. Where that
  /// is too much, cuDNN's forward pass goes with attention.h's backward pass: lse means the same.
  struct Workspace {
    std::uint64_t forward, backward;
  };
  /// Makes the plans of both passes. An error if cuDNN does not take the shape, or has no plan for it on this device
  /// that gives the same bits every time.
  virtual Result<Workspace> prepare(const kernels::AttentionShape& shape) = 0;
  /// The same of the forward pass alone: its bytes.
  virtual Result<std::uint64_t> prepare_forward(const kernels::AttentionShape& shape) = 0;
  /// "91300" for 9.13.0: plans, and so bits, are a version's.
  virtual std::string version() const = 0;

  /// As attention_forward and attention_backward of attention.h. Addresses are multiples of 16 bytes, strides of 8
  /// elements; workspace aligned to 256 bytes.
  virtual Status forward(const kernels::AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* out,
                         float* lse, std::span<std::byte> workspace, Stream& stream) = 0;
  virtual Status backward(const kernels::AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                          const bf16* out, const bf16* d_out, const float* lse, bf16* dq, bf16* dk, bf16* dv,
                          std::span<std::byte> workspace, Stream& stream) = 0;
};

}  // namespace sluice::kernels::cuda
