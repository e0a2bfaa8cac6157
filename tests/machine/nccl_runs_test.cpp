// Whole runs whose ranks have a modelled GPU each, and meet by NCCL: the bits of ranks that meet in host memory.
#include <atomic>
#include <chrono>
#include <thread>

#include "src/train/request/machine_limits.h"
#include "tests/equivalence/runs.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

class NcclRuns : public CardTest {
 protected:
  NcclRuns() { put_in({.devices = 4, .delay_seed = 1}); }

  /// Of few layers and steps: on the model they take seconds.
  RunConfig config(Transport transport, int ranks, std::int64_t steps = 2) const {
    RunConfig c = bench_.config(1, false, Dtype::bf16, steps);
    c.device = "cuda";
    c.ranks = ranks;
    c.batch = 4;
    c.lots = 4;
    c.transport = transport;
    c.optimizer.clip_norm = 1;
    return c;
  }
  static Schedule schedule(bool resident = false) {
    Schedule s;
    s.group = 1;
    s.prefetch = 2;
    UnitChoice unit;
    unit.resident = resident;
    unit.state_home = unit.parameter_home = Place::host;
    unit.saved = Saved::keep;
    s.units.assign(4, unit);
    return s;
  }
  /// By NCCL and staged; compared.
  Outcome both(RunConfig c, const Schedule& s) {
    std::vector<Outcome> outcomes;
    for (const Transport transport : {Transport::staged, Transport::nccl}) {
      c.transport = transport;
      const auto prepared = prepared_with(c, s);
      if (!prepared) return {};
      EXPECT_EQ(prepared->workload.collects_on_device, transport == Transport::nccl);
      outcomes.push_back(run(*prepared));
      EXPECT_EQ(outcomes.back().losses.size(), static_cast<std::size_t>(c.steps));
      EXPECT_EQ(outcomes.back().device_peak, prepared->arena_of_machine(Tier::device).arena_bytes);
      EXPECT_EQ(outcomes.back().host_peak, prepared->arena_of_machine(Tier::host).arena_bytes);
    }
    if (c.sums != RankSums::native) expect_same(outcomes[0], outcomes[1]);
    EXPECT_LT(outcomes[1].moved.h2d, outcomes[0].moved.h2d) << "nothing is staged";
    EXPECT_LT(outcomes[1].moved.d2h, outcomes[0].moved.d2h);
    return outcomes[1];
  }

  Bench bench_;
};

TEST_F(NcclRuns, SharesOfABatchHaveTheBitsOfOneRank) {
  const auto alone = prepared_with(config(Transport::automatic, 1), schedule());
  ASSERT_TRUE(alone);
  const Outcome one = run(*alone);
  for (const int shard_group : {0, 1, 2}) {
    SCOPED_TRACE(shard_group);
    RunConfig c = config(Transport::nccl, shard_group == 2 ? 4 : 2);
    c.shard_group = shard_group;
    expect_same(one, both(c, schedule(shard_group == 1)));
  }
}

TEST_F(NcclRuns, GradientsBehindEveryLot) {
  RunConfig c = config(Transport::nccl, 2);
  c.reduction = Reduction::pass;
  both(c, schedule());
}

TEST_F(NcclRuns, PartsOfSublayersAndSlicesOfSequences) {
  for (const std::string cut : {"parts", "slices", "ring"}) {
    SCOPED_TRACE(cut);
    RunConfig c = config(Transport::nccl, cut == "parts" ? 4 : 2);
    (cut == "parts" ? c.tensor : c.context) = 2;
    if (cut == "ring") c.context_attention = ContextAttention::ring;
    both(c, schedule());
  }
}

/// Their messages are staged, beside collectives that are not.
TEST_F(NcclRuns, StagesOfAPipeline) {
  RunConfig c = config(Transport::nccl, 4);
  c.stages = 2;
  Schedule s = schedule();
  s.cut = {2};
  both(c, s);
}

