// The states of a run as a checkpoint, and back.
#pragma once

#include <cstdint>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "src/train/states/states.h"

namespace sluice {

struct CheckpointRequest {
  std::string parent;  ///< directory of checkpoints, that all processes see
  std::uint64_t step = 0;
  std::string model;   ///< JSON: the Hugging Face configuration
  std::string run;     ///< JSON: see Manifest::run; the leader's counts
  QueueOptions queue;  ///< of what is written
  bool replace = false;  ///< a checkpoint of that step that is there
};

/// bad_request where there is no room for so many bytes, in a directory that need not be there.
Status check_checkpoint_room(const std::string& parent, std::uint64_t bytes);

/// Writes the states, as they are now, and publishes them as parent/step-N: its path, on all processes. All processes
/// call it, and nothing may run meanwhile. Every block is verified as it is read, and written from where it was read
/// to: one window of memory a rank. bad_request where there is no room, or a checkpoint of that step; what fails leaves
/// nothing. `watch` hears the fraction that is done.
Result<std::string> save_checkpoint(States& states, World* world, const CheckpointRequest& request,
                                    const States::Watch& watch);

}  // namespace sluice
