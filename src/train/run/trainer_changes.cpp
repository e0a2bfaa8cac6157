// A run that goes on otherwise than it was: with more steps, another rate, moved files.
#include <fmt/format.h>

#include "kernels/cpu/gemm.h"
#include "src/train/run/trainer.h"

namespace sluice {

/// Steps that are done stay done.
Status Trainer::check_not_done(std::uint64_t step) const {
  if (static_cast<std::int64_t>(step) <= run_.config.steps) return success();
  return bad_request(fmt::format("{}: the run stands at step {}, beyond --steps {}; give at least that",
                                 directory_->path(), step, run_.config.steps));
}

/// Files that were moved have one name in every directory, and nothing else tells which is which.
Error Trainer::in_order_of_drives(const Error& error) const {
  if (run_.config.nvme.size() < 2 || run_.config.nvme == directory_->run()->config.nvme) return error;
  return {error.code, error.message + "; --nvme names the directories in the order of those that the run had"};
}

/// How the steps to come differ from those before.
void Trainer::tell_changes() const {
  const RunConfig &before = directory_->run()->config, &now = run_.config;
  const std::string change = change_text(before, now);
  if (change.empty() || done_ == 0) return;
  std::string text = fmt::format("{}: from step {} on with {}", directory_->path(), done_ + 1, change);
  const double was = learning_rate(before.optimizer, done_ + 1, before.steps);
  const double is = learning_rate(now.optimizer, done_ + 1, now.steps);
  if (was != is) text += fmt::format("; the learning rate of that step is {:.4g}, and would have been {:.4g}", is, was);
  const Workload& w = run_.workload;
  const bool split = w.device.empty() && w.dtype == Dtype::bf16 && kernels::gemm_bf16_is_native();
  const bool same_sums = before.sums == RankSums::tree && now.sums == RankSums::tree;
  if (!same_sums && !is_laid_out_alike(before, now))
    text += fmt::format("; with --reduce {} bits depend on that", rank_sums_names[static_cast<std::size_t>(now.sums)]);
  if (before.ranks != now.ranks && before.threads == now.threads)
    text += fmt::format("{}; each rank has {} compute thread{}, as before", same_sums ? "; no bit depends on that" : "",
                        now.threads, now.threads == 1 ? "" : "s");
  if (before.threads != now.threads)
    text += split ? "; where this CPU multiplies bf16 bits depend on the number of threads"
                  : "; no bit depends on the number of threads";
  observer_.note(text);
}

/// A run that has gone on may have been another before.
const RunConfig& Trainer::config_of(std::int64_t step) const {
  if (directory_ == nullptr || !directory_->run()) return run_.config;
  return config_of_step(directory_->run()->changes, run_.config, step);
}

}  // namespace sluice
