#include "src/schedule/recipe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>

#include "offload/parallel.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/stages.h"

namespace sluice {

std::vector<Cook::Dish> Cook::dishes(int group, bool update_ahead) const {
  std::vector<Dish> list;
  const std::optional<Schedule> base = this->base(group, update_ahead);
  if (!base) return list;
  const bool is_open = !wish_.recompute && !work_.inference;
  const auto serve = [&](bool activations_first, std::vector<Dish>& to) {
    Recipe recipe{group, update_ahead, activations_first, Saved::recompute, false};
    if ((is_open || wish_.recompute == Recompute::optimal) && hw_ != nullptr) {
      Schedule balanced = *base;
      recipe.balanced = true;
      fill_device(balanced, recipe);
      to.push_back({recipe, std::move(balanced)});
      recipe.balanced = false;
      if (!is_open) return;
    }
    Schedule s = *base;
    fill_device(s, recipe);
    to.push_back({recipe, s});
    for (const Saved place : {Saved::host, Saved::nvme})
      if (Schedule t = s; spill(t, place, 1)) {
        fill_gradients(t);
        to.push_back({{group, update_ahead, activations_first, place, false}, std::move(t)});
      }
  };
  if (work_.inference) {
    serve(true, list);
    return list;
  }
  std::vector<Dish> others;
  parallel_invoke([&] { serve(true, list); }, [&] { serve(false, others); });
  list.insert(list.end(), std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
  return list;
}

TierBytes Cook::needs(const Schedule& s) const {
  {
    const std::lock_guard lock(known_mutex_);
    const auto known = std::ranges::find(known_needs_, s, [](const auto& k) -> const Schedule& { return k.first; });
    if (known != known_needs_.end()) return known->second;
  }
  // Steps that wait, where they have choices of their own, fit as they are.
  const Plans looked_at = !s.waiting.empty() ? Plans::own : margin_ > 1 ? Plans::all : Plans::main;
  const TierBytes needs = usual_needs(work_, s, looked_at);
  const std::lock_guard lock(known_mutex_);
  known_needs_.emplace_back(s, needs);
  return needs;
}

std::optional<Schedule> Cook::base(int group, bool update_ahead) const {
  std::optional<Schedule> s = streamed(group, update_ahead);
  if (!s) return s;
  fill_blocks(*s);
  fill_homes(*s);
  return s;
}

std::optional<Schedule> Cook::follow(const Recipe& recipe) const {
  std::optional<Schedule> s = base(recipe.group, recipe.update_ahead);
  return s ? follow(recipe, *std::move(s)) : s;
}

Schedule Cook::follow(const Recipe& recipe, Schedule s) const {
  fill_device(s, recipe);
  if (recipe.spilled == Saved::recompute) return s;
  for (const double share : {1.0, 0.9, 0.75, 0.5, 0.25})
    if (spill(s, recipe.spilled, share)) break;
  fill_gradients(s);
  return s;
}

bool Cook::spill(Schedule& s, Saved place, double share) const {
  if (work_.inference || wish_.recompute) return false;
  std::vector<std::size_t> recomputed;
  for (const std::size_t u : turning(s))
    if (s.units[u].saved == Saved::recompute) recomputed.push_back(u);
  const auto count = static_cast<std::size_t>(std::ceil(share * static_cast<double>(recomputed.size())));
  if (count == 0) return false;
  Schedule spilled = s;
  for (std::size_t i = 0; i < count; ++i) spilled.units[recomputed[i]].saved = place;
  if (!fits(spilled)) return false;
  s = std::move(spilled);
  return true;
}

/// Streamed schedules for a group size, fastest first, each needing less memory than the one before.
std::vector<Schedule> Cook::ladder(int group, bool update_ahead) const {
  Schedule s = frugal_schedule(work_, wish_.pipeline);
  s.group = group;
  s.update_ahead = update_ahead;
  s.hold = true;
  s.prefetch = s.lag = 1;
  s.tiles_in_flight = 4;
  // Transfers of GPUs in a pipeline are few and large: each stage has its own.
  s.tile_numel = tile_for(work_, 1u << 18, !work_.device.empty() && work_.stages() > 1 ? 64 : 2048);
  const auto all = [&s](auto change) {
    for (UnitChoice& c : s.units) change(c);
  };
  all([](UnitChoice& c) {
    c.accumulator = Place::device;
    c.boundary = c.blocks = Place::device;
    c.gradient = Place::host;
  });
  std::vector<Schedule> list;
  const auto add = [&] { list.push_back(fixed(s, wish_)); };
  add();
  all([](UnitChoice& c) { c.boundary = Place::host; });
  add();
  if (work_.shape.slices > 1) {
    all([](UnitChoice& c) { c.blocks = Place::host; });
    add();
  }
  all([](UnitChoice& c) { c.accumulator = Place::host; });
  if (parks_sums(work_, s)) {
    s.gradients_ahead = true;
    add();
    s.gradients_ahead = false;
  }
  add();
  all([](UnitChoice& c) { c.gradient = Place::nvme; });
  add();
  all([](UnitChoice& c) { c.accumulator = Place::nvme; });
  add();
  all([](UnitChoice& c) { c.boundary = Place::nvme; });
  add();
  if (work_.shape.slices > 1) {
    all([](UnitChoice& c) { c.blocks = Place::nvme; });
    add();
  }
  s.hold = false;
  add();
  s.tile_numel = tile_for(work_, 1u << 16, 4096);
  s.tiles_in_flight = 2;
  add();
  s.lag = 0;
  add();
  s.prefetch = 0;
  s.tiles_in_flight = 1;
  add();
  return list;
}

std::optional<Schedule> Cook::streamed(int group, bool update_ahead) const {
  for (const Schedule& rung : ladder(group, update_ahead)) {
    if (!is_soon_built(rung)) continue;
    Schedule base = relieve_drive(rung);
    const TierBytes takes = needs(base);
    if (fits(takes)) return base;
    if (work_.inference || !fits({takes.device, 0, takes.nvme})) continue;
    if (base = relieve_host(std::move(base), takes.host); fits(base)) return base;
  }
  return std::nullopt;
}

bool Cook::leaves_out(const Recipe& recipe) const {
  const std::vector<Schedule> rungs = ladder(recipe.group, recipe.update_ahead);
  return !std::ranges::all_of(rungs, [&](const Schedule& rung) { return is_soon_built(rung); });
}

/// Transfers of many small tiles are of budgets that leave no room.
bool Cook::is_soon_built(const Schedule& s) const {
  if (transfers_max_ == no_limit) return true;
  const double groups = std::ceil(work_.micro_batches / static_cast<double>(s.group));
  double ops = 0;
  for (std::size_t u = 0; u < work_.model->units.size(); ++u) {
    const double tiles =
        std::ceil(static_cast<double>(work_.shard_numel(static_cast<UnitId>(u))) / static_cast<double>(s.tile_numel));
    ops += tiles * (20 + (s.units[u].resident || s.units[u].held ? 0 : 2 * groups));
  }
  return ops < transfers_max_;
}

/// Makes moves, of as few units as it takes, until the tier, of which the schedule takes so much, has room for it (or
/// there is nothing to move).
Schedule Cook::relieved(Schedule s, Tier tier, std::uint64_t takes, std::uint64_t space,
                        const std::vector<Turn>& moves) const {
  const std::vector<std::size_t> order = turning(s);
  for (const Turn& move : moves) {
    if (takes <= space) break;
    const auto moved = [&](std::size_t count) {
      Schedule t = s;
      for (std::size_t u = 0; u < count; ++u) move(t.units[order[u]]);
      return fixed(std::move(t), wish_);
    };
    std::size_t few = 0, enough = s.units.size();
    if (moved(enough) == s) continue;
    std::uint64_t too_much = takes, little = needs(moved(enough)).of(tier);
    // Units are nearly alike, so a straight line comes close at once.
    for (int guess = 0; guess < 3 && little <= space && enough - few > 1; ++guess) {
      const double share = static_cast<double>(too_much - space) / static_cast<double>(too_much - little);
      const auto ahead = static_cast<std::size_t>(std::ceil(share * static_cast<double>(enough - few)));
      const std::size_t middle = few + std::clamp<std::size_t>(ahead, 1, enough - few - 1);
      const std::uint64_t then = needs(moved(middle)).of(tier);
      std::tie(then <= space ? enough : few, then <= space ? little : too_much) = std::tuple(middle, then);
    }
    s = moved(enough);
    takes = little;
  }
  return s;
}

/// What may be alive there, so that arenas are within the budget.
std::uint64_t Cook::space_of(Tier tier) const {
  return static_cast<std::uint64_t>(static_cast<double>(work_.budget_bytes[static_cast<std::size_t>(tier)]) / margin_);
}

/// Things move from the drive to host memory, least first.
Schedule Cook::relieve_drive(Schedule s) const {
  const auto off_drive = [](Place UnitChoice::*what) {
    return [what](UnitChoice& c) {
      if (c.*what == Place::nvme) c.*what = Place::host;
    };
  };
  if (work_.budget_bytes[static_cast<std::size_t>(Tier::nvme)] == 0) return s;
  const std::uint64_t takes = needs(s).nvme;
  return relieved(
      std::move(s), Tier::nvme, takes, space_of(Tier::nvme),
      {off_drive(&UnitChoice::boundary), off_drive(&UnitChoice::blocks), off_drive(&UnitChoice::accumulator),
       off_drive(&UnitChoice::gradient), off_drive(&UnitChoice::state_home), off_drive(&UnitChoice::parameter_home)});
}

/// Inputs and sums of gradients move from host memory, of which the schedule takes so much, to the device.
Schedule Cook::relieve_host(Schedule s, std::uint64_t takes) const {
  const auto to_device = [](Place UnitChoice::*what) {
    return [what](UnitChoice& c) {
      if (c.*what == Place::host) c.*what = Place::device;
    };
  };
  return relieved(
      std::move(s), Tier::host, takes, space_of(Tier::host),
      {to_device(&UnitChoice::boundary), to_device(&UnitChoice::blocks), to_device(&UnitChoice::accumulator)});
}

namespace {

/// The part of the way from `low` to `high`, which is too much, at which a straight line meets the first budget.
double share_that_fits(const TierBytes& low, const TierBytes& high, const std::array<std::uint64_t, 3>& budgets,
                       double margin) {
  double share = 1;
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme}) {
    const double budget = static_cast<double>(budgets[static_cast<std::size_t>(t)]) / margin;
    const auto from = static_cast<double>(low.of(t)), to = static_cast<double>(high.of(t));
    if (budget > 0 && to > budget && to > from) share = std::min(share, std::max(0.0, (budget - from) / (to - from)));
  }
  return share;
}

}  // namespace

