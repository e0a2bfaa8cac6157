// sluice plan: what a run would do, without doing it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "offload/parallel.h"
#include "offload/plan/finish.h"
#include "offload/plan/timeline.h"
#include "sluice/size.h"
#include "src/device/efficiency.h"
#include "src/device/profile.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/stages.h"
#include "src/train/request/advice.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/check_request.h"
#include "src/train/request/longest_sequence.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/repair.h"
#include "src/train/request/run_config_json.h"
#include "src/train/request/saving.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/request/step_json.h"
#include "tools/commands.h"
#include "tools/described_run.h"
#include "tools/layout.h"
#include "tools/packing_report.h"
#include "tools/phases.h"
#include "tools/plan_file.h"
#include "tools/run_home.h"
#include "tools/saving_report.h"
#include "tools/speculation_report.h"
#include "tools/terminal.h"
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

Json pipeline_json(const Prepared& run);
std::size_t ops_of(const Prepared& run);

double tokens_per_second(const Prepared& run) {
  return static_cast<double>(run.config.batch * run.config.sequence) / run.step_seconds();
}
/// With sequences as they are now.
std::int64_t run_steps(const Prepared& run) {
  const SequencePhase phase = phase_of(run.config);
  return phase.last - phase.first + 1;
}
double run_seconds(const Prepared& run) { return static_cast<double>(run_steps(run)) * run.step_seconds(); }

/// What takes seconds of large models to find out beside the plan, and is asked for once.
struct Findings {
  SmallestBudgets smallest;
  Advice advice;  ///< where the run fits
  /// That activations ask more of the scarcest resource than a lower bound of that; of training runs that fit.
  std::optional<double> activation_gap;
};
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

std::ptrdiff_t units_updated_ahead(const Schedule& s) {
  return s.update_ahead ? std::ssize(s.units) : std::ranges::count(s.units, true, &UnitChoice::late);
}

