#include "src/train/request/check_outputs.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "io/files/publish.h"
#include "src/train/data/eval_sets.h"
#include "src/train/run/metrics_file.h"

namespace sluice {
namespace {

/// What is read is not written over.
Status check_apart(const std::string& option, const std::string& path, const RunConfig& c) {
  std::error_code ignored;
  std::vector<std::pair<const char*, std::string>> inputs{
      {"--data", c.data}, {"--model", c.model}, {"--init", c.init}, {"--profile", c.profile}};
  for (const std::string& text : c.eval_data) {
    SLUICE_ASSIGN(const NamedData data, parse_eval_data(text));
    inputs.emplace_back("--eval-data", data.path);
  }
  for (const auto& [what, input] : inputs) {
    if (input.empty()) continue;
    const bool inside = std::filesystem::is_directory(input, ignored) && std::filesystem::exists(path, ignored) &&
                        is_same_file(std::filesystem::absolute(path, ignored).parent_path().string(), input);
    if (inside || is_same_file(path, input))
      return bad_request(option + " " + path + " would replace what " + what + " reads; give another file");
  }
  return success();
}

}  // namespace

Status check_outputs(const RunConfig& c) {
  if (!c.metrics.empty()) {
    SLUICE_TRY(check_stream_path(c.metrics));
    SLUICE_TRY(check_apart("--metrics", c.metrics, c));
  }
  if (c.reset_optimizer && c.restore.empty())
    return bad_request("--reset-optimizer leaves out the moments of a checkpoint; add --restore DIR");
  if (c.save_every > 0 && c.run.empty())
    return bad_request("--save-every " + std::to_string(c.save_every) +
                       ": nothing of the run is kept (--run none); give --run DIR");
  if (c.trace.empty()) return success();
  SLUICE_TRY(check_stream_path(c.trace));
  SLUICE_TRY(check_apart("--trace", c.trace, c));
  const std::string metrics = metrics_path(c);
  if (metrics.empty() || !is_same_file(metrics, c.trace)) return success();
  return bad_request("--trace " + c.trace + " is the file that metrics go to; give another one");
}

}  // namespace sluice
