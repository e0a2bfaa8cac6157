#include <algorithm>
#include <cmath>

#include "sluice/size.h"
#include "tools/html.h"
#include "tools/report_page.h"

namespace sluice::tools {
namespace {

constexpr std::size_t differences_max = 10;

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f%%", 100 * share);
  return text;
}

/// "+1.20 ms"
std::string signed_seconds(double seconds) { return (seconds < 0 ? "-" : "+") + format_seconds(std::abs(seconds)); }

}  // namespace

std::string memory_table(const ReportedStep& step) {
  HtmlTable table({{"tier", true}, {"budget"}, {"arena"}, {"most alive"}, {"what it is, then (predicted)", true}});
  for (const MemoryRow& row : step.memory)
    table.add({row.tier, row.budget > 1 ? format_bytes(row.budget) : "-", format_bytes(row.arena),
               format_bytes(row.peak), row.contents});
  return step.memory.empty() ? "" : table.html();
}

std::string resource_table(const ReportSource& source) {
  const ReportedStep& step = *source.step;
  std::vector<HtmlTable::Column> columns{{"resource", true}, {"seconds alone"}, {"of the predicted step"}};
  if (source.measured_seconds) columns.push_back({"of the measured step"});
  HtmlTable table(columns);
  for (const ResourceRow& row : step.resources) {
    if (row.seconds <= 0) continue;
    std::vector<std::string> cells{row.name, format_seconds(row.seconds), percent(row.seconds / step.step_seconds)};
    if (source.measured_seconds) cells.push_back(percent(row.seconds / *source.measured_seconds));
    table.add(cells);
  }
  return table.html();
}

std::string pass_table(const ReportedStep& step) {
  std::vector<HtmlTable::Column> columns{{"pass", true}, {"unit", true},  {"times"},
                                         {"bound"},      {"limit", true}, {"predicted"}};
  if (step.has_measured) columns.push_back({"measured"});
  HtmlTable table(columns);
  for (std::size_t i = 0; i < step.passes.size(); ++i) {
    const PassRow& row = step.passes[i];
    std::vector<std::string> cells{std::to_string(i + 1) + " " + row.direction,
                                   row.unit,
                                   std::to_string(row.times),
                                   format_seconds(row.bound),
                                   row.limit,
                                   format_seconds(row.predicted)};
    if (step.has_measured) cells.push_back(format_seconds(row.measured));
    table.add(cells);
  }
  return table.html();
}

std::string difference_table(const ReportedStep& step) {
  if (!step.has_measured) return "";
  std::vector<WorkRow> rows = step.work;
  std::ranges::stable_sort(rows, std::greater(), [](const WorkRow& r) { return std::abs(r.measured - r.predicted); });
  if (rows.size() > differences_max) rows.resize(differences_max);
  HtmlTable table(
      {{"lane", true}, {"op", true}, {"ops"}, {"predicted"}, {"measured"}, {"difference a step"}, {"ratio"}});
  for (const WorkRow& row : rows) {
    char ratio[32] = "-";
    if (row.predicted > 0) std::snprintf(ratio, sizeof ratio, "%.2f", row.measured / row.predicted);
    table.add({row.lane, row.op, std::to_string(row.ops), format_seconds(row.predicted), format_seconds(row.measured),
               signed_seconds(row.measured - row.predicted), ratio});
  }
  return table.html();
}

std::string work_table(const ReportedStep& step) {
  std::vector<HtmlTable::Column> columns{{"lane", true}, {"op", true}, {"ops"}, {"bytes"}, {"predicted"}};
  if (step.has_measured) columns.push_back({"measured"});
  HtmlTable table(columns);
  for (const WorkRow& row : step.work) {
    std::vector<std::string> cells{row.lane, row.op, std::to_string(row.ops),
                                   row.bytes > 0 ? format_bytes(row.bytes) : "-", format_seconds(row.predicted)};
    if (step.has_measured) cells.push_back(format_seconds(row.measured));
    table.add(cells);
  }
  return table.html();
}

std::string row_table(const std::vector<ReportSource::Row>& rows, const char* name) {
  if (rows.empty()) return "";
  HtmlTable table({{name, true}, {"value", true}});
  for (const auto& [key, value] : rows) table.add({key, value});
  return table.html();
}

}  // namespace sluice::tools
