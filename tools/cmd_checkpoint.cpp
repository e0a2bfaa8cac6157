// sluice checkpoint: what a run has left, looked at and turned into a model for other programs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/states/stored_weights.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_options.h"

namespace sluice::tools {
namespace {

struct CheckpointArguments {
  std::string run;
  bool json = false, tensors = false;
};

const char* place_name(StoredWeights::Place place) {
  switch (place) {
    case StoredWeights::Place::model: return "model";
    case StoredWeights::Place::slots: return "slots";
    case StoredWeights::Place::saved: return "saved";
  }
  return "?";
}

Status inspect(const CheckpointArguments& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.run + "/run.json", ignored))
    return inspect_checkpoint(absolute_path(options.run), options.tensors, options.json);
  SLUICE_ASSIGN(const RunDirectory directory, RunDirectory::open(absolute_path(options.run)));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const RestoreListener listener = on_line(line, stop);
  SLUICE_ASSIGN(const auto weights, StoredWeights::open(directory, listener));
  SLUICE_TRY(weights->verify(listener));
  line.finish();
  const RunConfig& config = weights->run().config;
  const bool complete = weights->place() == StoredWeights::Place::model;
  if (options.json) {
    const nlohmann::ordered_json j{{"run", directory.path()},
                                   {"model", config.model},
                                   {"parameters", weights->model().parameters},
                                   {"dtype", dtype_name(weights->dtype())},
                                   {"step", weights->step()},
                                   {"steps", config.steps},
                                   {"complete", complete},
                                   {"kept_in", place_name(weights->place())},
                                   {"fp32_masters", weights->has_masters()}};
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("%s: %s, %s parameters in %s\nstep     %llu of %lld, %s\n", directory.path().c_str(),
              config.model.c_str(), format_count(static_cast<double>(weights->model().parameters)).c_str(),
              dtype_name(weights->dtype()), static_cast<unsigned long long>(weights->step()),
              static_cast<long long>(config.steps),
              complete                                          ? "complete: the model is there, the states are gone"
              : weights->place() == StoredWeights::Place::slots ? "committed to the swap file, and whole"
                                                                : "saved when it was stopped, and whole");
  return success();
}

void add_inspect(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(checkpoint, "inspect", "what a run has left, or what a checkpoint holds",
                                 "  sluice checkpoint inspect out\n"
                                 "  sluice checkpoint inspect ./checkpoints/step-120 --tensors\n"
                                 "Of a run every state is read once, as 'train --resume' does before it goes on. Of a\n"
                                 "checkpoint the manifest is: 'checkpoint verify' reads the rest.");
  auto options = std::make_shared<CheckpointArguments>();
  command->add_option("RUN", options->run, "directory of a run, a checkpoint, or a directory of checkpoints")
      ->required();
  command->add_flag("--tensors", options->tensors, "of a checkpoint: list its tensors and their shapes");
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint inspect", inspect(*options)); });
}

}  // namespace

void add_checkpoint(Command& app, Outcome& outcome) {
  Command* checkpoint = add_command(app, "checkpoint", "save, verify and look at checkpoints, and export models", "");
  checkpoint->require_subcommand(1);
  add_checkpoint_save(*checkpoint, outcome);
  add_checkpoint_list(*checkpoint, outcome);
  add_inspect(*checkpoint, outcome);
  add_checkpoint_verify(*checkpoint, outcome);
  add_checkpoint_reshape(*checkpoint, outcome);
  add_checkpoint_diff(*checkpoint, outcome);
  add_checkpoint_export(*checkpoint, outcome);
  add_checkpoint_import(*checkpoint, outcome);
  add_checkpoint_sign(*checkpoint, outcome);
  add_checkpoint_prune(*checkpoint, outcome);
}

}  // namespace sluice::tools
