// The cards that the model plays: how many there are, how large each is, and when one fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

struct CUstream_st;

namespace simt {

constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// Each field can be given as SLUICE_MODEL_<FIELD> in the environment of a program. Tests of that program change it
/// while nothing runs.
struct Card {
  std::uint64_t devices = 1;
  std::uint64_t driver = 12000;  ///< the CUDA version that it is for, major 1000 + minor 10; 0: none is installed
  std::uint64_t capability = 90;
  std::uint64_t nccl = 22809;                       ///< its version, as NCCL_VERSION_CODE writes it
  std::uint64_t memory = std::uint64_t{512} << 20;  ///< bytes; what is measured of a device grows with them
  std::uint64_t taken = 0;                          ///< of them, by other processes
  std::uint64_t allocations = no_limit;             ///< after so many, other processes take the rest
  std::uint64_t lockable = no_limit;                ///< bytes of host memory that may be registered
  /// Work of streams, counted from 1 over all cards, that ends in an ECC error, for good of its card; 0: none.
  std::uint64_t fails_at = 0;
  std::uint64_t delay_seed = 0;  ///< of random pauses ahead of work in streams; 0: none
};
Card& card();

/// What a new process would find: no error, nothing counted.
void restart();
/// Work of streams (kernels, copies, fills, multiplies) since then.
std::uint64_t work_done();

}  // namespace simt

// For libraries that have kernels of their own.
extern "C" {
/// Puts work into a stream of the current device. A cudaError_t.
unsigned simt_submit(CUstream_st* stream, std::function<void()> work);
int simt_current_device();
/// Work of another device may touch its memory, until it is called with false by the same thread.
void simt_reach(int device, bool open);
/// Whether all of it lies in one allocation of that device.
bool simt_has_memory(int device, const void* p, std::size_t bytes);
std::uint64_t simt_nccl_version();
}
