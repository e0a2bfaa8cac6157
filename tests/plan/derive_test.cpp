// Packing and waits against brute force.
#include <gtest/gtest.h>

#include "offload/plan/finish.h"
#include "offload/plan/happens_before.h"
#include "tests/plan/random_plan.h"

namespace sluice {
namespace {

std::vector<RandomPlanOptions> shapes() {
  return {{14, {}, true, true},
          {14, {}, false, false},
          {14, grid({2}), true, true},
          {14, grid({3}).at(2), true, false},
          {14, grid({2, 4}).at(5), true, true},
          {14, grid({3, 2}).at(1), false, true}};
}

/// Which node has finished when another starts, by reachability over explicit start and finish events.
class Reachability {
 public:
  explicit Reachability(const planning::Program& p) : p_(p), size_(std::size_t{2} * p.nodes()), reach_(size_ * size_) {
    const StepPlan& plan = p.plan();
    for (planning::NodeId n = 0; n < p.nodes(); ++n) {
      const Op& op = plan.ops[p.op(n)];
      edge(start(n), finish(n));
      if (const std::uint32_t stamp = p.stamp(n); stamp > 1) {
        const NodeId before = p.at(op.lane, stamp - 1);
        edge(plan.lanes[op.lane].windowed ? start(before) : finish(before), start(n));
        edge(finish(before), finish(n));
      }
      for (const Wait& w : op.waits)
        if (const NodeId t = p.target(n, w); t != planning::no_node) edge(finish(t), start(n));
    }
    for (std::size_t k = 0; k < size_; ++k)
      for (std::size_t i = 0; i < size_; ++i)
        if (reach_[i * size_ + k])
          for (std::size_t j = 0; j < size_; ++j)
            if (reach_[k * size_ + j]) reach_[i * size_ + j] = true;
  }
  bool before(planning::NodeId a, planning::NodeId b) const { return reach_[finish(a) * size_ + start(b)]; }

 private:
  using NodeId = planning::NodeId;
  static std::size_t start(NodeId n) { return std::size_t{2} * n; }
  static std::size_t finish(NodeId n) { return std::size_t{2} * n + 1; }
  void edge(std::size_t a, std::size_t b) { reach_[a * size_ + b] = true; }

  const planning::Program& p_;
  std::size_t size_;
  std::vector<char> reach_;
};

TEST(HappensBefore, AgreesWithReachability) {
  for (const RandomPlanOptions& o : shapes())
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      StepPlan plan = random_plan(seed, o);
      finish(plan);
      const planning::Program program(plan, o.cyclic ? 2 : 1);
      const planning::HappensBefore order(program);
      ASSERT_TRUE(order.complete());
      const Reachability oracle(program);
      for (std::uint32_t i = 0; i < program.nodes(); ++i)
        for (std::uint32_t j = 0; j < program.nodes(); ++j)
          ASSERT_EQ(order.before(i, j), oracle.before(i, j))
              << "seed " << seed << ": " << describe(plan, program.op(i)) << " / " << describe(plan, program.op(j));
    }
}

TEST(DeriveWaits, FinishedPlansAreLegalAndHaveNoImpliedWaits) {
  for (const RandomPlanOptions& o : shapes())
    for (std::uint64_t seed = 100; seed < 160; ++seed) {
      StepPlan plan = random_plan(seed, o);
      finish(plan);
      const auto violations = check(plan);
      ASSERT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].message;
      for (const ImpliedWait& w : implied_waits(plan))
        ADD_FAILURE() << "seed " << seed << ": " << describe(plan, w.op) << " need not wait for "
                      << describe(plan, w.wait.op) << (w.wait.previous_iteration ? " (previous iteration)" : "");
    }
}

