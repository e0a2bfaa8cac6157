#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "offload/plan/finish.h"
#include "offload/plan/pack_fit.h"
#include "sluice/random.h"
#include "tests/plan/random_plan.h"

namespace sluice {
namespace {

/// Ops at which each buffer is alive.
std::vector<std::vector<bool>> alive_at(const StepPlan& plan) {
  const std::size_t ops = plan.ops.size();
  std::vector<std::vector<bool>> alive(plan.buffers.size(), std::vector<bool>(ops));
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    std::size_t first = ops, last = 0, write = ops, last_carried = 0;
    bool was_carried = false;
    for (std::size_t i = 0; i < ops; ++i)
      for (const Access& a : plan.ops[i].accesses) {
        if (a.buffer != b) continue;
        first = std::min(first, i), last = i;
        if (a.mode == Mode::write) write = std::min(write, i);
        if (write == ops) was_carried = true, last_carried = i;
      }
    const Life life = plan.buffers[b].life;
    for (std::size_t i = 0; i < ops; ++i) {
      if (life == Life::persistent)
        alive[b][i] = true;
      else if (life == Life::carried)
        alive[b][i] = i >= write || (was_carried && i <= last_carried);
      else
        alive[b][i] = first <= i && i <= last;
    }
  }
  return alive;
}

void expect_no_overlap(const StepPlan& plan) {
  const std::vector<std::vector<bool>> life = alive_at(plan);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    ASSERT_EQ(a.offset % buffer_alignment_bytes, 0u);
    ASSERT_LE(a.offset + footprint_bytes(a), plan.arena(a.tier)->arena_bytes);
    for (std::size_t j = i + 1; j < plan.buffers.size(); ++j) {
      const Buffer& b = plan.buffers[j];
      if (a.tier != b.tier) continue;
      bool in_time = false;
      for (std::size_t op = 0; op < plan.ops.size(); ++op) in_time |= life[i][op] && life[j][op];
      const bool in_space = a.offset < b.offset + footprint_bytes(b) && b.offset < a.offset + footprint_bytes(a);
      ASSERT_FALSE(in_time && in_space) << a.name << " and " << b.name;
    }
  }
}

TEST(Pack, NoTwoLiveBuffersShareBytes) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    StepPlan plan = random_plan(seed, {80, grid({2}).at(seed % 2), true, true});
    pack(plan, seed < 3 ? PackEffort::full : PackEffort::quick);
    expect_no_overlap(plan);
  }
}

TEST(Pack, TransformersComeWithinTwoPercentOfMaxLive) {
  for (const bool keep : {false, true})
    for (const int layers : {2, 5, 8, 16, 32})
      for (const int micro_batches : {1, 2, 4, 7}) {
        StepPlan plan = transformer_plan(layers, micro_batches, keep);
        pack(plan);
        expect_no_overlap(plan);
        for (const Arena& a : plan.arenas)
          EXPECT_LE(static_cast<double>(a.arena_bytes), 1.02 * static_cast<double>(a.max_live_bytes))
              << layers << " layers, " << micro_batches << " micro-batches, keep " << keep;
      }
}

/// As many bytes as anything has alive at one op, by brute force.
TEST(Pack, MostAliveCountsWhatIsCarriedWhileItIsAlive) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    StepPlan plan = random_plan(seed, {60, {}, true, true});
    pack(plan, PackEffort::quick);
    const std::vector<std::vector<bool>> life = alive_at(plan);
    for (const Arena& arena : plan.arenas) {
      std::uint64_t most = 0;
      for (std::size_t op = 0; op < plan.ops.size(); ++op) {
        std::uint64_t live = 0;
        for (std::size_t b = 0; b < plan.buffers.size(); ++b)
          if (plan.buffers[b].tier == arena.tier && life[b][op]) live += footprint_bytes(plan.buffers[b]);
        most = std::max(most, live);
      }
      EXPECT_EQ(arena.max_live_bytes, most);
    }
  }
}

/// Durable ones first, so that no plan of the same states has them elsewhere.
TEST(Pack, PersistentBuffersLieInOrderAtTheBottom) {
  StepPlan plan = random_plan(5, {20, {}, true, true});
  int behind = 0;  // durable ones that are listed behind others
  std::map<Tier, std::uint8_t> slots_of_last;
  for (Buffer& b : plan.buffers) {
    if (b.life != Life::persistent) continue;
    std::uint8_t& last = slots_of_last.try_emplace(b.tier, std::uint8_t{2}).first->second;
    behind += last == 1 ? 1 : 0;
    b.slots = last = last == 1 ? 2 : 1;
  }
  ASSERT_GT(behind, 0);
  pack(plan);
  for (const Arena& arena : plan.arenas) {
    std::uint64_t at = 0;
    for (const int slots : {2, 1})
      for (const Buffer& b : plan.buffers)
        if (b.tier == arena.tier && b.life == Life::persistent && b.slots == slots) {
          EXPECT_EQ(b.offset, at);
          at += footprint_bytes(b);
        }
    for (const Buffer& b : plan.buffers)
      if (b.tier == arena.tier && b.life != Life::persistent) {
        EXPECT_GE(b.offset, at);
      }
  }
}

/// Lower bound by brute force; the placement is checked pair by pair.
TEST(Pack, RandomPieces) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<planning::Piece> pieces;
    const bool has_floors = seed >= 30;
    for (std::uint32_t i = 0; i < 200; ++i) {
      const auto r = philox(seed, i, 3);
      const std::uint32_t first = r[0] % 300, length = r[1] % (i % 10 == 0 ? 200 : 12);
      pieces.push_back({first, first + length, 4096ull * (1 + r[2] % 40), i % 10 == 0});
      // They rise from the middle to both ends.
      if (has_floors) pieces.back().floor = 8192ull * (std::max(250u, first + length) - std::min(250u, first)) / 10;
    }
    std::uint64_t most = 0;
    for (std::uint32_t t = 0; t < 512; ++t) {
      std::uint64_t live = 0, floor = ~0ull;
      for (const auto& p : pieces)
        if (p.first <= t && t <= p.last) live += p.bytes, floor = std::min(floor, p.floor);
      if (live > 0) most = std::max(most, live + floor);
    }
    EXPECT_EQ(planning::max_live_bytes(pieces), most);
    const planning::Placement placement =
        planning::place_pieces(pieces, most + most / 50, seed < 2 ? PackEffort::full : PackEffort::quick);
    EXPECT_GE(placement.height, most);
    for (std::size_t i = 0; i < pieces.size(); ++i) ASSERT_GE(placement.offsets[i], pieces[i].floor);
    EXPECT_LE(static_cast<double>(placement.height), 1.15 * static_cast<double>(most));
    for (std::size_t i = 0; i < pieces.size(); ++i)
      for (std::size_t j = i + 1; j < pieces.size(); ++j) {
        const bool in_time = pieces[i].first <= pieces[j].last && pieces[j].first <= pieces[i].last;
        const bool in_space = placement.offsets[i] < placement.offsets[j] + pieces[j].bytes &&
                              placement.offsets[j] < placement.offsets[i] + pieces[i].bytes;
        ASSERT_FALSE(in_time && in_space);
      }
  }
}

TEST(PackDeathTest, ATransientThatNothingTouchesIsABug) {
  StepPlan plan;
  plan.buffers.push_back({"orphan", Tier::device, 4096, Life::brief});
  EXPECT_DEATH(pack(plan), "no op touches transient buffer 0 orphan");
}

}  // namespace
}  // namespace sluice
