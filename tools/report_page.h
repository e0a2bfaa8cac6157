// A report as one HTML file, which needs nothing else.
#pragma once

#include <string>

#include "tools/report_source.h"

namespace sluice::tools {

/// What every report begins with: a file that does not is none, and not replaced.
constexpr const char* report_begin = "<!DOCTYPE html>\n<!-- sluice report -->\n";

/// Tables are text, charts are drawn by the scripts in it. All text of the source is escaped.
std::string report_page(const ReportSource& source);

// Its tables, in report_tables.cpp; empty where nothing is known.
std::string memory_table(const ReportedStep& step);
std::string resource_table(const ReportSource& source);
std::string pass_table(const ReportedStep& step);
std::string difference_table(const ReportedStep& step);
std::string work_table(const ReportedStep& step);
std::string row_table(const std::vector<ReportSource::Row>& rows, const char* name);

}  // namespace sluice::tools
