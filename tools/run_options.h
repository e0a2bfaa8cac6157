// The options that train, plan, eval and generate share: one description of a run.
#pragma once

#include <atomic>
#include <optional>
#include <set>
#include <string>

#include "src/train/request/prepare.h"
#include "tools/commands.h"

namespace sluice::tools {

/// Options as typed; `resolve` makes the RunConfig of it.
struct RunOptions {
  RunConfig config;  ///< `run` may be keep_nothing of tools/run_home.h
  std::string dtype = "bf16", document_mask = "auto", schedule = "auto", update = "auto", recompute = "auto",
              activations = "auto", states = "auto", residency = "auto", zero = "auto", reduction = "last",
              layout = "given", pipeline = "1f1b", cp_attention = "ulysses", transport = "auto", optimizer = "auto",
              lr_schedule = "cosine", moments = "fp32", gradient_dtype = "fp32", activation_dtype = "exact",
              durable = "auto", nvme, cluster, poison;
  bool max_seq = false;  ///< plan the longest sequences that there is room for
  int group = 0, prefetch = -1;
  int data = 0;  ///< ranks that share the batch; 0: those that --pp and --tp leave
  bool resume = false;
  std::string verify_with;  ///< public key that the checkpoint of --restore has to be signed with
  bool kernels_anew = false;
  bool from_scratch = false;
  bool zero_plus_plus = false;
  std::optional<std::string> reduce, gather;  ///< tree and exact where neither they nor zero_plus_plus are given
  int sync_delay_ms = 0;
  std::optional<double> lr_end, eval_split;
};

void add_model_options(Command* app, RunOptions* options);     ///< model, precision, budgets, drive, threads, profile
void add_data_options(Command* app, RunOptions* options);      ///< data and its tokenizer
void add_batch_options(Command* app, RunOptions* options);     ///< sequence, batch
void add_training_options(Command* app, RunOptions* options);  ///< steps, optimizer, schedule
void add_train_options(Command* app, RunOptions* options);     ///< those, and all others of train: plan has them too
Result<RunConfig> resolve(const RunOptions& options);
/// Without dots, links as they are, no slash at the end; empty stays empty.
std::string absolute_path(const std::string& path);
/// Names of the options that were given, like "--steps".
std::set<std::string> given_options(const Command& app);

/// Becomes true on Ctrl-C, SIGTERM, or SIGHUP where that is not ignored; a second one of the former ends the process at
/// once.
const std::atomic<bool>& stop_on_signals();

}  // namespace sluice::tools
