#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "offload/plan/finish.h"
#include "src/train/request/repair.h"
#include "src/train/request/run_config_json.h"
#include "src/train/request/saving.h"
#include "src/train/request/step_json.h"
#include "tools/plan_file.h"
#include "tools/plan_report.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Device memory is each rank's; host memory and drive are shared by the ranks of a machine.
Json arena_json(const Prepared& run, Tier tier) {
  std::uint64_t reserved = 0;
  for (RankId s = 0; s < run.stages.size(); ++s) {
    const std::uint64_t bytes = run.stages[s].needs.of(tier);
    reserved = tier == Tier::device ? std::max(reserved, bytes) : reserved + bytes * run.ranks_here(s);
  }
  const Arena arena = run.arena_of_machine(tier);
  return {{"arena_bytes", arena.arena_bytes},
          {"max_live_bytes", arena.max_live_bytes},
          {"packing", pack_state_names[static_cast<std::size_t>(arena.packing)]},
          {"reserved_bytes", reserved}};
}

/// Null where no amount does.
Json bytes_json(const std::optional<std::uint64_t>& bytes) { return bytes ? Json(*bytes) : Json(nullptr); }

void add_smallest(Json& j, const SmallestBudgets& s) {
  j["smallest"] = {{"device", s.corner.device}, {"host", s.corner.host}, {"nvme", s.corner.nvme}};
  j["least"] = {
      {"device", bytes_json(s.least.device)}, {"host", bytes_json(s.least.host)}, {"nvme", bytes_json(s.least.nvme)}};
}

Json pipeline_json(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  const bool clips = run.config.optimizer.clip_norm > 0;
  Json stages = Json::array();
  for (RankId i = 0; i < run.stages.size(); ++i) {
    const StagePlans& stage = run.stages[i];
    const LinkBytes bytes = plan_link_bytes(stage.main);
    stages.push_back({{"first_rank", stage.main.topology.rank()},
                      {"ranks", run.workload.ranks_of_stage()},
                      {"units", units_of(run, i)},
                      {"device_bytes", stage.needs.device},
                      {"host_bytes", stage.needs.host},
                      {"nvme_bytes", stage.needs.nvme},
                      {"message_bytes", bytes.message},
                      {"compute_idle", idle_share(stage)}});
    if (clips) stages.back()["norm_wait_seconds"] = norm_wait_seconds(stage);
  }
  return {{"order", pipeline_order_names[static_cast<std::size_t>(s.pipeline.order)]},
          {"chunks", s.pipeline.chunks},
          {"stages", stages}};
}

/// Units of steps that wait for their norm, where these use memory otherwise than others.
Json waiting_json(const std::vector<UnitChoice>& units) {
  return {{"gradients_on_device", std::ranges::count(units, Place::device, &UnitChoice::gradient)},
          {"held", std::ranges::count(units, true, &UnitChoice::held)},
          {"saved_on_device", std::ranges::count(units, Saved::keep, &UnitChoice::saved)}};
}

}  // namespace

