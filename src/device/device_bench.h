// A device measured: ops of sublayers alone, copies, multiplies. What a profile is made of (calibrate.h,
// profile_device.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "offload/run/memory.h"
#include "sluice/dtype.h"
#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/device/profile_measure.h"
#include "src/model/sublayer.h"

namespace sluice {

/// All seconds are the device's, of work that it has been given ahead.
class DeviceBench {
 public:
  virtual ~DeviceBench() = default;

  /// One run of an op of a sublayer: all addresses are the device's.
  virtual Status run(OpKind op, const SublayerArgs& args) = 0;
  /// The median of several runs behind one that is not counted, in which kernels are chosen and threads wake up, with
  /// caches as a step of such sublayers leaves them.
  virtual Result<double> op_seconds(OpKind op, const SublayerArgs& args) = 0;
  /// Which kernels ops have used since this was asked last, where there was a choice.
  virtual KernelChoices used() { return {}; }

  // ---- of devices apart from the host
  enum class Way : std::uint8_t { down, up, both, within };
  /// One copy of so many bytes, `copies` of them in a row (both: so many each way, and the seconds of a pair). Memory
  /// of the host is locked, as arenas are. A single measurement: noise is for the caller to take out, here and below.
  virtual Result<double> copy_seconds(Way way, std::uint64_t bytes, int copies) = 0;
  /// That one more op takes of a queue: copies of next to nothing, each with a mark of its own as ops have.
  virtual Result<double> mark_seconds() = 0;
  virtual Result<double> gemm_seconds(const GemmShape& shape, Dtype dtype, Dtype result) = 0;
  struct Attention {
    std::int64_t batch, sequence, heads, kv_heads, head_dim;
  };
  /// bf16, causal, without windows or documents.
  virtual Result<double> attention_seconds(const Attention& size, bool backward) = 0;
  /// bf16 parameters with remainders and fp32 moments.
  virtual Result<double> adamw_seconds(std::int64_t numel) = 0;
};

}  // namespace sluice
