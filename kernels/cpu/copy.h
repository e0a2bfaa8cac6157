// Copies of what is not read again soon.
#pragma once

#include <cstdint>

namespace sluice::kernels {

/// dst[0, bytes) = src[0, bytes), which do not overlap, of any alignment, in the calling thread. With non-temporal
/// stores, where the CPU has them: lines of dst are not read first, and take no room in caches. What another thread
/// reads once it is told that the copy is done, is whole.
void copy_past_caches(void* dst, const void* src, std::uint64_t bytes);

}  // namespace sluice::kernels
