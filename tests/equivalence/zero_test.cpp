// What ranks share, and when they add up, changes no bit: ZeRO's stages, shard groups and their replicas, sums behind
// every lot.
#include <filesystem>
#include <fstream>

#include "resume.h"
#include "src/comm/in_process.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

class Zero : public Resume {
 protected:
  RunConfig config(int ranks, int shard_group, Reduction reduction = Reduction::last, bool durable = false) const {
    RunConfig c = Resume::config(durable);
    c.batch = 16;
    c.ranks = ranks;
    c.lots = 8;
    c.shard_group = shard_group;
    c.reduction = reduction;
    return c;
  }
  struct Places {
    Place home = Place::nvme, accumulator = Place::host;
    bool resident = false, held = false, second_copy = false;
  };
  Schedule schedule(int group, Places places, bool ahead = true) const {
    Schedule s = Resume::schedule(ahead, places.home);
    s.group = group;
    s.gradients_ahead = group % 2 == 1;
    s.prefetch = 1;
    for (UnitChoice& unit : s.units) {
      unit.accumulator = places.accumulator;
      unit.resident = places.resident;
      unit.held = places.held;
      unit.second_copy = places.second_copy;
    }
    return s;
  }
  Finished whole(const RunConfig& c, const Schedule& s) {
    const std::string path = fresh_directory();
    return finished(path, attempt(c, path, s));
  }
};

constexpr bool resident = true, held = true;

/// Each order in one format, or with SLUICE_EXHAUSTIVE=1 in both.
TEST_F(Zero, ChangesNoBit) {
  for (const bool ahead : {true, false})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      if (!is_exhaustive() && ahead != (dtype == Dtype::bf16)) continue;
      SCOPED_TRACE(std::string(ahead ? "ahead " : "backward ") + dtype_name(dtype));
      const auto run_of = [&](RunConfig c, int group, const Places& places) {
        c.dtype = dtype;
        if (!ahead) c.optimizer.clip_norm = 0;
        return whole(c, schedule(group, places, ahead));
      };
      const Finished expected = run_of(config(1, 0), 16, {});
      ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
      int number = 0;
      const auto expect_same_as_one = [&](RunConfig c, int group, const Places& places) {
        SCOPED_TRACE("run " + std::to_string(++number));
        expect_same(run_of(std::move(c), group, places), expected);
      };
      // Nothing is shared; states; parameters too; groups of two, whose ranks are neighbours.
      expect_same_as_one(config(4, 1), 4, {});
      expect_same_as_one(config(4, 1), 1, {Place::host, Place::device, resident});
      expect_same_as_one(config(4, 4), 4, {Place::nvme, Place::host, resident});
      expect_same_as_one(config(4, 0), 2, {Place::host, Place::nvme, false, held});
      expect_same_as_one(config(4, 2), 4, {});
      expect_same_as_one(config(8, 2), 1, {Place::host, Place::host, resident});
      expect_same_as_one(config(8, 4), 2, {Place::nvme, Place::device, false, held});
      // Later passes have a copy that close ranks keep.
      const auto with_second_copy = [&](RunConfig c, int close) {
        c.second_copy = close;
        return c;
      };
      expect_same_as_one(with_second_copy(config(4, 0), 2), 4, {Place::nvme, Place::host, false, false, true});
      expect_same_as_one(with_second_copy(config(8, 4), 2), 1, {Place::host, Place::host, false, false, true});
      expect_same_as_one(with_second_copy(config(2, 0), 1), 2, {Place::nvme, Place::nvme, false, false, true});
      // Added up behind every lot: the tree is the same, and who has which samples is not.
      expect_same_as_one(config(2, 0, Reduction::pass), 2, {});
      expect_same_as_one(config(2, 1, Reduction::pass), 1, {Place::nvme, Place::nvme});
      expect_same_as_one(config(4, 2, Reduction::pass), 1, {Place::host, Place::device, resident});
      expect_same_as_one(config(1, 0, Reduction::pass), 2, {Place::nvme, Place::host, false, held});
    }
}

TEST_F(Zero, OfNumbersOfRanksThatAreNoPowersOfTwo) {
  const auto of = [&](int ranks, int shard_group) {
    RunConfig c = config(ranks, shard_group);
    c.batch = 12;
    c.lots = 6;
    return whole(c, schedule(1, {}));
  };
  const Finished expected = of(1, 0);
  for (const auto& [ranks, group] : {std::pair(6, 6), std::pair(6, 2), std::pair(6, 1), std::pair(3, 1)}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks in groups of " + std::to_string(group));
    expect_same(of(ranks, group), expected);
  }
}

