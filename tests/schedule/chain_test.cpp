// The dynamic programme over a chain: against the table of rotor's recurrence, against all schedules of small chains,
// and its count of passes against the passes that plans have.
#include "src/schedule/chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <random>

#include "random_schedule.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/passes.h"

namespace sluice {
namespace {

constexpr auto compute = static_cast<std::size_t>(Resource::compute);
constexpr auto link_down = static_cast<std::size_t>(Resource::link_down);
constexpr auto link_up = static_cast<std::size_t>(Resource::link_up);

ResourceSeconds seconds_of(double computes, double down = 0, double up = 0) {
  ResourceSeconds s{};
  s[compute] = computes;
  s[link_down] = down;
  s[link_up] = up;
  return s;
}
const ByWay only_compute{seconds_of(1), seconds_of(1)};

double total(const ByWay& use) { return use.forward[compute] + use.back[compute]; }

/// Equal layers whose input is 2 of the 34 parts that are kept of each, back twice as long as forward.
Chain equal_layers(int count) {
  Chain chain;
  for (int i = 0; i <= count; ++i) {
    ChainUnit unit;
    unit.input_bytes = 2;
    const bool is_head = i == count;
    if (!is_head) {
      unit.forward = unit.again = seconds_of(1);
      unit.backward = seconds_of(2);
      unit.ways.push_back({Saved::keep, std::nullopt, 32, {}, {}});
      unit.backward_bytes = 32;
    }
    chain.push_back(unit);
  }
  return chain;
}

TEST(Chain, TakesNoLongerThanRotorsRecurrence) {
  const Chain chain = equal_layers(32);
  const double all = 34 * 32, step = 3 * 32;
  const std::vector<std::pair<double, double>> table{{0.75, 9.4},  {0.50, 17.7}, {0.25, 26.0},
                                                     {0.10, 31.2}, {0.07, 43.8}, {0.05, 57.3}};
  for (const auto& [part, percent] : table) {
    const auto budget = static_cast<std::uint64_t>(std::floor(part * all));
    const ChainTable programme(chain, only_compute, budget, static_cast<int>(budget));
    const auto choices = programme.choices(programme.slots());
    ASSERT_TRUE(choices) << part;
    const ChainCost cost = chain_cost(chain, *choices);
    EXPECT_LE(cost.device_bytes, budget);
    EXPECT_FLOAT_EQ(static_cast<float>(total(cost.use)), static_cast<float>(programme.cost()));
    EXPECT_LE(100 * (total(cost.use) / step - 1), percent + 0.05) << part;
    RecordProperty("percent_at_" + std::to_string(static_cast<int>(100 * part)),
                   std::to_string(100 * (total(cost.use) / step - 1)));
    std::cout << part << " of all that is saved: +" << 100 * (total(cost.use) / step - 1) << "%\n";
  }
}

ChainUnit random_unit(std::mt19937_64& random, bool parks) {
  const auto number = [&](int least, int most) {
    return static_cast<double>(least) + static_cast<double>(random() % static_cast<unsigned>(most - least + 1));
  };
  ChainUnit unit;
  unit.input_bytes = static_cast<std::uint64_t>(number(1, 4));
  unit.forward = seconds_of(number(1, 6), number(0, 2));
  unit.again = seconds_of(number(1, 5));
  unit.backward = seconds_of(number(2, 12));
  const auto saved = static_cast<std::uint64_t>(number(2, 12));
  unit.ways.push_back({Saved::keep, std::nullopt, saved, {}, {}});
  unit.backward_bytes = saved + 2;
  unit.backward_bytes_kept = 2;
  if (!parks) return unit;
  const double each = number(1, 6);
  unit.ways.push_back({Saved::host, std::nullopt, 0, seconds_of(0, 0, each), seconds_of(0, each)});
  const double input = number(0, 3);
  unit.parking.push_back({Place::host, seconds_of(0, 0, input), seconds_of(0, input)});
  return unit;
}
Chain random_chain(std::uint64_t seed, int units, bool parks) {
  std::mt19937_64 random(seed);
  Chain chain;
  for (int u = 0; u < units; ++u) chain.push_back(random_unit(random, parks));
  chain.back().ways.clear();
  chain.back().parking.clear();
  chain.back().backward_bytes = 3;
  chain.front().parking.clear();
  return chain;
}

/// Two layers that are equal between what comes first and last.
Chain layered_chain(std::uint64_t seed) {
  Chain chain = random_chain(seed, 6, false);
  chain[3] = chain[1];
  chain[4] = chain[2];
  return chain;
}

/// All that can become of a chain's activations.
template <class F>
void each_schedule(const Chain& chain, F&& visit) {
  const std::size_t last = chain.size() - 1;
  ChainChoices choices(chain.size());
  const auto turn = [&](auto&& self, std::size_t u) -> void {
    if (u == last) {
      if (keeps_inputs_of_saved(choices)) visit(choices);
      return;
    }
    std::vector<Saved> saved{Saved::recompute};
    for (const SavedWay& way : chain[u].ways) saved.push_back(way.saved);
    std::vector<Place> places{Place::device};
    for (const ParkingUse& p : chain[u].parking) places.push_back(p.place);
    for (const Saved s : saved)
      for (const Place p : places)
        for (int sweep = 0; sweep <= (u == 0 ? 0 : static_cast<int>(last) - 1); ++sweep) {
          choices[u] = {sweep, p, s, std::nullopt};
          self(self, u + 1);
        }
  };
  turn(turn, 0);
}

TEST(Chain, IsTheCheapestOfAllSchedulesAtItsPrices) {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    const Chain chain = seed > 12 ? layered_chain(seed) : random_chain(seed, 5, seed % 2 == 0);
    std::mt19937_64 random(seed);
    const ByWay prices{seconds_of(0.5, 0.1 * static_cast<double>(random() % 5), 0.25),
                       seconds_of(0.4, 0.1 * static_cast<double>(random() % 5), 0.3)};
    const std::uint64_t least = 8 + random() % 10, most = least + 30;
    const int slots = static_cast<int>(most);  // of a byte each
    std::vector<double> cheapest(most + 1, INFINITY);
    each_schedule(chain, [&](const ChainChoices& choices) {
      const ChainCost cost = chain_cost(chain, choices);
      double sum = 0;
      for (std::size_t r = 0; r < prices.back.size(); ++r)
        sum += prices.forward[r] * cost.use.forward[r] + prices.back[r] * cost.use.back[r];
      for (std::uint64_t m = cost.device_bytes; m <= most; ++m) cheapest[m] = std::min(cheapest[m], sum);
    });
    const ChainTable table(chain, prices, most, slots);
    for (int m = 0; m <= slots; ++m) {
      const double expected = cheapest[static_cast<std::size_t>(m)];
      if (std::isinf(expected)) {
        EXPECT_TRUE(std::isinf(table.cost(m))) << "seed " << seed << " budget " << m;
        continue;
      }
      EXPECT_NEAR(table.cost(m), expected, 1e-4) << "seed " << seed << " budget " << m;
      const auto choices = table.choices(m);
      ASSERT_TRUE(choices);
      const ChainCost cost = chain_cost(chain, *choices);
      EXPECT_LE(cost.device_bytes, static_cast<std::uint64_t>(m));
    }
    if (HasFailure()) return;
  }
}

/// Of what takes as long as its largest resource: at most 2% above the best of all schedules in the mean, and a bound
/// that none beats.
TEST(Chain, BalancesResourcesNearlyAsWellAsTheBestOfAllSchedules) {
  double sum = 0, worst = 0;
  int count = 0, optimal = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Chain chain = random_chain(100 + seed, 5, true);
    std::mt19937_64 random(seed);
    const auto some = [&] {
      return seconds_of(static_cast<double>(random() % 8), static_cast<double>(random() % 8),
                        static_cast<double>(random() % 8));
    };
    const ByWay rest{some(), some()};
    const std::uint64_t budget = 14 + random() % 16;
    double best = INFINITY;
    each_schedule(chain, [&](const ChainChoices& choices) {
      const ChainCost cost = chain_cost(chain, choices);
      if (cost.device_bytes > budget) return;
      best = std::min(best, seconds_of(rest, cost.use, 1));
    });
    const BalancedChain balanced = balance(chain, rest, 1, budget, static_cast<int>(budget));
    ASSERT_EQ(!balanced.choices, std::isinf(best)) << seed;
    if (std::isinf(best)) continue;
    const double bound = chain_bound(chain, rest, 1, budget, balanced.prices, static_cast<int>(budget));
    EXPECT_LE(bound, best * (1 + 1e-6)) << seed;
    EXPECT_GE(bound, 0.5 * best) << seed;
    EXPECT_GE(balanced.seconds, best * (1 - 1e-9)) << seed;
    const double gap = balanced.seconds / best - 1;
    sum += gap;
    worst = std::max(worst, gap);
    optimal += gap < 1e-9;
    ++count;
  }
  std::cout << count << " chains, " << optimal << " at their optimum, mean gap " << 100 * sum / count << "%, largest "
            << 100 * worst << "%\n";
  EXPECT_LE(worst, 0.02);
}

