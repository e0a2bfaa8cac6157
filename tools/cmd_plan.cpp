// sluice plan: what a run would do, without doing it.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "offload/plan/timeline.h"
#include "sluice/size.h"
#include "src/train/request/check_request.h"
#include "src/train/request/longest_sequence.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/run_config_json.h"
#include "tools/commands.h"
#include "tools/described_run.h"
#include "tools/layout.h"
#include "tools/phases.h"
#include "tools/plan_report.h"
#include "tools/run_home.h"
#include "tools/terminal.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

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
    Json j = plan_json(*run, findings);
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
  print_plan(*run, findings);
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