/// Killed or stopped, a run goes on with other groups, or sums elsewhere, as it does with other ranks.
TEST_F(Zero, MayChangeWhereARunGoesOn) {
  for (const bool durable : {true, false}) {
    SCOPED_TRACE(durable ? "durable" : "not durable");
    const auto of = [&](int ranks, int group, Reduction reduction) { return config(ranks, group, reduction, durable); };
    const Finished expected = whole(of(4, 0, Reduction::last), schedule(4, {}));
    const std::string path = fresh_directory();
    const auto go_on = [&](const RunConfig& c, int group, std::int64_t stop_after) {
      const Attempt a = attempt(c, path, schedule(group, {}), stop_after);
      EXPECT_FALSE(a.error) << a.error->message;
      return a;
    };
    go_on(of(4, 2, Reduction::last), 2, 1);
    go_on(of(4, 2, Reduction::last), 2, 2);
    const Attempt alone = go_on(of(4, 1, Reduction::last), 2, 3);
    EXPECT_NE(alone.notes.find("from step 3 on with --shard-group 1 (2 before)"), std::string::npos) << alone.notes;
    go_on(of(2, 0, Reduction::pass), 1, 4);
    go_on(of(4, 4, Reduction::pass), 1, 5);
    expect_same(finished(path, go_on(of(4, 2, Reduction::pass), 2, 0)), expected);
    EXPECT_FALSE(std::filesystem::exists(path + "/commit.0"));
  }
}

/// Where memory or a drive has given other bytes than were written, replicas differ: the hash says so.
TEST_F(Zero, ReplicasThatDifferAreFound) {
  RunConfig c = config(4, 2);
  const auto prepared = prepare_with(c, Purpose::train, schedule(4, {Place::host, Place::host}));
  ASSERT_TRUE(prepared.ok());
  Outcome ignored;
  Recorder recorder(ignored);
  auto trainer = Trainer::create(**prepared, recorder);
  ASSERT_TRUE(trainer.ok()) << trainer.error().message;
  Engine& engine = (*trainer)->engine();
  const auto before = engine.states().state_hash();
  ASSERT_TRUE(before.ok());
  for (const Buffer& b : (*prepared)->main().buffers) {
    if (b.unit != 1 || b.tier != Tier::host || b.state != StateKind::exp_avg) continue;
    *engine.host(3, b) ^= std::byte{1};
    const auto hash = engine.states().state_hash();
    ASSERT_FALSE(hash.ok());
    EXPECT_EQ(hash.error().code, ErrorCode::fault);
    EXPECT_NE(hash.error().message.find("shard group 1 has other states than shard group 0"), std::string::npos)
        << hash.error().message;
    *engine.host(3, b) ^= std::byte{1};
  }
  EXPECT_EQ(*engine.states().state_hash(), *before);
}

TEST_F(Zero, GroupsThatDoNotFitAreRefused) {
  const auto refused = [&](int ranks, int group, Reduction reduction) {
    RunConfig c = config(ranks, group, reduction);
    c.batch = 4 * ranks;
    c.lots = 2 * ranks;
    const auto prepared = prepare_with(c, Purpose::train, schedule(1, {}));
    EXPECT_FALSE(prepared.ok());
    if (prepared.ok()) return std::string();
    EXPECT_EQ(prepared.error().code, ErrorCode::bad_request);
    return prepared.error().message;
  };
  EXPECT_NE(refused(4, 3, Reduction::last).find("give what divides --ranks 4"), std::string::npos);
  EXPECT_NE(refused(4, 8, Reduction::last).find("give what divides --ranks 4"), std::string::npos);
  EXPECT_NE(refused(6, 3, Reduction::last).find("give 1, 2, 4, 8, ..., or all 6 ranks"), std::string::npos);
  EXPECT_NE(refused(3, 0, Reduction::pass).find("--reduction pass on 3 ranks"), std::string::npos);
}

/// Parameters and gradients that travel in blocks of few bits: other bits than exact ones, and the same ones wherever
/// things lie.
TEST_F(Zero, InFewBitsNoPlaceChangesABit) {
  for (const bool ahead : {true, false})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      SCOPED_TRACE(std::string(ahead ? "ahead " : "backward ") + dtype_name(dtype));
      const auto run_of = [&](RunConfig c, int group, const Places& places) {
        c.dtype = dtype;
        if (!ahead) c.optimizer.clip_norm = 0;
        return whole(c, schedule(group, places, ahead));
      };
      // Two machines of two ranks.
      RunConfig c = config(4, 0);
      const Finished exact = run_of(c, 4, {});
      c.second_copy = 2;
      c.gathers = RankGathers::int8;
      c.sums = RankSums::int4;
      const Finished expected = run_of(c, 4, {});
      EXPECT_NE(expected.state_hash, exact.state_hash);
      EXPECT_NEAR(expected.eval_loss, exact.eval_loss, 0.01 * exact.eval_loss);
      expect_same(run_of(c, 2, {Place::host, Place::device, !resident, held}), expected);
      expect_same(run_of(c, 1, {.second_copy = true}), expected);
      c.durable = Durable::on;
      expect_same(run_of(c, 4, {Place::nvme, Place::nvme}), expected);
      // Sums of a machine alone are others.
      c.second_copy = 0;
      EXPECT_NE(run_of(c, 4, {}).state_hash, expected.state_hash);
    }
}

}  // namespace
}  // namespace sluice::test
