#include <algorithm>
#include <array>
#include <cstdio>

#include "sluice/size.h"
#include "src/device/efficiency.h"
#include "src/train/request/arrangement.h"
#include "tools/packing_report.h"
#include "tools/plan_report.h"
#include "tools/saving_report.h"
#include "tools/speculation_report.h"
#include "tools/terminal.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

/// "all", "none", or "7 of 34": how many units a choice holds for.
template <class F>
std::string share(const Schedule& s, F holds) {
  std::size_t count = 0;
  for (const UnitChoice& c : s.units) count += holds(c) ? 1 : 0;
  if (count == 0) return "none";
  if (count == s.units.size()) return "all";
  return std::to_string(count) + " of " + std::to_string(s.units.size());
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
         waits(Place::device), waits(Place::host), waits(Place::nvme)});
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
  const bool flushes = run.workload.durable && run.profile.drive.sync_seconds_per_byte > 0;
  const std::string flush = flushes ? " and a flush" : "";
  const std::array<std::string, resource_names.size()> work{format_count(flop) + "FLOP",
                                                            "-",
                                                            "-",
                                                            format_bytes(b.nvme_read + b.nvme_write) + flush,
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

}  // namespace

void print_plan(const Prepared& run, const Findings& findings) {
  print_ranks(run);
  print_memory(run, findings.smallest);
  print_placement(run);
  print_time(run, findings);
}

}  // namespace sluice::tools
