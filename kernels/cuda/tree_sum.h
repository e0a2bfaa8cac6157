// Sums over ranks on a device, in the order of the lots' tree.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"

namespace sluice::kernels::cuda {

/// out[i] = sum over members of their ith elements, fp32: neighbours in pairs, and their sums in pairs, as long as
/// there is an even number of them, and then one after the other (src/schedule/lots.h; the bits of
/// src/comm/tree_sum.h). The elements of member `own_member` are `own`, those of the others follow one another in
/// `arrived`, `stride` elements from one to the next. `out` may be `own`. With bf16 all of them count as rounded to
/// that, the own too. At most 65536 members.
void tree_sum(const float* own, const float* arrived, std::int64_t stride, int members, int own_member, float* out,
              std::int64_t numel, Stream& stream);
void tree_sum(const float* own, const bf16* arrived, std::int64_t stride, int members, int own_member, float* out,
              std::int64_t numel, Stream& stream);

}  // namespace sluice::kernels::cuda