Json to_json(const Prepared& run, const Findings& findings) {
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
  if (run.changes_order()) j["predicted"]["ahead_step_seconds"] = run.predicted(true).step_seconds;
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

/// "all", "none", or "7 of 34": how many units a choice holds for.
template <class F>
std::string share(const Schedule& s, F holds) {
  std::size_t count = 0;
  for (const UnitChoice& c : s.units) count += holds(c) ? 1 : 0;
  if (count == 0) return "none";
  if (count == s.units.size()) return "all";
  return std::to_string(count) + " of " + std::to_string(s.units.size());
}

/// "L0.attention to L3.mlp", and behind a comma the stage's next chunk.
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

/// Of a stage's compute lane, the part of the step in which it does nothing.
double idle_share(const StagePlans& stage) {
  return 1 - stage.predicted.lane_busy[static_cast<std::size_t>(LaneKind::compute)];
}

/// Of a run that clips: from the end of a stage's compute in a step until the norm of all stages is known, which is
/// where its next step begins.
double norm_wait_seconds(const StagePlans& stage) {
  double computed = 0, known = 0;
  for (const Span& span : stage.predicted.timeline) {
    const Op& op = stage.main.ops[span.op];
    if (stage.main.lanes[op.lane].kind == LaneKind::compute) computed = std::max(computed, span.end);
    if (op.kind == OpKind::control) known = std::max(known, span.end);
  }
  return std::max(0.0, known - computed);
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

void print_pipeline(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  const RankId data = run.workload.ranks_of_stage();
  const bool clips = run.config.optimizer.clip_norm > 0;
  Table table({"stage", "ranks", "units", "device", "host", "nvme", "receives a step", "compute idle",
               clips ? "waits for the norm" : "waits for no norm"});
  for (RankId i = 0; i < run.stages.size(); ++i) {
    const StagePlans& stage = run.stages[i];
    const RankId first = stage.main.topology.rank();
    char idle[32];
    std::snprintf(idle, sizeof idle, "%.0f%%", 100 * idle_share(stage));
    table.add({std::to_string(i), std::to_string(first) + (data > 1 ? " to " + std::to_string(first + data - 1) : ""),
               units_of(run, i), format_bytes(stage.needs.device), format_bytes(stage.needs.host),
               format_bytes(stage.needs.nvme), format_bytes(plan_link_bytes(stage.main).message), idle,
               clips ? format_seconds(norm_wait_seconds(stage)) : "-"});
  }
  std::printf("pipeline        %d stages, %s", run.workload.stages(),
              pipeline_order_names[static_cast<std::size_t>(s.pipeline.order)]);
  if (s.pipeline.chunks > 1) std::printf(" with %d chunks each", s.pipeline.chunks);
  std::printf("; memory is a rank's%s\n\n%s\n",
              clips ? "; no stage begins its next step before the norm of all is known (not so with --clip 0)" : "",
              table.text().c_str());
}

std::size_t ops_of(const Prepared& run) {
  std::size_t ops = 0;
  for (const StagePlans& stage : run.stages) ops += stage.main.ops.size();
  return ops;
}

/// Its axes, the farthest apart first, and which rank is where.
void print_mesh(const Prepared& run) {
  const Workload& w = run.workload;
  struct MeshLine {
    const char* name;
    RankId ranks;
    const char* place;
  };
  const MeshLine lines[] = {{"pp", w.stages(), "stage"},
                            {"dp", w.batch_ranks(), "share of the batch"},
                            {"cp", w.context_ranks(), "slice of sequences"},
                            {"tp", w.tensor_ranks(), "part of sublayers"}};
  std::string mesh, rank;
  int parts_reach = 0;  // ranks from the first to the last that a sublayer is cut over
  for (const MeshAxis axis : mesh_order_of(run.config).value()) {
    const MeshLine& line = lines[static_cast<std::size_t>(axis)];
    mesh += (mesh.empty() ? "" : " x ") + std::string(line.name) + " " + std::to_string(line.ranks);
    if (axis == MeshAxis::cp && w.shape.ring) mesh += " (ring)";
    const bool is_inner = rank.find(' ') != std::string::npos;
    rank = rank.empty()
               ? line.place
               : (is_inner ? "(" + rank + ")" : rank) + " x " + std::to_string(line.ranks) + " + " + line.place;
    if (axis == MeshAxis::tp) parts_reach = 1;
    parts_reach *= line.ranks;
  }
  std::printf("\nmesh            %s: rank = %s", mesh.c_str(), rank.c_str());
  if (w.tensor_ranks() > 1 && parts_reach > ranks_of_machine(run.config))
    std::printf("; sublayers are cut across machines");
}

void print_ranks(const Prepared& run) {
  const Workload& w = run.workload;
  if (w.ranks() == 1) return;
  std::printf("ranks           %d", w.ranks());
  if (const int machines = w.ranks() / ranks_of_machine(run.config); machines > 1)
    std::printf(" on %d machines; memory, drives and resources are those of one machine", machines);
  if (w.stages() > 1 || w.context_ranks() > 1 || w.tensor_ranks() > 1) print_mesh(run);
  const std::string states = w.data_ranks() == 1 ? "each has the states of its part of the model"
                             : w.shards() == 1   ? "every rank has all states"
                             : w.shards() == w.data_ranks()
                                 ? "all share one copy of the states"
                                 : "groups of " + std::to_string(w.shards()) + " share one copy of the states";
  const std::string as = w.sums == RankSums::bf16     ? " in bf16"
                         : w.sums == RankSums::native ? " natively"
                         : w.sums == RankSums::int4   ? " in blocks of 4 bits"
                                                      : "";
  std::printf("\n                %s%s", w.stages() > 1 && w.data_ranks() > 1 ? "of a stage " : "", states.c_str());
  if (w.gathers == RankGathers::int8) std::printf("; they gather parameters in blocks of 8 bits");
  if (w.data_ranks() > 1)
    std::printf("; they add up gradients %s%s; each receives %s a step",
                w.reduction == Reduction::pass ? "behind every lot" : "behind their last micro-batch", as.c_str(),
                format_bytes(plan_link_bytes(run.main()).collective).c_str());
  if (w.meets_in_host)
    std::printf("\n                transport %s: %s", w.collects_on_device ? "nccl" : "staged",
                w.collects_on_device ? "gathers and sums go from GPU to GPU, one at a time"
                                     : "what they give each other goes through host memory");
  if (ranks_of_machine(run.config) > 1)
    std::printf("\n                each has 1/%d of the budget of host memory%s", ranks_of_machine(run.config),
                run.config.nvme.empty() ? "" : ", and of the drive");
  std::printf("\n\n");
  if (w.stages() > 1) print_pipeline(run);
}

void print_memory(const Prepared& run, const SmallestBudgets& smallest) {
  const std::string about = smallest.is_estimated ? ", about" : "";
  Table table({"tier", "budget", "arena", "most alive", "arena / alive", "least, others as given" + about,
               "least corner" + about});
  const auto row = [&](Tier tier, const std::optional<std::uint64_t>& least, std::uint64_t corner) {
    const Arena a = run.arena_of_machine(tier);
    const double ratio =
        a.max_live_bytes ? static_cast<double>(a.arena_bytes) / static_cast<double>(a.max_live_bytes) : 1;
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", ratio);
    table.add({tier_names[static_cast<std::size_t>(tier)], a.budget_bytes > 1 ? format_bytes(a.budget_bytes) : "-",
               format_bytes(a.arena_bytes), format_bytes(a.max_live_bytes), text, least ? format_bytes(*least) : "-",
               format_bytes(corner)});
  };
  row(Tier::device, smallest.least.device, smallest.corner.device);
  row(Tier::host, smallest.least.host, smallest.corner.host);
  row(Tier::nvme, smallest.least.nvme, smallest.corner.nvme);
  std::printf("%s", table.text().c_str());
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme})
    if (run.arena_of_machine(tier).packing == PackState::limited)
      std::printf(
          "the search for a tighter packing of the %s arena ended at its limit: a smaller one may be possible\n",
          tier_names[static_cast<std::size_t>(tier)]);
  std::printf("\n");
}

