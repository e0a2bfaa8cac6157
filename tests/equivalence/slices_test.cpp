// Sequences that a rank takes slice by slice: what a run learns is what whole sequences teach, and where keys and
// values wait changes no bit of it.
#include "cut_runs.h"

namespace sluice::test {
namespace {

class SequencesInSlices : public CutRuns {
 protected:
  /// Eight sequences of 32 tokens in two lots.
  RunConfig config(int slices, int ranks = 1) const {
    RunConfig c = Resume::config(false);
    c.model = bench_.model(2, true);
    c.dtype = Dtype::f32;
    c.batch = 8;
    c.lots = 2;
    c.slices = slices;
    c.ranks = ranks;
    return c;
  }
  /// `group`: sequences that pass a unit together.
  Schedule in_slices(const RunConfig& c, int group, const Places& places, Place blocks, bool ahead = true) const {
    Schedule s = schedule(c, {}, group * c.slices, places, ahead);
    for (UnitChoice& unit : s.units) unit.blocks = blocks;
    return s;
  }
  Finished run(const RunConfig& c, int group = 2, const Places& places = {}, Place blocks = Place::device) {
    return whole(c, in_slices(c, group, places, blocks));
  }
};

/// Keys and values of all heads or few, biases, norms of heads, learned positions; of one token a slice too.
TEST_F(SequencesInSlices, TeachWhatWholeOnesDo) {
  std::vector<std::string> models{bench_.model(2, true), llama("llama", true, 1), llama("qwen2", true, 2),
                                  llama("qwen3", false, 2)};
  models.push_back(model("learned", R"("model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,"n_positions":64)"));
  for (const std::string& name : models) {
    SCOPED_TRACE(name);
    const auto of = [&](int slices, Saved saved) {
      RunConfig c = config(slices);
      c.model = name;
      c.tokenizer = "bytes";
      c.steps = 10;
      return run(c, 4, {.saved = saved});
    };
    const Finished one = of(1, Saved::keep);
    ASSERT_EQ(one.lines.size(), 10u);
    expect_close(of(2, Saved::keep), one, 1e-5);
    expect_close(of(8, Saved::recompute), one, 1e-5);
    if (name == models.front()) expect_close(of(32, Saved::keep), one, 1e-5);
  }
}

/// Windows end in the slice itself, at its border, in the one before, and far behind it.
TEST_F(SequencesInSlices, SeeNoFurtherThanTheWindow) {
  for (const int window : {1, 2, 8, 9, 10, 20}) {
    SCOPED_TRACE("window " + std::to_string(window));
    const auto of = [&](int slices) {
      RunConfig c = config(slices);
      c.model = windowed(window);
      c.tokenizer = "bytes";
      return run(c, 4, {}, Place::host);
    };
    const Finished one = of(1);
    expect_close(of(2), one, 1e-5);
    expect_close(of(4), one, 1e-5);
  }
}

TEST_F(SequencesInSlices, AreSeveralAtOnceAndOfDocuments) {
  const auto of = [&](int slices, int at_once, bool documents) {
    RunConfig c = config(slices);
    c.micro_batch = at_once;
    if (documents) {
      c.data = bench_.packed_documents();
      c.document_mask = true;
    }
    return run(c, 2, {}, Place::host);
  };
  expect_close(of(4, 2, false), of(1, 2, false), 1e-5);
  expect_close(of(4, 1, true), of(1, 1, true), 1e-5);
  expect_close(of(2, 4, true), of(1, 4, true), 1e-5);
}

/// In bf16 what differs is where values are rounded.
TEST_F(SequencesInSlices, TeachInBf16Too) {
  const auto of = [&](int slices) {
    RunConfig c = config(slices);
    c.dtype = Dtype::bf16;
    c.steps = 20;
    return run(c);
  };
  const Finished one = of(1), four = of(4);
  for (std::size_t i = 0; i < one.lines.size(); ++i)
    EXPECT_NEAR(four.lines[i]["loss"].get<double>(), one.lines[i]["loss"].get<double>(), 5e-3) << "step " << i + 1;
}

TEST_F(SequencesInSlices, TiersGroupsAndRanksChangeNoBit) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    const auto of = [&](int ranks) {
      RunConfig c = config(4, ranks);
      c.dtype = dtype;
      return c;
    };
    const Finished expected = run(of(1), 8, {.saved = Saved::keep});
    ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
    int number = 0;
    const auto same = [&](const RunConfig& c, int group, const Places& places, Place blocks,
                          const std::function<void(Schedule&)>& change = {}) {
      SCOPED_TRACE("run " + std::to_string(++number));
      Schedule s = in_slices(c, group, places, blocks);
      if (change) change(s);
      expect_same(whole(c, s), expected);
    };
    same(of(1), 1, {.saved = Saved::recompute}, Place::device);
    same(of(1), 2, {.boundary = Place::host, .saved = Saved::host}, Place::host,
         [](Schedule& s) { s.hold = false, s.activations_ahead = 3; });
    same(of(1), 4, {.boundary = Place::nvme, .saved = Saved::nvme}, Place::nvme, [](Schedule& s) { s.prefetch = 0; });
    same(of(1), 8, {.boundary = Place::nvme, .saved = Saved::recompute}, Place::nvme,
         [](Schedule& s) { s.hold = false, s.prefetch = 0; });
    same(of(1), 2, {.again = true}, Place::host);
    same(of(2), 2, {.saved = Saved::keep}, Place::host);
    RunConfig replicas = of(2);
    replicas.shard_group = 1;
    replicas.reduction = Reduction::pass;
    same(replicas, 1, {}, Place::nvme);
  }
}

/// A stage has its part of each slice's keys and values, and none of the other stages'.
TEST_F(SequencesInSlices, StagesChangeNoBit) {
  const Finished expected = run(config(4), 8, {.saved = Saved::keep});
  // The head alone at its place, and beside others.
  for (const std::vector<UnitId>& cut : {std::vector<UnitId>{3}, {2, 5}, {1, 3}})
    for (const PipelineOrder order : {PipelineOrder::gpipe, PipelineOrder::one_forward_one_backward})
      for (const int data : {1, 2}) {
        RunConfig c = config(4);
        c.stages = static_cast<int>(cut.size()) + 1;
        c.ranks = c.stages * data;
        c.pipeline.order = order;
        SCOPED_TRACE(std::to_string(c.stages) + " stages of " + std::to_string(data) + " " +
                     pipeline_order_names[static_cast<std::size_t>(order)]);
        const Place blocks = data == 1 ? Place::host : Place::nvme;
        const bool keeps = order == PipelineOrder::gpipe;
        Schedule s = schedule(c, cut, 2 * c.slices, {.saved = keeps ? Saved::keep : Saved::recompute});
        for (UnitChoice& unit : s.units) unit.blocks = blocks;
        expect_same(whole(c, s), expected);
      }
}

/// Of sublayers that are cut over ranks each has keys and values of its heads; those that share heads have the same.
TEST_F(SequencesInSlices, AreThoseOfPartsOfSublayersToo) {
  for (const std::string& name : {bench_.model(2, true), llama("qwen3", true, 1)}) {
    SCOPED_TRACE(name);
    const auto cut = [&](int slices) {
      RunConfig c = config(slices, 2);
      c.model = name;
      c.tokenizer = "bytes";
      c.tensor = 2;
      return c;
    };
    const Finished one = run(cut(1), 4, {.saved = Saved::keep});
    const RunConfig c = cut(4);
    const Finished expected = run(c, 4, {.saved = Saved::keep});
    expect_close(expected, one, 1e-5);
    expect_same(run(c, 1, {.saved = Saved::recompute}, Place::host), expected);
    expect_same(run(c, 2, {.boundary = Place::nvme, .saved = Saved::nvme}, Place::nvme), expected);
    expect_same(run(c, 2, {.again = true}, Place::host), expected);
    RunConfig both = c;
    both.stages = 2;
    both.ranks = 8;
    Schedule s = schedule(both, {3}, both.slices, {}, true);
    for (UnitChoice& unit : s.units) unit.blocks = Place::host;
    expect_same(whole(both, s), expected);
  }
}

/// Also with other tiers from a step on.
TEST_F(SequencesInSlices, GoOnWhereTheyWereStopped) {
  RunConfig c = config(4);
  c.durable = Durable::on;
  const Finished expected = run(c);
  const std::string path = fresh_directory();
  const Attempt first = attempt(c, path, in_slices(c, 4, {.saved = Saved::keep}, Place::device), 3);
  ASSERT_FALSE(first.error) << first.error->message;
  expect_same(finished(path, attempt(c, path, in_slices(c, 1, {.boundary = Place::host}, Place::host))), expected);
}

}  // namespace
}  // namespace sluice::test
