// The subcommands of `sluice checkpoint` that have a file of their own, and what they share.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <string>

#include "src/train/states/restore.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice::tools {

/// Progress and notes on standard error. `line` and `stop` outlive it; a signal ends what watches.
RestoreListener on_line(ProgressLine& line, const std::atomic<bool>& stop);

void add_checkpoint_save(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_verify(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_sign(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_list(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_prune(CLI::App& checkpoint, Outcome& outcome);
/// What a checkpoint holds, as `sluice checkpoint inspect` prints it.
Status inspect_checkpoint(const std::string& path, bool tensors, bool json);
void add_checkpoint_export(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_import(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_reshape(CLI::App& checkpoint, Outcome& outcome);
void add_checkpoint_diff(CLI::App& checkpoint, Outcome& outcome);

}  // namespace sluice::tools
