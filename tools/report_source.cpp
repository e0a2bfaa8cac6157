#include "tools/report_source.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/device/efficiency.h"
#include "tools/json_text.h"
#include "tools/plan_file.h"
#include "tools/run_options.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

/// What is there under these keys; null where it is not.
Json at(const Json& j, std::initializer_list<const char*> keys) {
  const Json* value = &j;
  for (const char* key : keys) {
    if (!value->is_object() || !value->contains(key)) return nullptr;
    value = &(*value)[key];
  }
  return *value;
}
std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }
double number_of(const Json& value) { return value.is_number() ? value.get<double>() : 0; }

std::string smallest_text(const Json& plan) {
  std::string text;
  for (const char* tier : {"device", "host", "nvme"}) {
    const double bytes = number_of(at(plan, {"smallest", tier}));
    if (bytes > 0 && bytes < 1e19)
      text += (text.empty() ? "" : ", ") + std::string(tier) + " " + format_bytes(static_cast<std::uint64_t>(bytes));
  }
  return text;
}

void add_wear(const Json& plan, ReportSource& source) {
  const Json wear = at(plan, {"wear"});
  const double step = number_of(at(wear, {"bytes_per_step"})), day = number_of(at(wear, {"bytes_per_day"}));
  if (!wear.is_object()) return;
  source.drives.emplace_back("written a step, predicted", format_count(step) + "B");
  source.drives.emplace_back("written a day, predicted", format_count(day) + "B");
  const double days = number_of(at(wear, {"days"}));
  source.drives.emplace_back("drives last", days > 0 ? format_count(days) + "days of training without pause"
                                                     : "not known: --drive-tbw says what they are rated for");
}

void add_plan_facts(const Json& plan, ReportSource& source) {
  const ReportedStep& step = *source.step;
  source.facts.emplace_back("predicted step", format_seconds(step.step_seconds));
  source.facts.emplace_back("time bound", format_seconds(step.bound_seconds) + " (" + step.bottleneck + ")");
  source.facts.emplace_back("efficiency", format_efficiency(step.bound_seconds / step.step_seconds) + " of the bound");
  source.facts.emplace_back("speed",
                            format_count(number_of(at(plan, {"predicted", "tokens_per_second"}))) + "tokens/s");
  source.facts.emplace_back(format_count(number_of(at(plan, {"predicted", "steps"}))) + "steps take",
                            format_seconds(number_of(at(plan, {"predicted", "run_seconds"}))));
}

}  // namespace

Result<ReportSource> read_plan_source(const std::string& path) {
  SLUICE_ASSIGN(const Json plan, read_plan_file(path));
  const Error damaged = bad_request(path + " is damaged; print it again with 'sluice plan ... --json'");
  const Json fits = at(plan, {"fits"}), settings = at(plan, {"settings"});
  if (!fits.is_boolean() || !settings.is_object()) return damaged;
  ReportSource source;
  source.title = "Plan of " + text_of(at(plan, {"model"}));
  source.subtitle = path;
  source.settings = value_rows(settings);
  source.facts.emplace_back("parameters", format_count(number_of(at(plan, {"parameters"}))));
  if (!fits.get<bool>()) {
    source.smallest = smallest_text(plan);
    return source;
  }
  const Json whole_step = at(plan, {"step"});
  const Result<ReportedStep> step = read_step(whole_step);
  if (!step.ok())
    return bad_request(path + " is damaged: " + step.error().message +
                       "; print it again with 'sluice plan ... --json'");
  source.step = *step;
  source.step_json = json_text(whole_step);
  source.machine = value_rows(at(plan, {"machine"}));
  add_plan_facts(plan, source);
  add_wear(plan, source);
  source.advice = text_of(at(plan, {"advice", "text"}));
  source.missing.push_back(
      "This is a plan: nothing in it was measured. 'sluice train' with the same arguments, and 'sluice report' of the "
      "run, put what was measured beside it.");
  return source;
}

Result<ReportSource> read_report_source(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return bad_request("there is no " + path +
                       "; give the directory of a run, or what 'sluice plan ... --json' has printed");
  const std::string whole = absolute_path(path);
  return std::filesystem::is_directory(path, ignored) ? read_run_source(whole) : read_plan_source(whole);
}

}  // namespace sluice::tools
