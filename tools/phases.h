// The phases of a run whose sequences have one length after another (--seq-schedule).
#pragma once

#include <cstddef>
#include <cstdint>
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

  bool none() const { return plans_.size() < 2; }
  /// From `run`'s on.
  const std::vector<SequencePhase>& phases() const { return phases_; }
  /// The plan of one of them.
  const Prepared& of(const Prepared& run, std::size_t phase) const;
  /// Whether states lie elsewhere in any phase behind `run`'s than in the one before it.
  bool any_move() const;
  /// `run` is over, and becomes the run at its next phase.
  void go_on(std::unique_ptr<Prepared>& run);

 private:
  bool moves_behind(std::size_t phase) const;
  std::vector<SequencePhase> phases_;
  std::vector<std::size_t> kinds_;                ///< of each: which of the plans
  std::vector<std::unique_ptr<Prepared>> plans_;  ///< none where the caller has it
  std::vector<std::uint64_t> places_;             ///< of states, by plan
};

/// "step 4: from here on whole documents of 33 to 96 tokens, to step 5"
std::string phase_begins(const Prepared& run);

/// "steps 1,001 to 5,000: sequences of 2,048 tokens, predicted 3.71 s a step; arenas: ..." for each phase from `run`'s
/// on, or, where lengths come again and again, for each of them.
std::vector<std::string> phase_texts(const Prepared& run, const PhasePlans& plans);
/// One object for each phase from `run`'s on.
nlohmann::ordered_json phases_json(const Prepared& run, const PhasePlans& plans);

}  // namespace sluice::tools
