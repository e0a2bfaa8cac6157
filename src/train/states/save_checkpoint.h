// The states of a run as a checkpoint, and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/state_writer.h"
#include "src/train/states/states.h"

namespace sluice {

struct CheckpointRequest {
  std::string parent;  ///< directory of checkpoints, that all processes see
  std::uint64_t step = 0;
  std::string model;     ///< JSON: the Hugging Face configuration
  std::string run;       ///< JSON: see Manifest::run; the leader's counts
  QueueOptions queue;    ///< of what is written
  bool replace = false;  ///< a checkpoint of that step that is there
};

/// bad_request where there is no room for so many bytes, in a directory that need not be there.
Status check_checkpoint_room(const std::string& parent, std::uint64_t bytes);

/// A checkpoint that is being written: its directory and the files of the ranks of here, which somebody fills. All
/// processes call everything here alike. One that goes before it is published leaves nothing.
class CheckpointSave {
 public:
  /// bad_request where there is no room, or a checkpoint of that step.
  static Result<std::unique_ptr<CheckpointSave>> begin(States& states, World* world, const CheckpointRequest& request);
  StateWriter& writer(RankId rank) { return *writers_[static_cast<std::size_t>(rank - here_.first)]; }
  std::uint64_t bytes_here() const;  ///< of the states in the files of here
  /// All files are filled, unless `own` is an error of this process. `run`: see CheckpointRequest. The checkpoint's
  /// path.
  Result<std::string> publish(const Status& own, const std::string& run);

 private:
  CheckpointSave() = default;

  World* world_ = nullptr;
  RankRange here_;
  Manifest manifest_;
  std::vector<StoredFile> files_;      ///< of all ranks
  std::optional<NewCheckpoint> made_;  ///< by who leads
  std::string path_;
  std::vector<std::unique_ptr<StateWriter>> writers_;  ///< of here
};

/// Writes the states, as they are now, and publishes them as parent/step-N: its path, on all processes. All processes
/// call it, and nothing may run meanwhile. Every block is verified as it is read, and written from where it was read
/// to: one window of memory a rank. bad_request where there is no room, or a checkpoint of that step; what fails leaves
/// nothing. `watch` hears the fraction that is done.
Result<std::string> save_checkpoint(States& states, World* world, const CheckpointRequest& request,
                                    const States::Watch& watch);

}  // namespace sluice
