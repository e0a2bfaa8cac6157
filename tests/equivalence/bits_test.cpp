// Moving data never changes it: tiers, prefetch, recompute, activation places, I/O backends, when and where updates
// happen and group sizes give the same loss of every step and the same state, to the bit.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>

#include "runs.h"

namespace sluice::test {
namespace {

// ---- a matrix of choices

enum Dimension {
  tiers,
  prefetch,
  saved,
  boundary,
  accumulator,
  backend,
  ahead,
  group,
  hold,
  tile,
  updates,
  sweeps,
  core,
  sums,
  waiting,
  dimensions
};
constexpr std::array<int, dimensions> values{4, 3, 4, 3, 3, 2, 3, 4, 2, 2, 3, 4, 5, 2, 3};
/// Which sweep keeps each unit's input: the step's own, every other one again, all in one more, and all one by one.
constexpr std::array<std::array<std::uint8_t, 6>, 4> kept_by{
    {{0, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 0, 0}, {0, 1, 1, 1, 1, 0}, {0, 4, 3, 2, 1, 0}}};
using Pick = std::array<int, dimensions>;

Pick random_pick(std::mt19937_64& random) {
  Pick p{};
  for (std::size_t d = 0; d < dimensions; ++d) p[d] = static_cast<int>(random() % static_cast<unsigned>(values[d]));
  return p;
}

/// Picks that together hold every pair of values of every two dimensions (greedy, from a seed).
std::vector<Pick> all_pairs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<std::array<int, 4>> missing;
  for (int a = 0; a < dimensions; ++a)
    for (int b = a + 1; b < dimensions; ++b)
      for (int x = 0; x < values[static_cast<std::size_t>(a)]; ++x)
        for (int y = 0; y < values[static_cast<std::size_t>(b)]; ++y) missing.insert({a, x, b, y});
  const auto pairs = [](const Pick& p) {
    std::vector<std::array<int, 4>> list;
    for (int a = 0; a < dimensions; ++a)
      for (int b = a + 1; b < dimensions; ++b)
        list.push_back({a, p[static_cast<std::size_t>(a)], b, p[static_cast<std::size_t>(b)]});
    return list;
  };
  std::vector<Pick> picks;
  while (!missing.empty()) {
    Pick best{};
    std::ptrdiff_t most = -1;
    for (int i = 0; i < 50; ++i) {
      Pick p = random_pick(random);
      const auto& first = *missing.begin();  // so that every round makes progress
      p[static_cast<std::size_t>(first[0])] = first[1];
      p[static_cast<std::size_t>(first[2])] = first[3];
      const auto list = pairs(p);
      const auto n = std::count_if(list.begin(), list.end(), [&](const auto& q) { return missing.contains(q); });
      if (n <= most) continue;
      most = n;
      best = p;
    }
    for (const auto& q : pairs(best)) missing.erase(q);
    picks.push_back(best);
  }
  return picks;
}

Schedule schedule_of(const Pick& p, std::size_t units) {
  Schedule s;
  s.prefetch = std::array{0, 1, 3}[static_cast<std::size_t>(p[prefetch])];
  s.lag = std::min(s.prefetch, 1);
  s.tiles_in_flight = 1 + s.prefetch;
  s.update_ahead = p[ahead] == 0;
  s.group = 1 + p[group];
  s.hold = p[hold] == 0;
  s.gradients_ahead = p[sums] == 1;
  s.tile_numel = p[tile] == 0 ? 4096 : 1u << 15;
  for (std::size_t u = 0; u < units; ++u) {
    UnitChoice c;
    const bool mixed = p[tiers] == 3;
    c.resident = p[tiers] == 0 || (mixed && u % 3 == 0);
    c.parameter_home = p[tiers] == 2 || (mixed && u % 2 == 0) ? Place::nvme : Place::host;
    c.state_home = p[tiers] == 2 || (mixed && u % 3 == 1) ? Place::nvme : Place::host;
    c.gradient = p[tiers] == 2 || (mixed && u % 4 > 1) ? Place::nvme : Place::host;
    if (p[waiting] == 1 || (p[waiting] == 2 && u % 3 > 0)) c.gradient = Place::device;  // none, all, some
    c.saved = static_cast<Saved>(p[saved]);
    c.boundary = static_cast<Place>(p[boundary]);
    c.accumulator = static_cast<Place>(p[accumulator]);
    if (p[core] > 0) c.core = static_cast<Saved>(p[core] - 1);
    c.sweep = kept_by[static_cast<std::size_t>(p[sweeps])][u];
    c.late = p[ahead] == 2 && u % 3 != 1;                                     // updates in both passes
    c.update_on_device = p[updates] == 1 || (p[updates] == 2 && u % 2 == 1);  // none, all, half
    s.units.push_back(c);
  }
  return s;
}

std::string text(const Pick& p) {
  std::string s =
      "tiers,prefetch,saved,boundary,accumulator,backend,ahead,group,hold,tile,updates,sweeps,core,sums,waiting = ";
  for (int v : p) s += std::to_string(v) + " ";
  return s;
}

constexpr Pick all_resident{0, 1, 0, 0, 0, 1, 0, 3, 0, 1, 0, 0, 0, 0, 0};

class Bits : public testing::TestWithParam<std::tuple<Dtype, bool>> {
 protected:
  static constexpr std::int64_t steps = 8;
  Dtype dtype() const { return std::get<0>(GetParam()); }
  bool tied() const { return std::get<1>(GetParam()); }
  RunConfig config() const { return bench_.config(2, tied(), dtype(), steps); }

