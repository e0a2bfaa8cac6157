// sluice checkpoint diff: whether two checkpoints have the same states, and where they do not.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/train/states/diff_checkpoints.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_home.h"
#include "tools/run_options.h"

namespace sluice::tools {
namespace {

struct DiffArguments {
  std::string a, b;
  bool json = false;
};

const char* state_name(StateKind kind) { return state_names[static_cast<std::size_t>(kind)]; }

/// JSON has no word for infinity.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json("infinite");
}

nlohmann::ordered_json described(const Checkpoint& checkpoint) {
  return {{"path", checkpoint.path()}, {"step", checkpoint.manifest().step}};
}

void print_json(const Checkpoint& a, const Checkpoint& b, const CheckpointDiff& diff) {
  nlohmann::ordered_json j{{"same", diff.same()}, {"a", described(a)}, {"b", described(b)}};
  j["tensors"] = diff.tensors;
  j["elements"] = diff.elements;
  j["without_moments"] = diff.without_moments == 0 ? nlohmann::ordered_json(nullptr)
                                                   : nlohmann::ordered_json(diff.without_moments == 1 ? "a" : "b");
  j["differences"] = nlohmann::ordered_json::array();
  for (const StateDifference& d : diff.differences)
    j["differences"].push_back({{"tensor", d.tensor},
                                {"state", state_name(d.kind)},
                                {"elements", d.numel},
                                {"different", d.different},
                                {"largest_difference", number(d.largest)},
                                {"relative_norm", number(d.relative)}});
  std::printf("%s\n", j.dump().c_str());
}

void print_text(const Checkpoint& a, const Checkpoint& b, const CheckpointDiff& diff) {
  if (a.manifest().step != b.manifest().step)
    std::printf("step %llu and step %llu\n", static_cast<unsigned long long>(a.manifest().step),
                static_cast<unsigned long long>(b.manifest().step));
  if (diff.without_moments != 0) std::printf("%s has no moments\n", (diff.without_moments == 1 ? a : b).path().c_str());
  if (!diff.differences.empty()) {
    Table table({"tensor", "state", "different", "of", "largest difference", "relative norm"});
    for (const StateDifference& d : diff.differences)
      table.add({d.tensor, state_name(d.kind), std::to_string(d.different), std::to_string(d.numel),
                 fmt::format("{:.3g}", d.largest), fmt::format("{:.3g}", d.relative)});
    std::printf("%s", table.text().c_str());
  }
  if (diff.same())
    std::printf("same: all %llu elements of the states of %llu tensors\n",
                static_cast<unsigned long long>(diff.elements), static_cast<unsigned long long>(diff.tensors));
}

Status diff(const DiffArguments& options, Outcome& outcome) {
  SLUICE_ASSIGN(const std::string of_a, checkpoints_of(options.a));
  SLUICE_ASSIGN(const std::string of_b, checkpoints_of(options.b));
  SLUICE_ASSIGN(Checkpoint a, Checkpoint::open(of_a));
  SLUICE_ASSIGN(Checkpoint b, Checkpoint::open(of_b));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const auto result = diff_checkpoints(a, b, {}, on_line(line, stop).watch("comparing"));
  line.finish();
  if (!result.ok()) return result.error();
  options.json ? print_json(a, b, *result) : print_text(a, b, *result);
  if (!result->same()) outcome.differs();
  return success();
}

}  // namespace

void add_checkpoint_diff(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "diff", "compare the states of two checkpoints, whatever their layouts",
      "  sluice checkpoint diff one/step-120 other/step-120\n"
      "  sluice checkpoint diff --json out/checkpoints reshaped\n"
      "Exit status: 0 where every element of every state has the same bits, 1 where any differs, 2 where they are of\n"
      "different models, or can not be read. What is compared are fp32 values: of parameters the masters, which bf16\n"
      "parameters and their remainders are together, and of moments in shorter formats what they mean. For each state "
      "of\n"
      "a tensor that differs: how many elements do, the largest difference, and the norm of the difference as a part "
      "of\n"
      "A's. Steps may be different ones.");
  auto options = std::make_shared<DiffArguments>();
  command->add_option("A", options->a, "a checkpoint, or a directory of several, of which the newest is meant")
      ->required();
  command->add_option("B", options->b, "another")->required();
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint diff", diff(*options, outcome)); });
}

}  // namespace sluice::tools
