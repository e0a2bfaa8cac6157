#include "tools/described_run.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/checkpoint/sign.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/saved_states.h"
#include "tools/run_home.h"

namespace sluice::tools {
namespace {

/// The batch of a run that goes on decides what --schedule means.
RunOptions with_batch_of(const RunConfig& run, RunOptions options, const std::set<std::string>& given) {
  if (!given.contains("--batch")) options.config.batch = run.batch;
  if (!given.contains("--micro-batch")) options.config.micro_batch = run.micro_batch;
  if (!given.contains("--ranks")) options.config.ranks = run.ranks;
  if (!given.contains("--pp")) options.config.stages = run.stages;
  if (!given.contains("--tp")) options.config.tensor = run.tensor;
  if (!given.contains("--cp")) options.config.context = run.context;
  if (!given.contains("--cp-attention"))
    options.cp_attention = context_attention_names[static_cast<std::size_t>(run.context_attention)];
  if (!given.contains("--pipeline"))
    options.pipeline = pipeline_order_names[static_cast<std::size_t>(run.pipeline.order)];
  if (!given.contains("--chunks") && !given.contains("--pipeline"))
    options.config.pipeline.chunks = run.pipeline.chunks;
  // And what ranks share decides what --zero means.
  if (!given.contains("--reduction")) options.reduction = run.reduction == Reduction::pass ? "pass" : "last";
  const bool keeps_group =
      options.zero != "0" && run.shard_group > 1 && batch_ranks(options.config) % run.shard_group == 0;
  if (!given.contains("--shard-group") && keeps_group) options.config.shard_group = run.shard_group;
  return options;
}

/// Nothing of a complete run can go on, and so nothing of it can change.
Status check_complete(const RunConfig& config, const RunDirectory& directory, std::int64_t steps) {
  const std::string change = change_text(directory.run()->config, config);
  if (change.empty()) return success();
  return bad_request(change + ": the run in " + config.run + " is complete after " + std::to_string(steps) +
                     ", its states are gone; start another from its model with --init " + config.run);
}

Status check_version(const RunDirectory& directory) {
  SLUICE_ASSIGN(const auto result, directory.result());
  if (result || directory.run()->version == run_version) return success();
  return bad_request("--run " + directory.path() +
                     " was begun by an early version of sluice, which added up its steps in another order: export it "
                     "(sluice checkpoint export " +
                     directory.path() + " DIR) and start a new run with --model DIR");
}

/// Whether what was stored and what was given go together, where that is soon known.
Status check_goes_on(const RunConfig& config, const RunDirectory& directory, int ranks_of_node) {
  SLUICE_ASSIGN(const auto result, directory.result());
  if (result) return check_complete(config, directory, (*result)["steps"].get<std::int64_t>());
  SLUICE_TRY(directory.check_place());
  const RunConfig& run = directory.run()->config;
  // Where states are laid out anew replicas are not asked.
  const int needed = is_laid_out_alike(config, run) ? run.ranks : ranks_with_all_states(run);
  const int ranks_here = ranks_of_node > 0 ? std::min(ranks_of_node, needed) : needed;
  // As many are those that it has, wherever they are now; others are not its own yet.
  SLUICE_TRY(directory.check_swap_files(config.nvme.size() == run.nvme.size() ? config.nvme : run.nvme, ranks_here));
  const bool keeps_plan = is_laid_out_alike(config, directory.run()->config);
  if (config.optimizer.clip_norm == 0 || !keeps_plan || directory.run()->schedule.update_ahead) return success();
  if (run.durable == Durable::on) return success();  // what clips is made again
  return bad_request(
      "--clip: the run's plan updates within the backward pass, before the norm is known, and its steps are not "
      "durable: it can go on with --clip 0 alone");
}

Status check_parts(const RunConfig& config, bool data_needed) {
  std::error_code ignored;
  if (config.model.empty() && !config.run.empty() && !std::filesystem::exists(config.run, ignored))
    return bad_request("--model is missing, and there is no run in " + config.run +
                       "; give a preset, a config.json or a directory, or the directory of a run");
  if (config.model.empty()) return bad_request("--model is missing: give a preset, a config.json or a directory");
  if (config.data.empty() && data_needed) return bad_request("--data is missing: give text or a token file");
  return success();
}

}  // namespace

Status check_named(const RunOptions& options, bool data_needed) {
  const std::string& run = options.config.run;
  if (options.resume && (run.empty() || run == keep_nothing)) {
    const std::string newest = newest_unfinished_run();
    return bad_request("--resume needs the directory of the run: add --run " +
                       (newest.empty() ? "DIR" : newest + ", the newest run here, or another one"));
  }
  // A checkpoint says what is not given.
  return run.empty() && options.config.restore.empty() ? check_parts(options.config, data_needed) : success();
}

namespace {

/// Of what the mesh is said to be.
Status check_product(const RunOptions& o) {
  const RunConfig& c = o.config;
  const std::int64_t others = std::int64_t{c.stages} * c.context * c.tensor;
  const bool are_several = (c.stages > 1) + (c.context > 1) + (c.tensor > 1) > 1;
  if (o.data == 0 && are_several && others > c.ranks && o.layout != "auto")
    return bad_request("--pp " + std::to_string(c.stages) + " x --cp " + std::to_string(c.context) + " x --tp " +
                       std::to_string(c.tensor) + " are " + std::to_string(others) + " ranks, and there are " +
                       std::to_string(c.ranks) + "; leave out --ranks, or make one of them smaller");
  const std::int64_t product = others * o.data;
  if (o.data == 0 || product == c.ranks || o.layout == "auto") return success();
  return bad_request("--pp " + std::to_string(c.stages) + " x --dp " + std::to_string(o.data) + " x --cp " +
                     std::to_string(c.context) + " x --tp " + std::to_string(c.tensor) + " are " +
                     std::to_string(product) + " ranks, and there are " + std::to_string(c.ranks) +
                     "; leave one of them out");
}

/// Whether the mesh says how many ranks there are.
bool ranks_follow(const RunOptions& options, const std::set<std::string>& given) {
  const bool says_mesh =
      given.contains("--pp") || given.contains("--dp") || given.contains("--cp") || given.contains("--tp");
  return says_mesh && !given.contains("--ranks") && options.config.stages > 0 && options.config.context > 0 &&
         options.config.tensor > 0;
}

/// What is given, over what a run had.
Result<RunConfig> laid_over(const RunConfig& stored, const RunOptions& options, const std::set<std::string>& given,
                            bool resume) {
  RunOptions all = with_batch_of(stored, options, given);
  std::set<std::string> said = given;
  if (ranks_follow(options, given)) {  // as many ranks a stage as there were
    all.config.ranks = (options.data > 0 ? options.data : batch_ranks(stored)) * all.config.stages *
                       all.config.context * all.config.tensor;
    said.insert("--ranks");
  }
  SLUICE_TRY(check_product(all));
  if (given.contains("--pipeline")) said.insert("--chunks");  // each order has its own
  // A pipeline of one stage has no order.
  if (all.config.stages == 1 && !given.contains("--pipeline") && !given.contains("--chunks")) {
    all.pipeline = pipeline_order_names[static_cast<std::size_t>(PipelineChoice().order)];
    all.config.pipeline = {};
    said.insert({"--pipeline", "--chunks"});
  }
  SLUICE_ASSIGN(const RunConfig config, resolve(all));
  if (options.zero == "auto") said.erase("--zero");
  return continued(stored, config, said, resume);
}

/// Whether the run began from what is to be restored.
bool begins_alike(const RunConfig& run, const RunOptions& options) {
  const Result<std::string> there = checkpoints_of(options.config.restore);
  const std::string named = there.ok() ? *there : absolute_path(options.config.restore);
  return !run.restore.empty() && run.reset_optimizer == options.config.reset_optimizer &&
         (run.restore == named || std::filesystem::path(run.restore).parent_path() == named);
}

/// As the run was that wrote the checkpoint, wherever that was: places, budgets and the plan are this machine's.
Result<RunConfig> restored_config(const RunOptions& options, const std::set<std::string>& given) {
  if (given.contains("--init"))
    return bad_request("--restore has the weights of " + options.config.restore + "; leave out --init");
  SLUICE_ASSIGN(const std::string named, checkpoints_of(options.config.restore));
  SLUICE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(named));
  if (!options.verify_with.empty())
    SLUICE_TRY(verify_signature(checkpoint, options.verify_with, [](std::uint64_t) { return success(); }));
  const Result<SavedRun> saved = saved_run_from_json(checkpoint.manifest().run);
  RunOptions all = options;
  all.config.restore = absolute_path(checkpoint.path());
  std::error_code ignored;
  const auto is_there = [&](const std::string& path) { return std::filesystem::exists(path, ignored); };
  SLUICE_TRY(checkpoint.check_present());
  if (!saved.ok() && is_of_a_run(checkpoint.manifest().run))
    return bad_request(checkpoint.path() + ": what it says of the run that wrote it " + saved.error().message);
  if (!saved.ok()) {  // of no run
    if (!given.contains("--model")) all.config.model = checkpoint.path();
    SLUICE_TRY(check_parts(all.config, true));
    if (ranks_follow(options, given))
      all.config.ranks = all.config.stages * std::max(1, all.data) * all.config.context * all.config.tensor;
    return resolve(all);
  }
  if (saved->run.version != run_version)
    return bad_request(checkpoint.path() + " is of a run that another version of sluice began; use that one");
  RunConfig stored = saved->run.config;
  const RunConfig fresh;
  stored.run = options.config.run;
  stored.restore = all.config.restore;
  stored.reset_optimizer = options.config.reset_optimizer;
  stored.init.clear();
  stored.metrics = stored.trace = stored.checkpoints = stored.profile = "";
  stored.nvme.clear();
  stored.device_memory = stored.host_memory = stored.nvme_space = 0;
  stored.threads = stored.optimizer_threads = stored.queue_depth = stored.keep = 0;
  stored.save_every = 0;
  stored.io_backend.clear();
  stored.durable = Durable::automatic;
  stored.wish = {};
  stored.device = fresh.device;
  stored.poison_steps.clear();
  const auto preset = preset_names();
  if (given.contains("--model"))
    stored.model = options.config.model;
  else if (std::find(preset.begin(), preset.end(), stored.model) == preset.end() && !is_there(stored.model))
    stored.model = checkpoint.path();
  if (given.contains("--tokenizer")) stored.tokenizer = options.config.tokenizer;
  if (given.contains("--metrics")) stored.metrics = options.config.metrics;
  all.config.model = stored.model;
  std::set<std::string> said = given;
  for (const char* own : {"--restore", "--reset-optimizer", "--model", "--tokenizer", "--metrics"}) said.erase(own);
  return laid_over(stored, all, said, true);
}

}  // namespace

