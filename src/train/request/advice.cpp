#include "src/train/request/advice.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>

#include "offload/parallel.h"
#include "sluice/size.h"
#include "src/schedule/quick.h"
#include "src/train/request/choose_schedule.h"

namespace sluice {
namespace {

constexpr double notable_gain = 1.02;
/// A unit more may just not fit.
constexpr double full_share = 0.75;
/// Of room that the schedule does not use: another schedule would.
constexpr double notable_gain_of_others = 1.1;
/// Second slots that leave less of the drive press on what else would be there; steps without them are named from this
/// gain on.
constexpr double pressed_share = 0.1, notable_gain_of_less_safety = 1.1;

/// How they stream, of two schedules for the same model.
void take_knobs(Schedule& s, const Schedule& from) {
  s.prefetch = from.prefetch;
  s.lag = from.lag;
  s.tiles_in_flight = from.tiles_in_flight;
  s.hold = from.hold;
  s.tile_numel = from.tile_numel;
  s.pipeline = from.pipeline;
  s.cut = from.cut;
  for (std::size_t u = 0; u < s.units.size() && !s.update_ahead; ++u) s.units[u].late = from.units[u].late;
}

/// Which kinds of schedules are looked at.
struct Looks {
  bool like_run = false, others = false;
};

/// The least estimated seconds of a step within the workload's budgets, of schedules of these kinds; none where nothing
/// was found.
std::optional<double> quick_seconds(const Workload& w, const ScheduleWish& wish, const Prepared& run, Looks looks) {
  std::optional<double> least;
  const auto look = [&](const Recipe* only) {
    std::optional<QuickSchedule> quick = quick_schedule(w, wish, run.profile, {.only = only});
    if (quick) least = std::min(least.value_or(quick->estimate.step_seconds), quick->estimate.step_seconds);
    return quick;
  };
  if (looks.like_run) look(&run.search.recipe);
  if (!looks.others) return least;
  const std::optional<QuickSchedule> quick = look(nullptr);
  if (!quick || !looks.like_run) return least;
  Recipe balanced = quick->recipe;
  balanced.balanced = true;
  look(&balanced);
  return least;
}

/// The least estimated seconds of a step of the run's kind within the workload's budgets, at most `now`. Of a workload
/// that is simulated as a whole.
double best_seconds(const Workload& w, const Prepared& run, double now) {
  const Estimator estimator(w, run.profile, run.wish.pipeline);
  const Cook cook(w, run.wish, &run.profile);
  Recipe recipe = run.search.recipe;
  double best = now;
  for (const Saved spilled : std::set<Saved>{Saved::recompute, recipe.spilled}) {
    recipe.spilled = spilled;
    std::optional<Schedule> schedule = cook.follow(recipe);
    if (!schedule) continue;
    Schedule as_now = *schedule;
    take_knobs(as_now, run.search.schedule);
    best = std::min(best, estimator.estimate(*schedule).step_seconds);
    if (as_now != *schedule && cook.fits(as_now)) best = std::min(best, estimator.estimate(as_now).step_seconds);
  }
  return best;
}

/// The machine with one resource twice as fast.
HardwareProfile with_faster(HardwareProfile hw, Resource resource) {
  switch (resource) {
    case Resource::compute:
      hw.gemm_flops_f32 *= 2;
      hw.gemm_flops_bf16 *= 2;
      for (auto& [key, seconds] : hw.op_seconds) seconds /= 2;
      if (hw.device) {
        hw.device->gemm_flops_f32 *= 2;
        hw.device->gemm_flops_bf16 *= 2;
        hw.device->memory_bytes_per_second *= 2;
      }
      break;
    case Resource::cores:
      hw.cores *= 2;
      hw.adamw_parameters_per_second *= 2;
      hw.norm_bytes_per_second *= 2;
      hw.gemm_flops_f32 *= 2;
      hw.gemm_flops_bf16 *= 2;
      for (auto& [key, seconds] : hw.op_seconds) seconds /= hw.device ? 1 : 2;
      break;
    case Resource::memory: hw.memory_bytes_per_second *= 2; break;
    case Resource::drive:
      hw.drive.read_bytes_per_second *= 2;
      hw.drive.write_bytes_per_second *= 2;
      hw.drive.mixed_bytes_per_second *= 2;
      hw.drive.request_seconds /= 2;
      hw.drive.sync_seconds_per_byte /= 2;
      break;
    case Resource::link_down:
    case Resource::link_up:
      hw.h2d_bytes_per_second *= 2;
      hw.d2h_bytes_per_second *= 2;
      if (hw.device) {
        hw.device->h2d_bytes_per_second *= 2;
        hw.device->d2h_bytes_per_second *= 2;
        hw.device->both_bytes_per_second *= 2;
      }
      break;
    case Resource::network:
      for (std::optional<MessageRates>* messages : {&hw.messages_inside, &hw.messages_between}) {
        if (!*messages) messages->emplace();
        (*messages)->gather_bytes_per_second *= 2;
        (*messages)->reduce_bytes_per_second *= 2;
      }
      break;
  }
  return hw;
}

/// As the option of the tier takes it, of the budget per rank.
std::uint64_t shown_bytes(const Prepared& run, Tier tier) {
  const std::uint64_t budget = run.workload.budget_bytes[static_cast<std::size_t>(tier)];
  return tier == Tier::device ? budget : budget * static_cast<std::uint64_t>(ranks_of_machine(run.config));
}

}  // namespace

Advice advise(const Prepared& run) {
  Advice advice;
  advice.limit = run.predicted().bottleneck;
  const std::size_t limit = static_cast<std::size_t>(advice.limit);
  if (run.step_seconds() > 0) advice.share = run.predicted().resource_seconds[limit] / run.predicted().step_seconds;
  const Estimator estimator(run.workload, run.profile, run.wish.pipeline);
  const double now = estimator.estimate(run.search.schedule).step_seconds;
  const HardwareProfile faster = with_faster(run.profile, advice.limit);
  const double then = Estimator(run.workload, faster, run.wish.pipeline).estimate(run.search.schedule).step_seconds;
  advice.faster_limit_gain = std::min(2.0, now / then);  // programs that share it stand in each other's way less, too
  // Samples of large models are compared: it takes seconds to look at the whole.
  const bool is_whole = estimator.is_exact();
  constexpr std::array tiers{Tier::device, Tier::host, Tier::nvme};
  const auto budget_of = [&](Tier tier) { return run.workload.budget_bytes[static_cast<std::size_t>(tier)]; };
  const auto leaves = [&](Tier tier) {
    return 1 - static_cast<double>(run.search.needs.of(tier)) / static_cast<double>(budget_of(tier));
  };
  const auto is_full = [&](Tier tier) { return leaves(tier) < 1 - full_share; };
  // Not of a budget of 1, which is none, or has no limit.
  const auto is_open = [&](Tier tier) { return budget_of(tier) > 1 && (is_whole || is_full(tier)); };
  const auto is_quick = [&](Tier tier) { return !is_whole || !is_full(tier); };
  // Second slots that fill the drive leave no room for what makes steps quick: other kinds of schedules then do better
  // without them, or on a larger drive.
  const bool has_open_slots = run.workload.durable && run.config.durable == Durable::automatic;
  const bool slots_press = has_open_slots && !is_long(run.workload) && leaves(Tier::nvme) < pressed_share;
  const bool is_sample = !is_whole && run.workload.stages() == 1;
  const Looks looks{.like_run = is_sample, .others = !is_sample || slots_press};
  std::optional<double> quick_now;
  if (slots_press || std::ranges::any_of(tiers, [&](Tier tier) { return is_open(tier) && is_quick(tier); }))
    quick_now = quick_seconds(run.workload, run.wish, run, looks);
  if (quick_now && is_whole) quick_now = std::min(*quick_now, now);
  std::array<double, tiers.size()> gains{};
  parallel_for(tiers.size() + 1, [&](std::size_t i) {
    Workload w = run.workload;
    if (i == tiers.size()) {
      if (!slots_press || !quick_now) return;
      w.durable = false;
      ScheduleWish wish = run.wish;
      wish.both_orders = false;
      if (run.speculates()) wish.update = UpdateOrder::ahead;  // there is nothing to go back to
      const std::optional<double> quick = quick_seconds(w, wish, run, looks);
      if (quick && *quick_now >= notable_gain_of_less_safety * *quick) advice.not_durable_gain = *quick_now / *quick;
      return;
    }
    if (!is_open(tiers[i])) return;
    w.budget_bytes[static_cast<std::size_t>(tiers[i])] *= 2;
    double gain = 0;
    if (!is_quick(tiers[i]))
      gain = now / best_seconds(w, run, now);
    else if (const std::optional<double> quick = quick_seconds(w, run.wish, run, looks); quick && quick_now)
      gain = *quick_now / *quick;
    if (gain >= (is_full(tiers[i]) ? notable_gain : notable_gain_of_others)) gains[i] = gain;
  });
  for (std::size_t i = 0; i < tiers.size(); ++i)
    if (gains[i] > (advice.larger ? 1.005 * advice.larger->gain : 0))
      advice.larger = {tiers[i], 2 * shown_bytes(run, tiers[i]), gains[i]};
  return advice;
}

std::string to_text(const Advice& a) {
  static constexpr std::array<const char*, resource_names.size()> names{"computing",
                                                                        "the cores",
                                                                        "the memory's bandwidth",
                                                                        "the drive",
                                                                        "copies to the device",
                                                                        "copies from the device",
                                                                        "the network"};
  static constexpr std::array<const char*, 3> options{"--device-memory", "--host-memory", "--nvme-space"};
  char text[400];
  const auto limit = static_cast<std::size_t>(a.limit);
  std::snprintf(text, sizeof text, "%s limits the step (%.0f%% of it); ", names[limit], 100 * a.share);
  std::string sentence = text;
  if (a.limit == Resource::cores || a.limit == Resource::link_down || a.limit == Resource::link_up)
    sentence.replace(sentence.find(" limits"), 7, " limit");
  if (a.larger) {
    const auto tier = static_cast<std::size_t>(a.larger->tier);
    std::snprintf(text, sizeof text, "enlarge %s first: with %s (now %s) steps would be about %.2f times as fast",
                  options[tier], format_bytes(a.larger->bytes).c_str(), format_bytes(a.larger->bytes / 2).c_str(),
                  a.larger->gain);
  } else {
    std::snprintf(text, sizeof text,
                  "twice any budget gains less than 2%%, a machine with twice as much of it %.2f times the speed",
                  a.faster_limit_gain);
  }
  if (a.not_durable_gain) {
    sentence += text;
    std::snprintf(text, sizeof text, "; steps that are not durable (--durable off) about %.2f times as fast",
                  *a.not_durable_gain);
  }
  return sentence + text;
}

}  // namespace sluice
