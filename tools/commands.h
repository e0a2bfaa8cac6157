// The subcommands of `sluice`. Each file tools/cmd_<name>.cpp adds one to the app and sets the exit status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/status.h"
#include "tools/command_line.h"

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
Option* add_size(Command* app, std::string_view name, std::uint64_t* bytes, std::string_view description);

/// Add a subcommand with examples shown below its options.
Command* add_command(Command& app, std::string_view name, std::string_view description, std::string_view examples);

/// The parts of a list separated by commas, none of an empty one. bad_request for a part that is empty.
Result<std::vector<std::string>> split_list(const std::string& option, const std::string& text);

void add_train(Command& app, Outcome& outcome);
void add_plan(Command& app, Outcome& outcome);
void add_generate(Command& app, Outcome& outcome);
void add_eval(Command& app, Outcome& outcome);
void add_report(Command& app, Outcome& outcome);
void add_data(Command& app, Outcome& outcome);
void add_checkpoint(Command& app, Outcome& outcome);
void add_bench(Command& app, Outcome& outcome);
void add_bench_io(Command& bench, Outcome& outcome);
void add_bench_pack(Command& bench, Outcome& outcome);
void add_bench_adamw(Command& bench, Outcome& outcome);
void add_bench_copy(Command& bench, Outcome& outcome);
void add_bench_collective(Command& bench, Outcome& outcome);
void add_bench_device(Command& bench, Outcome& outcome);

}  // namespace sluice::tools
