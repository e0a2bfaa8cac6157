#include "src/schedule/chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "sluice/status.h"

namespace sluice {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr int price_rounds = 14;
constexpr double close_to_bound = 1.001;  ///< ends them sooner
/// So do, of long chains, whose rounds take tenths of a second, some in a row in which hardly anything is gained.
constexpr std::size_t units_of_long_chain = 100;
constexpr int idle_rounds_max = 2;
constexpr double notable_gain = 2e-4;
constexpr double even_share = 0.1;  ///< of prices that are begun with, so that each can rise again
constexpr int units_of_layer = 2;   ///< attention and MLP
/// Of single changes: each walks through the chain.
constexpr std::size_t tries_max = 20'000;

double priced(const ResourceSeconds& use, const ResourceSeconds& prices) {
  return std::inner_product(use.begin(), use.end(), prices.begin(), 0.0);
}
double priced(const ByWay& use, const ByWay& prices) {
  return priced(use.forward, prices.forward) + priced(use.back, prices.back);
}
/// Where most is asked, so that prices still add up to 1.
void raise(ResourceSeconds& prices, const ResourceSeconds& rest, const ResourceSeconds& use, double times,
           double rate) {
  double most = 0, sum = 0;
  for (std::size_t r = 0; r < prices.size(); ++r) most = std::max(most, rest[r] + times * use[r]);
  if (most == 0) return;
  for (std::size_t r = 0; r < prices.size(); ++r)
    sum += prices[r] *= std::exp(rate * ((rest[r] + times * use[r]) / most - 1));
  for (double& p : prices) p /= sum;
}
void mix_even(ResourceSeconds& prices) {
  for (double& p : prices) p += even_share * (1.0 / static_cast<double>(prices.size()) - p);
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
    for (int u = 0; u < last_; ++u) forward(u, u + 1 == last_ || choice(u + 1).sweep == 0, cost_.use.forward);
    between(0, last_, 0);
    return cost_;
  }

 private:
  const ChainUnit& unit(int u) const { return chain_[static_cast<std::size_t>(u)]; }
  const ChainChoice& choice(int u) const { return choices_[static_cast<std::size_t>(u)]; }
  int sweep(int u) const { return u == last_ ? 0 : choice(u).sweep; }

