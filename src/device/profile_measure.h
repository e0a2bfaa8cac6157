// Rates of this machine, one function each: what a HardwareProfile is made of and what `sluice bench` compares with.
// All of them run for about the time given and return the best of several passes, since what disturbs a measurement
// only ever makes it slower.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/run/memory.h"
#include "sluice/clock.h"
#include "sluice/dtype.h"
#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/device/drive_bench.h"

namespace sluice {

/// Cores that this process may run on.
int usable_cores();

/// Four times the last-level cache, so that what is streamed comes from memory.
std::uint64_t beyond_cache_bytes();

/// Random values between -scale/2 and scale/2. Arithmetic on zeros, denormals or equal numbers takes other times:
/// matrix units run slower on data that makes them draw more power.
void fill_random(const Pages& pages, Dtype dtype, float scale);
/// The same in memory of a device, again every few MiB.
Status fill_random(DeviceMemory& memory, std::byte* address, std::uint64_t bytes, Dtype dtype, float scale);

/// A matrix multiply as a step does it: y = x w^T, dx = dy w, dw = dy^T x.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
};
/// Best FLOP per second over the shapes, in the calling thread's OpenMP team.
double measure_gemm_flops(std::span<const GemmShape> shapes, Dtype dtype, double seconds);
/// Shapes like those of models of 25 M to 3 B parameters.
std::span<const GemmShape> usual_gemm_shapes();

/// FLOP per second of the widest fused multiply-add instruction on registers alone, on all `threads`.
double measure_peak_flops_f32(int threads, double seconds);
/// The same for bf16 units (AMX, AVX512_BF16); 0 where there are none.
double measure_peak_flops_bf16(int threads, double seconds);

double measure_copy_bytes_per_second(int threads, double seconds);    ///< as copy lanes do; n copied bytes are n
double measure_stream_bytes_per_second(int threads, double seconds);  ///< in place; n bytes read and written are n
double measure_adamw_parameters_per_second(Dtype dtype, int threads, double seconds);
double measure_norm_bytes_per_second(int threads, double seconds);
double measure_checksum_bytes_per_second(double seconds);  ///< one thread

/// Bytes that AdamW moves per parameter, everything read and written once: 4 of the gradient, and 4 (parameter with
/// remainder, or fp32 parameter) and 8 (moments) each way.
constexpr double adamw_bytes_per_parameter = 28;

/// Of the executor, per op, with two lanes that stream to each other.
Result<double> measure_op_overhead_seconds(double seconds);
/// From the end of one lane's op until another lane, which slept for it, works; while other threads keep cores busy.
Result<double> measure_handoff_seconds(int busy_threads, double seconds);

struct DriveOptions {
  std::vector<std::string> directories;
  std::uint64_t file_bytes = 2ull << 30;
  StreamSetting setting;  ///< mode, order and threads are the measurement's own
  double seconds = 2;     ///< per direction
};
/// Streams over temporary files, through the I/O queue and with these requests.
Result<DriveProfile> measure_drive(const DriveOptions& options);
/// Relative mixed bandwidth of each of several directories; empty for one.
Result<std::vector<double>> measure_stripe_weights(const DriveOptions& options);

}  // namespace sluice