namespace {

/// What follows from --seq-schedule where it is given: the first length, and how many steps there are.
/// `goes_on`: a run that is stored has its steps.
Status take_seq_schedule(RunOptions& options, std::set<std::string>& given, bool goes_on) {
  RunConfig& c = options.config;
  if (!given.contains("--seq-schedule")) return success();
  if (given.contains("--seq"))
    return bad_request("--seq-schedule " + c.seq_schedule + " says how long sequences are; leave out --seq");
  const bool says_steps = given.contains("--steps") || takes_steps(c.seq_schedule);
  // A run that is there has its steps.
  const bool steps_later = takes_steps(c.seq_schedule) && goes_on && !given.contains("--steps");
  SLUICE_ASSIGN(const std::vector<SequencePhase> phases,
                steps_later ? parse_seq_schedule_once(c.seq_schedule)
                            : parse_seq_schedule(c.seq_schedule, says_steps ? c.steps : 0));
  c.sequence = phases.front().sequence;
  if (has_batches(phases)) {
    if (given.contains("--batch"))
      return bad_request("--seq-schedule " + c.seq_schedule + " says how many sequences a step has; leave out --batch");
    c.batch = static_cast<int>(phases.front().batch);
  }
  if (says_steps) return success();
  c.steps = phases.back().last;
  given.insert("--steps");
  return success();
}

Result<RunConfig> config_described(const RunOptions& options, const std::set<std::string>& given,
                                   const RunDirectory& directory, bool data_needed);

}  // namespace

