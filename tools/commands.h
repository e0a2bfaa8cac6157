// The subcommands of `sluice`. Each file tools/cmd_<name>.cpp adds one to the app and sets the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice::tools {

/// What the process will return: 0 done, 1 the work failed, 2 the request was wrong.
class Outcome {
 public:
  int status() const { return status_; }
  /// Take over the end of a subcommand's work; an error is printed as "sluice train: what, where, what to do", by the
  /// first of several processes.
  void finish(const std::string& command, const Status& result);
  /// The same of a process whose end is not that of the others: it says so itself.
  void finish_alone(const std::string& command, const Error& error);
  /// Of a comparison that was done, and has said what differs.
  void differs() { status_ = 1; }

 private:
  int status_ = 0;
};

/// An option whose value is a size ("512MiB"); refuses everything else with one line. The value is stored in *bytes.
CLI::Option* add_size(CLI::App* app, const std::string& name, std::uint64_t* bytes, const std::string& description);

/// Add a subcommand with examples shown below its options.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& examples);

/// The parts of a list separated by commas, none of an empty one. bad_request for a part that is empty.
Result<std::vector<std::string>> split_list(const std::string& option, const std::string& text);

void add_train(CLI::App& app, Outcome& outcome);
void add_plan(CLI::App& app, Outcome& outcome);
void add_generate(CLI::App& app, Outcome& outcome);
void add_eval(CLI::App& app, Outcome& outcome);
void add_report(CLI::App& app, Outcome& outcome);
void add_data(CLI::App& app, Outcome& outcome);
void add_checkpoint(CLI::App& app, Outcome& outcome);
void add_bench(CLI::App& app, Outcome& outcome);
void add_bench_io(CLI::App& bench, Outcome& outcome);
void add_bench_pack(CLI::App& bench, Outcome& outcome);
void add_bench_adamw(CLI::App& bench, Outcome& outcome);
void add_bench_copy(CLI::App& bench, Outcome& outcome);
void add_bench_collective(CLI::App& bench, Outcome& outcome);
void add_bench_device(CLI::App& bench, Outcome& outcome);

}  // namespace sluice::tools
