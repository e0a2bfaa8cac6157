#include "src/train/inference/window_loss.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "src/schedule/stages.h"
#include "src/train/data/rank_planes.h"

namespace sluice {

WindowLoss::WindowLoss(const Windows& windows, const Workload& workload, const Schedule& schedule)
    : windows_(windows),
      work_(workload),
      heads_(Stages(workload, schedule).ranks_of(static_cast<UnitId>(workload.model->units.size()) - 1)),
      rows_(static_cast<std::uint64_t>(workload.shape.batch)),
      sequence_(static_cast<std::uint64_t>(workload.shape.whole())),
      per_rank_(static_cast<std::uint64_t>(workload.sequence_batches())),
      per_pass_(per_rank_ * workload.batch_ranks()),
      slices_(workload.context_ranks() * static_cast<std::uint64_t>(workload.shape.slices)) {}

/// The number of a rank's first micro-batch in a pass.
std::uint64_t WindowLoss::micro_batch_of(RankId rank, std::uint64_t pass) const {
  return pass * per_pass_ + work_.batch_rank(rank) * per_rank_;
}

Status WindowLoss::load(RankId rank, std::int32_t micro_batch, const StepParams& params,
                        std::span<std::int32_t> dst) const {
  const std::uint64_t batch = micro_batch_of(rank, params.step - 1) +
                              static_cast<std::uint64_t>(work_.sequence_batch(micro_batch)),
                      first = batch * rows_;
  return read_planes(work_, rank, micro_batch, dst, [&](std::uint64_t i, const BatchRow& row) -> Status {
    SLUICE_TRY(windows_.read(std::min(first + i, windows_.count() - 1), row));
    if (first + i >= windows_.count()) std::fill(row.targets.begin(), row.targets.end(), -1);
    return success();
  });
}

void WindowLoss::collect(RankId rank, const StepParams& params, std::span<const double> losses) {
  // Of the ranks that a sublayer is cut over the first has them.
  if (!heads_.contains(rank) || work_.topology.at(rank).position(tensor_axes) > 0) return;
  const std::uint64_t first = micro_batch_of(rank, params.step - 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto micro_batch = static_cast<int>(i);
    const std::uint64_t batch = first + static_cast<std::uint64_t>(work_.sequence_batch(micro_batch));
    losses_[batch * slices_ + static_cast<std::uint64_t>(work_.slice_of(rank, micro_batch))] = losses[i];
  }
}

/// Of windows [first, last).
Result<std::uint64_t> WindowLoss::count_targets(std::uint64_t first, std::uint64_t last) {
  if (windows_.all_count()) return (last - first) * sequence_;
  scratch_.resize((work_.documents ? 3 : 2) * sequence_);
  const BatchRow row = BatchRow::of(scratch_, 0, 1, sequence_);
  std::uint64_t count = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    SLUICE_TRY(windows_.read(i, row));
    count += row.targets_that_count();
  }
  return count;
}

/// The losses of a pass, of all ranks; and whether any process is asked to stop.
Status WindowLoss::share(World& world, std::uint64_t pass, bool& stops) {
  // Every loss is one process's, and zero in the others.
  const std::uint64_t of_pass = per_pass_ * slices_;
  std::vector<std::uint64_t> values(of_pass + 1);
  const std::span<double> losses = std::span(losses_).subspan(pass * of_pass, of_pass);
  std::memcpy(values.data(), losses.data(), losses.size_bytes());
  values.back() = stops ? 1 : 0;
  SLUICE_TRY(add_up(world, values));
  std::memcpy(losses.data(), values.data(), losses.size_bytes());
  stops = values.back() > 0;
  return success();
}

Status WindowLoss::passes(Engine& engine, const Stop& stop, const Watch& watch, EvaluateResult& result) {
  RankTeam& team = engine.team();
  using Clock = std::chrono::steady_clock;
  const std::uint64_t windows_per_pass = per_pass_ * rows_,
                      passes = (windows_.count() + windows_per_pass - 1) / windows_per_pass;
  losses_.assign(passes * per_pass_ * slices_, 0.0);
  std::optional<Clock::time_point> asked;
  double sum = 0;
  for (std::uint64_t pass = 0, released = 0; pass < passes; ++pass) {
    // One pass ahead, so that its first reads overlap this one's tail.
    const auto run_pass = [&]() -> Status {
      for (; released < std::min(pass + 2, passes); ++released) {
        StepParams p;
        p.step = released + 1;
        SLUICE_TRY(team.release(p));
      }
      return team.wait(pass);
    };
    SLUICE_TRY(engine.agree_on(run_pass()));
    bool stops = stop.requested != nullptr && stop.requested->load();
    SLUICE_TRY(share(*engine.world(), pass, stops));
    for (std::uint64_t m = pass * per_pass_ * slices_; m < (pass + 1) * per_pass_ * slices_; ++m) sum += losses_[m];
    const std::uint64_t windows = std::min((pass + 1) * windows_per_pass, windows_.count());
    SLUICE_ASSIGN(const std::uint64_t counted, count_targets(result.windows, windows));
    result.windows = windows;
    result.tokens += counted;
    result.loss =
        result.tokens > 0 ? sum / static_cast<double>(result.tokens) : std::numeric_limits<double>::quiet_NaN();
    if (watch) watch(static_cast<double>(pass + 1) / static_cast<double>(passes), result.loss);
    if (!stops || pass + 1 == passes) continue;
    if (!asked) asked = Clock::now();
    const bool late = std::chrono::duration<double>(Clock::now() - *asked).count() >= stop.patience_seconds;
    SLUICE_ASSIGN(const std::string agreed, from_leader(*engine.world(), late ? "late" : ""));
    if (!agreed.empty())
      return Error{ErrorCode::cancelled, "stopped by a signal after " + std::to_string(windows) + " of " +
                                             std::to_string(windows_.count()) + " windows"};
  }
  return success();
}

Result<EvaluateResult> WindowLoss::run(Engine& engine, StepPlan StagePlans::*plan, const Stop& stop,
                                       const Watch& watch) {
  EvaluateResult result;
  Status status = engine.agree_on(engine.begin(plan));
  if (status.ok()) status = passes(engine, stop, watch, result);
  const Status ended = engine.agree_on(engine.team().end());
  if (status.ok()) status = ended;
  if (!status.ok()) return status.error();
  return result;
}

}  // namespace sluice