std::string updates_text(const Schedule& s) {
  if (s.update_ahead) return "ahead of the next forward";
  if (!s.mixes()) return "in the backward pass";
  return "in the backward pass, those of " + std::to_string(units_updated_ahead(s)) + " of " +
         std::to_string(s.units.size()) + " units ahead of the next forward";
}

void print_placement(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  Table table({"what", "device", "host", "nvme"});
  const auto home = [&](Place UnitChoice::*place, Place where) {
    return share(s, [&](const UnitChoice& c) { return c.*place == where; });
  };
  table.add({"parameters (units)", share(s, [](const UnitChoice& c) { return c.resident; }),
             home(&UnitChoice::parameter_home, Place::host), home(&UnitChoice::parameter_home, Place::nvme)});
  if (const std::string held = share(s, [](const UnitChoice& c) { return c.held && !c.resident; }); held != "none")
    table.add({"parameters through a step", held, "-", "-"});
  table.add({"remainder, moments", "-", home(&UnitChoice::state_home, Place::host),
             home(&UnitChoice::state_home, Place::nvme)});
  const auto updated = [&](bool device) {
    return share(s, [=](const UnitChoice& c) { return c.update_on_device == device; });
  };
  table.add({"AdamW (units)", updated(true), updated(false), "-"});
  const auto waits = [&](Place place) {
    return share(
        s, [&](const UnitChoice& c) { return (s.update_ahead || c.late || s.keeps_gradients) && c.gradient == place; });
  };
  if (s.stores_gradients())
    table.add(
        {run.workload.gradient_dtype == Dtype::f32 ? "gradients until the update" : "bf16 gradients until the update",
         "-", waits(Place::host), waits(Place::nvme)});
  const bool parks = parks_sums(run.workload, s);
  if (parks)
    table.add({"sums of gradients", home(&UnitChoice::accumulator, Place::device),
               home(&UnitChoice::accumulator, Place::host), home(&UnitChoice::accumulator, Place::nvme)});
  table.add({"sublayer inputs", home(&UnitChoice::boundary, Place::device), home(&UnitChoice::boundary, Place::host),
             home(&UnitChoice::boundary, Place::nvme)});
  if (run.workload.shape.slices > 1)
    table.add({"keys and values", home(&UnitChoice::blocks, Place::device), home(&UnitChoice::blocks, Place::host),
               home(&UnitChoice::blocks, Place::nvme)});
  table.add({"saved activations", share(s, [](const UnitChoice& c) { return c.saved == Saved::keep; }),
             share(s, [](const UnitChoice& c) { return c.saved == Saved::host; }),
             share(s, [](const UnitChoice& c) { return c.saved == Saved::nvme; })});
  std::printf("%s\n", table.text().c_str());
  if (const std::string packing = packing_text(run); !packing.empty()) std::printf("%s\n\n", packing.c_str());
  const auto again = std::ranges::count_if(s.units, [](const UnitChoice& c) { return c.sweep > 0; });
  const std::string inputs = again == 0 ? "" : "; " + std::to_string(again) + " inputs made again on the way back";
  const int slices = run.workload.slices();
  const std::string in_slices = slices > 1 ? ", each in " + std::to_string(slices) + " slices" : "";
  std::printf(
      "recomputed: %s%s; %d micro-batches in groups of %d%s; updates %s; %d units fetched ahead%s; tiles of %s "
      "parameters\n\n",
      share(s, [](const UnitChoice& c) { return c.saved == Saved::recompute; }).c_str(), inputs.c_str(),
      run.workload.sequence_batches(), s.group / slices, in_slices.c_str(), updates_text(s).c_str(), s.prefetch,
      parks && s.gradients_ahead ? ", sums of gradients beside the passes" : "",
      format_count(static_cast<double>(s.tile_numel)).c_str());
  if (run.speculates()) std::printf("%s\n\n", speculation_text(run).c_str());
}

