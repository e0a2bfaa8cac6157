#include "tools/eval_options.h"

#include <fmt/format.h>

#include "src/train/data/eval_sets.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

constexpr const char* no_eval_data = "none";

}  // namespace

Option* add_batches(Command* app, std::string_view name, int* batches, std::string_view description) {
  const auto count = [](std::string& text) -> std::string {
    if (text == "all") text = "0";
    const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
    return digits && text.size() <= 9 ? "" : "'" + text + "' is neither a number of batches nor 'all'";
  };
  return app->add_option(name, *batches, description)
      ->type_name("N|all")
      ->transform({count, ""})
      ->default_str(std::to_string(*batches));
}

void add_eval_set_options(Command* app, RunOptions* o) {
  app->add_option("--eval-split", o->eval_split,
                  fmt::format("share of --data, its end, that is held out for evaluation: whole documents where the "
                              "file knows them, 0 for none (default: {}, or 0 with --eval-data)",
                              default_eval_split))
      ->check(between(0, 0.5))
      ->type_name("SHARE")
      ->group("Evaluation");
  app->add_option("--eval-data", o->config.eval_data,
                  "a set to evaluate on, text or tokens as --data, under this name (default: the file's); may be "
                  "repeated. 'none': a run that goes on has none any more")
      ->type_name("[NAME=]FILE")
      ->allow_extra_args(false)
      ->group("Evaluation");
}

void add_evaluation_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  add_eval_set_options(app, o);
  app->add_option("--eval-every", c.eval_every, "evaluate every N steps (always at the end)")
      ->check(at_least(0))
      ->group("Evaluation");
  add_batches(app, "--eval-batches", &c.eval_batches, "batches of each set per evaluation, its first ones; 'all' or 0")
      ->group("Evaluation");
}

Status resolve_evaluation(const RunOptions& o, RunConfig& c) {
  if (c.eval_data == std::vector<std::string>{no_eval_data}) c.eval_data.clear();
  c.eval_split = o.eval_split.value_or(c.eval_data.empty() ? default_eval_split : 0.0);
  for (std::string& text : c.eval_data) {
    SLUICE_ASSIGN(const NamedData data, parse_eval_data(text));
    text = data.name + "=" + (c.run.empty() ? data.path : absolute_path(data.path));
  }
  SLUICE_ASSIGN(const std::vector<NamedData> all, eval_data_of(c, *c.eval_split > 0));
  return success();
}

}  // namespace sluice::tools