TEST(DeriveWaits, EveryWaitIsNeeded) {
  std::size_t tried = 0;
  for (const RandomPlanOptions& o : shapes())
    for (std::uint64_t seed = 200; seed < 220; ++seed) {
      StepPlan plan = random_plan(seed, o);
      finish(plan);
      for (OpId i = 0; i < plan.ops.size(); ++i)
        for (std::size_t w = 0; w < plan.ops[i].waits.size(); ++w) {
          const Wait wait = plan.ops[i].waits[w];
          auto& waits = plan.ops[i].waits;
          waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
          ASSERT_FALSE(check(plan, 1).empty())
              << "seed " << seed << ": " << describe(plan, i) << " does not need " << describe(plan, wait.op)
              << (wait.previous_iteration ? " (previous iteration)" : "");
          waits.insert(waits.begin() + static_cast<std::ptrdiff_t>(w), wait);
          ++tried;
        }
    }
  EXPECT_GT(tried, 500u);
}

TEST(DeriveWaits, ARedundantWaitIsReportedAsImplied) {
  StepPlan plan;
  plan.lanes = {{LaneKind::h2d}, {LaneKind::compute}};
  plan.buffers.push_back({"a", Tier::device, 4096, Life::brief});
  for (const LaneId lane : {0, 1, 1}) {
    Op op;
    op.kind = OpKind::copy;
    op.lane = lane;
    op.accesses.push_back({0, 0, 4096, Role::src, plan.ops.empty() ? Mode::write : Mode::read});
    plan.ops.push_back(op);
  }
  finish(plan);
  EXPECT_EQ(plan.ops[1].waits, (std::vector<Wait>{{0, false}}));
  EXPECT_TRUE(plan.ops[2].waits.empty());
  plan.ops[2].waits.push_back({0, false});
  const auto implied = implied_waits(plan);
  ASSERT_EQ(implied.size(), 1u);
  EXPECT_EQ(implied[0].op, 2u);
}

/// Own parts lie elsewhere; what is waited for is the same.
TEST(DeriveWaits, AllRanksWaitForTheSame) {
  for (const Topology& topology : {grid({2}), grid({3}), grid({2, 4})})
    for (std::uint64_t seed = 300; seed < 330; ++seed) {
      StepPlan first = random_plan(seed, {20, topology, true, true});
      finish(first);
      for (RankId r = 1; r < topology.ranks(); ++r) {
        StepPlan plan = random_plan(seed, {20, topology.at(r), true, true});
        finish(plan);
        ASSERT_EQ(plan.ops.size(), first.ops.size());
        for (OpId i = 0; i < plan.ops.size(); ++i)
          ASSERT_EQ(plan.ops[i].waits, first.ops[i].waits) << "seed " << seed << ": " << describe(plan, i);
      }
    }
}

TEST(DeriveWaits, IsDeterministic) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    StepPlan a = random_plan(seed, {60, grid({2}), true, true}), b = a;
    finish(a);
    finish(b);
    EXPECT_EQ(plan_hash(a), plan_hash(b));
    for (std::size_t i = 0; i < a.buffers.size(); ++i) ASSERT_EQ(a.buffers[i].offset, b.buffers[i].offset);
    for (std::size_t i = 0; i < a.ops.size(); ++i) ASSERT_EQ(a.ops[i].waits, b.ops[i].waits);
    finish(a);
    EXPECT_EQ(plan_hash(a), plan_hash(b)) << "finishing twice changes nothing";
  }
}

TEST(PlanHash, SeesEveryField) {
  StepPlan plan = random_plan(1, {20, grid({2}), true, true});
  finish(plan);
  const std::uint64_t hash = plan_hash(plan);
  const auto differs = [&](auto change) {
    StepPlan other = plan;
    change(other);
    return plan_hash(other) != hash;
  };
  EXPECT_TRUE(differs([](StepPlan& p) { p.cyclic = false; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.units[0] = "z"; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.buffers[3].offset += 4096; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.buffers[3].name += "'"; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[3].flop = 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[3].pieces = 7; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[3].quantization.format = CodeFormat::e4m3; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[3].quantization.block = 64; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops.back().waits.push_back({0, false}); }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.arenas[0].budget_bytes = 7; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.lanes[1].windowed = !p.lanes[1].windowed; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.lanes[1].group = 0; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.groups[0] = 0; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.topology.axes[0].name = "tp"; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.topology.axes[0].size = 4; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.topology.coordinates[0] = 1; }));
}

}  // namespace
}  // namespace sluice