void print_time(const Prepared& run, const Findings& findings) {
  const Advice& advice = findings.advice;
  const Simulation& p = run.predicted();
  const LinkBytes b = machine_link_bytes(run);
  Table table({"resource", "work per step", "seconds alone", "share of the step"});
  double flop = 0;
  for (RankId s = 0; s < run.stages.size(); ++s)
    for (const Op& op : run.stages[s].main.ops) flop += op.flop * static_cast<double>(run.ranks_here(s));
  const std::array<std::string, resource_names.size()> work{format_count(flop) + "FLOP",
                                                            "-",
                                                            "-",
                                                            format_bytes(b.nvme_read + b.nvme_write),
                                                            format_bytes(b.h2d),
                                                            format_bytes(b.d2h),
                                                            format_bytes(b.collective + b.message)};
  for (std::size_t r = 0; r < resource_names.size(); ++r) {
    if (r == static_cast<std::size_t>(Resource::network) && run.workload.ranks() == 1) continue;
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.0f%%", 100 * p.resource_seconds[r] / p.step_seconds);
    table.add({resource_names[r], work[r], format_seconds(p.resource_seconds[r]), percent});
  }
  std::printf("%s\n", table.text().c_str());
  std::printf("predicted step  %s\ntime bound      %s (%s); by passes %s\nefficiency      %s of the bound\n",
              format_seconds(p.step_seconds).c_str(), format_seconds(p.bound_seconds).c_str(),
              resource_names[static_cast<std::size_t>(p.bottleneck)], format_seconds(p.pass_bound_seconds).c_str(),
              format_efficiency(p.bound_seconds / p.step_seconds).c_str());
  if (findings.activation_gap)
    std::printf("activations     %.1f%% above the bound of what could become of them, by passes\n",
                100 * std::max(0.0, *findings.activation_gap));
  std::printf("speed           %stokens/s; %lld steps take %s\n", format_count(tokens_per_second(run)).c_str(),
              static_cast<long long>(run_steps(run)), format_seconds(run_seconds(run)).c_str());
  std::printf("advice          %s\n", to_text(advice).c_str());
  std::printf("states          %.2f bytes a parameter\n",
              static_cast<double>(state_bytes(run)) / static_cast<double>(run.model.parameters));
  std::printf("durable         %s%s\n", run.durability.c_str(),
              run.workload.durable ? (": every step survives a crash; the second slots take " +
                                      format_bytes(durable_slot_bytes(run)) + " of the drive and no other traffic")
                                         .c_str()
                                   : "");
  if (const std::string saving = saving_text(run); !saving.empty()) std::printf("saving          %s\n", saving.c_str());
  if (const std::size_t drives = run.config.nvme.size(); drives > 0)
    std::printf("drive wear      %s\n", to_text(predicted_wear(run), predicted_rate, drives).c_str());
  std::printf("ops             %zu, waits proven by `check`\n", ops_of(run));
}

