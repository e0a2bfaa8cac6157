// What a report is of: a run's directory, or a plan in a file. Nothing is measured, planned or touched.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/status.h"
#include "tools/report_curves.h"
#include "tools/report_step.h"

namespace sluice::tools {

struct ReportSource {
  using Row = std::pair<std::string, std::string>;
  std::string title, subtitle;
  std::vector<Row> facts;
  std::string advice;                ///< one sentence; empty: none
  std::vector<std::string> missing;  ///< sentences: what is not there, and how to get it
  std::optional<ReportedStep> step;
  std::string step_json;                   ///< as charts take it
  std::string measured;                    ///< "step 40": whose timeline `step` has as measured
  std::optional<double> measured_seconds;  ///< from step to step
  std::optional<RunCurves> curves;
  std::vector<Row> drives;       ///< wear of drives
  std::vector<Row> checkpoints;  ///< path, what it is
  std::string smallest;          ///< of a plan that does not fit
  std::vector<Row> settings, machine;
  std::vector<std::array<std::string, 3>> changes;  ///< from which step on settings were others, as JSON: before, then
};

/// bad_request where it is neither, or damaged.
Result<ReportSource> read_report_source(const std::string& path);

// Each of one kind; absolute paths.
Result<ReportSource> read_run_source(const std::string& path);
Result<ReportSource> read_plan_source(const std::string& path);

/// A row for each value, those of objects one below the other; empty ones are left out.
std::vector<ReportSource::Row> value_rows(const nlohmann::ordered_json& values);

}  // namespace sluice::tools