TEST_F(NcclRuns, FewBitsAndTheLibrarysOwnSums) {
  RunConfig c = config(Transport::nccl, 2);
  c.gathers = RankGathers::int8;
  c.sums = RankSums::int4;
  const Outcome few = both(c, schedule());
  c.gathers = RankGathers::exact;
  c.sums = RankSums::bf16;
  const Outcome halves = both(c, schedule());
  c.sums = RankSums::native;
  const Outcome native = both(c, schedule());
  for (std::size_t i = 0; i < native.losses.size(); ++i) {
    EXPECT_NEAR(few.losses[i], native.losses[i], 0.01 * native.losses[i]);
    EXPECT_NEAR(halves.losses[i], native.losses[i], 0.01 * native.losses[i]);
  }
}

TEST_F(NcclRuns, EndWithTheGpuThatFails) {
  const auto prepared = prepared_with(config(Transport::nccl, 2), schedule());
  ASSERT_TRUE(prepared);
  put_in({.devices = 4});
  run(*prepared);
  const std::uint64_t all = simt::work_done();
  for (std::uint64_t at = all / 7; at < all; at += all / 7) {
    SCOPED_TRACE("at " + std::to_string(at) + " of " + std::to_string(all));
    put_in({.devices = 4, .fails_at = at});
    Outcome out;
    Recorder recorder(out);
    auto trainer = Trainer::create(*prepared, recorder);
    if (trainer.ok()) {
      const std::atomic<bool> stop{false};
      const auto result = (*trainer)->run(stop);
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().code, ErrorCode::fault) << result.error().message;
      EXPECT_NE(result.error().message.find("ECC"), std::string::npos) << result.error().message;
      EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
    } else {
      EXPECT_NE(trainer.error().message.find("ECC"), std::string::npos) << trainer.error().message;
    }
  }
}

TEST_F(NcclRuns, StopAtAnyMoment) {
  const auto prepared = prepared_with(config(Transport::nccl, 2, 50), schedule());
  ASSERT_TRUE(prepared);
  for (const int milliseconds : {1, 30, 150, 400}) {
    SCOPED_TRACE(milliseconds);
    Outcome out;
    Recorder recorder(out);
    auto trainer = Trainer::create(*prepared, recorder);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message;
    std::atomic<bool> stop{false};
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      stop = true;
      (*trainer)->engine().team().stop({ErrorCode::cancelled, "enough"});
    });
    const auto result = (*trainer)->run(stop);
    stopper.join();
    if (!result.ok()) {
      EXPECT_EQ(result.error().code, ErrorCode::cancelled) << result.error().message;
    }
  }
}

TEST_F(NcclRuns, AreChosenWhereTheyCanBe) {
  const auto chosen = [&](const RunConfig& c) {
    const auto answer = collects_on_device(c);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() && *answer;
  };
  const auto refused = [&](RunConfig c, const std::string& what) {
    c.transport = Transport::nccl;
    const auto answer = collects_on_device(c);
    ASSERT_FALSE(answer.ok()) << what;
    EXPECT_EQ(answer.error().code, ErrorCode::bad_request);
    EXPECT_NE(answer.error().message.find(what), std::string::npos) << answer.error().message;
    EXPECT_EQ(answer.error().message.find('\n'), std::string::npos) << answer.error().message;
  };
  const RunConfig four = config(Transport::automatic, 4), five = config(Transport::automatic, 5);
  EXPECT_TRUE(chosen(four));
  EXPECT_FALSE(chosen(five)) << "two share a GPU";
  EXPECT_FALSE(chosen(config(Transport::automatic, 1)));
  EXPECT_FALSE(chosen(config(Transport::staged, 4)));
  refused(five, "--transport nccl: 2 ranks of a machine would share a GPU");
  RunConfig on_cpu = four;
  on_cpu.device = "cpu";
  refused(on_cpu, "add --device cuda");
  put_in({.devices = 4, .nccl = 20800});
  EXPECT_FALSE(chosen(four)) << "it is too old";
  refused(four, "--transport nccl: NCCL 2.8.0 is too old");
}

}  // namespace
}  // namespace sluice::test
