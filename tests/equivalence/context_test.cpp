// Sequences cut over ranks: what a run learns is what one rank learns, and what else there is changes no bit of it.
#include "cut_runs.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

class SlicesOfARun : public CutRuns, public testing::WithParamInterface<ContextAttention> {
 protected:
  bool is_ring() const { return GetParam() == ContextAttention::ring; }
  /// Embedding, two layers of two sublayers, head: six units; 8 micro-batches of 32 tokens in two lots.
  RunConfig config(int context, int data = 1, int tensor = 1, int stages = 1) const {
    RunConfig c = Resume::config(false);
    c.model = bench_.model(2, true);
    c.dtype = Dtype::f32;
    c.batch = 8;
    c.lots = 2;
    c.context = context;
    if (context > 1) c.context_attention = GetParam();
    c.tensor = tensor;
    c.stages = stages;
    c.ranks = context * tensor * data * stages;
    return c;
  }
};

/// In fp32, of what the models of oracle_test do not have: keys and values that all ranks share, and biases.
TEST_P(SlicesOfARun, LearnWhatOneRankLearns) {
  const std::vector<std::string> models{llama("llama", true, 1), llama("qwen2", true, 2)};
  for (const std::string& name : models) {
    SCOPED_TRACE(name);
    const auto run = [&](int context, int tensor, Saved saved) {
      RunConfig c = config(context, 1, tensor);
      c.model = name;
      c.tokenizer = "bytes";
      c.steps = 20;
      return whole(c, schedule(c, {}, 4, {.saved = saved}));
    };
    const Finished one = run(1, 1, Saved::keep);
    ASSERT_EQ(one.lines.size(), 20u);
    {
      SCOPED_TRACE("2 slices");
      expect_close(run(2, 1, Saved::recompute), one, 1e-5);
    }
    {
      SCOPED_TRACE("4 slices");
      expect_close(run(4, 1, Saved::keep), one, 1e-5);
    }
    SCOPED_TRACE("2 slices x 2 parts");
    expect_close(run(2, 2, Saved::recompute), one, 1e-5);
  }
}

/// Windows end inside of a piece, at its border, and far behind it.
TEST_P(SlicesOfARun, SeeNoFurtherThanTheWindow) {
  for (const int window : {1, 3, 8, 9, 20}) {
    SCOPED_TRACE("window " + std::to_string(window));
    const std::string name = windowed(window);
    const auto run = [&](int context) {
      RunConfig c = config(context);
      c.model = name;
      c.tokenizer = "bytes";
      return whole(c, schedule(c, {}, 4, {}));
    };
    const Finished one = run(1);
    expect_close(run(2), one, 1e-5);
    expect_close(run(4), one, 1e-5);
  }
}

/// More ranks than heads.
TEST_P(SlicesOfARun, AreAsManyAsTheSequenceHasPieces) {
  if (!is_ring()) GTEST_SKIP() << "each rank has a head";
  const auto run = [&](int context) {
    RunConfig c = config(context);
    return whole(c, schedule(c, {}, 4, {}));
  };
  expect_close(run(8), run(1), 1e-5);
}

/// Rows of several sequences travel piece by piece.
TEST_P(SlicesOfARun, HaveSeveralSequencesAtOnce) {
  const auto run = [&](int context) {
    RunConfig c = config(context);
    c.micro_batch = 2;
    return whole(c, schedule(c, {}, 2, {}));
  };
  const Finished one = run(1);
  expect_close(run(2), one, 1e-5);
  expect_close(run(4), one, 1e-5);
}

/// In bf16 what differs is where values are rounded.
TEST_P(SlicesOfARun, LearnInBf16Too) {
  const auto run = [&](int context) {
    RunConfig c = config(context);
    c.dtype = Dtype::bf16;
    c.steps = 20;
    return whole(c, schedule(c, {}, 4, {}));
  };
  const Finished one = run(1), slices = run(2);
  for (std::size_t i = 0; i < one.lines.size(); ++i)
    EXPECT_NEAR(slices.lines[i]["loss"].get<double>(), one.lines[i]["loss"].get<double>(), 5e-3) << "step " << i + 1;
}

