#include "src/train/request/choose_schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "offload/parallel.h"
#include "sluice/clock.h"
#include "sluice/size.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/quick.h"
#include "src/schedule/smallest.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/turned_round.h"

namespace sluice {
namespace {

/// Says what a search has found so far: soon, and then every few seconds.
SearchWatch told(const Tell& progress) {
  constexpr double first_seconds = 0.5, every_seconds = 5;
  if (!progress) return {};
  return [progress, next = now_seconds() + first_seconds](int tried, double best_seconds) mutable {
    if (best_seconds == 0 || now_seconds() < next) return;
    next = now_seconds() + every_seconds;
    progress("searching a schedule: " + std::to_string(tried) + " tried, the best takes about " +
             format_seconds(best_seconds) + " a step");
  };
}

/// With room for steps of both orders.
ScheduleWish speculative(ScheduleWish wish) {
  wish.update = UpdateOrder::speculative;
  wish.both_orders = true;
  return wish;
}

/// Where nobody has asked for an order.
bool may_speculate(const Prepared& run) {
  return run.workload.durable && !run.workload.inference && run.config.optimizer.clip_norm > 0 &&
         !run.config.wish.update && run.workload.sums != RankSums::native;
}

/// Updates in the backward pass might make steps quicker.
bool would_gain(const SearchResult& found) {
  constexpr double near_bound = 1.03;
  const auto waits_on_drive = [](const UnitChoice& u) { return u.gradient == Place::nvme; };
  return found.predicted_seconds > near_bound * found.bound_seconds ||
         std::ranges::any_of(found.schedule.units, waits_on_drive);
}

/// A schedule for speculative steps is taken if it is notably quicker, and as good as slower in no step that waits for
/// its norm.
constexpr double notably_quicker = 0.97;

bool is_quicker(const Prepared& run, double seconds) {
  return seconds <= notably_quicker * run.search.predicted_seconds;
}

bool waits_as_well(const Prepared& run, const SearchResult& found) {
  const Estimator estimator(run.workload, run.profile, run.wish.pipeline);
  return estimator.exact(found.schedule.ahead()).step_seconds <= as_good_as * run.search.predicted_seconds;
}

/// Of a run with a schedule that waits, another whose steps speculate, and which has steps that wait as good as those:
/// `found`, or the run's turned round. None where there is none.
std::optional<SearchResult> waiting_as_well(const Prepared& run, const ScheduleWish& both, const SearchResult& found) {
  if (found.fits && waits_as_well(run, found)) return found;
  if (is_long(run.workload)) return std::nullopt;
  SearchResult turned = turned_round(run, both);
  if (!turned.fits || !waits_as_well(run, turned)) return std::nullopt;
  return turned;
}

/// Gradients wait in host memory instead of on the drive, where it is left over.
void wait_in_host(const Workload& w, Schedule& s, std::uint64_t bytes_left) {
  for (UnitId u = 0; u < static_cast<UnitId>(s.units.size()); ++u) {
    const std::uint64_t bytes = padded_bytes(w.shard_numel(u) * dtype_bytes(w.gradient_dtype));
    Place& place = s.units[static_cast<std::size_t>(u)].gradient;
    if (place != Place::nvme || bytes > bytes_left) continue;
    place = Place::host;
    bytes_left -= bytes;
  }
}

/// Steps that clip are repaired from their gradients, where these have room to be kept, and that makes no step slower
/// and writes little.
void keep_gradients(Prepared& run) {
  constexpr double no_slower = 1.002, little_more = 1.1;
  SearchResult& found = run.search;
  const Workload& w = run.workload;
  if (!found.fits || !found.schedule.both_orders || found.schedule.update_ahead) return;
  // Those on the device would lie elsewhere in the plan that reads them.
  if (!found.schedule.waiting.empty()) return;
  Schedule keeps = found.schedule;
  keeps.keeps_gradients = true;
  const std::uint64_t host_bytes = w.budget_bytes[static_cast<std::size_t>(Tier::host)];
  // Where somebody has said where states lie, gradients wait there too.
  if (!run.wish.states && host_bytes > found.needs.host) wait_in_host(w, keeps, host_bytes - found.needs.host);
  const std::uint64_t written = byte_law_of_all(w, keeps).nvme_write;
  if (static_cast<double>(written) > little_more * static_cast<double>(found.drive_write_bytes)) return;
  const TierBytes needs = run_needs(w, keeps);
  if (!within(needs, w.budget_bytes)) return;
  const Estimator estimator(w, run.profile, run.wish.pipeline);
  StepEstimate now, then;
  parallel_invoke([&] { now = estimator.exact(found.schedule); }, [&] { then = estimator.exact(keeps); });
  if (then.step_seconds > no_slower * now.step_seconds) return;
  found.schedule = std::move(keeps);
  found.needs = needs;
  found.predicted_seconds = then.step_seconds;
  found.bound_seconds = then.bound_seconds;
  found.drive_write_bytes = written;
}

}  // namespace

ScheduleWish wish_of(const Prepared& run) {
  const RunConfig& c = run.config;
  ScheduleWish wish = c.wish;
  if (c.second_copy > 0) wish.second_copy = true;
  // What stays would be what is exact, and what is computed with is not.
  if (c.gathers == RankGathers::int8) wish.resident = false;
  wish.pipeline = c.pipeline;
  wish.mixes = !c.wish.update || speculates(c);
  wish.mixes = wish.mixes && can_mix(run.workload);
  // All slices of a sequence are in one group.
  if (wish.group) wish.group = std::min(*wish.group * run.workload.slices(), run.workload.micro_batches_of_sum());
  // Without clipping the update can follow the backward pass at once; with it the global norm must be known.
  if (!run.workload.inference && c.optimizer.clip_norm > 0 && !speculates(c)) wish.update = UpdateOrder::ahead;
  return wish;
}

bool is_long(const Workload& w) {
  constexpr std::size_t units_of_thorough_search = 100;
  return w.model->units.size() > units_of_thorough_search;
}

void choose_schedule(Prepared& run, const Tell& progress, Effort effort) {
  const RunConfig& c = run.config;
  Workload& w = run.workload;
  // Of a long model nobody looks for steps that do not wait beside those that have gradients on the device; and a run
  // that chooses is to be no slower than one that is told to wait.
  run.wish.carries = !is_long(w) || !w.durable;
  ScheduleWish wish = run.wish;
  const bool wanted = !w.inference && c.durable != Durable::off;
  const auto find_with = [&](const ScheduleWish& own) {
    return effort == Effort::quick || is_long(w) ? search_quickly(w, own, run.profile, told(progress))
                                                 : search_schedule(w, own, run.profile, told(progress));
  };
  const auto find = [&] {
    if (w.inference || !speculates(c)) return find_with(wish);
    // Room for gradients that wait is for steps that clip often; where there is none these are all made twice.
    SearchResult found = find_with(speculative(wish));
    if (!found.fits) return find_with(wish);
    run.wish = speculative(wish);
    if (is_long(w)) return found;
    // Steps that clip are to be as quick as those of a run that always waits, where that leaves others quicker.
    ScheduleWish waits = wish;
    waits.update = UpdateOrder::ahead;
    waits.mixes = false;
    run.search = find_with(waits);
    std::optional<SearchResult> as_well;
    if (run.search.fits) as_well = waiting_as_well(run, run.wish, found);
    return as_well && is_quicker(run, as_well->predicted_seconds) ? *std::move(as_well) : found;
  };
  // Of a long model the other order is looked for beside the first, since cores would be idle.
  const ScheduleWish both = speculative(wish);
  std::optional<SearchResult> speculating;
  if (is_long(w) && may_speculate(run))
    parallel_invoke([&] { run.search = find(); }, [&] { speculating = search_quickly(w, both, run.profile); });
  else
    run.search = find();
  run.durability = !wanted          ? "off, as asked"
                   : c.run.empty()  ? "off: nothing of a run is kept with --run none"
                   : c.nvme.empty() ? "off: there is no --nvme DIR for the states"
                                    : "on";
  if (run.search.fits && may_speculate(run) && would_gain(run.search)) {
    if (!speculating) speculating = find_with(both);
    std::optional<SearchResult> better;
    if (!speculating->fits || is_quicker(run, speculating->predicted_seconds))
      better = waiting_as_well(run, both, *speculating);
    if (better && is_quicker(run, better->predicted_seconds)) {
      run.search = *std::move(better);
      run.wish = both;
    }
  }
  keep_gradients(run);
  if (run.search.fits || !w.durable || c.durable == Durable::on || speculates(c)) return;
  const TierBytes needed = FrugalFamily(w, wish).corner();
  w.durable = false;
  wish.carries = run.wish.carries = true;
  run.search = find();
  run.durability = "off: two slots of every state would need " +
                   format_bytes(needed.nvme * static_cast<std::uint64_t>(ranks_of_machine(c))) +
                   " on the drive; give that as --nvme-space";
}

}  // namespace sluice
