#include "tools/report_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "tools/html.h"
#include "tools/json_text.h"
#include "tools/report_assets.h"

namespace sluice::tools {
namespace {

/// Within a script: no text of it can end that, or begin a comment of HTML.
std::string embedded(const std::string& json) {
  std::string out;
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::string paragraph(const std::string& text, const char* style = "") {
  return fmt::format("<p{}>{}</p>\n", style, escaped(text));
}
std::string dim(const std::string& text) { return paragraph(text, " class=\"dim\""); }
std::string heading(const char* id, const char* text) { return fmt::format("<h2 id=\"{}\">{}</h2>\n", id, text); }
std::string chart(const char* id, const char* style = "chart") {
  return fmt::format("<div id=\"{}\" class=\"{}\"></div>\n", id, style);
}
std::string folded(const char* name, const std::string& html) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", name, html);
}

std::string facts(const ReportSource& source) {
  std::string out = "<dl class=\"facts\">\n";
  for (const auto& [name, value] : source.facts)
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(name), escaped(value));
  out += "</dl>\n";
  if (!source.smallest.empty())
    out += paragraph("The plan does not fit its budgets. The smallest that would do: " + source.smallest + ".");
  if (!source.advice.empty()) out += paragraph("Advice: " + source.advice + ".");
  if (source.missing.empty()) return out;
  out += "<div class=\"missing\">\n";
  for (const std::string& text : source.missing) out += paragraph(text);
  return out + "</div>\n";
}

std::string step_sections(const ReportSource& source) {
  const ReportedStep& step = *source.step;
  const std::string rank = step.ranks > 1 ? " Shown is rank 0 of " + std::to_string(step.ranks) + "." : "";
  const std::string measured = source.measured.empty() ? "" : " Measured is " + source.measured + ".";
  std::string out = heading("memory", "Memory over a step");
  out +=
      dim("What is alive of each tier, by what it is there for: persistent buffers always, others from the start of "
          "their first op to the end of their last." +
          rank + measured);
  out += chart("memory-chart") + memory_table(step);
  out += heading("lanes", "Lanes over a step");
  out +=
      dim("What each lane does, in seconds from the start of the step's first op. Steps overlap: the tail of one runs "
          "beside the head of the next. Short ops that follow each other are one, the paler the less they are busy." +
          rank + measured);
  out += chart("lanes-chart") + folded("work of each lane as a table", work_table(step));
  out += heading("passes", "What bounds the step");
  out +=
      dim(fmt::format("No step is faster than the largest work / rate of a resource ({}, {}), and none that runs its "
                      "passes one after the other faster than their bounds together ({}). Predicted: {}{}.",
                      step.bottleneck, format_seconds(step.bound_seconds), format_seconds(step.pass_bound_seconds),
                      format_seconds(step.step_seconds),
                      source.measured_seconds ? "; measured: " + format_seconds(*source.measured_seconds) : ""));
  out += resource_table(source);
  out += dim(
      "A pass is all consecutive compute of one unit in one direction; it lasts until the next one begins. Its "
      "bound counts the work that is listed during it. Some of that, as reads, is done ahead, so that a single pass "
      "may take less than its bound.");
  out += chart("passes-chart") + folded("passes as a table", pass_table(step));
  out += heading("differences", "Largest differences between prediction and measurement");
  const std::string differences = difference_table(step);
  out += differences.empty()
             ? paragraph("Nothing was measured.")
             : dim("Seconds of a step in which an op of the kind was under way on the lane.") + differences;
  return out;
}

std::string drive_section(const ReportSource& source) {
  if (source.drives.empty() && source.checkpoints.empty()) return "";
  const std::string out = heading("drives", "Drives and checkpoints");
  return out + row_table(source.drives, "drives") + row_table(source.checkpoints, "checkpoint");
}

std::string changes_table(const ReportSource& source) {
  if (source.changes.empty()) return "";
  HtmlTable table({{"from step"}, {"was", true}, {"is", true}});
  for (const auto& [from, was, is] : source.changes) table.add({from, was, is});
  return "<h3>What has changed while the run went on</h3>\n" + table.html();
}

std::string settings_section(const ReportSource& source) {
  return heading("settings", "Settings and machine") + "<div class=\"pair\">\n<div>" +
         row_table(source.settings, "setting") + "</div>\n<div>" + row_table(source.machine, "machine") +
         "</div>\n</div>\n" + changes_table(source);
}

}  // namespace

std::string report_page(const ReportSource& source) {
  const bool has_curves = source.curves && source.curves->lines > 0;
  const std::string data = "{\"step\":" + (source.step ? source.step_json : "null") +
                           ",\"curves\":" + (has_curves ? json_text(source.curves->json()) : "null") + "}";
  std::string out = report_begin;
  out +=
      "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n";
  out += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n", escaped(source.title), report_css);
  out += fmt::format("<h1>{}</h1>\n<p class=\"dim\"><code>{}</code></p>\n", escaped(source.title),
                     escaped(source.subtitle));
  out += facts(source);
  out += "<noscript><p>Charts need JavaScript; the tables have their numbers.</p></noscript>\n";
  if (has_curves)
    out += heading("curves", "Loss and rates") +
           dim("Of long runs a point stands for several steps: their mean, and pale their range.") +
           chart("curves-chart", "pair");
  if (source.step) out += step_sections(source);
  out += drive_section(source) + settings_section(source);
  out += fmt::format("<script id=\"data\" type=\"application/json\">{}</script>\n", embedded(data));
  for (const char* script : {base_js, memory_js, lanes_js, passes_js, curves_js})
    out += fmt::format("<script>\n{}</script>\n", script);
  return out + "</body>\n</html>\n";
}

}  // namespace sluice::tools
