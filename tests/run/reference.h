// What the plans of ranks that run alike mean: their ops one after the other in program order, side by side, every
// buffer in memory of its own. The executor's
// result is held against it, bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/run/executor.h"
#include "sluice/plan.h"

namespace sluice::test {

/// The compute op of all tests: what it writes is a function of everything that it reads, of the op, the rank and the
/// step.
void mix(RankId rank, OpId id, const StepParams& params, std::span<const Operand> operands);
/// Tokens of a micro-batch.
void fill_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst);
/// What a persistent buffer holds before the first iteration: small floats.
void initial_content(std::uint64_t seed, RankId rank, BufferId buffer, std::span<std::byte> data);

struct StepRecord {
  std::uint64_t step = 0;
  RankId rank = 0;
  ControlBlock control;
  std::vector<double> losses;
};

class Reference {
 public:
  /// One plan, and its units, for each rank.
  Reference(const std::vector<StepPlan>& plans, std::vector<std::vector<OptimizerUnit>> units, std::uint64_t seed);
  void iterate(const StepParams& params);
  /// Content of a persistent buffer after the last iteration (current slot).
  std::span<const std::byte> content(RankId rank, BufferId buffer) const;
  const std::vector<StepRecord>& records() const { return records_; }

 private:
  struct Rank {
    const StepPlan* plan = nullptr;
    std::vector<OptimizerUnit> units;
    std::vector<std::vector<std::byte>> storage[2];  ///< [slot][buffer]
    std::uint8_t parity = 0, commits = 0;            ///< of this iteration
  };
  std::span<std::byte> at(RankId rank, const Access& access);
  std::vector<Operand> operands(RankId rank, const Op& op);
  void run(RankId rank, OpId id, const StepParams& params);
  void collective(OpId id);
  void control(std::span<const RankId> ranks, OpId id, const StepParams& params);
  void update(RankId rank, const Op& op, const StepParams& params);

  std::vector<Rank> ranks_;
  std::vector<RankId> everyone_;
  std::vector<StepRecord> records_;
};

}  // namespace sluice::test