  void forward(int u, bool keeps, ResourceSeconds& way_there) {
    add(way_there, unit(u).forward);
    if (!keeps) return;
    const int next = u + 1;
    if (const ParkingUse* parked = parking_of(unit(next), choice(next).boundary))
      add(way_there, parked->away);
    else
      live_ += unit(next).input_bytes;
    const SavedWay* way = way_of(unit(u), choice(u));
    if (way == nullptr) return;
    add(way_there, way->away);
    live_ += way->bytes;
    saved_[static_cast<std::size_t>(u)] = way;
    peak(0);
  }
  void peak(std::uint64_t beside) { cost_.device_bytes = std::max(cost_.device_bytes, live_ + beside); }
  /// What was made last is still on the device; else it comes back.
  void bring(int u, bool is_here) {
    if (is_here || u == 0) return;
    if (const ParkingUse* parked = parking_of(unit(u), choice(u).boundary)) add(cost_.use.back, parked->back);
  }
  void backward(int u, bool is_here) {
    const SavedWay* way = saved_[static_cast<std::size_t>(u)];
    bring(u, is_here);
    if (way == nullptr && u < last_) add(cost_.use.back, unit(u).again);
    if (way != nullptr) add(cost_.use.back, way->back);
    add(cost_.use.back, unit(u).backward);
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
    for (int u = first; u < end; ++u) forward(u, sweep(u + 1) == next, cost_.use.back);
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

ChainTable::ChainTable(const Chain& chain, const ByWay& prices, std::uint64_t budget_bytes, int slots,
                       Rounding rounding)
    : chain_(chain),
      units_(static_cast<int>(chain.size())),
      slots_(slots),
      slot_bytes_(std::max(1.0, static_cast<double>(budget_bytes) / slots)),
      rounding_(rounding) {
  SLUICE_CHECK(units_ > 1 && slots > 0, "(%d units, %d slots)", units_, slots);
  const auto there = [&](const ResourceSeconds& use) { return static_cast<float>(priced(use, prices.forward)); };
  const auto back = [&](const ResourceSeconds& use) { return static_cast<float>(priced(use, prices.back)); };
  forward_.push_back(0);
  sweep_.push_back(0);
  for (const ChainUnit& unit : chain) {
    forward_.push_back(forward_.back() + there(unit.forward));
    sweep_.push_back(sweep_.back() + back(unit.forward));
    again_.push_back(&unit == &chain.back() ? 0 : back(unit.again));
    backward_.push_back(back(unit.backward));
    backward_slots_.push_back(slots_of(unit.backward_bytes));
    kept_slots_.push_back(slots_of(unit.backward_bytes_kept));
    std::vector<Option> inputs{{slots_of(unit.input_bytes), 0, 0, 0, -1}}, saved;
    // Of several places the cheapest: no budget of theirs is known here.
    float read = 0, least = infinite;
    for (std::size_t i = 0; i < unit.parking.size(); ++i) {
      const ParkingUse& p = unit.parking[i];
      const float cost = there(p.away) + back(p.back);
      if (cost >= least) continue;
      least = cost;
      read = back(p.back);
      inputs.resize(1);
      inputs.push_back({0, there(p.away), back(p.away), 0, static_cast<int>(i)});
    }
    for (std::size_t i = 0; i < unit.ways.size(); ++i) {
      const SavedWay& w = unit.ways[i];
      saved.push_back({slots_of(w.bytes), there(w.away), back(w.away), back(w.back), static_cast<int>(i)});
    }
    read_.push_back(read);
    inputs_.push_back(std::move(inputs));
    saved_.push_back(std::move(saved));
  }
  lay_out();
  for (int length = 0; length < units_; ++length)
    for (int first = 0; first + length < units_; ++first)
      for (const bool parked : {false, true}) fill({parked, false, first, first + length});
  for (int first = units_ - 1; first >= 0; --first)
    for (const bool parked : {false, true}) fill({parked, true, first, units_ - 1});
}

/// Ranges of equal units share a row. The last unit is like no other: it passes once.
void ChainTable::lay_out() {
  const auto n = static_cast<std::size_t>(units_);
  std::vector<int> alike(n);  // units from there on that are equal to those a layer before them
  for (std::size_t u = n - 1; u-- > units_of_layer;)
    if (chain_[u] == chain_[u - units_of_layer]) alike[u] = alike[u + 1] + 1;
  rows_.resize(2 * (n + 1) * n);
  std::uint32_t rows = 0;
  for (const bool parked : {false, true})
    for (int first = 0; first < units_; ++first) {
      for (int last = first; last < units_; ++last)
        rows_[at({parked, false, first, last})] =
            alike[static_cast<std::size_t>(first)] > last - first
                ? rows_[at({parked, false, first - units_of_layer, last - units_of_layer})]
                : rows++;
      rows_[at({parked, true, first, units_ - 1})] = rows++;
    }
  is_filled_.assign(rows, false);
  table_.assign(static_cast<std::size_t>(rows) * static_cast<std::size_t>(slots_ + 1), infinite);
}

int ChainTable::slots_of(std::uint64_t bytes) const {
  const double slots = static_cast<double>(bytes) / slot_bytes_;
  const double whole = rounding_ == Rounding::up ? std::ceil(slots) : std::floor(slots);
  return static_cast<int>(std::min(whole, 1.0 + slots_));
}

std::size_t ChainTable::at(const Range& range) const {
  const auto n = static_cast<std::size_t>(units_), column = range.is_first ? n : static_cast<std::size_t>(range.last);
  return (static_cast<std::size_t>(range.parked) * n + static_cast<std::size_t>(range.first)) * (n + 1) + column;
}

/// Of the pass forward from the range's first unit to the next one whose input is kept.
float ChainTable::forward(const Range& range, int next) const {
  const std::vector<float>& before = range.is_first ? forward_ : sweep_;
  return before[static_cast<std::size_t>(next)] - before[static_cast<std::size_t>(range.first)];
}

/// All that may come next behind a pass forward to the first of several units: which input this sweep keeps next, and,
/// where that is the second unit's, what becomes of what the first one saves. `take` gets the step, its cost, the row
/// of what follows, and that of what is gone back over behind it (none: the first unit, whose cost is in the step's),
/// the slots that it takes from the former, and those that it needs at least.
template <class F>
void ChainTable::each_step(const Range& range, F&& take) const {
  const auto f = static_cast<std::size_t>(range.first);
  const float returns = range.parked ? read_[f] : 0;
  for (int next = range.first + 1; next <= range.last; ++next) {
    const float* const before = row({range.parked, false, range.first, next - 1});
    for (const Option& input : inputs_[static_cast<std::size_t>(next)]) {
      const float* const follows = row({input.index >= 0, range.is_first, next, range.last});
      const float cost = forward(range, next) + (range.is_first ? input.away : input.away_again) + returns;
      take(Step{next, input, std::nullopt}, cost, follows, before, input.slots, input.slots);
      if (next > range.first + 1) continue;
      for (const Option& saved : saved_[f]) {
        const int own = saved.slots > 0 ? saved.slots + kept_slots_[f] : backward_slots_[f],
                  waits = saved.slots + input.slots;
        const float away = range.is_first ? saved.away : saved.away_again;
        take(Step{next, input, saved}, cost + away + saved.back + backward_[f], follows,
             static_cast<const float*>(nullptr), waits, std::max(own, waits));
      }
    }
  }
}

/// For all numbers of slots.
void ChainTable::fill(const Range& range) {
  const std::uint32_t own = rows_[at(range)];
  if (is_filled_[own]) return;
  is_filled_[own] = true;
  float* const __restrict out = table_.data() + own * static_cast<std::size_t>(slots_ + 1);
  const auto f = static_cast<std::size_t>(range.first);
  if (range.first == range.last) {
    for (int m = backward_slots_[f]; m <= slots_; ++m) out[m] = again_[f] + backward_[f];
    return;
  }
  each_step(range, [&](const Step&, float cost, const float* follows, const float* before, int waits, int most) {
    if (before == nullptr)
      for (int m = most; m <= slots_; ++m) out[m] = std::min(out[m], cost + follows[m - waits]);
    else
      for (int m = most; m <= slots_; ++m) out[m] = std::min(out[m], cost + follows[m - waits] + before[m]);
  });
}

/// What `fill` has found, once more, for one number of slots.
float ChainTable::least(const Range& range, int slots, Step* found) const {
  float best = infinite;
  each_step(range, [&](const Step& step, float cost, const float* follows, const float* before, int waits, int most) {
    if (most > slots) return;
    const float all = cost + follows[slots - waits] + (before == nullptr ? 0 : before[slots]);
    if (all >= best) return;
    best = all;
    *found = step;
  });
  return best;
}

double ChainTable::cost(int slots) const { return row({false, true, 0, units_ - 1})[std::clamp(slots, 0, slots_)]; }

void ChainTable::assign(const Range& range, int slots, int sweep, ChainChoices& choices) const {
  if (range.first == range.last) return;
  Step step;
  const float found = least(range, slots, &step);
  SLUICE_CHECK(found < infinite && step.next > range.first, "(units %d to %d, %d slots)", range.first, range.last,
               slots);
  const auto v = static_cast<std::size_t>(step.next);
  const bool parked = step.input.index >= 0;
  choices[v].sweep = sweep;
  choices[v].boundary = parked ? chain_[v].parking[static_cast<std::size_t>(step.input.index)].place : Place::device;
  const Range follows{parked, range.is_first, step.next, range.last};
  if (step.saved) {
    const auto f = static_cast<std::size_t>(range.first);
    const SavedWay& way = chain_[f].ways[static_cast<std::size_t>(step.saved->index)];
    choices[f].saved = way.saved;
    choices[f].core = way.core;
    return assign(follows, slots - step.input.slots - step.saved->slots, sweep, choices);
  }
  assign(follows, slots - step.input.slots, sweep, choices);
  assign({range.parked, false, range.first, step.next - 1}, slots, sweep + 1, choices);
}

std::optional<ChainChoices> ChainTable::choices(int slots) const {
  slots = std::clamp(slots, 0, slots_);
  if (!(cost(slots) < infinite)) return std::nullopt;
  ChainChoices list(chain_.size());
  assign({false, true, 0, units_ - 1}, slots, 0, list);
  return list;
}

double seconds_of(const ByWay& use) {
  return *std::ranges::max_element(use.forward) + *std::ranges::max_element(use.back);
}

double seconds_of(const ByWay& rest, const ByWay& use, double times) {
  ByWay all = rest;
  for (std::size_t r = 0; r < all.forward.size(); ++r) {
    all.forward[r] += times * use.forward[r];
    all.back[r] += times * use.back[r];
  }
  return seconds_of(all);
}

namespace {

/// Single changes that make the largest resource less, each the best of all, within the budget.
void improve(const Chain& chain, const ByWay& rest, double times, std::uint64_t budget, ChainChoices& choices) {
  double now = seconds_of(rest, chain_cost(chain, choices).use, times);
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
      const double seconds = seconds_of(rest, cost.use, times);
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

BalancedChain balance(const Chain& chain, const ByWay& rest, double times, std::uint64_t budget_bytes, int slots,
                      const ByWay* begin) {
  BalancedChain best;
  const auto consider = [&](ChainChoices choices, double seconds) {
    if (best.choices && best.seconds <= seconds) return;
    best.choices = std::move(choices);
    best.seconds = seconds;
  };
  // Prices go to where the cheapest schedule asks most, in ever smaller steps.
  double bound = -1;  // but for the rounding of bytes
  ByWay prices;
  prices.forward.fill(1.0 / static_cast<double>(prices.forward.size()));
  prices.back = prices.forward;
  if (begin != nullptr) {
    prices = *begin;
    mix_even(prices.forward);
    mix_even(prices.back);
  }
  double bound_before = 0, best_before = 0;
  int idle_rounds = 0;
  for (int round = 0; round < price_rounds; ++round) {
    const ChainTable table(chain, prices, budget_bytes, slots);
    std::optional<ChainChoices> choices = table.choices(slots);
    if (!choices) return best;
    if (const double b = priced(rest, prices) + times * table.cost(); b > bound) {
      bound = b;
      best.prices = prices;
    }
    const ByWay use = chain_cost(chain, *choices).use;
    consider(*std::move(choices), seconds_of(rest, use, times));
    if (best.seconds <= close_to_bound * bound) break;
    const bool gains =
        round == 0 || bound > (1 + notable_gain) * bound_before || best.seconds < (1 - notable_gain) * best_before;
    idle_rounds = gains ? 0 : idle_rounds + 1;
    bound_before = bound;
    best_before = best.seconds;
    if (chain.size() > units_of_long_chain && idle_rounds == idle_rounds_max) break;
    const double rate = 4.0 / std::sqrt(1.0 + round);
    raise(prices.forward, rest.forward, use.forward, times, rate);
    raise(prices.back, rest.back, use.back, times, rate);
  }
  ChainChoices better = *best.choices;
  improve(chain, rest, times, budget_bytes, better);
  const double seconds = seconds_of(rest, chain_cost(chain, better).use, times);
  consider(std::move(better), seconds);
  return best;
}

double chain_bound(const Chain& chain, const ByWay& rest, double times, std::uint64_t budget_bytes, const ByWay& prices,
                   int slots) {
  const ChainTable optimistic(chain, prices, budget_bytes, slots, ChainTable::Rounding::down);
  return priced(rest, prices) + times * optimistic.cost();
}

void take_turns(const Chain& chain, std::uint64_t budget_bytes, ChainChoices& choices) {
  ChainChoices turned = choices;
  std::vector<bool> done(chain.size());
  for (std::size_t first = 0; first + 1 < chain.size(); ++first) {
    if (done[first]) continue;
    // Not the first, whose input is there, nor inputs that are made again, and those that their sweeps begin at.
    std::vector<std::size_t> alike;
    for (std::size_t u = std::max<std::size_t>(first, 1); u + 1 < chain.size(); ++u)
      if (choices[u].sweep == 0 && choices[u + 1].sweep == 0 && chain[u] == chain[first]) alike.push_back(u);
    struct Kind {
      ChainChoice choice;
      std::size_t count = 0, placed = 0;
    };
    std::vector<Kind> kinds;
    for (const std::size_t u : alike) {
      done[u] = true;
      const auto same = std::ranges::find(kinds, choices[u], &Kind::choice);
      if (same == kinds.end())
        kinds.push_back({choices[u], 1});
      else
        ++same->count;
    }
    // Each time the kind that is furthest behind its share.
    for (std::size_t i = 0; i < alike.size(); ++i) {
      const auto behind = [&](const Kind& k) {
        return static_cast<std::int64_t>(k.count * (i + 1)) - static_cast<std::int64_t>(k.placed * alike.size());
      };
      Kind& next = *std::ranges::max_element(kinds, {}, behind);
      turned[alike[i]] = next.choice;
      ++next.placed;
    }
  }
  if (!keeps_inputs_of_saved(turned) || chain_cost(chain, turned).device_bytes > budget_bytes) return;
  choices = std::move(turned);
}

}  // namespace sluice