void print_assumed(const std::vector<Excess>& assumed) {
  std::string text;
  for (const Excess& e : assumed) text += (text.empty() ? "" : ", ") + e.assumed;
  if (!text.empty()) std::printf("assumed: %s\n\n", text.c_str());
}

/// Of devices that are not here all is the file's, and nothing this machine's.
Status take_cluster(const std::string& path, const std::set<std::string>& given, bool goes_on, RunConfig& config) {
  SLUICE_ASSIGN(Cluster cluster, read_cluster(path));
  config.ranks_of_node = cluster.ranks_of_machine;
  config.cluster = std::make_shared<const Cluster>(std::move(cluster));
  if (!has_other_devices(config)) return success();
  if (goes_on)
    return bad_request("--cluster " + path + " has a device that is not here, and --run " + config.run +
                       " holds a run that is; leave one of them out");
  for (const char* option :
       {"--device", "--transport", "--nvme", "--profile", "--threads", "--optimizer-threads", "--io"})
    if (given.contains(option))
      return bad_request(std::string(option) + " is of this machine, and --cluster " + path +
                         " describes another one; leave it out");
  config.device = "cuda";  // whose kernels' workspaces are in the plan
  config.assume = true;
  for (int i = 0; config.cluster->drives && i < config.cluster->drives->count; ++i)
    config.nvme.push_back("drive " + std::to_string(i) + " of a machine of " + path);
  return success();
}

/// Before lengths are tried.
Status check_max_seq(const RunOptions& options, const std::set<std::string>& given, const RunConfig& config,
                     bool goes_on) {
  if (goes_on)
    return bad_request("--max-seq is for new runs, and --run " + config.run + " holds one, whose sequences have " +
                       std::to_string(config.sequence) + " tokens");
  if (!config.seq_schedule.empty())
    return bad_request("--max-seq is of one length, and --seq-schedule has several; give one of them");
  if (given.contains("--seq")) return bad_request("--max-seq looks for the longest --seq; give one of them");
  if (options.layout == "auto")
    return bad_request("--max-seq is of one arrangement of ranks, and --layout auto looks for some; give one of them");
  return success();
}

void print_phases(const Prepared& run, const PhasePlans& phases) {
  const bool stays = run.workload.durable && !phases.any_move();
  std::printf("\nThe plan above is of the first line; between them states %s:\n",
              stays ? "stay where they are on the drive" : "go through a checkpoint in the run's directory");
  for (const std::string& text : phase_texts(run, phases)) std::printf("%s\n", text.c_str());
}