/// Layers of two kinds of sublayers, of which the second has much to park.
Chain layers_that_park(int layers) {
  Chain chain = equal_layers(2 * layers);
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    const double seconds = i % 2 == 0 ? 0.5 : 3;
    chain[i].ways.push_back({Saved::host, std::nullopt, 0, seconds_of(0, 0, seconds), seconds_of(0, seconds)});
    chain[i].parking.push_back({Place::host, seconds_of(0, 0, 0.25), seconds_of(0, 0.25)});
  }
  return chain;
}

TEST(Chain, EqualSublayersTakeTurns) {
  const Chain chain = layers_that_park(12);
  ChainChoices choices(chain.size());
  for (std::size_t i = 1; i < 13; i += 2) choices[i].saved = Saved::host;
  choices[3].saved = Saved::keep;
  const ChainChoices before = choices;
  const ChainCost cost = chain_cost(chain, choices);
  take_turns(chain, cost.device_bytes, choices);
  const ChainCost turned = chain_cost(chain, choices);
  EXPECT_LE(turned.device_bytes, cost.device_bytes);
  EXPECT_NEAR(seconds_of(turned.use), seconds_of(cost.use), 1e-9);
  // Of the twelve of the second kind five are parked: never two that follow one another.
  for (std::size_t i = 0; i < 24; i += 2) EXPECT_EQ(choices[i], before[i]) << i;
  for (std::size_t i = 1; i + 2 < 24; i += 2)
    EXPECT_FALSE(choices[i].saved == Saved::host && choices[i + 2].saved == Saved::host) << i;
  ChainChoices tight = before;
  take_turns(chain, cost.device_bytes - 1, tight);
  EXPECT_EQ(tight, before);
}

