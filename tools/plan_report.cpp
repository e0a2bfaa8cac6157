#include "tools/plan_report.h"

#include <algorithm>

#include "offload/parallel.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/stages.h"
#include "src/train/request/seq_schedule.h"

namespace sluice::tools {

Findings find_out(const Prepared& run) {
  Findings f;
  parallel_invoke([&] { f.smallest = smallest_budgets(run); },
                  [&] {
                    if (!run.search.fits) return;
                    f.advice = advise(run);
                    if (!run.workload.inference)
                      f.activation_gap = activation_gap(run.workload, run.search.schedule, run.profile);
                  });
  return f;
}

double tokens_per_second(const Prepared& run) {
  return static_cast<double>(run.config.batch * run.config.sequence) / run.step_seconds();
}

std::int64_t run_steps(const Prepared& run) {
  const SequencePhase phase = phase_of(run.config);
  return phase.last - phase.first + 1;
}

double run_seconds(const Prepared& run) { return static_cast<double>(run_steps(run)) * run.step_seconds(); }

std::size_t ops_of(const Prepared& run) {
  std::size_t ops = 0;
  for (const StagePlans& stage : run.stages) ops += stage.main.ops.size();
  return ops;
}

std::ptrdiff_t units_updated_ahead(const Schedule& s) {
  return s.update_ahead ? std::ssize(s.units) : std::ranges::count(s.units, true, &UnitChoice::late);
}

std::string units_of(const Prepared& run, RankId stage) {
  const Stages stages(run.workload, run.search.schedule);
  std::string text;
  const auto units = static_cast<UnitId>(run.model.units.size());
  for (UnitId first = 0, end = 0; first < units; first = end) {
    const StageChunk owner = stages.owner(first);
    for (end = first; end < units && stages.owner(end).stage == owner.stage && stages.owner(end).chunk == owner.chunk;)
      ++end;
    if (owner.stage != stage) continue;
    const auto name = [&](UnitId u) { return run.model.units[static_cast<std::size_t>(u)].name; };
    text += (text.empty() ? "" : ", ") + name(first) + (end - first > 1 ? " to " + name(end - 1) : "");
  }
  return text;
}

double idle_share(const StagePlans& stage) {
  return 1 - stage.predicted.lane_busy[static_cast<std::size_t>(LaneKind::compute)];
}

double norm_wait_seconds(const StagePlans& stage) {
  double computed = 0, known = 0;
  for (const Span& span : stage.predicted.timeline) {
    const Op& op = stage.main.ops[span.op];
    if (stage.main.lanes[op.lane].kind == LaneKind::compute) computed = std::max(computed, span.end);
    if (op.kind == OpKind::control) known = std::max(known, span.end);
  }
  return std::max(0.0, known - computed);
}

}  // namespace sluice::tools