Json max_seq_json(const LongestSequence& longest) {
  return {{"tokens", longest.config.sequence},
          {"refused", longest.refused > 0 ? Json(longest.refused) : Json(nullptr)},
          {"positions", longest.positions}};
}

std::string max_seq_text(const LongestSequence& longest, ModelConfig model) {
  std::string text = fmt::format("longest sequence: {} tokens", longest.config.sequence);
  if (longest.refused > 0)
    text += fmt::format("; {} are too many for these budgets", longest.refused);
  else if (longest.config.sequence == longest.positions)
    text += ", which is all that the model has positions for";
  else
    text += ", which is as far as was looked";
  if (longest.config.sequence <= longest.positions) return text + "\n";
  model.max_positions = longest.positions;
  return text + fmt::format("\nthe model has {} positions; {}\n", longest.positions,
                            longer_positions(model, longest.config.sequence));
}

Status plan(RunOptions options, const std::set<std::string>& given) {
  SLUICE_TRY(check_named(options, false));
  // The run of the same arguments is kept, and may be durable.
  if (options.config.run.empty()) options.config.run = run_home_to_come(options.config.model);
  RunDirectory directory;
  if (options.config.run != keep_nothing) {
    SLUICE_ASSIGN(directory, RunDirectory::look(absolute_path(options.config.run)));
  }
  SLUICE_ASSIGN(RunConfig config, described_config(options, given, directory, false));
  const bool goes_on = directory.run().has_value();
  if (!options.cluster.empty()) SLUICE_TRY(take_cluster(options.cluster, given, goes_on, config));
  if (options.max_seq) {
    SLUICE_TRY(check_max_seq(options, given, config, goes_on));
    config.sequence = shortest_sequence(config);
  }
  ProgressLine line(10, !config.json);
  const Request request{.config = config,
                        .from_scratch = options.from_scratch,
                        .goes_on = goes_on,
                        .on_paper = true,
                        .watch = [&](const std::string& what, double fraction) { line.task(what, fraction); }};
  const Tell tell = [&](const std::string& text) { line.note(text); };
  CheckedRequest checked;
  std::optional<LayoutAnswer> answer;
  SLUICE_ASSIGN(const bool looks_for_layout, wants_layout(options, given, config, goes_on));
  if (looks_for_layout) {
    SLUICE_ASSIGN(answer, find_layout(options, given, request, tell));
    checked = answer->checked;
  } else {
    SLUICE_ASSIGN(checked, check_request(request));
  }
  line.finish();
  config = checked.config;
  std::vector<Excess> assumed;  // a run that is there has its budgets
  if (!goes_on) {
    SLUICE_ASSIGN(assumed, beyond_machine(config));
  }
  if (goes_on) line.note(directory.path() + " holds a run: this is its plan");
  std::optional<LongestSequence> longest;
  if (options.max_seq) {
    SLUICE_ASSIGN(longest, longest_sequence(config, [&](const std::string& text) { line.update(text); }));
    config = longest->config;
  }
  const std::string layouts = answer ? layouts_text(answer->layouts) : "";
  const Json layouts_told = answer ? layouts_json(answer->layouts) : Json();
  std::unique_ptr<Prepared> run = answer ? std::move(answer->layouts.found.front().run) : nullptr;
  if (!run) {
    SLUICE_ASSIGN(run, prepare_described(config, directory, tell));
  }
  PhasePlans phases;
  if (run->search.fits) {
    SLUICE_ASSIGN(phases, PhasePlans::prepare(*run, tell));
  }
  line.finish();
  if (run->search.fits && !config.trace.empty())
    SLUICE_TRY(write_trace(config.trace, run->main(), {{"predicted", run->predicted().timeline}}));
  const Findings findings = find_out(*run);
  if (config.json) {
    Json j = to_json(*run, findings);
    if (!assumed.empty()) j["assumed"] = to_json(assumed);
    if (has_other_devices(config)) j["assumed"]["cluster"] = assumed_text(*config.cluster);
    if (answer) j["layouts"] = layouts_told;
    if (longest) j["max_seq"] = max_seq_json(*longest);
    if (!phases.none()) j["phases"] = phases_json(*run, phases);
    std::printf("%s\n", j.dump().c_str());
  }
  if (!run->search.fits) return does_not_fit(*run, findings.smallest);
  if (config.json) return success();
  std::printf("%s: %s parameters, %s tokens a step\n%s\n\n", config.model.c_str(),
              format_count(static_cast<double>(run->model.parameters)).c_str(),
              format_count(static_cast<double>(config.batch * config.sequence)).c_str(), checked.weights.c_str());
  print_assumed(assumed);
  if (has_other_devices(config)) std::printf("assumed, not measured: %s\n\n", assumed_text(*config.cluster).c_str());
  if (answer) std::printf("%s\nThe first of them:\n\n", layouts.c_str());
  if (longest) std::printf("%s\n", max_seq_text(*longest, run->model.config).c_str());
  print_ranks(*run);
  print_memory(*run, findings.smallest);
  print_placement(*run);
  print_time(*run, findings);
  if (!phases.none()) print_phases(*run, phases);
  if (!config.trace.empty()) std::printf("trace           %s (open in ui.perfetto.dev)\n", config.trace.c_str());
  return success();
}

}  // namespace

