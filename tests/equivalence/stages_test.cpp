// The stages of a pipeline change no bit: in any order of passes, cut anywhere, with ranks that share batch and states,
// with parameters on host or drive; and what they hold and send each other is what their plans say.
#include <filesystem>

#include "cut_runs.h"
#include "io/checksum.h"
#include "src/train/states/stored_weights.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

class StagesOfARun : public CutRuns {
 protected:
  /// Embedding, two layers of two sublayers, head: six units.
  RunConfig config(int stages, int data, bool durable = false, PipelineChoice pipeline = {}) const {
    RunConfig c = Resume::config(durable);
    c.model = bench_.model(2, true);
    c.batch = 8;
    c.lots = 2;
    c.stages = stages;
    c.ranks = stages * data;
    c.pipeline = pipeline;
    return c;
  }
};

class Watcher final : public TrainObserver {
 public:
  void note(const std::string&) override {}
  void step(const StepRecord& r) override { records.push_back(r); }
  std::atomic<bool> stop{false};
  std::vector<StepRecord> records;
};

/// Of the eight ways all pairs of settings, or with SLUICE_EXHAUSTIVE=1 all.
TEST_F(StagesOfARun, ChangeNoBit) {
  for (const bool tied : {true, false})
    for (const bool ahead : {true, false})
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        if (!is_exhaustive() && (tied == ahead) != (dtype == Dtype::bf16)) continue;
        SCOPED_TRACE(std::string(tied ? "tied " : "") + (ahead ? "ahead " : "backward ") + dtype_name(dtype));
        const auto run_of = [&](RunConfig c, std::vector<UnitId> cut, int group, const Places& places) {
          c.model = bench_.model(2, tied);
          c.dtype = dtype;
          if (!ahead) c.optimizer.clip_norm = 0;
          return whole(c, schedule(c, std::move(cut), group, places, ahead));
        };
        const Finished expected = run_of(config(1, 1), {}, 8, {});
        ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
        int number = 0;
        const auto expect_same_as_one = [&](const RunConfig& c, std::vector<UnitId> cut, int group,
                                            const Places& places) {
          SCOPED_TRACE("run " + std::to_string(++number));
          expect_same(run_of(c, std::move(cut), group, places), expected);
        };
        expect_same_as_one(config(2, 1), {3}, 1, {.gradient = Place::device});
        expect_same_as_one(config(2, 1, false, gpipe), {1}, 2, {Place::host, Place::device, Place::host, true});
        expect_same_as_one(config(3, 1), {2, 5}, 3, {Place::host, Place::nvme, Place::nvme, false, true});
        expect_same_as_one(config(6, 1), {1, 2, 3, 4, 5}, 1,
                           {Place::nvme, Place::host, Place::device, false, false, Saved::keep});
        expect_same_as_one(config(2, 1, false, interleaved), {1, 3, 5}, 2,
                           {Place::host, Place::host, Place::host, false, false, Saved::host});
        expect_same_as_one(config(3, 1, true, interleaved), {1, 2, 3, 4, 5}, 3,
                           {.accumulator = Place::device, .gradient = Place::device});
        expect_same_as_one(config(2, 1, true, zb_h1), {3}, 1, {});
        expect_same_as_one(config(3, 1, false, zb_h1), {1, 4}, 2,
                           {Place::host, Place::nvme, Place::host, false, false, Saved::nvme});
        expect_same_as_one(config(2, 1, false, zb_v), {1, 3, 4}, 2, {Place::host, Place::device, Place::nvme, true});
        expect_same_as_one(config(2, 2, true, zb_v), {2, 3, 5}, 1,
                           {Place::nvme, Place::host, Place::device, false, true, Saved::keep});
        // With ranks that share the batch, and the states or nothing.
        expect_same_as_one(config(2, 2), {4}, 2, {.gradient = Place::device});
        RunConfig replicas = config(3, 2, true);
        replicas.shard_group = 1;
        expect_same_as_one(replicas, {1, 4}, 1, {Place::host, Place::device, Place::nvme, true});
        RunConfig by_lot = config(2, 1, true);
        by_lot.reduction = Reduction::pass;
        expect_same_as_one(by_lot, {3}, 2, {Place::host});
        expect_same_as_one(config(2, 1), {3}, 2,
                           {Place::host, Place::host, Place::host, false, false, Saved::keep, true});
        expect_same_as_one(
            config(2, 1, false, zb_v), {1, 3, 4}, 2,
            {Place::nvme, Place::device, Place::device, false, false, Saved::recompute, true, Saved::keep});
      }
}

