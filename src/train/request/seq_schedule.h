// Sequences of other lengths in one run, one after another: --seq-schedule 512:1000,2048:*, or, for documents of their
// own length, 2-512:100,513-2048:50,...
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
  /// Sequences are whole documents (src/train/data/document_rows.h), of which each has so many tokens at least; 0: they
  /// are what follows in the data, wherever documents end.
  std::int64_t shortest = 0;
  std::int64_t batch = 0;  ///< sequences a step; 0: --batch

  bool of_documents() const { return shortest > 0; }
  /// Sequences are of the same kind, whichever steps have them.
  bool is_like(const SequencePhase& other) const { return has_lengths_of(other) && batch == other.batch; }
  bool has_lengths_of(const SequencePhase& other) const {
    return sequence == other.sequence && shortest == other.shortest;
  }
  std::string lengths() const;  ///< "512", or "2 to 512"
  std::string text() const;     ///< as a schedule has them: "512", or "2-512x32"
};

/// Of LENGTH:STEPS or SHORTEST-LENGTH:STEPS, one after another with commas between them. LENGTHxBATCH:STEPS says how
/// many sequences a step has: of all of them, or of none. The last may have "*": all steps that are left of `steps`; or
/// behind it is "...": all of them again and again up to `steps`. Without these the phases say how many steps there
/// are, and `steps` may be 0. bad_request for anything else, for phases without a step, for phases that are not `steps`
/// in all, and for more than `phases_max`.
Result<std::vector<SequencePhase>> parse_seq_schedule(const std::string& text, std::int64_t steps);

/// Of one turn of them, however many steps there are going to be: bad_request for what is wrong with the text alone.
Result<std::vector<SequencePhase>> parse_seq_schedule_once(const std::string& text);
/// Whether the text takes as many steps as it is given, and says no number of its own.
bool takes_steps(const std::string& seq_schedule);
/// All of them, of a configuration whose schedule can be parsed; one where it has none.
std::vector<SequencePhase> phases_of(const RunConfig& config);
/// Of the phases from `from` on: the first of each kind of sequences.
std::vector<std::size_t> phases_apart(const RunConfig& config, std::size_t from = 0);
/// The one that the configuration is at.
SequencePhase phase_of(const RunConfig& config);
/// The same run at another of its phases.
RunConfig at_phase(RunConfig config, std::size_t phase);
/// Whose windows say what is held out for evaluation, so that no phase learns what another holds out: those of the
/// first phase, which is over or under way whatever schedule a run goes on with.
std::int64_t border_sequence(const RunConfig& config);
/// That the run has seen behind this step.
std::uint64_t tokens_after(const RunConfig& config, std::int64_t step);
/// Whether the schedule says how many sequences a step has.
bool has_batches(const std::vector<SequencePhase>& phases);
/// Sequences a step.
std::int64_t batch_of(const SequencePhase& phase, const RunConfig& config);
/// Sequences behind which the order of the data goes on. Of documents: what earlier phases had of the same kind. Else
/// as many as have the tokens of all earlier steps that were not of documents, rounded up.
std::uint64_t samples_before(const RunConfig& config);

/// Steps that a run with a schedule has at most.
inline constexpr std::int64_t scheduled_steps_max = std::int64_t{1} << 30;
inline constexpr std::size_t phases_max = 1000;

/// bad_request where the schedule can not be parsed, or `sequence` or `batch` is not that of its phase.
Status check_seq_schedule(const RunConfig& config);

}  // namespace sluice
