#include "src/schedule/chain.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "sluice/status.h"

namespace sluice {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr int price_rounds = 14;
constexpr std::size_t bounds_kept = 3;
/// Of single changes: each walks through the chain.
constexpr std::size_t tries_max = 20'000;

double priced(const ResourceSeconds& use, const ResourceSeconds& prices) {
  return std::inner_product(use.begin(), use.end(), prices.begin(), 0.0);
}
void add(ResourceSeconds& to, const ResourceSeconds& use) {
  for (std::size_t r = 0; r < to.size(); ++r) to[r] += use[r];
}
const ParkingUse* parking_of(const ChainUnit& unit, Place place) {
  const auto at = std::ranges::find(unit.parking, place, &ParkingUse::place);
  return at == unit.parking.end() ? nullptr : &*at;
}
const SavedWay* way_of(const ChainUnit& unit, const ChainChoice& choice) {
  const auto at = std::ranges::find_if(
      unit.ways, [&](const SavedWay& way) { return way.saved == choice.saved && way.core == choice.core; });
  return at == unit.ways.end() ? nullptr : &*at;
}

/// Goes through the passes of a step as PassOrder has them, and counts.
class Walk {
 public:
  Walk(const Chain& chain, const ChainChoices& choices)
      : chain_(chain), choices_(choices), last_(static_cast<int>(chain.size()) - 1), saved_(chain.size()) {}

  ChainCost cost() {
    for (int u = 0; u < last_; ++u) forward(u, u + 1 == last_ || choice(u + 1).sweep == 0);
    between(0, last_, 0);
    return cost_;
  }

 private:
  const ChainUnit& unit(int u) const { return chain_[static_cast<std::size_t>(u)]; }
  const ChainChoice& choice(int u) const { return choices_[static_cast<std::size_t>(u)]; }
  int sweep(int u) const { return u == last_ ? 0 : choice(u).sweep; }

  void forward(int u, bool keeps) {
    add(cost_.use, unit(u).forward);
    if (!keeps) return;
    const int next = u + 1;
    if (const ParkingUse* parked = parking_of(unit(next), choice(next).boundary))
      add(cost_.use, parked->away);
    else
      live_ += unit(next).input_bytes;
    const SavedWay* way = way_of(unit(u), choice(u));
    if (way == nullptr) return;
    add(cost_.use, way->use);
    live_ += way->bytes;
    saved_[static_cast<std::size_t>(u)] = way;
    peak(0);
  }
  void peak(std::uint64_t beside) { cost_.device_bytes = std::max(cost_.device_bytes, live_ + beside); }
  /// What was made last is still on the device; else it comes back.
  void bring(int u, bool is_here) {
    if (is_here || u == 0) return;
    if (const ParkingUse* parked = parking_of(unit(u), choice(u).boundary)) add(cost_.use, parked->back);
  }
  void backward(int u, bool is_here) {
    const SavedWay* way = saved_[static_cast<std::size_t>(u)];
    bring(u, is_here);
    if (way == nullptr && u < last_) add(cost_.use, unit(u).again);
    add(cost_.use, unit(u).backward);
    peak(way != nullptr && way->bytes > 0 ? unit(u).backward_bytes_kept : unit(u).backward_bytes);
    if (way != nullptr) live_ -= way->bytes;
    if (u > 0 && parking_of(unit(u), choice(u).boundary) == nullptr) live_ -= unit(u).input_bytes;
  }
  /// `is_here`: the last input that was kept.
  void between(int first, int last, int kept) {
    int end = last;
    bool is_here = true;
    for (int u = last; u > first; --u) {
      if (sweep(u) != kept) continue;
      back(u, end, is_here);
      is_here = false;
      end = u - 1;
    }
    back(first, end, false);
  }
  void back(int first, int last, bool is_here) {
    if (first == last) return backward(first, is_here);
    int next = sweep(last);
    for (int u = first + 1; u < last; ++u) next = std::min(next, sweep(u));
    int end = last;
    while (sweep(end) != next) --end;
    bring(first, is_here);
    for (int u = first; u < end; ++u) forward(u, sweep(u + 1) == next);
    between(first, last, next);
  }

