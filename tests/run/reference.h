// What a plan means: its ops one after the other in program order, every buffer in memory of its own. The executor's
// result is held against it, bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "offload/run/executor.h"
#include "sluice/plan.h"

namespace sluice::testing {

/// The compute op of all tests: what it writes is a function of everything that it reads, of the op and of the step.
void mix(OpId id, const StepParams& params, std::span<const Operand> operands);
/// Tokens of a micro-batch.
void fill_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst);
/// What a persistent buffer holds before the first iteration: small floats.
void initial_content(std::uint64_t seed, BufferId buffer, std::span<std::byte> data);

struct StepRecord {
  std::uint64_t step = 0;
  RankId rank = 0;
  ControlBlock control;
  std::vector<double> norms, losses;
};

class Reference {
 public:
  Reference(const StepPlan& plan, std::vector<OptimizerUnit> units, std::uint64_t seed);
  void iterate(const StepParams& params);
  /// Content of a persistent buffer after the last iteration (current slot).
  std::span<const std::byte> content(BufferId buffer) const;
  const std::vector<StepRecord>& records() const { return records_; }

 private:
  std::span<std::byte> at(const Access& access);
  std::vector<Operand> operands(const Op& op);
  void run(OpId id, const StepParams& params);
  void collective(const Op& op);
  void control(const Op& op, const StepParams& params);
  void update(const Op& op, const StepParams& params);

  const StepPlan& plan_;
  std::vector<OptimizerUnit> units_;
  std::vector<std::vector<std::byte>> storage_[2];  ///< [slot][buffer]
  std::vector<std::uint8_t> parity_;                ///< [rank]
  std::vector<std::uint8_t> commits_;               ///< [rank] in this iteration
  std::map<std::int32_t, std::vector<const Op*>> arrived_;
  std::vector<StepRecord> records_;
};

}  // namespace sluice::testing
