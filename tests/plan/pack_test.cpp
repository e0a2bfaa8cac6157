#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "offload/plan/finish.h"
#include "offload/plan/pack_fit.h"
#include "sluice/random.h"
#include "tests/plan/random_plan.h"

namespace sluice {
namespace {

void expect_no_overlap(const StepPlan& plan) {
  std::vector<std::pair<std::size_t, std::size_t>> life(plan.buffers.size(), {plan.ops.size(), 0});
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    for (const Access& a : plan.ops[i].accesses) {
      life[a.buffer].first = std::min(life[a.buffer].first, i);
      life[a.buffer].second = i;
    }
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].life == Life::persistent) life[i] = {0, plan.ops.size()};
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    ASSERT_EQ(a.offset % buffer_alignment_bytes, 0u);
    ASSERT_LE(a.offset + footprint_bytes(a), plan.arena(a.tier)->arena_bytes);
    for (std::size_t j = i + 1; j < plan.buffers.size(); ++j) {
      const Buffer& b = plan.buffers[j];
      if (a.tier != b.tier) continue;
      const bool in_time = life[i].first <= life[j].second && life[j].first <= life[i].second;
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
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::vector<planning::Piece> pieces;
    for (std::uint32_t i = 0; i < 200; ++i) {
      const auto r = philox(seed, i, 3);
      const std::uint32_t first = r[0] % 300, length = r[1] % (i % 10 == 0 ? 200 : 12);
      pieces.push_back({first, first + length, 4096ull * (1 + r[2] % 40), i % 10 == 0});
    }
    std::uint64_t most = 0;
    for (std::uint32_t t = 0; t < 512; ++t) {
      std::uint64_t live = 0;
      for (const auto& p : pieces) live += p.first <= t && t <= p.last ? p.bytes : 0;
      most = std::max(most, live);
    }
    EXPECT_EQ(planning::max_live_bytes(pieces), most);
    const planning::Placement placement =
        planning::place_pieces(pieces, most + most / 50, seed < 2 ? PackEffort::full : PackEffort::quick);
    EXPECT_GE(placement.height, most);
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