  const Chain& chain_;
  const ChainChoices& choices_;
  int last_;
  std::vector<const SavedWay*> saved_;
  std::uint64_t live_ = 0;
  ChainCost cost_;
};

}  // namespace

ChainCost chain_cost(const Chain& chain, const ChainChoices& choices) { return Walk(chain, choices).cost(); }

bool keeps_inputs_of_saved(const ChainChoices& choices) {
  for (std::size_t u = 0; u + 1 < choices.size(); ++u)
    if (choices[u].saves() && choices[u].sweep > choices[u + 1].sweep) return false;
  return true;
}

ChainTable::ChainTable(const Chain& chain, const ResourceSeconds& prices, std::uint64_t budget_bytes, int slots,
                       Rounding rounding)
    : chain_(chain),
      units_(static_cast<int>(chain.size())),
      slots_(slots),
      slot_bytes_(std::max(1.0, static_cast<double>(budget_bytes) / slots)),
      rounding_(rounding) {
  SLUICE_CHECK(units_ > 1 && slots > 0, "(%d units, %d slots)", units_, slots);
  const auto price = [&](const ResourceSeconds& use) { return static_cast<float>(priced(use, prices)); };
  forward_.push_back(0);
  for (const ChainUnit& unit : chain) {
    forward_.push_back(forward_.back() + price(unit.forward));
    again_.push_back(&unit == &chain.back() ? 0 : price(unit.again));
    backward_.push_back(price(unit.backward));
    backward_slots_.push_back(slots_of(unit.backward_bytes));
    kept_slots_.push_back(slots_of(unit.backward_bytes_kept));
    std::vector<Option> inputs{{slots_of(unit.input_bytes), 0, -1}}, saved;
    // Of several places the cheapest: no budget of theirs is known here.
    float read = 0, least = infinite;
    for (std::size_t i = 0; i < unit.parking.size(); ++i) {
      const float away = price(unit.parking[i].away), back = price(unit.parking[i].back);
      if (away + back >= least) continue;
      least = away + back;
      read = back;
      inputs.resize(1);
      inputs.push_back({0, away, static_cast<int>(i)});
    }
    for (std::size_t i = 0; i < unit.ways.size(); ++i)
      saved.push_back({slots_of(unit.ways[i].bytes), price(unit.ways[i].use), static_cast<int>(i)});
    read_.push_back(read);
    inputs_.push_back(std::move(inputs));
    saved_.push_back(std::move(saved));
  }
  const auto n = static_cast<std::size_t>(units_);
  table_.assign(2 * n * n * static_cast<std::size_t>(slots_ + 1), infinite);
  for (int length = 0; length < units_; ++length)
    for (int first = 0; first + length < units_; ++first)
      for (const int place : {0, 1}) fill(place, first, first + length);
}

int ChainTable::slots_of(std::uint64_t bytes) const {
  const double slots = static_cast<double>(bytes) / slot_bytes_;
  const double whole = rounding_ == Rounding::up ? std::ceil(slots) : std::floor(slots);
  return static_cast<int>(std::min(whole, 1.0 + slots_));
}

std::size_t ChainTable::at(int place, int first, int last) const {
  const auto n = static_cast<std::size_t>(units_);
  return ((static_cast<std::size_t>(place) * n + static_cast<std::size_t>(first)) * n +
          static_cast<std::size_t>(last)) *
         static_cast<std::size_t>(slots_ + 1);
}

