// A device that works beside the host: queues that keep their order, and marks in them to wait for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/status.h"

namespace sluice {

/// One queue of a device (a CUDA stream). What is put into it runs later, in order, beside the host and other queues.
/// Putting in is for one thread, awaiting for another one.
class DeviceQueue {
 public:
  /// A mark is set again for another one after so many, when it has been awaited.
  static constexpr std::uint64_t marks_in_flight = 64;

  virtual ~DeviceQueue() = default;
  /// Between device memory and the host's arenas in either direction, or within the device.
  virtual Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) = 0;
  /// What was put in until here, and since the mark before, is called `mark`: numbers that go up by one.
  virtual Status mark(std::uint64_t mark) = 0;
  /// What is put in from here on runs when `other`, a queue of the same device, has come to that mark, which is set.
  virtual Status wait_for(const DeviceQueue& other, std::uint64_t mark) = 0;
  /// When the work of a mark ran, by the host's steady clock, in seconds.
  struct Ran {
    double start = 0, end = 0;
  };
  /// Sleeps until the mark, which is set, is reached. The error is what failed on the device by then.
  virtual Result<Ran> await(std::uint64_t mark) = 0;
  /// Of a run that has failed, by who awaits: what is in the queue ends, though other ranks may never come to it, and
  /// has ended when this returns. What it would have written is not certain.
  virtual void abandon() {}
};

}  // namespace sluice