  Outcome picked(const Pick& p, RunConfig c) {
    c.io_backend = p[backend] == 0 ? "io_uring" : "threads";
    return measured(c, schedule_of(p, 6));
  }

  Bench bench_;
};

TEST_P(Bits, DoNotDependOnTheSchedule) {
  const Outcome reference = picked(all_resident, config());
  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(steps));
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.1);
  const std::uint64_t seed = 20240 + static_cast<std::uint64_t>(dtype()) * 2 + tied();
  std::vector<Pick> picks = all_pairs(seed);
  const std::size_t pairs = picks.size();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 15; ++i) picks.push_back(random_pick(random));
  std::cout << pairs << " schedules for all pairs and 15 random ones, seed " << seed << "\n";
  for (const Pick& p : picks) {
    SCOPED_TRACE(text(p));
    expect_same(reference, picked(p, config()));
    if (HasFailure()) return;
  }
}

TEST_P(Bits, DoNotDependOnTheScheduleWithClipping) {
  RunConfig c = config();
  c.optimizer.clip_norm = 0.5;
  const Outcome reference = picked(all_resident, c);
  EXPECT_NE(reference.state_hash, picked(all_resident, config()).state_hash) << "clipping does nothing here";
  std::mt19937_64 random(7);
  for (int i = 0; i < 10; ++i) {
    Pick p = random_pick(random);
    p[ahead] = 0;
    SCOPED_TRACE(text(p));
    expect_same(reference, picked(p, c));
  }
}

TEST_P(Bits, DoNotDependOnTheScheduleWithPackedDocuments) {
  RunConfig c = config();
  c.data = bench_.packed_documents();
  c.document_mask = true;
  const Outcome reference = picked(all_resident, c);
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.1);
  RunConfig joined = c;
  joined.document_mask = false;
  EXPECT_NE(reference.state_hash, picked(all_resident, joined).state_hash) << "documents do not matter here";
  std::mt19937_64 random(11);
  for (int i = 0; i < 8; ++i) {
    const Pick p = random_pick(random);
    SCOPED_TRACE(text(p));
    expect_same(reference, picked(p, c));
  }
}

