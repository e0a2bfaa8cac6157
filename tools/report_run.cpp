// What a report tells of a run: from the files in its directory, also while another process goes on with it.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "sluice/size.h"
#include "src/train/request/run_config_json.h"
#include "src/train/request/wear.h"
#include "src/train/run/kept_timeline.h"
#include "src/train/run/metrics_file.h"
#include "tools/json_text.h"
#include "tools/report_source.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

Status add_step(const RunDirectory& directory, ReportSource& source) {
  SLUICE_ASSIGN(const std::optional<Json> kept, kept_timeline(directory));
  if (!kept) {
    source.missing.push_back(
        "The run has no timeline.json, so that memory, lanes, passes and what was predicted are not known: it was "
        "removed, or the run was begun by an early version of sluice. Where the run is not complete "
        "'sluice train --run ... --resume' writes it, and 'sluice plan --run ... --json' prints the plan.");
    return success();
  }
  const Json whole_step = kept->value("step", Json());
  const Result<ReportedStep> step = read_step(whole_step);
  const Json& parameters = kept->value("parameters", Json());
  if (!step.ok() || !parameters.is_number())
    return bad_request(directory.path() + "/timeline.json is damaged" + (step.ok() ? "" : ": " + step.error().message) +
                       "; remove it: the run writes another when it goes on");
  source.step = *step;
  source.step_json = json_text(whole_step);
  source.machine = value_rows(kept->value("machine", Json()));
  source.facts.emplace_back("parameters", format_count(parameters.get<double>()));
  if (!step->has_measured) {
    source.missing.push_back(
        "No step's timeline was measured: a run keeps that of its last step when it ends or is stopped, of plans of up "
        "to 131072 ops, and with --trace of larger ones too. Shown is what was predicted.");
    return success();
  }
  const Json of = kept->value("measured_step", Json());
  const Json number = of.is_object() ? of.value("step", Json()) : Json();
  if (!number.is_number_integer()) return success();
  source.measured = "step " + std::to_string(number.get<std::int64_t>());
  if (of.value("is_first", Json()) == true)
    source.missing.push_back(
        "What was measured is the first step behind a start or an evaluation: nothing of it was "
        "done beside the step before, as the prediction has it.");
  if (!source.curves) return success();
  const auto line = source.curves->last_seconds.find(number.get<std::int64_t>());
  if (line != source.curves->last_seconds.end()) source.measured_seconds = line->second;
  return success();
}

void add_speed(const RunCurves& curves, ReportSource& source) {
  double seconds = 0;
  for (const auto& [step, took] : curves.last_seconds) seconds += took;
  if (seconds == 0) return;
  const double mean = seconds / static_cast<double>(curves.last_seconds.size());
  source.facts.emplace_back("mean of the last " + std::to_string(curves.last_seconds.size()) + " steps",
                            format_seconds(mean));
  if (source.step) {
    source.facts.emplace_back("predicted step", format_seconds(source.step->step_seconds));
    source.facts.emplace_back("time bound",
                              format_seconds(source.step->bound_seconds) + " (" + source.step->bottleneck + ")");
  }
}

void add_losses(const RunCurves& curves, ReportSource& source) {
  if (curves.lines > 0)
    source.facts.emplace_back("loss of the last step", number_text(curves.last_loss) + " nats/token");
  for (const auto& [set, losses] : curves.eval)
    source.facts.emplace_back("validation loss" + (set.empty() ? "" : ", " + set),
                              number_text(losses.back().second) + " after step " + std::to_string(losses.back().first));
  if (curves.tokens > 0) source.facts.emplace_back("tokens seen", format_count(static_cast<double>(curves.tokens)));
  if (curves.repaired > 0) source.facts.emplace_back("steps repaired", std::to_string(curves.repaired));
  if (!curves.skipped.empty()) source.facts.emplace_back("skipped steps", std::to_string(curves.skipped.size()));
}

/// As the lines say, which know nothing of checkpoints that share blocks.
void add_wear(const RunConfig& config, const RunCurves& curves, ReportSource& source) {
  if (config.nvme.empty() || curves.timed_steps == 0) return;
  const auto steps = static_cast<std::uint64_t>(curves.timed_steps);
  const Wear wear =
      drive_wear(curves.nvme_write_bytes / steps, curves.timed_seconds / static_cast<double>(steps), config.drive_tbw);
  source.drives.emplace_back("written a step, measured, without checkpoints",
                             format_count(static_cast<double>(wear.bytes_per_step)) + "B");
  source.drives.emplace_back("written a day at that rate", format_count(wear.bytes_per_day) + "B");
  source.drives.emplace_back("drives last", wear.days ? format_count(*wear.days) + "days of training without pause"
                                            : config.drive_tbw > 0
                                                ? "nothing is written"
                                                : "not known: --drive-tbw says what they are rated for");
}

void add_checkpoints(const RunConfig& config, ReportSource& source) {
  const auto all = list_checkpoints(checkpoints_path(config));
  if (!all.ok()) return;  // no directory: none was saved
  for (const ListedCheckpoint& checkpoint : *all)
    source.checkpoints.emplace_back(checkpoint.path, std::string(checkpoint.is_whole ? "whole" : "not whole") +
                                                         (checkpoint.latest ? ", the latest" : ""));
}

Status add_curves(const RunConfig& config, const RunDirectory& directory, ReportSource& source) {
  const std::string path = metrics_path(config);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    source.missing.push_back("There is no " + path +
                             ", where the run wrote its metrics: losses and rates are not known.");
    return success();
  }
  SLUICE_ASSIGN(source.curves, read_curves(path, run_name(directory.run()->id)));
  if (source.curves->others > 0)
    source.missing.push_back(std::to_string(source.curves->others) + " lines of " + path +
                             " are not of a step of this run, or out of order, and left out.");
  if (source.curves->lines == 0) source.missing.push_back("The run has no line of a step yet.");
  return success();
}

}  // namespace

Result<ReportSource> read_run_source(const std::string& path) {
  SLUICE_ASSIGN(const RunDirectory directory, RunDirectory::look(path));
  if (!directory.run())
    return bad_request(path +
                       " holds no run; give the directory of a run, or what 'sluice plan ... --json' has printed");
  SLUICE_ASSIGN(const auto result, directory.result());
  RunConfig config = directory.run()->config;
  config.run = path;  // it may have been moved
  ReportSource source;
  source.title = "Run of " + config.model;
  source.subtitle = path;
  SLUICE_TRY(add_curves(config, directory, source));
  const std::int64_t done = source.curves ? source.curves->last_step : 0;
  source.facts.emplace_back("steps",
                            result ? std::to_string(config.steps) + ", complete"
                                   : std::to_string(done) + " of " + std::to_string(config.steps) + ", not complete");
  SLUICE_TRY(add_step(directory, source));
  if (source.curves) {
    add_losses(*source.curves, source);
    add_speed(*source.curves, source);
    add_wear(config, *source.curves, source);
  }
  add_checkpoints(config, source);
  source.settings = value_rows(to_json(directory.run()->config));
  for (const Json& change : to_json(directory.run()->changes, directory.run()->config))
    source.changes.push_back({change["from"].dump(), json_text(change["was"]), json_text(change["is"])});
  if (source.machine.empty()) source.machine = {{"machine", directory.run()->machine}};
  return source;
}

}  // namespace sluice::tools
