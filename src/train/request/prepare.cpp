#include "src/train/request/prepare.h"

#include <algorithm>
#include <array>

#include "offload/parallel.h"
#include "src/device/calibrate.h"
#include "src/schedule/build.h"
#include "src/schedule/stages.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/choose_schedule.h"
#include "src/train/request/machine.h"

namespace sluice {
namespace {

double flop_per_token(const ModelSpec& model, std::int64_t sequence) {
  const ModelConfig& c = model.config;
  const double attention = 12.0 * static_cast<double>(c.layers * c.heads * c.head_dim * sequence) / 2.0;
  double matmul_parameters = 0;
  for (const UnitSpec& u : model.units)
    for (const TensorSpec& t : u.tensors)
      if (t.shape.size() >= 2 && u.kind != Sublayer::embed) matmul_parameters += static_cast<double>(t.numel);
  if (c.tied) matmul_parameters += static_cast<double>(c.vocabulary * c.hidden);
  return 6.0 * matmul_parameters + attention;
}

/// A request that is described, and what the machine gives it.
Result<std::unique_ptr<Prepared>> begin_prepare(const RunConfig& config, Purpose purpose, const Tell& progress,
                                                bool measures = true) {
  SLUICE_ASSIGN(auto run, describe_request(config, purpose));
  SLUICE_TRY(take_machine(*run, measures, progress));
  run->model_flop_per_token = flop_per_token(run->model, config.sequence);
  return run;
}

/// Whether what steps of one order leave is where those of the other look for it.
bool lies_alike(const StepPlan& main, const StepPlan& ahead) {
  const auto outlasts = [](const Buffer& b) { return b.life == Life::persistent && b.holds != Holds::resident; };
  if (std::ranges::count_if(main.buffers, outlasts) != std::ranges::count_if(ahead.buffers, outlasts)) return false;
  for (BufferId id = 0; id < main.buffers.size(); ++id) {
    const Buffer& b = main.buffers[id];
    if (!outlasts(b)) continue;
    if (id >= ahead.buffers.size()) return false;
    const Buffer& other = ahead.buffers[id];
    if (!outlasts(other) || b.tier != other.tier || b.offset != other.offset || b.bytes != other.bytes ||
        b.unit != other.unit || b.state != other.state || b.block_bytes != other.block_bytes)
      return false;
  }
  return true;
}

/// Every plan that the run will run, before anything of it is touched.
Status prove_plans(const Prepared& run) {
  for (const StagePlans& stage : run.stages)
    if (!stage.ahead.ops.empty() && !lies_alike(stage.main, stage.ahead))
      return fault("states would lie elsewhere when updates wait for the norm, which is a bug in the schedule");
  std::array<std::vector<Violation>, plans_of_stage.size()> found;
  parallel_for(plans_of_stage.size(), [&](std::size_t i) {
    std::vector<const StepPlan*> plans;
    for (const StagePlans& stage : run.stages) plans.push_back(&(stage.*plans_of_stage[i]));
    const Schedule& schedule = run.search.schedule;
    if (!plans.front()->ops.empty())
      found[i] = prove(plans, run.workload, goes_ahead(plans_of_stage[i]) ? schedule.ahead() : schedule);
  });
  for (const std::vector<Violation>& violations : found)
    if (!violations.empty())
      return fault("the plan is illegal, which is a bug in its builder: " + violations.front().message);
  return success();
}

/// What sums take on the device may be what does not fit.
bool may_stage(const Prepared& run) {
  return run.workload.collects_on_device && run.config.transport == Transport::automatic;
}

/// Side by side. What bounds the slowest of them bounds all.
void predict_stages(Prepared& run, StepPlan StagePlans::*plan, Simulation StagePlans::*predicted) {
  std::vector<const StepPlan*> plans;
  for (const StagePlans& stage : run.stages) plans.push_back(&(stage.*plan));
  WorldSimulation world = simulate_world(plans, run.profile);
  for (std::size_t s = 0; s < plans.size(); ++s) {
    run.stages[s].*predicted = std::move(world.members[s]);
    (run.stages[s].*predicted).bound_seconds = world.bound_seconds;
  }
}

/// Without the proof.
void build_plans_alone(Prepared& run) {
  const Workload& w = run.workload;
  const Schedule &schedule = run.search.schedule, ahead = schedule.ahead();
  const bool both = !w.inference && schedule.both_orders && !schedule.update_ahead,
             keeps = !w.inference && schedule.keeps_gradients;
  run.stages.resize(w.stages());
  parallel_for(run.stages.size(), [&](std::size_t s) {
    StagePlans& stage = run.stages[s];
    const Workload own = at_stage(w, static_cast<RankId>(s));
    parallel_invoke(
        [&] {
          stage.main = build_plan(w.main_kind(), own, schedule);
          if (run.stages.size() == 1) stage.predicted = simulate(stage.main, run.profile);
        },
        [&] {
          if (!w.inference) stage.evaluate = build_plan(PlanKind::evaluate, own, schedule);
          if (!w.inference && schedule.flushes_all()) stage.flush = build_plan(PlanKind::flush, own, ahead);
          if (!w.inference && schedule.mixes()) stage.flush_late = build_plan(PlanKind::flush, own, schedule);
          if (keeps && run.stages.size() == 1) stage.predicted_flush = simulate(stage.flush, run.profile);
          if (both) stage.ahead = build_plan(PlanKind::train, own, ahead);
          if (both && run.stages.size() == 1) stage.predicted_ahead = simulate(stage.ahead, run.profile);
        });
    stage.needs = {};
    for (const auto plan : plans_of_stage)
      for (const Arena& a : (stage.*plan).arenas)
        stage.needs.of(a.tier) = std::max(stage.needs.of(a.tier), a.arena_bytes);
  });
  if (run.stages.size() > 1) predict_stages(run, &StagePlans::main, &StagePlans::predicted);
  if (run.stages.size() > 1 && both) predict_stages(run, &StagePlans::ahead, &StagePlans::predicted_ahead);
  if (run.stages.size() > 1 && keeps) predict_stages(run, &StagePlans::flush, &StagePlans::predicted_flush);
  run.kernels.clear();
  for (const StagePlans& stage : run.stages) {
    run.kernels.merge(chosen_kernels(run.profile, stage.main.cost_keys));
    run.kernels.merge(chosen_kernels(run.profile, stage.ahead.cost_keys));
    run.kernels.merge(chosen_kernels(run.profile, stage.evaluate.cost_keys));
  }
}

Status build_plans(Prepared& run) {
  build_plans_alone(run);
  return prove_plans(run);
}

void take_layout(Prepared& run, const DriveLayout& layout) {
  run.workload.block_bytes = run.profile.drive.block_bytes = layout.block_bytes;
  run.profile.drive.stripe_weights = layout.stripe_weights;
}

/// As far as what the search takes.
Result<std::unique_ptr<Prepared>> prepare_to_search(const RunConfig& config, Purpose purpose, const Tell& progress,
                                                    bool measures) {
  SLUICE_ASSIGN(auto run, begin_prepare(config, purpose, progress, measures));
  run->wish = wish_of(*run);
  run->workload.durable =
      !run->workload.inference && config.durable != Durable::off && !config.run.empty() && !config.nvme.empty();
  return run;
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare_to_estimate(const RunConfig& config, Purpose purpose, const Tell& progress) {
  SLUICE_ASSIGN(auto run, prepare_to_search(config, purpose, progress, false));
  run->profile.op_seconds.clear();
  return run;
}

Result<std::unique_ptr<Prepared>> arranged(const Prepared& other, const RunConfig& config) {
  SLUICE_ASSIGN(auto run, describe_request(config, Purpose::train));
  Workload& w = run->workload;
  w.device = other.workload.device;
  w.budget_bytes = other.workload.budget_bytes;
  w.block_bytes = other.workload.block_bytes;
  w.durable = other.workload.durable;
  run->profile = other.profile;
  run->model_flop_per_token = other.model_flop_per_token;
  run->wish = wish_of(*run);
  return run;
}

Result<std::unique_ptr<Prepared>> prepare(const RunConfig& config, Purpose purpose, const Tell& progress, Effort effort,
                                          const DriveLayout* layout) {
  SLUICE_ASSIGN(auto run, prepare_to_search(config, purpose, progress, true));
  if (layout != nullptr) take_layout(*run, *layout);
  if (progress) progress("searching a schedule");
  const Effort aim = has_other_devices(config) ? Effort::quick : effort;
  const bool durable = run->workload.durable;
  choose_schedule(*run, progress, aim);
  if (!run->search.fits && may_stage(*run)) {
    run->workload.collects_on_device = false;
    run->workload.durable = durable;
    choose_schedule(*run, progress, aim);
  }
  if (run->search.fits) SLUICE_TRY(build_plans(*run));
  return run;
}

namespace {

/// Of a schedule whose steps that wait use memory otherwise.
Status check_waiting(const Workload& w, const Schedule& s) {
  if (s.waiting.empty()) return success();
  if (w.activation_dtype != ActivationDtype::exact)
    return bad_request(
        "the schedule has steps that wait of their own, and --activation-dtype would give them other bits");
  bool alike = s.both_orders && !s.update_ahead && s.waiting.size() == s.units.size();
  bool on_device = false;
  for (std::size_t u = 0; alike && u < s.units.size(); ++u) {
    const UnitChoice &other = s.units[u], &waits = s.waiting[u];
    alike = waits.parameter_home == other.parameter_home && waits.state_home == other.state_home &&
            waits.gradient == other.gradient && waits.update_on_device == other.update_on_device;
    on_device = on_device || waits.gradient == Place::device;
  }
  if (!alike) return bad_request("the schedule has steps that wait with states elsewhere; give both the same places");
  if (std::ranges::any_of(s.waiting, &UnitChoice::resident))
    return bad_request("the schedule has steps that wait with resident parameters; give them held ones");
  if (on_device && s.keeps_gradients)
    return bad_request("the schedule keeps gradients where its repairs would not find them: leave keeps_gradients out");
  return success();
}

Status check_units(const Prepared& run, const Schedule& schedule) {
  if (run.workload.gathers == RankGathers::int8 && std::ranges::any_of(schedule.units, &UnitChoice::resident))
    return bad_request(
        "the schedule keeps parameters on the device, where --gather int8 would round them; leave that out");
  if (schedule.units.size() != run.model.units.size())
    return bad_request("the schedule is for " + std::to_string(schedule.units.size()) + " sublayers, " +
                       run.config.model + " has " + std::to_string(run.model.units.size()));
  if (!schedule.update_ahead && std::ranges::all_of(schedule.units, &UnitChoice::late))
    return bad_request("the schedule updates in the backward pass, and all of its units are late: give update_ahead");
  if (schedule.mixes() && run.workload.stages() > 1)
    return bad_request("the schedule updates in both passes, which stages of a pipeline can not");
  SLUICE_TRY(check_waiting(run.workload, schedule));
  return check_stages(run.workload, schedule);
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare_stored(const RunConfig& config, const Schedule& schedule,
                                                 const DriveLayout& layout) {
  // Nothing is computed: states lie alike whatever computes.
  RunConfig on_host = config;
  on_host.device = "cpu";
  SLUICE_ASSIGN(auto run, describe_request(on_host, Purpose::train));
  SLUICE_TRY(check_units(*run, schedule));
  run->workload.durable = config.durable == Durable::on;
  take_layout(*run, layout);
  run->is_given = true;
  run->search.schedule = schedule;
  const std::vector<TierBytes> needs = stage_needs(run->workload, schedule);
  std::vector<StepPlan> plans = build_stages(run->workload.main_kind(), run->workload, schedule);
  for (std::size_t s = 0; s < needs.size(); ++s) {
    StagePlans& stage = run->stages.emplace_back();
    stage.main = std::move(plans[s]);
    stage.needs = needs[s];
  }
  run->search.needs = run_needs(run->workload, schedule);
  return run;
}

Result<std::unique_ptr<Prepared>> prepare_with(const RunConfig& config, Purpose purpose, const Schedule& schedule,
                                               const DriveLayout* layout, const Tell& progress) {
  SLUICE_ASSIGN(auto run, begin_prepare(config, purpose, progress));
  SLUICE_TRY(check_units(*run, schedule));
  run->workload.durable = config.durable == Durable::on;
  run->durability = run->workload.durable ? "on" : "off";
  if (layout != nullptr) take_layout(*run, *layout);
  run->is_given = true;
  run->wish = config.wish;
  run->wish.pipeline = schedule.pipeline;
  SearchResult& found = run->search;
  found.schedule = schedule;
  found.needs = run_needs(run->workload, schedule);
  found.fits = within(found.needs, run->workload.budget_bytes);
  if (!found.fits && may_stage(*run)) {
    run->workload.collects_on_device = false;
    found.needs = run_needs(run->workload, schedule);
    found.fits = within(found.needs, run->workload.budget_bytes);
  }
  if (!found.fits && run->workload.saves) {
    // It was found for steps that do not save: these stop for that.
    run->workload.saves = false;
    found.needs = run_needs(run->workload, schedule);
    found.fits = within(found.needs, run->workload.budget_bytes);
    if (found.fits && progress)
      progress("the run's plan has no room for steps that save beside their work: they stop for each checkpoint");
  }
  if (!found.fits) return run;
  SLUICE_TRY(build_plans(*run));
  found.predicted_seconds = run->step_seconds();
  return run;
}

Result<std::unique_ptr<Prepared>> prepare_decided(const Decided& decided) {
  SLUICE_ASSIGN(auto run, describe_request(decided.config, decided.purpose));
  SLUICE_TRY(check_units(*run, decided.schedule));
  Workload& w = run->workload;
  w.device = decided.device;
  w.budget_bytes = decided.budget_bytes;
  w.threads = decided.threads;
  w.durable = decided.durable;
  w.saves = decided.saves;
  run->profile = decided.profile;
  w.block_bytes = run->profile.drive.block_bytes;
  SLUICE_TRY(set_sharing(*run));
  run->model_flop_per_token = flop_per_token(run->model, decided.config.sequence);
  run->is_given = true;
  run->search.schedule = decided.schedule;
  run->search.needs = run_needs(w, decided.schedule);
  run->search.fits = true;
  build_plans_alone(*run);
  run->kernels = decided.kernels;
  run->search.predicted_seconds = run->step_seconds();
  return run;
}

}  // namespace sluice
