// Fills bytes of transient buffers that no op will read again with 0xFD, so that a plan or kernel that reads them
// nevertheless fails loudly. In debug builds (SLUICE_POISON).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/run/memory.h"
#include "sluice/plan.h"

namespace sluice {

#ifdef SLUICE_POISON
constexpr bool poison_freed_bytes = true;
#else
constexpr bool poison_freed_bytes = false;
#endif
constexpr std::byte poison_byte{0xFD};

/// Buffers are cut where accesses begin or end. A piece is dead when all ops of the iteration that touch it have
/// finished; whoever finishes last poisons it before its completion becomes visible, so that no one can be using the
/// bytes again. Pieces whose first access is not a write are carried over and left alone.
class Poisoner {
 public:
  Poisoner(const StepPlan& plan, const Memory& memory);
  void finished(OpId op);

 private:
  struct Piece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t uses = 0;
    bool device = false;
  };
  void cut(const StepPlan& plan, BufferId buffer, const std::vector<OpId>& users, const Memory& memory);

  DeviceMemory& device_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::uint32_t>> pieces_of_op_;
  std::vector<std::atomic<std::uint32_t>> left_;  ///< [piece] uses in this iteration still to come
};

}  // namespace sluice
