// Sequences of other lengths in one run, one after another: --seq-schedule 512:1000,2048:*.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/train/request/run_config.h"

namespace sluice {

/// Steps `first` to `last`, both among them, have sequences of so many tokens.
struct SequencePhase {
  std::int64_t sequence = 0, first = 1, last = 0;
};

/// Of LENGTH:STEPS,... of which the last may have "*": all steps that are left of `steps`. Without that the phases say
/// how many steps there are, and `steps` may be 0. bad_request for anything else, for phases without a step, and for
/// phases that are not `steps` in all.
Result<std::vector<SequencePhase>> parse_seq_schedule(const std::string& text, std::int64_t steps);

/// All of them, of a configuration whose schedule can be parsed; one where it has none.
std::vector<SequencePhase> phases_of(const RunConfig& config);
/// The one that the configuration is at.
SequencePhase phase_of(const RunConfig& config);
/// The same run at another of its phases.
RunConfig at_phase(RunConfig config, std::size_t phase);
/// Whose windows say what is held out for evaluation, so that no phase learns what another holds out: those of the
/// first phase, which is over or under way whatever schedule a run goes on with.
std::int64_t border_sequence(const RunConfig& config);
/// That the run has seen behind this step.
std::uint64_t tokens_after(const RunConfig& config, std::int64_t step);
/// Sequences of the present length that have as many tokens as all steps of earlier phases had, rounded up: the order
/// of the data goes on behind them.
std::uint64_t samples_before(const RunConfig& config);

/// Steps that a run with a schedule has at most.
inline constexpr std::int64_t scheduled_steps_max = std::int64_t{1} << 30;

/// bad_request where the schedule can not be parsed, or `sequence` is not that of its phase.
Status check_seq_schedule(const RunConfig& config);

}  // namespace sluice