/// Of random schedules: as many choices of each kind, in no more memory, and what is made again in its place.
TEST(Chain, TakingTurnsChangesNoSum) {
  int changed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Chain chain = layers_that_park(10);
    const std::uint64_t budget = 100 + 20 * seed;
    std::mt19937_64 random(seed);
    const ByWay prices{seconds_of(0.5, 0.1 * static_cast<double>(random() % 5), 0.1), seconds_of(0.5, 0.1, 0.3)};
    const ChainTable table(chain, prices, budget, 64);
    std::optional<ChainChoices> choices = table.choices(64);
    if (!choices) continue;
    const ChainChoices before = *choices;
    const ChainCost cost = chain_cost(chain, before);
    take_turns(chain, budget, *choices);
    changed += *choices != before;
    const ChainCost turned = chain_cost(chain, *choices);
    EXPECT_LE(turned.device_bytes, budget) << seed;
    for (std::size_t r = 0; r < cost.use.back.size(); ++r) {
      EXPECT_NEAR(turned.use.forward[r], cost.use.forward[r], 1e-9) << seed;
      EXPECT_NEAR(turned.use.back[r], cost.use.back[r], 1e-9) << seed;
    }
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ((*choices)[i].sweep, before[i].sweep) << seed << " unit " << i;
  }
  EXPECT_GE(changed, 5);
}

TEST(Chain, WaitsAreWhatPassesDoNotCover) {
  PlaceChain place;
  place.chain = layers_that_park(1);
  place.chain[0].forward[link_up] = 0.75;
  count_waits(place);
  const auto of_way = [&](std::size_t u) { return place.chain[u].ways.back(); };
  EXPECT_DOUBLE_EQ(of_way(0).away[compute], 0.25);  // 0.75 + 0.5 beside a second of computing
  EXPECT_DOUBLE_EQ(of_way(0).back[compute], 0);
  EXPECT_DOUBLE_EQ(of_way(1).away[compute], 2);
  EXPECT_DOUBLE_EQ(of_way(1).back[compute], 1);  // behind two seconds of computing
  EXPECT_DOUBLE_EQ(of_way(1).away[link_up], 3);
  EXPECT_DOUBLE_EQ(place.chain[1].parking[0].away[compute], 0);
  EXPECT_DOUBLE_EQ(place.chain[1].ways.front().away[compute], 0);
}

/// What a chain counts is what the passes of a plan do.
TEST(Chain, CountsThePassesThatPlansHave) {
  const ModelSpec model = build_model(test::tiny_config(Family::llama, false, 3));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  const auto head = model.units.size() - 1;
  Chain chain(model.units.size());
  for (std::size_t u = 0; u < head; ++u) chain[u].forward = seconds_of(std::pow(2.0, static_cast<double>(u)));
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    Schedule s = frugal_schedule(w);
    ChainChoices choices(chain.size());
    for (std::size_t u = 1; u < head; ++u) {
      choices[u].sweep = static_cast<int>(random() % 4);
      s.units[u].sweep = static_cast<std::uint8_t>(choices[u].sweep);
    }
    double expected = 0;
    std::vector<bool> is_back(chain.size());
    for (const Pass& pass : order_passes(PlanKind::train, w, s).passes) {
      const auto u = static_cast<std::size_t>(pass.unit);
      if (pass.phase == Phase::forward || pass.phase == Phase::again) {
        expected += chain[u].forward[compute];
        EXPECT_FALSE(is_back[u]);
      }
      if (pass.phase == Phase::backward) {
        EXPECT_FALSE(is_back[u]);
        is_back[u] = true;
        EXPECT_TRUE(u + 1 == head || is_back[u + 1]);
      }
    }
    EXPECT_EQ(total(chain_cost(chain, choices).use), expected);
  }
}

}  // namespace
}  // namespace sluice
