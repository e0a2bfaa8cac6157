// What workspace a device's kernels ask for: the part of a plan's sizes that is not the model's.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "sluice/dtype.h"

namespace sluice {

/// Functions of shapes alone, never of budgets.
struct KernelSizes {
  std::uint64_t (*gemm_bytes)(std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result);
  std::uint64_t (*attention_bytes)(const kernels::AttentionShape& shape, Dtype dtype);
  /// Backward passes of norms and biases.
  std::uint64_t (*rows_bytes)(std::int64_t rows, std::int64_t width);
  std::int64_t logits_multiple;   ///< of elements in rows of logits, of which the last may be no token's
  std::int64_t chunk_tokens_max;  ///< tokens that a sublayer works on at a time
  bool apart;  ///< the device has a memory of its own: tables that the host has made must lie there too
};

extern const KernelSizes cpu_kernel_sizes;

}  // namespace sluice
