// Inner side of adamw.h: the update with int8 moments.
#pragma once

#include "kernels/adamw_constants.h"
#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// Of a range that begins at a block of its tensor. P, G: float or bf16.
template <class P, class G>
void adamw_blocks(const AdamwConstants& c, const AdamwRange& r, std::uint64_t* diverged, Stream& stream);

}  // namespace sluice::kernels::cuda
