// The phases of a run whose sequences have one length after another (--seq-schedule).
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/train/request/prepare.h"
#include "src/train/request/seq_schedule.h"

namespace sluice::tools {

/// The run at another of its phases, with what was decided for it.
Result<RunConfig> config_of_phase(const Prepared& run, std::size_t phase);

/// A plan for each kind of sequences that a run comes to. The one that the run is at is the caller's, and comes back
/// here when its phase is over.
class PhasePlans {
 public:
  PhasePlans() = default;
  /// Of all phases behind the one that `run` is at, which may be none. bad_request for the first that does not fit,
  /// with budgets that would do.
  static Result<PhasePlans> prepare(Prepared& run, const Tell& progress);

  bool none() const { return others_.empty(); }
  /// Of the run's phases from `run`'s on, of which there are some: the plan of one of them.
  const Prepared& of(const Prepared& run, const SequencePhase& phase) const;
  /// Whether states lie elsewhere in any phase behind `run`'s than in the one before it.
  bool any_move(const Prepared& run) const;
  /// `run` is over, and becomes the run at its next phase.
  void go_on(std::unique_ptr<Prepared>& run);

 private:
  bool move_behind(const Prepared& run, std::size_t phase) const;
  std::vector<std::unique_ptr<Prepared>> others_;
};

/// "steps 1,001 to 5,000: sequences of 2,048 tokens, predicted 3.71 s a step; arenas: ..." for each phase from `run`'s
/// on, or, where lengths come again and again, for each of them.
std::vector<std::string> phase_texts(const Prepared& run, const PhasePlans& plans);
/// One object for each phase from `run`'s on.
nlohmann::ordered_json phases_json(const Prepared& run, const PhasePlans& plans);

}  // namespace sluice::tools
