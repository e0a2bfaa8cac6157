// What the commands of sluice data share.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/token_file.h"
#include "io/tokens/token_sink.h"
#include "io/tokens/token_survey.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice::tools {

void add_data_tokenize(Command& data, Outcome& outcome);
void add_data_convert(Command& data, Outcome& outcome);
void add_data_inspect(Command& data, Outcome& outcome);

constexpr double plain_seconds = 10;  ///< between lines of progress where there is no terminal

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The files that a sink of `format` makes of `output`; and as people read them.
std::vector<std::string> files_of(const std::string& output, TokenFormat format);
std::string printed_files(const std::string& output, TokenFormat format);
/// Of `-`, which means standard output to others, a file of that name would be made.
Status check_output(const std::string& output);
/// Also what is there and is no file of tokens.
Status refuse_to_replace(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);
/// Shows how much of the file was read, and ends that on a signal.
TokenWatch watch_tokens(ProgressLine& line, const TokenFile& file, const std::string& what);
Status unless_stopped(const std::atomic<bool>& stop);
void add_format(Command* command, TokenFormat* format);

inline double percent(std::uint64_t part, std::uint64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(whole, 1));
}

}  // namespace sluice::tools
