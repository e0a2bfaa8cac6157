// AdamW, master weights and gradient norms of sluice/adamw.h on device memory: the same operations in the same order,
// so the same bits as on the CPU, whatever the cut, alignment or device. (Which NaN an operation gives is the
// device's.)
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "sluice/adamw.h"

namespace sluice::kernels::cuda {

/// Updates the range in place; all its pointers are the device's, and any alignment will do (16 bytes are quickest).
/// *diverged, on the device, grows by the number of parameters that are NaN, infinite or would round to infinity.
void adamw(const AdamwStep& s, const AdamwRange& range, std::uint64_t* diverged, Stream& stream);

void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel, Stream& stream);
void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel,
                 Stream& stream);

/// Adds the squared norm of x to *sum, on the device, as sluice::add_squared_norm does: to the bit. The sums of blocks
/// are added one after the other, as that order asks, in about the time it takes to read x once more.
/// workspace: squared_norm_workspace_bytes(numel), aligned to 8.
void add_squared_norm(const float* x, std::int64_t numel, double* sum, double* workspace, Stream& stream);
std::uint64_t squared_norm_workspace_bytes(std::int64_t numel);

}  // namespace sluice::kernels::cuda
