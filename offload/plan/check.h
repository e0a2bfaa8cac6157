// The parts of check(), each over one property of a plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "offload/plan/finish.h"
#include "offload/plan/happens_before.h"

namespace sluice::planning {

/// Collects violations up to a limit.
class Findings {
 public:
  Findings(const StepPlan& plan, std::size_t limit) : plan_(plan), limit_(limit) {}

  bool full() const { return found_.size() >= limit_; }
  void add(Violation::Kind kind, OpId first, OpId second, BufferId buffer, std::string message) {
    if (!full()) found_.push_back({kind, first, second, buffer, std::move(message)});
  }
  /// "read of NAME by #2 ..."
  std::string use(const Access& a, OpId op) const;
  const StepPlan& plan() const { return plan_; }
  std::vector<Violation> take() { return std::move(found_); }

 private:
  const StepPlan& plan_;
  std::size_t limit_;
  std::vector<Violation> found_;
};

/// Arenas against budgets, buffers against arenas, accesses against buffers and slots. Needs no order.
void check_places(Findings& findings);
/// Every group's collectives: numbered in turn, on one lane.
void check_collectives(Findings& findings);
/// Lanes that stop before the end.
void check_progress(Findings& findings, const Program& program, const HappensBefore& order);
/// Within each buffer: reads after writes, conflicting accesses ordered, nothing read before it is written.
void check_accesses(Findings& findings, const Program& program, const HappensBefore& order);
/// Between buffers that share bytes.
void check_sharing(Findings& findings, const Program& program, const HappensBefore& order);
/// Durable writes, sync and commit.
void check_durability(Findings& findings, const Program& program, const HappensBefore& order);

}  // namespace sluice::planning