Result<RunConfig> described_config(const RunOptions& options, const std::set<std::string>& given,
                                   const RunDirectory& directory, bool data_needed) {
  RunOptions all = options;
  std::set<std::string> said = given;
  SLUICE_TRY(take_seq_schedule(all, said, directory.run().has_value() || given.contains("--restore")));
  return config_described(all, said, directory, data_needed);
}

namespace {

Result<RunConfig> config_described(const RunOptions& options, const std::set<std::string>& given,
                                   const RunDirectory& directory, bool data_needed) {
  const bool has_run = directory.run().has_value();
  if (options.resume && !has_run)
    return bad_request("--run " + directory.path() + " holds no run to go on with; leave out --resume to start one");
  // The same command goes on.
  if (has_run && given.contains("--restore") && begins_alike(directory.run()->config, options)) {
    std::set<std::string> others = given;
    others.erase("--restore");
    others.erase("--reset-optimizer");
    others.erase("--verify-with");
    return config_described(options, others, directory, data_needed);
  }
  if (has_run && given.contains("--restore"))
    return bad_request("--run " + directory.path() +
                       " holds a run already, and --restore begins one; give another --run DIR");
  if (!given.contains("--restore") && given.contains("--verify-with"))
    return bad_request("--verify-with is of the checkpoint that --restore begins from; add it");
  if (!has_run && given.contains("--restore")) return restored_config(options, given);
  if (!has_run) {
    SLUICE_TRY(check_parts(options.config, data_needed));
    RunOptions all = options;
    if (ranks_follow(options, given))
      all.config.ranks = all.config.stages * std::max(1, options.data) * all.config.context * all.config.tensor;
    SLUICE_TRY(check_product(all));
    return resolve(all);
  }
  SLUICE_TRY(check_version(directory));
  SLUICE_ASSIGN(const RunConfig merged, laid_over(directory.run()->config, options, given, options.resume));
  SLUICE_TRY(check_goes_on(merged, directory, options.config.ranks_of_node));
  return merged;
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare_described(const RunConfig& config, const RunDirectory& directory,
                                                    const Tell& progress) {
  if (!directory.run()) return prepare(config, Purpose::train, progress);
  const RunDescription& run = *directory.run();
  const DriveLayout layout{run.block_bytes, run.stripe_weights};
  if (!is_laid_out_alike(config, run.config)) {
    // So that states can stay where they are.
    const bool stays = run.config.durable == Durable::on && shares_alike(config, run.config);
    SLUICE_ASSIGN(auto anew, prepare(config, Purpose::train, progress, Effort::thorough, stays ? &layout : nullptr));
    SLUICE_TRY(check_arenas(*anew));
    return anew;
  }
  SLUICE_ASSIGN(auto prepared, prepare_with(config, Purpose::train, run.schedule, &layout, progress));
  SLUICE_TRY(check_arenas(*prepared));
  if (prepared->search.fits || config.threads == run.config.threads) return prepared;
  return bad_request("--threads " + std::to_string(config.threads) +
                     ": what they need beside each other does not fit the budgets of the run, which had " +
                     std::to_string(run.config.threads) + "; give fewer");
}

}  // namespace sluice::tools
