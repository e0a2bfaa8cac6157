// The `sluice` command. Exit status: 0 done, 1 the work failed, 2 the request was wrong.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/commands.h"

namespace {

/// "bench io" of `sluice bench io --bogus`; empty if no subcommand was recognised.
std::string parsed_command(const CLI::App& app) {
  std::string name;
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += (name.empty() ? "" : " ") + at->get_name();
  }
  return name;
}

int refuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::string command = parsed_command(app);
  // A misspelt word explains more than what is then missing.
  const std::vector<std::string> unknown = app.remaining(true);
  std::string line = unknown.empty() ? error.what() : "'" + unknown.front() + "' is not an option or command here";
  std::replace(line.begin(), line.end(), '\n', ' ');
  const std::string self = command.empty() ? "sluice" : "sluice " + command;
  std::fprintf(stderr, "%s: %s (see %s --help)\n", self.c_str(), line.c_str(), self.c_str());
  return 2;
}

/// Compute threads that have nothing to do sleep instead of spinning on cores that the optimizer and the drive lanes
/// need. The OpenMP runtime reads this when the program is loaded, so the program loads itself again; where that is
/// not possible it goes on, only slower.
void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code failed;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failed).string();
  if (failed || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv(self.c_str(), argv);
}

int run(int argc, char** argv) {
  CLI::App app{"sluice trains transformer models that do not fit in the memory of the machine.", "sluice"};
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "'sluice COMMAND --help' lists a command's options with examples.\n"
      "Exit status: 0 done, 1 the work failed, 2 the request was wrong.");
  sluice::tools::Outcome outcome;
  sluice::tools::add_train(app, outcome);
  sluice::tools::add_plan(app, outcome);
  sluice::tools::add_generate(app, outcome);
  sluice::tools::add_eval(app, outcome);
  sluice::tools::add_data(app, outcome);
  sluice::tools::add_checkpoint(app, outcome);
  sluice::tools::add_bench(app, outcome);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return refuse(app, error);
  }
  return outcome.status();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    wait_passively(argv);
    return run(argc, argv);
  } catch (const std::exception& error) {  // out of memory and the like: nothing of ours throws
    std::fprintf(stderr, "sluice: %s\n", error.what());
    return 1;
  }
}
