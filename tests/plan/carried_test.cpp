// Buffers whose life goes round the end of an iteration: packed with what has their bytes meanwhile, and plans that
// break the rules of such lives.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/plan/finish.h"
#include "offload/plan/step_picture.h"
#include "offload/plan/timeline.h"
#include "tests/plan/worlds.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

constexpr int layers = 6;
constexpr std::uint64_t layer_bytes = 1 << 16;
constexpr LaneId on_compute = 0, on_d2h = 1;

/// Gradients wait from the backward pass to the next forward pass, activations from there to the backward pass.
struct Step {
  StepPlan plan;
  std::vector<BufferId> gradient, saved;

  Step() : gradient(layers), saved(layers) {
    plan.cyclic = true;
    plan.lanes = {{LaneKind::compute}, {LaneKind::d2h}};
    for (int l = layers - 1; l >= 0; --l) gradient[l] = buffer("gradient", l, Life::carried);
    for (int l = 0; l < layers; ++l) saved[l] = buffer("saved", l, Life::lasting);
    for (int l = 0; l < layers; ++l) {
      op(OpKind::copy, on_d2h, gradient[l], Mode::read);
      op(OpKind::forward, on_compute, saved[l], Mode::write);
    }
    for (int l = layers - 1; l >= 0; --l) {
      op(OpKind::backward, on_compute, saved[l], Mode::read);
      op(OpKind::backward, on_compute, gradient[l], Mode::write);
    }
  }

  BufferId buffer(const std::string& name, int layer, Life life) {
    plan.buffers.push_back({name + std::to_string(layer), Tier::device, layer_bytes, life});
    return static_cast<BufferId>(plan.buffers.size() - 1);
  }
  Op& op(OpKind kind, LaneId lane, BufferId b, Mode mode, std::uint64_t bytes = layer_bytes) {
    Op& o = plan.ops.emplace_back();
    o.kind = kind;
    o.lane = lane;
    o.accesses.push_back({b, 0, bytes, Role::src, mode});
    return o;
  }
};

using test::kinds;
using Kind = Violation::Kind;

TEST(Carried, LivesThatFillEachOthersGapsTakeTheMemoryOfOne) {
  for (const PackEffort effort : {PackEffort::quick, PackEffort::full}) {
    Step step;
    finish(step.plan, effort);
    const Arena& arena = step.plan.arenas.front();
    EXPECT_EQ(arena.max_live_bytes, layers * layer_bytes);
    EXPECT_EQ(arena.arena_bytes, layers * layer_bytes);
    EXPECT_EQ(arena.packing, PackState::at_bound);
    EXPECT_TRUE(check(step.plan).empty()) << test::text(check(step.plan));
  }
}

TEST(Carried, ReadsFollowTheWriteOfTheIterationBefore) {
  Step step;
  finish(step.plan);
  const Op& read = step.plan.ops[0];
  EXPECT_EQ(read.waits, (std::vector<Wait>{{static_cast<OpId>(step.plan.ops.size() - 1), true}}));
  step.plan.ops[0].waits.clear();
  EXPECT_TRUE(kinds(check(step.plan)).contains(Kind::unordered_access));
}

/// As another plan of the run does with what this one leaves.
TEST(Carried, APlanThatRunsOnceMayReadAlone) {
  Step step;
  step.plan.cyclic = false;
  step.plan.ops.resize(2 * layers);
  std::erase_if(step.plan.ops, [](const Op& op) { return op.kind != OpKind::copy; });
  step.plan.buffers.resize(layers);
  finish(step.plan);
  EXPECT_TRUE(check(step.plan).empty()) << test::text(check(step.plan));
  Step whole;
  finish(whole.plan);
  for (const BufferId b : step.gradient) EXPECT_EQ(step.plan.buffers[b].offset, whole.plan.buffers[b].offset);
}

TEST(Carried, WhatNothingWritesAgainIsReadOnce) {
  Step step;
  std::erase_if(step.plan.ops, [&](const Op& op) {
    return op.accesses[0].buffer == step.gradient[2] && op.accesses[0].mode == Mode::write;
  });
  finish(step.plan);
  EXPECT_TRUE(kinds(check(step.plan)).contains(Kind::unwritten_read)) << "in the second iteration";
}

