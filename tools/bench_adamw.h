// AdamW measured: every format, in cache and out of it, beside the best stream that reads and writes the same bytes in
// place. All loops of a format take turns within a round, so that what disturbs the machine disturbs them alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/adamw.h"
#include "sluice/status.h"

namespace sluice::tools {

struct AdamwFormat {
  Dtype parameter = Dtype::bf16;
  MomentFormat moments = MomentFormat::f32;
  Dtype gradient = Dtype::bf16;

  std::string name() const;  ///< "bf16/int8/f32": parameter, moments, gradient
  /// Of memory traffic per parameter, everything read and written once: 4 (fp32 parameter, or bf16 with remainder) and
  /// the moments each way, int8 ones with 4 bytes of scale per 256 elements, and the gradient read.
  double bytes_per_parameter() const;
};
std::span<const AdamwFormat> adamw_formats();  ///< all there are

struct AdamwBenchOptions {
  int threads = 1;
  std::uint64_t numel = 0;  ///< parameters, shared by the threads in equal parts
  double seconds = 1;       ///< for the update, and for each stream
};

/// Medians over rounds.
struct AdamwRate {
  double parameters_per_second = 0;
  double spread = 0;                   ///< of them, (most - fewest) / median
  double stream_bytes_per_second = 0;  ///< best of the streams' medians
  const char* stream = "";             ///< which one that was
};

/// Every thread has a state of its own, on huge pages as the engine's arenas. Errors: bad_request if the memory cannot
/// be had.
Result<AdamwRate> measure_adamw(const AdamwFormat& format, const AdamwBenchOptions& options);

}  // namespace sluice::tools