std::vector<std::size_t> Cook::turning(const Schedule& s) const {
  std::vector<std::size_t> order(s.units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (work_.stages() == 1) return order;
  const Stages stages(work_, s);
  std::vector<std::size_t> seen(work_.stages()), place(s.units.size());
  for (const std::size_t u : order) place[u] = seen[stages.stage_of(static_cast<UnitId>(u))]++;
  std::ranges::stable_sort(order, {}, [&](std::size_t u) { return place[u]; });
  return order;
}

/// Turn a knob for as many units as the budgets allow: the first of them, or the last. Units are nearly alike, so it is
/// looked for where a straight line has it, and by halves every third time, for where it misses.
void Cook::turn(Schedule& s, const Turn& change, From from) const {
  std::vector<std::size_t> order = turning(s);
  if (from == From::last) std::ranges::reverse(order);
  const auto turned = [&](std::size_t count) {
    Schedule t = s;
    for (std::size_t u = 0; u < count; ++u) change(t.units[order[u]]);
    return t;
  };
  std::size_t low = 0, high = s.units.size();
  if (turned(high) == s) return;
  TierBytes at_high = needs(turned(high));
  if (fits(at_high)) {
    s = turned(high);
    return;
  }
  TierBytes at_low = needs(s);
  for (int guess = 1; low + 1 < high; ++guess) {
    const double share = guess % 3 == 0 ? 0.5 : share_that_fits(at_low, at_high, work_.budget_bytes, margin_);
    const auto ahead = static_cast<std::size_t>(share * static_cast<double>(high - low));
    const std::size_t middle = low + std::clamp<std::size_t>(ahead, 1, high - low - 1);
    const TierBytes there = needs(turned(middle));
    std::tie(fits(there) ? low : high, fits(there) ? at_low : at_high) = std::tuple(middle, there);
  }
  s = turned(low);
}

void Cook::fill_homes(Schedule& s) const {
  if (wish_.states) return;
  if (!work_.inference) {
    turn(s, [](UnitChoice& c) { c.gradient = Place::host; });
    turn(s, [](UnitChoice& c) { c.state_home = Place::host; });
  }
  turn(s, [](UnitChoice& c) { c.parameter_home = Place::host; });
}

/// Where the drive would have less to do.
bool Cook::may_carry_gradients(const Schedule& s) const {
  const auto is_on_drive = [](const UnitChoice& c) {
    return c.gradient != Place::host || c.state_home == Place::nvme || c.parameter_home == Place::nvme;
  };
  return s.update_ahead && wish_.carries && !wish_.states && !work_.inference &&
         std::ranges::any_of(s.units, is_on_drive);
}

void Cook::fill_gradients(Schedule& s) const {
  if (!may_carry_gradients(s)) return;
  Schedule t = s;
  for (UnitChoice& c : t.units)
    if (c.gradient == Place::device) c.gradient = Place::nvme;
  turn(t, [](UnitChoice& c) { c.gradient = Place::device; });
  turn(t, [](UnitChoice& c) {
    if (c.gradient == Place::nvme) c.gradient = Place::host;
  });
  turn(t, [](UnitChoice& c) { c.state_home = Place::host; });
  turn(t, [](UnitChoice& c) { c.parameter_home = Place::host; });
  // A drive that is short of space may have no room for what the device has none for any more.
  if (fits(t) || !fits(s)) s = std::move(t);
}

/// They travel most of all that has a place to choose: each block comes back for the queries of every later slice.
void Cook::fill_blocks(Schedule& s) const {
  if (work_.shape.slices == 1) return;
  for (const Place place : {Place::host, Place::device})
    turn(s, [place](UnitChoice& c) { c.blocks = std::min(c.blocks, place); });
}

/// Of inputs, as many as the device has room for, spread so that the others are made again with the fewest passes: the
/// chain's programme where units are alike and nothing is parked.
void Cook::keep_most_inputs(Schedule& s) const {
  const auto kept = [&](int count) {
    Schedule t = s;
    for (PlaceChain& place : places_of(work_, s)) {
      for (std::size_t i = 0; i + 1 < place.chain.size(); ++i) place.chain[i].input_bytes = i == 0 ? 0 : 1;
      for (std::size_t i = 0; i + 1 < place.chain.size(); ++i)
        place.chain[i].forward[static_cast<std::size_t>(Resource::compute)] = 1;
      ByWay prices;
      prices.forward[static_cast<std::size_t>(Resource::compute)] = 1;
      prices.back = prices.forward;
      const ChainTable table(place.chain, prices, static_cast<std::uint64_t>(count), count);
      choose(t, place, table.choices(count).value());
    }
    return fixed(std::move(t), wish_);
  };
  int low = 0, high = static_cast<int>(s.units.size());  // one is kept too few, or fits in no case
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    (fits(kept(middle)) ? low : high) = middle;
  }
  if (low > 0) s = kept(low);
}

