// sluice plan: what a run would do, without doing it.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "offload/plan/finish.h"
#include "offload/plan/timeline.h"
#include "sluice/size.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/terminal.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

Json arena_json(const StepPlan& plan, Tier tier, std::uint64_t planned) {
  Json j;
  std::uint64_t arena = 0, live = 0;
  for (const Arena& a : plan.arenas) {
    if (a.tier != tier) continue;
    // Device memory is per rank; host memory and drive are shared by the ranks of a node.
    arena = tier == Tier::device ? std::max(arena, a.arena_bytes) : arena + a.arena_bytes;
    live = tier == Tier::device ? std::max(live, a.max_live_bytes) : live + a.max_live_bytes;
  }
  j["arena_bytes"] = arena;
  j["max_live_bytes"] = live;
  j["reserved_bytes"] = planned;
  return j;
}

/// Parameters and optimizer states of all ranks, one slot of each, wherever they lie.
std::uint64_t state_bytes(const Prepared& run) {
  std::uint64_t bytes = 0;
  for (const Buffer& b : run.main.buffers) {
    const bool copy = b.name.ends_with(".durable") || b.tier == Tier::device;
    if (b.unit >= 0 && b.life == Life::persistent && b.state != StateKind::gradient && !copy) bytes += b.bytes;
  }
  return bytes;
}

Json to_json(const Prepared& run) {
  const auto ranks = static_cast<std::uint64_t>(run.workload.ranks);
  Json j;
  j["fits"] = run.search.fits;
  j["parameters"] = run.model.parameters;
  if (!run.search.fits) {
    const TierBytes& s = run.search.smallest;
    j["smallest"] = {{"device", s.device}, {"host", s.host * ranks}, {"nvme", s.nvme * ranks}};
    return j;
  }
  j["device"] = arena_json(run.main, Tier::device, run.search.needs.device);
  j["host"] = arena_json(run.main, Tier::host, run.search.needs.host * ranks);
  j["nvme"] = arena_json(run.main, Tier::nvme, run.search.needs.nvme * ranks);
  const Simulation& p = run.predicted;
  j["predicted"] = {{"step_seconds", p.step_seconds},
                    {"bound_seconds", p.bound_seconds},
                    {"pass_bound_seconds", p.pass_bound_seconds},
                    {"bottleneck", resource_names[static_cast<std::size_t>(p.bottleneck)]}};
  const LinkBytes b = plan_link_bytes(run.main);
  j["bytes"] = {{"nvme_read", b.nvme_read},
                {"nvme_write", b.nvme_write},
                {"h2d", b.h2d},
                {"d2h", b.d2h},
                {"collective", b.collective}};
  const Schedule& s = run.search.schedule;
  j["schedule"] = {{"group", s.group},
                   {"micro_batches", run.workload.micro_batches},
                   {"update", s.update_ahead ? "ahead" : "backward"},
                   {"units_updated_on_device", std::ranges::count(s.units, true, &UnitChoice::update_on_device)},
                   {"prefetch", s.prefetch},
                   {"tile_numel", s.tile_numel}};
  j["smallest"] = {{"device", run.search.smallest.device},
                   {"host", run.search.smallest.host * ranks},
                   {"nvme", run.search.smallest.nvme * ranks}};
  j["durable"] = {
      {"on", run.workload.durable}, {"second_slots_bytes", durable_slot_bytes(run.main)}, {"why", run.durability}};
  const double numel = static_cast<double>(run.model.parameters);
  j["state_bytes_per_parameter"] = static_cast<double>(state_bytes(run)) / numel;
  if (!run.config.nvme.empty()) j["wear"] = wear_json(predicted_wear(run));
  j["ops"] = run.main.ops.size();
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(plan_hash(run.main)));
  j["plan_hash"] = hash;
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

void print_memory(const Prepared& run) {
  Table table({"tier", "budget", "arena", "most alive", "arena / alive", "smallest possible"});
  const auto row = [&](Tier tier, std::uint64_t smallest) {
    const Arena& a = run.arena(tier);
    const double ratio =
        a.max_live_bytes ? static_cast<double>(a.arena_bytes) / static_cast<double>(a.max_live_bytes) : 1;
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", ratio);
    table.add({tier_names[static_cast<std::size_t>(tier)], a.budget_bytes > 1 ? format_bytes(a.budget_bytes) : "-",
               format_bytes(a.arena_bytes), format_bytes(a.max_live_bytes), text, format_bytes(smallest)});
  };
  row(Tier::device, run.search.smallest.device);
  row(Tier::host, run.search.smallest.host);
  row(Tier::nvme, run.search.smallest.nvme);
  std::printf("%s\n", table.text().c_str());
}

