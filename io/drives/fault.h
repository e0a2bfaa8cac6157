// Faults that drives and kernels really produce, injected from a seed below the queue's retry logic. What happens to
// the n-th transfer depends on seed and n alone, and not on when others complete.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>

namespace sluice {

class PowerCut;

/// Counts are 1-based over the transfers of that kind that reach the backend; 0 means never.
struct FaultOptions {
  std::uint64_t seed = 1;

  enum class Target : std::uint8_t { any, read, write, sync };
  Target fail_target = Target::any;
  std::uint64_t fail_nth = 0;    ///< this transfer of fail_target fails with fail_errno
  int fail_errno = EIO;          ///< EIO, ENOSPC, EDQUOT, ...
  bool fail_persistent = false;  ///< and so do all later ones of fail_target

  double short_probability = 0;      ///< a transfer moves only part (a multiple of the file's alignment)
  double interrupt_probability = 0;  ///< a transfer returns EINTR or EAGAIN, nothing moved
  std::uint32_t hold_max = 0;        ///< completions are held back for up to so many others, and so reordered

  std::uint64_t flip_read_nth = 0;        ///< one bit of what this read delivers is wrong
  std::uint64_t lost_write_nth = 0;       ///< reports success, writes nothing
  std::uint64_t torn_write_nth = 0;       ///< reports success, writes the first part only
  std::uint64_t misdirect_write_nth = 0;  ///< reports success, writes one alignment unit (at least 512) away

  // How slow the drive is. From the start of a transfer to its completion there is at least the latency, and before it
  // the time that a drive of this rate needs for what was started on the file earlier and for the transfer itself.
  // Completions come in the order of these times. A rate is of each file, for this queue alone.
  std::uint32_t latency_us = 0;         ///< of reads and writes
  std::uint32_t latency_random_us = 0;  ///< up to this much more, uniformly
  std::uint32_t sync_latency_us = 0;    ///< of syncs, instead
  std::uint64_t bytes_per_second = 0;   ///< 0: no limit

  std::shared_ptr<PowerCut> power_cut = nullptr;  ///< shared by all queues that lose power together (io/drives/power_cut.h)
};

}  // namespace sluice
