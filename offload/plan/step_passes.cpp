#include "offload/plan/step_passes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "offload/plan/cost.h"
#include "offload/plan/work.h"

namespace sluice {
namespace {

using namespace planning;

bool goes_back(OpKind kind) {
  switch (kind) {
    case OpKind::recompute:
    case OpKind::recompute_qkv:
    case OpKind::recompute_core:
    case OpKind::backward:
    case OpKind::backward_again:
    case OpKind::backward_input:
    case OpKind::backward_weight:
    case OpKind::part_recompute:
    case OpKind::expose:
    case OpKind::part_backward:
    case OpKind::enter_backward:
    case OpKind::out_backward:
    case OpKind::core_backward:
    case OpKind::core_earlier_backward:
    case OpKind::qkv_backward: return true;
    default: return false;
  }
}

/// For each pass its place among those that are one for each unit and direction.
std::vector<std::size_t> places_of(const StepPasses& passes, std::vector<StepPass>* kinds) {
  std::map<std::pair<UnitId, bool>, std::size_t> known;
  std::vector<std::size_t> places;
  for (const StepPass& pass : passes.all) {
    const auto [found, is_new] = known.try_emplace({pass.unit, pass.backward}, known.size());
    if (is_new) kinds->push_back(pass);
    places.push_back(found->second);
  }
  return places;
}

/// Work of each pass.
std::vector<Work> work_of(const StepPlan& plan, const StepPasses& passes, const HardwareProfile& hw) {
  const CostModel model(plan, hw);
  std::vector<Work> work(passes.all.size());
  for (OpId i = 0; i < plan.ops.size(); ++i) work[passes.of_op[i]].add(model.cost(plan.ops[i]));
  return work;
}

}  // namespace

StepPasses step_passes(const StepPlan& plan) {
  StepPasses passes;
  passes.all.emplace_back();
  passes.of_op.reserve(plan.ops.size());
  bool started = false;
  for (const Op& op : plan.ops) {
    if (is_compute(op.kind)) {
      const StepPass at = passes.all.back();
      // Of ops that are of both passes, those are of the way back that follow one of a later unit.
      const bool is_of_both = op.kind == OpKind::enter || op.kind == OpKind::qkv || op.kind == OpKind::core ||
                              op.kind == OpKind::core_earlier;
      const bool came_back = at.unit > op.unit || (at.unit == op.unit && at.backward);
      const bool backward = goes_back(op.kind) || (is_of_both && came_back) || (is_streamed(op.kind) && at.backward);
      if (started && (at.unit != op.unit || at.backward != backward)) passes.all.emplace_back();
      passes.all.back() = {op.unit, backward};
      started = true;
    }
    passes.of_op.push_back(static_cast<std::uint32_t>(passes.all.size() - 1));
  }
  return passes;
}

std::vector<PassBound> pass_bounds(const StepPlan& plan, const HardwareProfile& hw) {
  const StepPasses passes = step_passes(plan);
  std::vector<StepPass> kinds;
  const std::vector<std::size_t> places = places_of(passes, &kinds);
  const std::vector<Work> work = work_of(plan, passes, hw);
  std::vector<PassBound> bounds(kinds.size());
  std::vector<ResourceSeconds> limited(kinds.size());  // seconds of passes that each resource limits
  for (std::size_t i = 0; i < places.size(); ++i) {
    PassBound& bound = bounds[places[i]];
    bound.pass = kinds[places[i]];
    ++bound.times;
    const ResourceSeconds seconds = work[i].seconds(hw);
    for (std::size_t r = 0; r < seconds.size(); ++r) bound.resource_seconds[r] += seconds[r];
    const auto largest = std::max_element(seconds.begin(), seconds.end());
    bound.bound_seconds += *largest;
    ResourceSeconds& of = limited[places[i]];
    of[static_cast<std::size_t>(largest - seconds.begin())] += *largest;
    bound.limit = static_cast<Resource>(std::max_element(of.begin(), of.end()) - of.begin());
  }
  return bounds;
}

std::vector<double> pass_seconds(const StepPlan& plan, const Timeline& timeline) {
  const StepPasses passes = step_passes(plan);
  std::vector<StepPass> kinds;
  const std::vector<std::size_t> places = places_of(passes, &kinds);
  std::vector<const Span*> compute;
  for (const Span& span : timeline)
    if (is_compute(plan.ops[span.op].kind)) compute.push_back(&span);
  std::ranges::sort(compute, {}, &Span::start);
  std::vector<double> seconds(kinds.size());
  for (std::size_t i = 0; i < compute.size(); ++i) {
    const double until = i + 1 < compute.size() ? compute[i + 1]->start : compute[i]->end;
    seconds[places[passes.of_op[compute[i]->op]]] += until - compute[i]->start;
  }
  return seconds;
}

namespace planning {

double pass_bound(const StepPlan& plan, const HardwareProfile& hw) {
  double bound = 0;
  for (const Work& pass : work_of(plan, step_passes(plan), hw)) {
    const ResourceSeconds seconds = pass.seconds(hw);
    bound += *std::max_element(seconds.begin(), seconds.end());
  }
  return bound;
}

}  // namespace planning
}  // namespace sluice