void Cook::fill_device_anew(Schedule& s, const Recipe& recipe) const {
  empty_device(s);
  fill_device(s, recipe);
}

void Cook::empty_device(Schedule& s) const {
  for (UnitChoice& c : s.units) {
    if (!wish_.recompute) c.saved = Saved::recompute;
    if (!wish_.resident) c.resident = false;
    if (!wish_.held) c.held = false;
  }
  s = fixed(std::move(s), wish_);
}

void Cook::fill_device(Schedule& s, const Recipe& recipe) const {
  const bool activations_first = recipe.activations_first;
  const auto keep = [&] {
    if (work_.inference) return;
    if (recipe.balanced)
      balance_activations(s);
    else if (!wish_.recompute)
      // Where gradients may have the memory, those that are kept for the shortest time.
      turn(
          s, [](UnitChoice& c) { c.saved = Saved::keep; }, may_carry_gradients(s) ? From::last : From::first);
    else if (wish_.recompute == Recompute::revolve)
      keep_most_inputs(s);
  };
  const auto stay = [&] {
    // Where an update brings parameters to the forward pass, those that stay up to the backward pass spare as much as
    // those that always do, and leave gradients the rest of the time.
    const bool waits =
        s.update_ahead && std::ranges::any_of(s.units, [](const UnitChoice& c) { return c.gradient == Place::device; });
    if (waits && !wish_.held && !wish_.resident)
      turn(
          s, [](UnitChoice& c) { c.held = true; }, From::last);
    else if (!wish_.resident)
      turn(s, [](UnitChoice& c) { c.resident = true; });
  };
  // A byte of parameters spares one read for each other pass over them, a byte of gradients a read and a write.
  const bool gradients_first = s.group >= work_.micro_batches_of_sum();
  if (activations_first) keep();
  if (gradients_first) fill_gradients(s);
  stay();
  if (!activations_first) keep();
  if (!wish_.prefetch && s.prefetch == 1 && s.waiting.empty()) {
    Schedule deeper = s;
    deeper.prefetch = 2;
    if (!fits(deeper)) fill_gradients(deeper);
    if (fits(deeper)) s = std::move(deeper);
  }
  fill_gradients(s);
}

}  // namespace sluice