/// Each order with one number of slices, or with SLUICE_EXHAUSTIVE=1 with both.
TEST_P(SlicesOfARun, OtherRanksStagesAndTiersChangeNoBit) {
  for (const bool ahead : {true, false})
    for (const int context : {2, 4}) {
      if (!is_exhaustive() && ahead != (context == 2)) continue;
      SCOPED_TRACE((ahead ? "ahead " : "backward ") + std::to_string(context));
      const auto run_of = [&](RunConfig c, std::vector<UnitId> cut, int group, const Places& places) {
        c.dtype = context == 2 ? Dtype::bf16 : Dtype::f32;
        if (!ahead) c.optimizer.clip_norm = 0;
        return whole(c, schedule(c, std::move(cut), group, places, ahead));
      };
      const Finished expected = run_of(config(context), {}, 8, {});
      ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
      int number = 0;
      const auto expect_same_as = [&](const RunConfig& c, std::vector<UnitId> cut, int group, const Places& places) {
        SCOPED_TRACE("run " + std::to_string(++number));
        expect_same(run_of(c, std::move(cut), group, places), expected);
      };
      expect_same_as(config(context), {}, 1, {Place::host, Place::nvme, Place::nvme, false, true, Saved::keep});
      expect_same_as(config(context), {}, 2, {Place::nvme, Place::host, Place::host, false, false, Saved::nvme});
      expect_same_as(config(context), {}, 2, {Place::host, Place::device, Place::host, false, true, Saved::host, true});
      expect_same_as(config(context), {}, 1, {.again = true, .gradient = Place::device});
      expect_same_as(config(context, 2), {}, 2, {.saved = Saved::host});
      RunConfig replicas = config(context, 2);
      replicas.shard_group = 1;
      replicas.durable = Durable::on;
      expect_same_as(replicas, {}, 4, {Place::host, Place::device, Place::host, true});
      RunConfig groups = config(context, 2);
      groups.shard_group = 2;  // slices are replicas
      expect_same_as(groups, {}, 4, {});
      expect_same_as(config(context, 1, 1, 2), {3}, 2, {});
      // Behind every lot slices add up in another order.
      const auto by_lot = [&](int stages) {
        RunConfig c = config(context, 1, 1, stages);
        c.reduction = Reduction::pass;
        return c;
      };
      expect_same(run_of(by_lot(1), {}, 2, {Place::host}), run_of(by_lot(2), {3}, 1, {}));
      if (context == 2) expect_same_as(config(context, 2, 1, 2), {4}, 2, {});
    }
}

/// Ranks are numbered through the mesh in any order, and what they give each other goes to others.
TEST_P(SlicesOfARun, NumbersOfRanksChangeNoBit) {
  const auto run_in = [&](const std::string& order, int shard_group) {
    RunConfig c = config(2, 2, 2);
    c.mesh_order = order;
    c.shard_group = shard_group;
    c.durable = Durable::on;
    return whole(c, schedule(c, {}, 2, {}));
  };
  const Finished expected = run_in("pp,dp,cp,tp", 0);
  for (const std::string order : {"pp,cp,dp,tp", "pp,tp,cp,dp", "pp,dp,tp,cp"})
    for (const int shard_group : {0, 1, 2}) {
      SCOPED_TRACE(order + ", shard group " + std::to_string(shard_group));
      expect_same(run_in(order, shard_group), expected);
    }
}

TEST_P(SlicesOfARun, KeepDocumentsApart) {
  const auto run = [&](int context, int data, int tensor) {
    RunConfig c = config(context, data, tensor);
    c.data = bench_.packed_documents();
    c.document_mask = true;
    return whole(c, schedule(c, {}, 2, {}));
  };
  const Finished one = run(1, 1, 1), slices = run(2, 1, 1);
  expect_close(slices, one, 1e-5);
  expect_close(run(4, 1, 1), one, 1e-5);
  expect_close(run(2, 1, 2), one, 1e-5);
  expect_same(run(2, 2, 1), slices);
}

/// Also with other ranks and stages from a step on.
TEST_P(SlicesOfARun, GoOnWhereTheyWereStopped) {
  const auto of = [&](int data, int stages) {
    RunConfig c = config(2, data, 1, stages);
    c.durable = Durable::on;
    return c;
  };
  const Finished expected = whole(of(1, 1), schedule(of(1, 1), {}, 4, {}));
  const std::string path = fresh_directory();
  const auto part = [&](const RunConfig& c, std::vector<UnitId> cut, std::int64_t until) {
    return attempt(c, path, schedule(c, std::move(cut), 2, {}), until);
  };
  for (const auto& [c, cut, until] :
       {std::tuple(of(1, 1), std::vector<UnitId>{}, 1), std::tuple(of(1, 1), std::vector<UnitId>{}, 2),
        std::tuple(of(2, 1), std::vector<UnitId>{}, 3), std::tuple(of(1, 2), std::vector<UnitId>{2}, 4)}) {
    const Attempt a = part(c, cut, until);
    ASSERT_FALSE(a.error) << a.error->message;
  }
  expect_same(finished(path, part(of(2, 2), {3}, 0)), expected);
}

INSTANTIATE_TEST_SUITE_P(, SlicesOfARun, testing::Values(ContextAttention::ulysses, ContextAttention::ring),
                         [](const auto& of) { return context_attention_names[static_cast<std::size_t>(of.param)]; });

}  // namespace
}  // namespace sluice::test
