// A plan with everything resolved that running it needs: addresses, counts to wait for, optimizer chunks. Made once by
// Executor::begin, so that the hot path looks nothing up and allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/run/memory.h"
#include "offload/run/store.h"
#include "offload/state/optimizer.h"
#include "sluice/dtype.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// One access of an op, resolved to memory (device address for device buffers). Operands come in the order of
/// op.accesses; those of nvme buffers have no address.
struct Operand {
  Role role = Role::src;
  Mode mode = Mode::read;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// The full buffer of an all_gather: from the first to the last byte that it touches, own part or others'.
std::span<std::byte> gathered(std::span<const Operand> operands);

/// "The lane `source` has finished `position` ops of this iteration (or of the one before)".
struct BoundWait {
  std::uint32_t source = 0;
  std::uint32_t position = 0;
  bool previous_iteration = false;
};

enum class Direction : std::uint8_t { h2d, d2h, within };
struct BoundCopy {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::uint64_t bytes = 0;
  Direction direction = Direction::within;
};

/// One contiguous part of an nvme buffer and the host memory that it is read into or written from.
struct BoundTransfer {
  std::byte* host = nullptr;
  BufferId buffer = 0;
  Slot slot = Slot::current;
  std::uint64_t offset = 0;  ///< in the slot; a block border
  std::uint64_t bytes = 0;
};

struct BoundOp {
  OpId id = no_op;
  const Op* op = nullptr;
  std::span<const BoundWait> waits;
  std::span<const Operand> operands;
  std::span<const BoundCopy> copies;         ///< copy
  std::span<const BoundTransfer> transfers;  ///< read, write
  std::span<const UpdateChunk> chunks;       ///< update
  std::array<std::uint64_t, 3> alive_end{};  ///< per tier: highest end of the buffers it touches

  const Operand* find(Role role) const {
    for (const Operand& operand : operands)
      if (operand.role == role) return &operand;
    return nullptr;
  }
};

struct BoundLane {
  Lane lane;
  std::vector<BoundOp> ops;
};

struct BindParts {
  const Memory& memory;
  const SwapStore* store;
  std::span<const OptimizerUnit> units;
  Dtype dtype;
  MomentLayout moments;
  Dtype gradient_dtype;  ///< that updates read
};

/// Owns what the spans of its lanes point to; refers to the plan.
class BoundPlan {
 public:
  BoundPlan() = default;
  BoundPlan(BoundPlan&&) = default;
  BoundPlan& operator=(BoundPlan&&) = default;

  /// Errors: bad_request naming the op or buffer if the plan does not fit the arenas or lacks an operand that an op
  /// needs.
  static Result<BoundPlan> make(const StepPlan& plan, const BindParts& parts);

  std::vector<BoundLane> lanes;
  std::uint64_t micro_batches = 0;   ///< losses in the control block (0 if the plan has none)
  std::uint64_t max_tile_numel = 0;  ///< of grad_norm ops
  std::vector<bool> updated_back;    ///< by unit: its update does not wait for the norm, in the backward pass
  bool mixes = false;                ///< and others do, ahead of the forward pass

 private:
  Status check_arenas(const StepPlan& plan, const BindParts& parts) const;
  Status bind_op(const StepPlan& plan, OpId id, const BindParts& parts);
  Status bind_copy(const StepPlan& plan, const Op& op, std::size_t first_operand);
  Status bind_transfer(const StepPlan& plan, const Op& op, std::size_t first_operand);
  Status bind_optimizer(const StepPlan& plan, const Op& op, const BindParts& parts, std::size_t first_operand);

  std::vector<Operand> operands_;
  std::vector<BoundWait> waits_;
  std::vector<BoundCopy> copies_;
  std::vector<BoundTransfer> transfers_;
  std::vector<UpdateChunk> chunks_;
  struct Extent {
    std::size_t operand, wait, copy, transfer, chunk;
  };
  Extent extent() const;
  std::vector<Extent> extents_;  ///< [op]: where its entries start; one more for the end
};

}  // namespace sluice