/// For all numbers of slots: the units from `first` to `last`, behind a pass forward that has just come to the first.
void ChainTable::fill(int place, int first, int last) {
  float* const out = table_.data() + at(place, first, last);
  const auto f = static_cast<std::size_t>(first);
  if (first == last) {
    for (int m = backward_slots_[f]; m <= slots_; ++m) out[m] = again_[f] + backward_[f];
    return;
  }
  const float back = returns(place, first);
  for (int next = first + 1; next <= last; ++next) {
    const auto v = static_cast<std::size_t>(next);
    const float* const rest = row(place, first, next - 1);
    for (const Option& input : inputs_[v]) {
      const float* const follows = row(input.index < 0 ? 0 : 1, next, last);
      const float cost = forward_[v] - forward_[f] + input.cost + back;
      for (int m = input.slots; m <= slots_; ++m) out[m] = std::min(out[m], cost + follows[m - input.slots] + rest[m]);
    }
  }
  const auto v = f + 1;
  for (const Option& saved : saved_[f])
    for (const Option& input : inputs_[v]) {
      const float* const follows = row(input.index < 0 ? 0 : 1, first + 1, last);
      const float cost = forward_[v] - forward_[f] + input.cost + saved.cost + back + backward_[f];
      const int own = saved.slots > 0 ? saved.slots + kept_slots_[f] : backward_slots_[f],
                waits = saved.slots + input.slots;
      for (int m = std::max(own, waits); m <= slots_; ++m) out[m] = std::min(out[m], cost + follows[m - waits]);
    }
}

/// What `fill` has found, once more, for one number of slots.
float ChainTable::least(int place, int first, int last, int slots, Step* step) const {
  const auto f = static_cast<std::size_t>(first);
  const float back = returns(place, first);
  float best = infinite;
  for (int next = first + 1; next <= last; ++next) {
    const auto v = static_cast<std::size_t>(next);
    for (const Option& input : inputs_[v]) {
      if (input.slots > slots) continue;
      const float cost = forward_[v] - forward_[f] + input.cost + back +
                         row(input.index < 0 ? 0 : 1, next, last)[slots - input.slots] +
                         row(place, first, next - 1)[slots];
      if (cost >= best) continue;
      best = cost;
      *step = {next, input, std::nullopt};
    }
  }
  const auto v = f + 1;
  for (const Option& saved : saved_[f])
    for (const Option& input : inputs_[v]) {
      const int own = saved.slots > 0 ? saved.slots + kept_slots_[f] : backward_slots_[f],
                waits = saved.slots + input.slots;
      if (std::max(own, waits) > slots) continue;
      const float cost = forward_[v] - forward_[f] + input.cost + saved.cost + back + backward_[f] +
                         row(input.index < 0 ? 0 : 1, first + 1, last)[slots - waits];
      if (cost >= best) continue;
      best = cost;
      *step = {first + 1, input, saved};
    }
  return best;
}

double ChainTable::cost(int slots) const { return row(0, 0, units_ - 1)[std::clamp(slots, 0, slots_)]; }

void ChainTable::assign(int place, int first, int last, int slots, int sweep, ChainChoices& choices) const {
  if (first == last) return;
  Step step;
  const float found = least(place, first, last, slots, &step);
  SLUICE_CHECK(found < infinite && step.next > first, "(units %d to %d, %d slots)", first, last, slots);
  const auto v = static_cast<std::size_t>(step.next);
  choices[v].sweep = sweep;
  choices[v].boundary =
      step.input.index < 0 ? Place::device : chain_[v].parking[static_cast<std::size_t>(step.input.index)].place;
  const int follows = step.input.index < 0 ? 0 : 1;
  if (step.saved) {
    const auto f = static_cast<std::size_t>(first);
    const SavedWay& way = chain_[f].ways[static_cast<std::size_t>(step.saved->index)];
    choices[f].saved = way.saved;
    choices[f].core = way.core;
    return assign(follows, step.next, last, slots - step.input.slots - step.saved->slots, sweep, choices);
  }
  assign(follows, step.next, last, slots - step.input.slots, sweep, choices);
  assign(place, first, step.next - 1, slots, sweep + 1, choices);
}

std::optional<ChainChoices> ChainTable::choices(int slots) const {
  slots = std::clamp(slots, 0, slots_);
  if (!(cost(slots) < infinite)) return std::nullopt;
  ChainChoices list(chain_.size());
  assign(0, 0, units_ - 1, slots, 0, list);
  return list;
}

double largest_resource(const ResourceSeconds& rest, const ResourceSeconds& use, double times) {
  double most = 0;
  for (std::size_t r = 0; r < rest.size(); ++r) most = std::max(most, rest[r] + times * use[r]);
  return most;
}