Json plan_json(const Prepared& run, const Findings& findings) {
  Json j{{"format", plan_format}, {"version", plan_version}};
  j["model"] = run.config.model;
  j["fits"] = run.search.fits;
  j["parameters"] = run.model.parameters;
  const SmallestBudgets& smallest = findings.smallest;
  j["init"] = run.config.init.empty() ? Json() : Json(run.config.init);
  if (!run.search.fits) {
    add_smallest(j, smallest);
    j["settings"] = to_json(run.config);
    return j;
  }
  j["device"] = arena_json(run, Tier::device);
  j["host"] = arena_json(run, Tier::host);
  j["nvme"] = arena_json(run, Tier::nvme);
  const Simulation& p = run.predicted();
  j["predicted"] = {{"step_seconds", p.step_seconds},
                    {"bound_seconds", p.bound_seconds},
                    {"pass_bound_seconds", p.pass_bound_seconds},
                    {"bottleneck", resource_names[static_cast<std::size_t>(p.bottleneck)]},
                    {"tokens_per_second", tokens_per_second(run)},
                    {"steps", run_steps(run)},
                    {"run_seconds", run_seconds(run)}};
  if (run.speculates()) {
    const Repair repair = predict_repair(run);
    j["predicted"]["repaired_step"] = {{"step_seconds", repair.seconds},
                                       {"from_gradients", repair.from_gradients},
                                       {"loaded_bytes", repair.loaded_bytes}};
  }
  if (run.changes_order()) {
    j["predicted"]["ahead_step_seconds"] = run.predicted(true).step_seconds;
    j["predicted"]["change_back_seconds"] = predict_change_seconds(run);
  }
  if (findings.activation_gap) j["predicted"]["activations_above_bound"] = *findings.activation_gap;
  if (const std::optional<SavingStep> saving = predict_saving(run))
    j["saving_step"] = {{"bytes", saving->bytes},
                        {"to_swap_drive", saving->to_swap_drive},
                        {"shares_blocks", saving->shares_blocks},
                        {"step_seconds", saving->seconds},
                        {"bound_seconds", saving->bound_seconds}};
  const Advice& advice = findings.advice;
  j["advice"] = {{"limit", resource_names[static_cast<std::size_t>(advice.limit)]}, {"text", to_text(advice)}};
  if (advice.larger)
    j["advice"]["enlarge"] = {{"tier", tier_names[static_cast<std::size_t>(advice.larger->tier)]},
                              {"bytes", advice.larger->bytes},
                              {"gain", advice.larger->gain}};
  if (advice.not_durable_gain) j["advice"]["not_durable"] = {{"gain", *advice.not_durable_gain}};
  const LinkBytes b = machine_link_bytes(run);
  j["bytes"] = {{"nvme_read", b.nvme_read},   {"nvme_write", b.nvme_write}, {"h2d", b.h2d}, {"d2h", b.d2h},
                {"collective", b.collective}, {"message", b.message}};
  const Workload& w = run.workload;
  if (w.ranks() > 1)
    j["ranks"] = {
        {"all", w.ranks()},
        {"mesh", {{"pp", w.stages()}, {"dp", w.batch_ranks()}, {"cp", w.context_ranks()}, {"tp", w.tensor_ranks()}}},
        {"mesh_order", run.config.mesh_order},
        {"cp_attention", context_attention_names[w.shape.ring ? 1 : 0]},
        {"shard_group", w.shards()},
        {"replicas", w.replicas()},
        {"lots", w.lots * w.batch_ranks()},
        {"reduction", reduction_names[static_cast<std::size_t>(w.reduction)]},
        {"gather", rank_gathers_names[static_cast<std::size_t>(w.gathers)]},
        {"reduce", rank_sums_names[static_cast<std::size_t>(w.sums)]},
        {"received_bytes_per_rank", plan_link_bytes(run.main()).collective}};
  if (w.meets_in_host) j["ranks"]["transport"] = w.collects_on_device ? "nccl" : "staged";
  if (w.stages() > 1) j["pipeline"] = pipeline_json(run);
  const Schedule& s = run.search.schedule;
  j["schedule"] = {{"group", s.group / run.workload.slices()},
                   {"micro_batches", run.workload.sequence_batches()},
                   {"slices", run.workload.shape.slices},
                   {"update", run.speculates() ? "speculative"
                              : s.update_ahead ? "ahead"
                                               : "backward"},
                   {"gradient_dtype", dtype_name(run.workload.gradient_dtype)},
                   {"units_updated_ahead", units_updated_ahead(s)},
                   {"units_updated_on_device", std::ranges::count(s.units, true, &UnitChoice::update_on_device)},
                   {"prefetch", s.prefetch},
                   {"gradients_ahead", s.gradients_ahead && parks_sums(run.workload, s)},
                   {"tile_numel", s.tile_numel}};
  if (!s.waiting.empty()) j["schedule"]["waiting"] = waiting_json(s.waiting);
  if (run.workload.activation_dtype != ActivationDtype::exact)
    j["schedule"]["activation_dtype"] = activation_dtype_names[static_cast<std::size_t>(run.workload.activation_dtype)];
  add_smallest(j, smallest);
  j["durable"] = {
      {"on", run.workload.durable}, {"second_slots_bytes", durable_slot_bytes(run)}, {"why", run.durability}};
  const double numel = static_cast<double>(run.model.parameters);
  j["state_bytes_per_parameter"] = static_cast<double>(state_bytes(run)) / numel;
  if (!run.config.nvme.empty()) j["wear"] = wear_json(predicted_wear(run));
  j["ops"] = ops_of(run);
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(plan_hash(run.main())));
  j["plan_hash"] = hash;
  j["settings"] = to_json(run.config);
  j["machine"] = machine_json(run);
  j["step"] = step_json(run);
  return j;
}

}  // namespace sluice::tools