/// Bytes on every link, those of messages among them, and the peaks of all ranks' arenas.
TEST_F(StagesOfARun, HoldAndSendWhatTheirPlansSay) {
  for (const bool ahead : {true, false})
    for (const PipelineChoice pipeline : {gpipe, PipelineChoice(), interleaved, zb_h1, zb_v}) {
      const bool chunks = pipeline.chunks > 1;
      RunConfig c = config(chunks ? 2 : 3, 2, true, pipeline);
      if (!ahead) c.optimizer.clip_norm = 0;
      SCOPED_TRACE(pipeline_order_names[static_cast<std::size_t>(pipeline.order)]);
      const std::string path = fresh_directory();
      c.run = path;
      const auto prepared = prepared_with(
          c, schedule(c, chunks ? std::vector<UnitId>{1, 3, 5} : std::vector<UnitId>{2, 5}, chunks ? 1 : 2, {}, ahead));
      ASSERT_TRUE(prepared);
      auto directory = RunDirectory::open(path);
      ASSERT_TRUE(directory.ok());
      Watcher observer;
      auto trainer = Trainer::create(*prepared, observer, &*directory, &observer.stop);
      ASSERT_TRUE(trainer.ok()) << trainer.error().message;
      const auto result = (*trainer)->run(observer.stop);
      ASSERT_TRUE(result.ok()) << result.error().message;
      LinkBytes all;
      std::uint64_t device = 0, host = 0, nvme = 0;
      const RankTeam& team = (*trainer)->engine().team();
      for (const StagePlans& stage : prepared->stages) {
        LinkBytes of_rank = plan_link_bytes(stage.main) * all_steps;
        of_rank += plan_link_bytes(stage.evaluate);
        // Hashes are of flushed states: each step is drained.
        if (ahead) of_rank += plan_link_bytes(stage.flush) * all_steps;
        all += of_rank * 2;
        const auto bytes = [&](Tier tier) { return stage.main.arena(tier)->arena_bytes; };
        device = std::max(device, bytes(Tier::device));
        host += bytes(Tier::host) * 2;
        nvme += bytes(Tier::nvme) * 2;
      }
      ASSERT_EQ(observer.records.size(), static_cast<std::size_t>(all_steps));
      for (const StepRecord& r : observer.records) {
        EXPECT_EQ(r.device_peak_bytes, device);
        EXPECT_EQ(r.host_peak_bytes, host);
        EXPECT_EQ(r.nvme_peak_bytes, nvme);
      }
      const MovedBytes moved = team.moved();
      EXPECT_GT(moved.message, 0u);
      EXPECT_EQ(moved.message, all.message);
      EXPECT_EQ(moved.collective, all.collective);
      EXPECT_EQ(moved.h2d, all.h2d);
      EXPECT_EQ(moved.d2h, all.d2h);
      EXPECT_EQ(moved.nvme_read, all.nvme_read);
      EXPECT_EQ(moved.nvme_write, all.nvme_write);
    }
}

TEST_F(StagesOfARun, MayBeOthersFromAnyStepOn) {
  for (const bool durable : {true, false}) {
    SCOPED_TRACE(durable ? "durable" : "not durable");
    const auto of = [&](int stages, int data, PipelineChoice pipeline = {}) {
      return config(stages, data, durable, pipeline);
    };
    const Finished expected = whole(of(1, 1), schedule(of(1, 1), {}, 4));
    const std::string path = fresh_directory();
    const auto part = [&](const RunConfig& c, std::vector<UnitId> cut, int group, std::int64_t until) {
      return attempt(c, path, schedule(c, std::move(cut), group), until);
    };
    const Attempt first = part(of(2, 1), {3}, 2, 1);
    ASSERT_FALSE(first.error) << first.error->message;
    const Attempt same = part(of(2, 1), {3}, 2, 2);
    ASSERT_FALSE(same.error) << same.error->message;
    const Attempt second = part(of(3, 2), {1, 4}, 1, 3);
    ASSERT_FALSE(second.error) << second.error->message;
    EXPECT_NE(second.notes.find("from step 3 on with --ranks 6 (2 before), --pp 3 (2 before)"), std::string::npos)
        << second.notes;
    const Attempt third = part(of(2, 1, interleaved), {1, 2, 4}, 2, 4);
    ASSERT_FALSE(third.error) << third.error->message;
    const Attempt fourth = part(of(1, 2), {}, 4, 5);
    ASSERT_FALSE(fourth.error) << fourth.error->message;
    expect_same(finished(path, part(of(6, 1), {1, 2, 3, 4, 5}, 2, 0)), expected);
    EXPECT_TRUE(std::filesystem::is_empty(bench_.path("drive"))) << "swap files of stages that are no more";
  }
}

