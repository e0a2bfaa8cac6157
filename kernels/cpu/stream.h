// The plainest passes over memory: what it gives to kernels that do nothing else, in the calling thread.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::kernels {

/// x[i] = -x[i], in place as the optimizer works: reads and writes x.size_bytes() each. Two calls leave x as it was.
void stream_update(std::span<float> x);
/// The same with lines asked for 4 KB ahead, and from four quarters at once with lines asked for 1 KB ahead. Which of
/// the three is the quickest depends on the machine; a bound is the best of them.
void stream_update_ahead(std::span<float> x);
void stream_update_four(std::span<float> x);

/// Operands of the loops of STREAM (McCalpin, https://www.cs.virginia.edu/stream). Arrays do not overlap, and c is
/// aligned to 64 bytes. STREAM counts what the loop names, 8 bytes per element and array: stores that read their line
/// first count once.
struct StreamArrays {
  const double *a = nullptr, *b = nullptr;
  double* c = nullptr;
  std::int64_t numel = 0;
};
void stream_copy(const StreamArrays& s);     ///< c = a
void stream_copy_nt(const StreamArrays& s);  ///< c = a with non-temporal stores, which do not read c's lines first
void stream_scale(const StreamArrays& s);    ///< c = 3 a
void stream_add(const StreamArrays& s);      ///< c = a + b
void stream_triad(const StreamArrays& s);    ///< c = a + 3 b

}  // namespace sluice::kernels