void print_placement(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  Table table({"what", "device", "host", "nvme"});
  const auto home = [&](Place UnitChoice::*place, Place where) {
    return share(s, [&](const UnitChoice& c) { return c.*place == where; });
  };
  table.add({"parameters (units)", share(s, [](const UnitChoice& c) { return c.resident; }),
             home(&UnitChoice::parameter_home, Place::host), home(&UnitChoice::parameter_home, Place::nvme)});
  table.add({"remainder, moments", "-", home(&UnitChoice::state_home, Place::host),
             home(&UnitChoice::state_home, Place::nvme)});
  const auto updated = [&](bool device) {
    return share(s, [=](const UnitChoice& c) { return c.update_on_device == device; });
  };
  table.add({"AdamW (units)", updated(true), updated(false), "-"});
  if (s.update_ahead)
    table.add({"gradients until the update", "-", home(&UnitChoice::gradient, Place::host),
               home(&UnitChoice::gradient, Place::nvme)});
  table.add({"sublayer inputs", home(&UnitChoice::boundary, Place::device), home(&UnitChoice::boundary, Place::host),
             home(&UnitChoice::boundary, Place::nvme)});
  table.add({"saved activations", share(s, [](const UnitChoice& c) { return c.saved == Saved::keep; }),
             share(s, [](const UnitChoice& c) { return c.saved == Saved::host; }),
             share(s, [](const UnitChoice& c) { return c.saved == Saved::nvme; })});
  std::printf("%s\n", table.text().c_str());
  std::printf(
      "recomputed: %s; %d micro-batches in groups of %d; updates %s; %d units fetched ahead; tiles of %s "
      "parameters\n\n",
      share(s, [](const UnitChoice& c) { return c.saved == Saved::recompute; }).c_str(), run.workload.micro_batches,
      s.group, s.update_ahead ? "ahead of the next forward" : "in the backward pass", s.prefetch,
      format_count(static_cast<double>(s.tile_numel)).c_str());
}

void print_time(const Prepared& run) {
  const Simulation& p = run.predicted;
  const LinkBytes b = plan_link_bytes(run.main);
  Table table({"resource", "work per step", "seconds alone", "share of the step"});
  double flop = 0;
  for (const Op& op : run.main.ops) flop += op.flop;
  const std::array<std::string, 6> work{
      format_count(flop) + "FLOP", "-", "-", format_bytes(b.nvme_read + b.nvme_write), format_bytes(b.h2d),
      format_bytes(b.d2h)};
  for (std::size_t r = 0; r < resource_names.size(); ++r) {
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.0f%%", 100 * p.resource_seconds[r] / p.step_seconds);
    table.add({resource_names[r], work[r], format_seconds(p.resource_seconds[r]), percent});
  }
  std::printf("%s\n", table.text().c_str());
  std::printf("predicted step  %s\ntime bound      %s (%s); by passes %s\nefficiency      %.2f of the bound\n",
              format_seconds(p.step_seconds).c_str(), format_seconds(p.bound_seconds).c_str(),
              resource_names[static_cast<std::size_t>(p.bottleneck)], format_seconds(p.pass_bound_seconds).c_str(),
              p.bound_seconds / p.step_seconds);
  std::printf("states          %.2f bytes a parameter\n",
              static_cast<double>(state_bytes(run)) / static_cast<double>(run.model.parameters));
  std::printf("durable         %s%s\n", run.durability.c_str(),
              run.workload.durable ? (": every step survives a crash; the second slots take " +
                                      format_bytes(durable_slot_bytes(run.main)) + " of the drive and no other traffic")
                                         .c_str()
                                   : "");
  if (const std::size_t drives = run.config.nvme.size(); drives > 0)
    std::printf("drive wear      %s\n", to_text(predicted_wear(run), predicted_rate, drives).c_str());
  std::printf("ops             %zu, waits proven by `check`\n", run.main.ops.size());
}

Status plan(const RunOptions& options) {
  SLUICE_ASSIGN(const RunConfig config, resolve(options));
  SLUICE_TRY(check_outputs(config));
  ProgressLine line(10, !config.json);
  SLUICE_ASSIGN(auto run, prepare(config, Purpose::train, [&](const std::string& text) { line.note(text); }));
  line.finish();
  if (run->search.fits) {
    const auto violations = check(run->main);
    if (!violations.empty())
      return fault("the plan is illegal, which is a bug in its builder: " + violations.front().message);
    if (!config.trace.empty())
      SLUICE_TRY(write_trace(config.trace, run->main, {{"predicted", run->predicted.timeline}}));
  }
  if (config.json) std::printf("%s\n", to_json(*run).dump().c_str());
  if (!run->search.fits) return does_not_fit(*run);
  if (config.json) return success();
  std::printf("%s: %s parameters, %s tokens a step\n\n", config.model.c_str(),
              format_count(static_cast<double>(run->model.parameters)).c_str(),
              format_count(static_cast<double>(config.batch * config.sequence)).c_str());
  print_memory(*run);
  print_placement(*run);
  print_time(*run);
  if (!config.trace.empty()) std::printf("trace           %s (open in ui.perfetto.dev)\n", config.trace.c_str());
  return success();
}

}  // namespace

void add_plan(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      add_command(app, "plan", "show what a run would need and how long its steps would take",
                  "  sluice plan --model llama-7b --device-memory 24GiB --host-memory 32GiB --nvme /mnt/nvme\n"
                  "  sluice plan --model llama-1b --batch 8 --seq 1024 --trace plan.json --nvme /tmp");
  auto options = std::make_shared<RunOptions>();
  add_model_options(command, options.get());
  command->get_option("--model")->required();
  add_batch_options(command, options.get());
  add_training_options(command, options.get());
  command->add_option("--trace", options->config.trace, "file for the predicted timeline of one step");
  command->callback([options, &outcome] { outcome.finish("plan", plan(*options)); });
}

}  // namespace sluice::tools
