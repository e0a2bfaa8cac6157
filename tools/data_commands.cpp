#include "tools/data_commands.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <map>

#include "io/tokens/megatron.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {

std::vector<std::string> files_of(const std::string& output, TokenFormat format) {
  if (format == TokenFormat::megatron) return {megatron_name(output) + ".bin", megatron_name(output) + ".idx"};
  return {output};
}

std::string printed_files(const std::string& output, TokenFormat format) {
  const auto files = files_of(output, format);
  return files.size() == 1 ? files[0] : files[0] + " and " + files[1];
}

Status check_output(const std::string& output) {
  if (output != "-") return success();
  return bad_request(
      "--output -: token files have an end that says what is in them, and are not written to standard output; give the "
      "name of a file");
}

Status refuse_to_replace(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  std::error_code ignored;
  for (const std::string& input : inputs)
    for (const std::string& output : outputs) {
      if (std::filesystem::equivalent(input, output, ignored))
        return bad_request(fmt::format("{} would replace {}, which is read; give another --output", output, input));
    }
  for (const std::string& output : outputs) {
    if (!std::filesystem::is_regular_file(output, ignored) || std::filesystem::file_size(output, ignored) == 0)
      continue;
    if (!has_token_mark(output))
      return bad_request(
          fmt::format("--output {} is there, and is no token file; give another file, or remove it", output));
  }
  return success();
}

Status unless_stopped(const std::atomic<bool>& stop) {
  if (!stop) return success();
  return Error{ErrorCode::cancelled, "stopped by a signal; nothing was written"};
}

TokenWatch watch_tokens(ProgressLine& line, const TokenFile& file, const std::string& what) {
  const std::atomic<bool>& stop = stop_on_signals();
  return [&line, &file, &stop, what, clock = Clock(), told = 0.0](std::uint64_t tokens) mutable {
    if (clock.seconds() - told >= 0.1) {
      told = clock.seconds();
      line.task(what, static_cast<double>(tokens) / static_cast<double>(file.count()));
    }
    return unless_stopped(stop);
  };
}

void add_format(Command* command, TokenFormat* format) {
  const std::map<std::string, TokenFormat> names{{"sluice", TokenFormat::sluice}, {"megatron", TokenFormat::megatron}};
  command->add_option("--format", *format, "sluice, or megatron: NAME.bin and NAME.idx")
      ->transform(one_of(names))
      ->type_name("sluice|megatron");
}

}  // namespace sluice::tools