void add_plan(Command& app, Outcome& outcome) {
  Command* command = add_command(
      app, "plan", "show what a run would need and how long its steps would take",
      "  sluice plan --model llama-7b --device-memory 24GiB --host-memory 32GiB --nvme /mnt/nvme --assume\n"
      "  sluice plan --model llama-1b --batch 8 --seq 1024 --trace plan.json --nvme /tmp\n"
      "  sluice plan --run out               # of a run that is there\n"
      "  sluice plan --model llama-1b --ranks 8 --batch 64 --layout auto   # the ten quickest arrangements\n"
      "  sluice plan --model llama-8b --max-seq --batch 1 --host-memory 64GiB --nvme /mnt/nvme   # the longest "
      "sequences\n"
      "  sluice plan --model llama-70b --ranks 512 --batch 512 --cluster cluster.json --assume\n"
      "Every option of train is an option here, and checked as train does. Nothing is written but the\n"
      "profile, where it lacks something, and --trace.");
  auto options = std::make_shared<RunOptions>();
  add_train_options(command, options.get());
  command
      ->add_flag("--assume", options->config.assume,
                 "plan for a machine that has these budgets and drives, though this one has not; what is assumed is "
                 "said in the answer")
      ->group("Budgets");
  command
      ->add_flag("--max-seq", options->max_seq,
                 "in place of --seq: look for the longest sequences that the budgets have room for, and plan those")
      ->group("Batch");
  command
      ->add_option("--cluster", options->cluster,
                   "file that says how many ranks a machine has and how messages go between ranks, for --ranks on "
                   "machines like this one: JSON with ranks_of_machine, and messages_inside and messages_between a "
                   "machine, each with latency_seconds, gather_bytes_per_second and reduce_bytes_per_second. With a "
                   "device (like {\"name\": \"H200\"}), its host and drives it is of machines unlike this one, and "
                   "nothing is measured (bench/clusters has examples)")
      ->group("Batch");
  command->get_option("--data")->description("as of train; what it refuses is refused (default: plan without)");
  command->get_option("--run")->description("as of train: a run that is there is planned as it goes on");
  command->get_option("--trace")->description("file for the predicted timeline of one step");
  command->callback([options, command, &outcome] { outcome.finish("plan", plan(*options, given_options(*command))); });
}

}  // namespace sluice::tools
