// The subcommands of `sluice checkpoint` that have a file of their own, and what they share.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "src/train/states/restore.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice::tools {

/// Progress and notes on standard error. `line` and `stop` outlive it; a signal ends what watches.
RestoreListener on_line(ProgressLine& line, const std::atomic<bool>& stop);

void add_checkpoint_save(Command& checkpoint, Outcome& outcome);
void add_checkpoint_verify(Command& checkpoint, Outcome& outcome);
void add_checkpoint_sign(Command& checkpoint, Outcome& outcome);
void add_checkpoint_list(Command& checkpoint, Outcome& outcome);
void add_checkpoint_prune(Command& checkpoint, Outcome& outcome);
/// What a checkpoint holds, as `sluice checkpoint inspect` prints it.
Status inspect_checkpoint(const std::string& path, bool tensors, bool json);
void add_checkpoint_export(Command& checkpoint, Outcome& outcome);
void add_checkpoint_import(Command& checkpoint, Outcome& outcome);
void add_checkpoint_reshape(Command& checkpoint, Outcome& outcome);
void add_checkpoint_diff(Command& checkpoint, Outcome& outcome);

}  // namespace sluice::tools