TEST(Carried, NothingIsReadBehindTheGapThatWasNotWritten) {
  Step step;
  step.plan.ops.back().accesses[0].bytes = layer_bytes / 2;
  step.op(OpKind::copy, on_d2h, step.gradient[0], Mode::read);
  finish(step.plan);
  EXPECT_TRUE(kinds(check(step.plan)).contains(Kind::unwritten_read));
}

TEST(Carried, TransientsThatAreThereAtAnyOtherTimeAreRefused) {
  // Ahead of the last use of what was carried; behind the first write; as long as anything is alive.
  for (const int layer : {0, layers - 1}) {
    Step step;
    const BufferId early = step.buffer("early", 0, Life::brief), late = step.buffer("late", 0, Life::brief);
    Op first, last;
    first.kind = last.kind = OpKind::forward;
    first.accesses = {{early, 0, layer_bytes, Role::dst, Mode::write}};
    last.accesses = {{late, 0, layer_bytes, Role::dst, Mode::write}};
    step.plan.ops.insert(step.plan.ops.begin(), first);
    step.plan.ops.push_back(last);
    finish(step.plan);
    ASSERT_TRUE(check(step.plan).empty()) << test::text(check(step.plan));
    for (const BufferId b : {early, late}) {
      StepPlan broken = step.plan;
      broken.buffers[b].offset = broken.buffers[step.gradient[layer]].offset;
      derive_waits(broken);
      EXPECT_TRUE(kinds(check(broken)).contains(Kind::shared_bytes)) << broken.buffers[b].name << " at layer " << layer;
    }
  }
}

TEST(Carried, NoTwoOfThemShareBytes) {
  Step step;
  finish(step.plan);
  step.plan.buffers[step.gradient[1]].offset = step.plan.buffers[step.gradient[4]].offset;
  derive_waits(step.plan);
  EXPECT_TRUE(kinds(check(step.plan)).contains(Kind::shared_bytes));
}

TEST(Carried, BytesAreLentOnlyInOrder) {
  // The activations of layer 0 lie where its gradient has waited, or higher: some wait keeps them apart.
  Step step;
  finish(step.plan);
  std::size_t needed = 0;
  for (Op& op : step.plan.ops)
    for (std::size_t w = 0; w < op.waits.size(); ++w) {
      const Wait wait = op.waits[w];
      op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(w));
      EXPECT_FALSE(check(step.plan, 1).empty());
      op.waits.insert(op.waits.begin() + static_cast<std::ptrdiff_t>(w), wait);
      ++needed;
    }
  EXPECT_GT(needed, 0u + layers);
}

/// One op after the other: what is alive is what the packer counts, in the picture and in the trace's counters.
TEST(Carried, PicturesCountItWhileItIsAlive) {
  Step step;
  finish(step.plan);
  Timeline spans;
  const auto ops = static_cast<OpId>(step.plan.ops.size());
  for (OpId i = 0; i < ops; ++i) spans.push_back({i, 0, i * 1e-3, (i + 1) * 1e-3});
  const std::vector<MemoryPicture> pictures = memory_picture(step.plan, spans);
  ASSERT_EQ(pictures.size(), 1u);
  EXPECT_EQ(pictures[0].peak_bytes, layers * layer_bytes);
  const ScratchDir folder;
  ASSERT_TRUE(write_trace(folder / "trace.json", step.plan, {{"one by one", spans}}).ok());
  std::ifstream file(folder / "trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::uint64_t most = 0, at_end = 0;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == "C") {
      most = std::max(most, e.at("args").at("live").get<std::uint64_t>());
      if (e.at("ts").get<double>() < 1e3 * (ops - 0.5)) at_end = e.at("args").at("live").get<std::uint64_t>();
    }
  EXPECT_EQ(most, layers * layer_bytes);
  EXPECT_EQ(at_end, layers * layer_bytes) << "all gradients wait, and nothing else is there";
}

}  // namespace
}  // namespace sluice