namespace {

/// Single changes that make the largest resource less, each the best of all, within the budget.
void improve(const Chain& chain, const ResourceSeconds& rest, double times, std::uint64_t budget,
             ChainChoices& choices) {
  double now = largest_resource(rest, chain_cost(chain, choices).use, times);
  std::size_t left = tries_max;
  while (left > 0) {
    double best = now * (1 - 1e-9);
    ChainChoices next;
    const auto consider = [&](std::size_t u, auto change) {
      ChainChoices tried = choices;
      change(tried[u]);
      if (left == 0 || tried == choices || !keeps_inputs_of_saved(tried)) return;
      --left;
      const ChainCost cost = chain_cost(chain, tried);
      const double seconds = largest_resource(rest, cost.use, times);
      if (cost.device_bytes > budget || seconds >= best) return;
      best = seconds;
      next = std::move(tried);
    };
    for (std::size_t u = 0; u + 1 < chain.size(); ++u) {
      consider(u, [](ChainChoice& c) {
        c.saved = Saved::recompute;
        c.core.reset();
      });
      for (const SavedWay& way : chain[u].ways)
        consider(u, [&](ChainChoice& c) {
          c.saved = way.saved;
          c.core = way.core;
        });
      if (u == 0) continue;
      consider(u, [](ChainChoice& c) { c.boundary = Place::device; });
      for (const ParkingUse& p : chain[u].parking) consider(u, [&](ChainChoice& c) { c.boundary = p.place; });
      for (const int by : {-1, 1}) consider(u, [by](ChainChoice& c) { c.sweep = std::max(0, c.sweep + by); });
    }
    if (next.empty()) return;
    choices = std::move(next);
    now = best;
  }
}

}  // namespace

BalancedChain balance(const Chain& chain, const ResourceSeconds& rest, double times, std::uint64_t budget_bytes,
                      int slots) {
  BalancedChain result;
  struct Found {
    ChainChoices choices;
    double seconds;
  };
  std::vector<Found> found;
  std::vector<std::pair<double, ResourceSeconds>> bounds;  // but for the rounding of bytes
  // Prices go to where the cheapest schedule asks most, in ever smaller steps.
  ResourceSeconds prices;
  prices.fill(1.0 / static_cast<double>(prices.size()));
  for (int round = 0; round < price_rounds; ++round) {
    const ChainTable table(chain, prices, budget_bytes, slots);
    const std::optional<ChainChoices> choices = table.choices(slots);
    if (!choices) return result;
    bounds.emplace_back(priced(rest, prices) + times * table.cost(), prices);
    const ResourceSeconds use = chain_cost(chain, *choices).use;
    const double most = largest_resource(rest, use, times);
    if (std::ranges::find(found, *choices, &Found::choices) == found.end()) found.push_back({*choices, most});
    const double rate = 4.0 / std::sqrt(1.0 + round);
    double sum = 0;
    for (std::size_t r = 0; r < prices.size(); ++r) {
      prices[r] *= std::exp(rate * ((rest[r] + times * use[r]) / most - 1));
      sum += prices[r];
    }
    for (double& p : prices) p /= sum;
  }
  std::ranges::stable_sort(bounds, std::greater(), [](const auto& b) { return b.first; });
  result.prices = bounds.front().second;
  for (std::size_t i = 0; i < std::min<std::size_t>(bounds.size(), bounds_kept); ++i) {
    const ChainTable optimistic(chain, bounds[i].second, budget_bytes, slots, ChainTable::Rounding::down);
    result.bound_seconds = std::max(result.bound_seconds, priced(rest, bounds[i].second) + times * optimistic.cost());
  }
  std::ranges::stable_sort(found, {}, &Found::seconds);
  Found better = found.front();
  improve(chain, rest, times, budget_bytes, better.choices);
  better.seconds = largest_resource(rest, chain_cost(chain, better.choices).use, times);
  if (better.seconds < found.front().seconds) found.insert(found.begin(), better);
  for (Found& f : found) result.found.push_back(std::move(f.choices));
  result.seconds = found.front().seconds;
  return result;
}

}  // namespace sluice
