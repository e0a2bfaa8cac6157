// What a machine can do, measured: the input of `simulate` and of every bound that is printed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice {

constexpr std::uint32_t profile_schema_version = 3;

/// Rates of one machine. Bytes per second count bytes moved once (a copy of n bytes is n).
struct HardwareProfile {
  std::uint32_t schema_version = profile_schema_version;
  std::string machine;  ///< CPU model and kernel, to notice that a profile is another machine's
  int cores = 1;
  int compute_threads = 1;
  int optimizer_threads = 1;
  double gemm_flops_f32 = 1e11;  ///< best layout of the matmuls tried, all compute threads
  double gemm_flops_bf16 = 1e11;
  double peak_flops_f32 = 0;  ///< of the chip, by its instructions and measured clock; 0 unknown
  double peak_flops_bf16 = 0;
  double h2d_bytes_per_second = 1e10;
  double d2h_bytes_per_second = 1e10;
  double nvme_read_bytes_per_second = 1e9;
  double nvme_write_bytes_per_second = 1e9;
  double nvme_mixed_bytes_per_second = 1e9;  ///< reads plus writes when half and half
  double memory_bytes_per_second = 2e10;     ///< DRAM, in-place stream
  double adamw_parameters_per_second = 1e9;
  double norm_bytes_per_second = 1e10;  ///< grad_norm
  double checksum_bytes_per_second = 1e10;
  double op_overhead_seconds = 3e-6;
  double handoff_seconds = 0;            ///< from the end of an op until a lane that slept for it works
  double nvme_request_seconds = 0;       ///< that one more request costs a drive with many in flight
  double nvme_read_latency_seconds = 0;  ///< of one request alone, beyond its bytes at the full rate
  double nvme_write_latency_seconds = 0;
  /// Seconds that one compute op takes alone, by cost key ("attention.backward b1 s512 h768 ... bf16 t2").
  std::map<std::string, double> op_seconds;
};

}  // namespace sluice
