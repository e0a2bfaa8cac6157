// sluice report: what a run did, or a plan promises, as one HTML file.
#include <cerrno>
#include <cstdio>
#include <memory>

#include "io/files/os_error.h"
#include "io/files/publish.h"
#include "sluice/size.h"
#include "tools/commands.h"
#include "tools/report_page.h"

namespace sluice::tools {
namespace {

struct ReportArguments {
  std::string source, output = "report.html";
};

/// Another report may be replaced, and nothing else.
Status check_output(const std::string& path) {
  if (path == "-") return success();
  SLUICE_ASSIGN(const std::string target, output_path(path));
  return check_replaces_own("--output", path, report_begin, "report");
}

Status report(const ReportArguments& options) {
  SLUICE_TRY(check_output(options.output));
  SLUICE_ASSIGN(const ReportSource source, read_report_source(options.source));
  const std::string page = report_page(source);
  const bool to_standard_output = options.output == "-";
  if (to_standard_output && std::fwrite(page.data(), 1, page.size(), stdout) != page.size())
    return os_error("can not write the report", errno);
  if (!to_standard_output) SLUICE_TRY(publish_file(options.output, page));
  for (const std::string& text : source.missing) std::fprintf(stderr, "note: %s\n", text.c_str());
  if (!to_standard_output)
    std::printf("report   %s (%s, open it in a browser)\n", options.output.c_str(), format_bytes(page.size()).c_str());
  return success();
}

}  // namespace

void add_report(Command& app, Outcome& outcome) {
  Command* command =
      add_command(app, "report", "show a run or a plan as one HTML file: memory, lanes, bounds, losses, differences",
                  "  sluice report out                        # of a run, complete or not: report.html\n"
                  "  sluice report out -o out.html\n"
                  "  sluice plan --model llama-7b --nvme /mnt/nvme --json > plan.json; sluice report plan.json\n"
                  "The file needs no network and no other file. Of a run it tells what its directory has, also while\n"
                  "the run goes on, and touches nothing of it. What was measured of a step is there when the run has\n"
                  "ended or was stopped (timeline.json in its directory).");
  auto options = std::make_shared<ReportArguments>();
  command->add_option("SOURCE", options->source, "directory of a run, or a file that 'sluice plan --json' has printed")
      ->required();
  command->add_option(
      "-o,--output", options->output,
      "file to write (default: report.html), or - for standard output; one that is there is replaced if it is a "
      "report");
  command->callback([options, &outcome] { outcome.finish("report", report(*options)); });
}

}  // namespace sluice::tools
