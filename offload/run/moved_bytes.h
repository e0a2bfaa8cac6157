// What a run has moved.
#pragma once

#include <cstdint>

namespace sluice {

/// Bytes moved by finished ops, by link.
struct MovedBytes {
  std::uint64_t h2d = 0;     ///< copies host -> device, and tokens loaded into device buffers
  std::uint64_t d2h = 0;     ///< copies device -> host
  std::uint64_t within = 0;  ///< copies inside one tier
  std::uint64_t nvme_read = 0, nvme_write = 0;
  std::uint64_t collective = 0;  ///< received
  std::uint64_t message = 0;     ///< received of single ranks

  MovedBytes& operator+=(const MovedBytes& more) {
    h2d += more.h2d;
    d2h += more.d2h;
    within += more.within;
    nvme_read += more.nvme_read;
    nvme_write += more.nvme_write;
    collective += more.collective;
    message += more.message;
    return *this;
  }
  MovedBytes& operator-=(const MovedBytes& less) {
    h2d -= less.h2d;
    d2h -= less.d2h;
    within -= less.within;
    nvme_read -= less.nvme_read;
    nvme_write -= less.nvme_write;
    collective -= less.collective;
    message -= less.message;
    return *this;
  }
};

}  // namespace sluice
