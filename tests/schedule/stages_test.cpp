// A model on the stages of a pipeline: every schedule is a legal plan for every stage, proven for tiny models and
// schedules drawn at random, and no stage has what another one has.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "offload/plan/simulate.h"
#include "offload/plan/state_table.h"
#include "offload/plan/world.h"
#include "random_schedule.h"
#include "src/schedule/build.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/needs.h"
#include "src/schedule/passes.h"
#include "src/train/request/prepare.h"

namespace sluice::test {
namespace {

struct StagesCase {
  ModelSpec model;
  std::optional<SplitModel> split;
  Workload work;
  Schedule schedule;
  std::string text;
};

std::vector<UnitId> random_cut(Draw& draw, std::size_t units, std::size_t places) {
  std::set<UnitId> firsts;
  while (firsts.size() + 1 < places) firsts.insert(draw.between(1, static_cast<int>(units) - 1));
  return {firsts.begin(), firsts.end()};
}

void draw_case(std::uint64_t seed, StagesCase& c) {
  Draw draw(seed);
  c.model = build_model(tiny_config(draw.coin() ? Family::llama : Family::gpt2, draw.coin(), draw.between(1, 4)));
  c.work.model = &c.model;
  const RankId context = draw.of<RankId>({1, 1, 2, 4});
  c.work.shape = {draw.between(1, 2), 32 / context, context};
  c.work.micro_batches = draw.of({1, 2, 3, 4, 6, 8});
  const RankId stages = draw.of<RankId>({2, 2, 3}), data = draw.of<RankId>({1, 1, 2, 4});
  const RankId shards = draw.of<RankId>({0, data, 1});
  const RankId tensor = data < 4 ? draw.of<RankId>({1, 1, 2, static_cast<RankId>(context == 1 ? 4 : 2)}) : 1;
  c.work.topology = topology_of({stages, data, shards, 0, tensor, key_value_copies(c.model.config, tensor), context});
  if (tensor > 1) {
    ASSERT_TRUE(check_split(c.model.config, tensor).ok());
    c.work.split = &c.split.emplace(c.model, tensor);
    c.work.model = &c.split->part();
  }
  if (context > 1 && draw.coin()) {
    c.work.shape.ring = true;
  } else if (!check_context(*c.work.model, context).ok()) {
    c.work.shape = {c.work.shape.batch, 32};
    c.work.topology = topology_of({stages, data, shards, 0, tensor, key_value_copies(c.model.config, tensor)});
  }
  // Statistics of attention do not fill their last 64 bytes.
  if (tensor == 1 && draw.coin()) c.work.shape.sequence = 24 / c.work.shape.context;
  c.work.dtype = draw.coin() ? Dtype::bf16 : Dtype::f32;
  c.work.durable = draw.coin();
  c.work.saves = seed % 3 == 1;
  c.work.documents = draw.coin();
  while (draw.coin() && c.work.micro_batches % (c.work.lots * 2) == 0) c.work.lots *= 2;
  if (draw.coin()) c.work.reduction = Reduction::pass;
  c.work.exchanges = draw.coin();
  if (draw.coin()) c.work.sums = RankSums::int4;
  if (draw.coin()) c.work.gathers = RankGathers::int8;
  c.work.meets_in_host = draw.coin();
  c.work.collects_on_device = c.work.meets_in_host && draw.coin();
  c.schedule = random_schedule(draw, c.work);
  if (c.work.shape.context == 1 && draw.coin()) {
    c.work.shape.slices = draw.of({2, 4});
    c.work.shape.sequence /= c.work.shape.slices;
    c.work.micro_batches *= c.work.slices();
    c.schedule.group *= c.work.slices();
  }
  if (c.work.gathers == RankGathers::int8)
    for (UnitChoice& unit : c.schedule.units) unit.resident = false;
  c.schedule.pipeline.order = draw.of({PipelineOrder::gpipe, PipelineOrder::one_forward_one_backward,
                                       PipelineOrder::interleaved, PipelineOrder::zb_h1, PipelineOrder::zb_v});
  const bool is_cut = tensor > 1 || c.work.shape.cuts_sequences();
  if (is_cut && splits_backward(c.schedule.pipeline.order)) c.schedule.pipeline = {};
  const std::size_t units = c.model.units.size();
  if (c.schedule.pipeline.order == PipelineOrder::interleaved || c.schedule.pipeline.order == PipelineOrder::zb_v) {
    c.schedule.pipeline.chunks = 2;
    const auto groups = micro_batch_groups(c.work, c.schedule, PlanKind::train).size();
    if (!check_pipeline(pipeline_of(c.work, c.schedule, static_cast<int>(groups))).ok() || 2u * stages > units)
      c.schedule.pipeline = {};
  }
  c.schedule.cut = random_cut(draw, units, stages * static_cast<std::size_t>(c.schedule.pipeline.chunks));
  c.work.activation_dtype = static_cast<ActivationDtype>(draw.between(0, 2));
  c.text = "seed " + std::to_string(seed) + ": " + c.model.config.name + " micro-batches " +
           std::to_string(c.work.micro_batches) + " stages " + std::to_string(stages) + " of " + std::to_string(data) +
           " ranks x " + std::to_string(tensor) + " x " + std::to_string(c.work.shape.context) +
           (c.work.shape.ring ? " slices in a ring, " : " slices, ") + std::to_string(c.work.shape.slices) +
           " one after the other, " + rank_sums_names[static_cast<std::size_t>(c.work.sums)] + " " +
           rank_gathers_names[static_cast<std::size_t>(c.work.gathers)] + " shards " + std::to_string(shards) +
           " lots " + std::to_string(c.work.lots) + " " +
           pipeline_order_names[static_cast<std::size_t>(c.schedule.pipeline.order)] + " cut at";
  for (const UnitId u : c.schedule.cut) c.text += " " + std::to_string(u);
  c.text += (c.work.collects_on_device ? " on devices"
             : c.work.meets_in_host    ? " in host memory"
                                       : "") +
            std::string(c.work.durable ? " durable " : " ") + (c.work.documents ? "documents " : "") + "activations " +
            activation_dtype_names[static_cast<std::size_t>(c.work.activation_dtype)] + " " + describe(c.schedule);
}

std::vector<const StepPlan*> pointers(const std::vector<StepPlan>& plans) {
  std::vector<const StepPlan*> list;
  for (const StepPlan& p : plans) list.push_back(&p);
  return list;
}

/// By the small world, and by all ranks.
void expect_legal(const std::vector<StepPlan>& stages, const StagesCase& c) {
  SCOPED_TRACE(plan_kind_names[static_cast<std::size_t>(stages.front().kind)]);
  for (const Violation& v : prove(pointers(stages), c.work, c.schedule)) ADD_FAILURE() << v.message;
  std::vector<StepPlan> world;
  for (RankId r = 0; r < c.work.ranks(); ++r)
    world.push_back(build_alike(stages[static_cast<std::size_t>(r / c.work.ranks_of_stage())], c.work, c.schedule, r));
  for (const Violation& v : check_world(world)) ADD_FAILURE() << "of all ranks: " << v.message;
}

/// The same in all ranks of a stage, so that they still run alike: a wait for what comes later, a write that waits for
/// nothing, two collectives of a group that change places, one that is gone, or messages in another order.
void break_alike(StepPlan& plan, std::uint64_t seed) {
  Draw draw(seed);
  const auto last = static_cast<int>(plan.ops.size()) - 1;
  const auto two_alike = [&]() -> std::pair<OpId, OpId> {
    for (int tries = 0; tries < 200; ++tries) {
      const auto a = static_cast<OpId>(draw.between(0, last)), b = static_cast<OpId>(draw.between(0, last));
      const Op &x = plan.ops[a], &y = plan.ops[b];
      if (a < b && x.collective >= 0 && y.collective >= 0 && x.lane == y.lane && x.group == y.group && x.peer == y.peer)
        return {a, b};
    }
    return {0, 0};
  };
  switch (draw.between(0, 3)) {
    case 0: {
      const int first = draw.between(0, last - 1);
      plan.ops[static_cast<std::size_t>(first)].waits.push_back({static_cast<OpId>(draw.between(first + 1, last))});
      return;
    }
    case 1:
      for (Op& op : plan.ops)
        if (op.kind == OpKind::write && draw.coin()) op.waits.clear();
      return;
    case 2: {
      const auto [a, b] = two_alike();
      std::swap(plan.ops[a], plan.ops[b]);
      std::swap(plan.ops[a].collective, plan.ops[b].collective);
      return;
    }
    default: {
      const OpId gone = two_alike().second;
      if (gone == 0) return;
      Op& one = plan.ops[gone];
      for (Op& op : plan.ops)
        if (op.group == one.group && op.peer == one.peer && is_message(op.kind) == is_message(one.kind) &&
            (!is_message(op.kind) || op.kind == one.kind) && op.collective > one.collective)
          --op.collective;
      one.kind = OpKind::copy;
      one.group = one.collective = one.peer = -1;
    }
  }
}

bool makes_weight_gradients(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_again || kind == OpKind::backward_weight ||
         kind == OpKind::forward_backward || kind == OpKind::part_backward || kind == OpKind::part_gradient ||
         kind == OpKind::qkv_backward;
}

class RandomStages : public testing::TestWithParam<int> {};

TEST_P(RandomStages, AreLegalPlans) {
  for (int i = 0; i < 12; ++i) {
    StagesCase c;
    draw_case(static_cast<std::uint64_t>(GetParam() * 1000 + i), c);
    SCOPED_TRACE(c.text);
    ASSERT_TRUE(check_stages(c.work, c.schedule).ok());
    const std::vector<StepPlan> train = build_stages(PlanKind::train, c.work, c.schedule);
    expect_legal(train, c);
    expect_legal(build_stages(PlanKind::evaluate, c.work, c.schedule), c);
    if (c.schedule.update_ahead) expect_legal(build_stages(PlanKind::flush, c.work, c.schedule), c);
    if (HasFailure()) return;
  }
}

/// What is wrong with a stage is found by one rank of each stage as by all ranks.
TEST_P(RandomStages, AreProvenByOneRankOfEach) {
  int refused = 0, broken = 0;
  for (int i = 0; i < 12; ++i) {
    StagesCase c;
    draw_case(static_cast<std::uint64_t>(GetParam() * 1000 + 500 + i), c);
    const std::vector<StepPlan> stages = build_stages(PlanKind::train, c.work, c.schedule);
    std::vector<StepPlan> all;
    for (RankId r = 0; r < c.work.ranks(); ++r)
      all.push_back(build_alike(stages[static_cast<std::size_t>(r / c.work.ranks_of_stage())], c.work, c.schedule, r));
    for (int way = 0; way < 6; ++way, ++broken) {
      const auto seed = static_cast<std::uint64_t>(GetParam() * 10000 + i * 10 + way);
      SCOPED_TRACE(c.text + " broken by " + std::to_string(seed));
      const auto stage = static_cast<RankId>(seed % c.work.stages());
      std::vector<StepPlan> one = stages, world = all;
      break_alike(one[stage], seed);
      for (StepPlan& plan : world)
        if (plan.topology.position(pipeline_axes) == stage) break_alike(plan, seed);
      const auto kinds = [](const std::vector<Violation>& found) {
        std::set<Violation::Kind> all_kinds;
        for (const Violation& v : found) all_kinds.insert(v.kind);
        return all_kinds;
      };
      const auto found = kinds(check_world(one, 100000));
      ASSERT_EQ(found, kinds(check_world(world, 100000)));
      refused += !found.empty();
    }
  }
  EXPECT_GT(refused, broken / 4);
  EXPECT_LT(refused, broken);
}

TEST_P(RandomStages, MoveWhatTheByteLawSays) {
  for (int i = 0; i < 30; ++i) {
    StagesCase c;
    draw_case(static_cast<std::uint64_t>(GetParam() * 1000 + i), c);
    SCOPED_TRACE(c.text);
    LinkBytes all;
    for (RankId s = 0; s < c.work.stages(); ++s) {
      SCOPED_TRACE("stage " + std::to_string(s));
      const Workload stage = at_stage(c.work, s);
      const LinkBytes plan = plan_link_bytes(build_layout(PlanKind::train, stage, c.schedule));
      const LinkBytes law = byte_law(stage, c.schedule);
      EXPECT_EQ(plan.nvme_read, law.nvme_read);
      EXPECT_EQ(plan.nvme_write, law.nvme_write);
      EXPECT_EQ(plan.h2d, law.h2d);
      EXPECT_EQ(plan.d2h, law.d2h);
      EXPECT_EQ(plan.collective, law.collective);
      EXPECT_EQ(plan.message, law.message);
      all += law * c.work.ranks_of_stage();
    }
    EXPECT_EQ(all, byte_law_of_all(c.work, c.schedule));
    if (HasFailure()) return;
  }
}

/// Every unit's states are at one stage, and every micro-batch passes each unit once a direction, or forward again.
TEST_P(RandomStages, ShareTheModel) {
  for (int i = 0; i < 12; ++i) {
    StagesCase c;
    draw_case(static_cast<std::uint64_t>(GetParam() * 1000 + i), c);
    SCOPED_TRACE(c.text);
    const Stages stages(c.work, c.schedule);
    const auto units = static_cast<UnitId>(c.model.units.size());
    std::vector<StateTable> tables;
    std::vector<int> forward(c.model.units.size()), backward(forward);
    for (RankId s = 0; s < c.work.stages(); ++s) {
      const StepPlan plan = build_layout(PlanKind::train, at_stage(c.work, s), c.schedule);
      tables.emplace_back(plan);
      for (const Op& op : plan.ops) {
        if (op.kind == OpKind::forward || op.kind == OpKind::part_forward || op.kind == OpKind::forward_backward ||
            op.kind == OpKind::out || (op.kind == OpKind::part_gradient && op.chunk == 0))
          ++forward[static_cast<std::size_t>(op.unit)];
        if (makes_weight_gradients(op.kind) && op.chunk <= 0) ++backward[static_cast<std::size_t>(op.unit)];
      }
    }
    const bool again = std::ranges::any_of(c.schedule.units, [](const UnitChoice& unit) { return unit.sweep > 0; });
    for (UnitId u = 0; u < units; ++u) {
      if (again)
        EXPECT_GE(forward[static_cast<std::size_t>(u)], c.work.micro_batches);
      else
        EXPECT_EQ(forward[static_cast<std::size_t>(u)], c.work.micro_batches);
      EXPECT_EQ(backward[static_cast<std::size_t>(u)], c.work.micro_batches);
      for (RankId s = 0; s < c.work.stages(); ++s)
        EXPECT_EQ(tables[s].home(u, StateKind::parameter) != no_buffer, stages.stage_of(u) == s);
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomStages, testing::Range(0, 6));

/// Gradients of a unit add up in the order of micro-batches, whatever the order of the stages' passes.
TEST(StagesOfAModel, KeepTheOrderOfSums) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false, 4));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 16;
  w.topology = topology_of({2, 1});
  for (const PipelineChoice choice :
       {PipelineChoice{PipelineOrder::gpipe, 1}, PipelineChoice{PipelineOrder::one_forward_one_backward, 1},
        PipelineChoice{PipelineOrder::interleaved, 2}, PipelineChoice{PipelineOrder::zb_h1, 1},
        PipelineChoice{PipelineOrder::zb_v, 2}})
    for (const int group : {1, 2, 4}) {
      Schedule s = frugal_schedule(w, choice);
      s.group = group;
      for (RankId stage = 0; stage < 2; ++stage) {
        std::vector<int> next(model.units.size());
        for (const Op& op : build_ops(PlanKind::train, at_stage(w, stage), s).ops) {
          if (!makes_weight_gradients(op.kind)) continue;
          EXPECT_EQ(op.micro_batch, next[static_cast<std::size_t>(op.unit)]++);
        }
      }
    }
}

/// A tied matrix that is sent lies in one rank's part of the unit as a whole, and the others' wait for it.
TEST(StagesOfAModel, RunAlikeWhereverATiedMatrixLies) {
  ModelConfig config = tiny_config(Family::gpt2, true, 2);
  for (const std::int64_t positions : {32, 4096}) {
    config.max_positions = positions;
    const ModelSpec model = build_model(config);
    Workload w;
    w.model = &model;
    w.shape = {1, 32};
    w.micro_batches = 4;
    w.topology = topology_of({2, 2});
    for (const bool meets_in_host : {false, true}) {
      w.meets_in_host = meets_in_host;
      const Schedule s = frugal_schedule(w);
      const std::vector<StepPlan> plans = build_stages(PlanKind::train, w, s);
      for (const Violation& v : prove(pointers(plans), w, s)) ADD_FAILURE() << v.message;
    }
  }
}

TEST(StagesOfAModel, AreCutByWork) {
  ModelConfig config = tiny_config(Family::llama, false, 8);
  const ModelSpec model = build_model(config);
  Workload w;
  w.model = &model;
  w.shape = {2, 64};
  const auto flop = [&](UnitId from, UnitId end) {
    double sum = 0;
    for (UnitId u = from; u < end; ++u) {
      const SublayerCost cost =
          sublayer_cost(model, model.units[static_cast<std::size_t>(u)], w.shape, w.dtype, *w.kernels);
      sum += cost.forward_flop + cost.backward_flop;
    }
    return sum;
  };
  const auto units = static_cast<UnitId>(model.units.size());
  double largest = 0;
  for (UnitId u = 0; u < units; ++u) largest = std::max(largest, flop(u, u + 1));
  for (const int places : {1, 2, 3, 4, 8, 18}) {
    std::vector<UnitId> ends = cut_evenly(w, places);
    ASSERT_EQ(ends.size() + 1, static_cast<std::size_t>(places));
    ends.push_back(units);
    UnitId from = 0;
    for (const UnitId end : ends) {
      EXPECT_LT(from, end);
      EXPECT_LE(flop(from, end), flop(0, units) / places + largest)
          << places << " places, units " << from << " to " << end;
      from = end;
    }
  }
}

/// What each stage holds: with 1F1B activations of as many groups as there are stages to come, with GPipe of all.
TEST(StagesOfAModel, HoldActivationsAsTheirOrderSays) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false, 6));
  Workload w;
  w.model = &model;
  w.shape = {1, 64};
  w.micro_batches = 12;
  constexpr RankId stages = 3;
  w.topology = topology_of({stages, 1});
  const auto device_bytes = [&](PipelineOrder order, int micro_batches) {
    w.micro_batches = micro_batches;
    Schedule s = frugal_schedule(w, {order, 1});
    s.prefetch = s.lag = 1;
    for (UnitChoice& c : s.units) {
      c.saved = Saved::keep;
      c.boundary = c.accumulator = Place::device;
    }
    return stage_needs(w, s);
  };
  const auto more = [&](PipelineOrder order, RankId stage) {
    return static_cast<double>(device_bytes(order, 12)[stage].device) -
           static_cast<double>(device_bytes(order, 6)[stage].device);
  };
  const double saved = more(PipelineOrder::gpipe, 1);
  EXPECT_GT(saved, 0);
  // Tokens of a micro-batch are little beside what it saves.
  for (RankId stage = 0; stage < stages; ++stage)
    EXPECT_LT(more(PipelineOrder::one_forward_one_backward, stage), 0.05 * saved) << stage;
}

}  // namespace
}  // namespace sluice::test