TEST_P(Bits, AreTheSameAtTheSmallestBudgets) {
  RunConfig c = config();
  c.optimizer.clip_norm = 0.5;
  const Outcome reference = picked(all_resident, c);
  const auto roomy = prepare(c, Purpose::train, {});
  ASSERT_TRUE(roomy.ok()) << roomy.error().message;
  const TierBytes smallest = smallest_budgets(**roomy).corner;
  c.device_memory = smallest.device;
  c.host_memory = smallest.host;
  c.nvme_space = smallest.nvme;
  const auto searched = prepare(c, Purpose::train, {});
  ASSERT_TRUE(searched.ok()) << searched.error().message;
  ASSERT_TRUE((*searched)->search.fits) << does_not_fit(**searched).message;
  expect_same(reference, run(**searched));
  for (std::uint64_t RunConfig::*budget :
       {&RunConfig::device_memory, &RunConfig::host_memory, &RunConfig::nvme_space}) {
    RunConfig less = c;
    less.*budget -= buffer_alignment_bytes;
    const auto refused = prepare(less, Purpose::train, {});
    ASSERT_TRUE(refused.ok());
    EXPECT_FALSE((*refused)->search.fits);
  }
}

/// On a device that has room for some activations only.
TEST_P(Bits, DoNotDependOnWhatBecomesOfActivations) {
  RunConfig c = config();
  const Outcome reference = picked(all_resident, c);
  c.wish.activations = Place::device;
  for (const std::optional<Recompute> recompute :
       {std::optional<Recompute>(), std::optional(Recompute::full), std::optional(Recompute::sqrt),
        std::optional(Recompute::revolve), std::optional(Recompute::optimal)}) {
    SCOPED_TRACE(recompute ? recompute_names[static_cast<std::size_t>(*recompute)] : "auto");
    c.wish.recompute = recompute;
    c.wish.resident = false;
    c.device_memory = 0;
    const auto roomy = prepare(c, Purpose::train, {});
    ASSERT_TRUE(roomy.ok()) << roomy.error().message;
    c.device_memory = smallest_budgets(**roomy).corner.device + (1u << 16);
    const auto searched = prepare(c, Purpose::train, {});
    ASSERT_TRUE(searched.ok()) << searched.error().message;
    ASSERT_TRUE((*searched)->search.fits) << does_not_fit(**searched).message;
    const Outcome out = run(**searched);
    expect_same(reference, out);
    const bool is_made_again =
        std::ranges::any_of((*searched)->search.schedule.units, [](const UnitChoice& unit) { return unit.sweep > 0; });
    EXPECT_TRUE(recompute != Recompute::sqrt || is_made_again);
    EXPECT_FALSE(recompute == Recompute::full && is_made_again);
  }
}

TEST_P(Bits, DoNotDependOnTiming) {
  const Outcome reference = picked(all_resident, config());
  std::mt19937_64 random(99);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RunConfig c = config();
    c.delay_seed = seed;
    const Pick p = random_pick(random);
    SCOPED_TRACE("delays " + std::to_string(seed) + ", " + text(p));
    expect_same(reference, picked(p, c));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Bits, testing::Combine(testing::Values(Dtype::bf16, Dtype::f32), testing::Bool()),
                         [](const auto& p) {
                           return std::string(dtype_name(std::get<0>(p.param))) + (std::get<1>(p.param) ? "_tied" : "");
                         });

// Many starts and ends of short runs with random delays. SLUICE_DELAYED_RUNS=1000 asks for more than a suite has time
// for.
TEST(ShortRuns, AllEndAlike) {
  Bench bench;
  const RunConfig plain = bench.config(1, false, Dtype::bf16, 2);
  std::vector<std::unique_ptr<Prepared>> runs;
  std::mt19937_64 random(3);
  for (int i = 0; i < 10; ++i) {
    RunConfig c = plain;
    Pick p = i == 0 ? all_resident : random_pick(random);
    c.io_backend = p[backend] == 0 ? "io_uring" : "threads";
    runs.push_back(prepared_with(c, schedule_of(p, 4)));
    ASSERT_TRUE(runs.back());
  }
  const Outcome reference = run(*runs.front());
  const char* wished = std::getenv("SLUICE_DELAYED_RUNS");
  const std::uint64_t count = wished != nullptr ? std::strtoull(wished, nullptr, 10) : 100;
  for (std::uint64_t i = 1; i <= count; ++i) {
    Prepared& r = *runs[i % runs.size()];
    r.config.delay_seed = i;
    SCOPED_TRACE("run " + std::to_string(i));
    expect_same(reference, run(r));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::test