/// What is exported of a run that goes on in stages, from its slots and from its snapshot.
TEST_F(StagesOfARun, LeaveTheWeightsOfOne) {
  const auto weights_of = [&](const std::string& path) {
    std::vector<std::uint64_t> sums;
    auto directory = RunDirectory::open(path);
    EXPECT_TRUE(directory.ok());
    const RestoreListener quiet{[](const std::string&) {}, [](const std::string&) { return States::Watch{}; }};
    auto weights = StoredWeights::open(*directory, quiet);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    if (!weights.ok()) return sums;
    std::vector<std::vector<float>> units(6);
    const Status visited = (*weights)->visit(true, [&](UnitId u, std::uint64_t first, const WeightValues& values) {
      std::vector<float>& unit = units[static_cast<std::size_t>(u)];
      EXPECT_EQ(first, unit.size()) << "each once, in order";
      unit.insert(unit.end(), values.as_f32().begin(), values.as_f32().end());
      return success();
    });
    EXPECT_TRUE(visited.ok()) << visited.error().message;
    for (const std::vector<float>& unit : units) sums.push_back(checksum(std::as_bytes(std::span(unit))));
    return sums;
  };
  const auto stopped = [&](const RunConfig& c, std::vector<UnitId> cut) {
    const std::string path = fresh_directory();
    const Attempt a = attempt(c, path, schedule(c, std::move(cut), 2), 3);
    EXPECT_FALSE(a.error) << a.error->message;
    return weights_of(path);
  };
  for (const bool durable : {true, false}) {
    const std::vector<std::uint64_t> one = stopped(config(1, 1, durable), {});
    ASSERT_EQ(one.size(), 6u);
    EXPECT_EQ(stopped(config(3, 1, durable), {2, 4}), one);
    RunConfig replicas = config(2, 2, durable);
    replicas.shard_group = 1;
    EXPECT_EQ(stopped(replicas, {3}), one);
  }
}

TEST_F(StagesOfARun, ThatDoNotFitAreRefused) {
  const auto refused = [&](int stages, int ranks, PipelineChoice pipeline = {}, std::optional<int> group = {}) {
    RunConfig c = config(1, 1);
    c.stages = stages;
    c.ranks = ranks;
    c.pipeline = pipeline;
    c.wish.group = group;
    const auto described = describe_request(c, Purpose::train);
    EXPECT_FALSE(described.ok());
    return described.ok() ? "" : described.error().message;
  };
  EXPECT_EQ(refused(3, 4), "--pp 3 on --ranks 4: stages have as many ranks each; give what divides 4");
  EXPECT_NE(refused(7, 7).find("6 sublayers, fewer than the 7 parts; give at most 6 stages"), std::string::npos);
  EXPECT_NE(refused(4, 4, interleaved).find("with --chunks 2"), std::string::npos);
  EXPECT_NE(refused(1, 1, gpipe).find("there is one stage; add --pp P"), std::string::npos);
  EXPECT_NE(refused(2, 2, {PipelineOrder::zb_h1, 2}).find("a zb-h1 pipeline has one chunk a stage"), std::string::npos);
  EXPECT_NE(refused(3, 3, zb_v, 2).find("at least 6 groups of micro-batches, not 4"), std::string::npos);
  EXPECT_NE(refused(3, 3, {PipelineOrder::interleaved, 2}, 4).find("multiple of that many groups"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
