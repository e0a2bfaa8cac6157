#include "src/train/request/check_restore.h"

#include "io/checkpoint/checkpoint.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/state_source.h"

namespace sluice {

Result<std::string> check_restore(const RunConfig& config, bool from_scratch, const ModelSpec& model) {
  if (!config.init.empty() || from_scratch)
    return bad_request("--restore has the weights of " + config.restore + "; leave out " +
                       (from_scratch ? "--from-scratch" : "--init"));
  SLUICE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(config.restore));
  const Manifest& m = checkpoint.manifest();
  StateSource source(checkpoint, m.formats, {});
  const auto same = source.tensors(stored_tensors(model));
  if (!same.ok()) return same.error();
  if (m.step > 0 && !source.has_moments() && !config.reset_optimizer)
    return bad_request(checkpoint.path() + " has no moments of the optimizer; --reset-optimizer begins with zeros");
  if (static_cast<std::int64_t>(m.step) > config.steps)
    return bad_request(checkpoint.path() + " is of step " + std::to_string(m.step) + ", beyond --steps " +
                       std::to_string(config.steps) + "; give at least that");
  if (const SequencePhase phase = phase_of(config); static_cast<std::int64_t>(m.step) > phase.last)
    return bad_request(checkpoint.path() + " is of step " + std::to_string(m.step) + ", and --seq-schedule " +
                       config.seq_schedule + " has sequences of " + phase.lengths() + " to step " +
                       std::to_string(phase.last) + " alone; give them to that step at least");
  return "states: of step " + std::to_string(m.step) + ", from " + checkpoint.path() +
         (config.reset_optimizer ? ", without moments" : "");
}

}  // namespace sluice
