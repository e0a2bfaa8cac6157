#include "src/train/request/check_outputs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files/publish.h"
#include "offload/plan/timeline.h"
#include "src/train/data/eval_sets.h"
#include "src/train/run/metrics_file.h"
#include "src/train/run/run_directory.h"

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

/// What a run's directory has under names of its own: those that begin so, and directories.
constexpr std::array<std::string_view, 13> names_of_runs{
    "run.json",          "result.json", "timeline.json", "commit.",    "config.json", "generation_config.json",
    "model.safetensors", "model-0",     "tokenizer",     "vocab.json", "merges.txt",  "special_tokens_map.json",
    "chat_template"};
constexpr std::array<std::string_view, 3> directories_of_runs{"saved", began_from, "tokens"};

/// Which of the run's own files or directories `path` is, or lies in; empty: none.
std::string name_in_run(const std::string& path, const RunConfig& c) {
  std::error_code ignored;
  if (c.run.empty()) return "";
  const auto whole = [&](const std::string& name) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(name, ignored), ignored);
  };
  const std::filesystem::path inside = whole(path).lexically_relative(whole(c.run));
  if (inside.empty() || *inside.begin() == "..") return "";
  const std::string first = inside.begin()->string();
  for (const std::string_view name : directories_of_runs)
    if (first == name) return first;
  const bool is_file = std::ranges::any_of(names_of_runs, [&](std::string_view own) { return first.starts_with(own); });
  return is_file && std::next(inside.begin()) == inside.end() ? first : "";
}

Status check_not_of_run(const std::string& option, const std::string& path, const RunConfig& c) {
  const std::string name = name_in_run(path, c);
  if (name.empty()) return success();
  return bad_request(option + " " + path + ": the run keeps its own " + name + " there; give another name");
}

/// A run makes its directory before anything is written there.
bool is_in_new_run(const std::string& path, const RunConfig& c) {
  std::error_code ignored;
  return !c.run.empty() && !std::filesystem::exists(c.run, ignored) &&
         is_same_file(std::filesystem::absolute(path, ignored).parent_path().string(), c.run);
}

Status check_output(const std::string& option, const std::string& path, const RunConfig& c) {
  SLUICE_TRY(check_not_of_run(option, path, c));
  if (!is_in_new_run(path, c)) SLUICE_TRY(check_stream_path(path));
  return check_apart(option, path, c);
}

}  // namespace

Status check_outputs(const RunConfig& c) {
  if (!c.metrics.empty()) SLUICE_TRY(check_output("--metrics", c.metrics, c));
  if (!c.checkpoints.empty()) SLUICE_TRY(check_not_of_run("--checkpoints", c.checkpoints, c));
  if (c.reset_optimizer && c.restore.empty())
    return bad_request("--reset-optimizer leaves out the moments of a checkpoint; add --restore DIR");
  if (c.save_every > 0 && c.run.empty())
    return bad_request("--save-every " + std::to_string(c.save_every) +
                       ": nothing of the run is kept (--run none); give --run DIR");
  if (c.trace.empty()) return success();
  SLUICE_TRY(check_output("--trace", c.trace, c));
  SLUICE_TRY(check_replaces_own("--trace", c.trace, trace_begin, "trace"));
  const std::string metrics = metrics_path(c);
  if (metrics.empty() || !is_same_file(metrics, c.trace)) return success();
  return bad_request("--trace " + c.trace + " is the file that metrics go to; give another one");
}

}  // namespace sluice
