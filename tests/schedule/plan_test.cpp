// Every schedule is a legal plan: proven for tiny models and schedules drawn at random.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "offload/plan/finish.h"
#include "offload/plan/state_table.h"
#include "offload/plan/world.h"
#include "random_schedule.h"
#include "src/schedule/build.h"
#include "src/schedule/search.h"
#include "src/train/request/prepare.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

struct DrawnCase {
  ModelSpec model;
  Workload work;
  Schedule schedule;
};

void draw_case(std::uint64_t seed, DrawnCase& c) {
  Draw draw(seed);
  c.model = build_model(tiny_config(draw.coin() ? Family::llama : Family::gpt2, draw.coin()));
  c.work.model = &c.model;
  c.work.shape = {draw.between(1, 2), 32};
  c.work.micro_batches = draw.between(1, 4);
  const RankId ranks = draw.of<RankId>({1, 1, 2, 4});
  const RankId shards = draw.of<RankId>({ranks, ranks, static_cast<RankId>((ranks + 1) / 2), 1});
  const RankId close = shards > 1 && draw.coin() ? static_cast<RankId>(shards / 2) : shards;
  c.work.topology = data_parallel(ranks, static_cast<RankId>(ranks - 1), shards, close);
  c.work.dtype = draw.coin() ? Dtype::bf16 : Dtype::f32;
  c.work.durable = draw.coin();
  c.work.saves = seed % 3 == 0;
  c.schedule = random_schedule(draw, c.work);
  c.work.documents = draw.coin();
  if (draw.coin()) c.work.micro_batches = draw.of({4, 6, 8});
  while (draw.coin() && c.work.micro_batches % (c.work.lots * 2) == 0) c.work.lots *= 2;
  if (c.work.ranks() == 1 && c.work.micro_batches == 6 && draw.coin()) c.work.lots = draw.of({3, 6});
  if (draw.coin()) c.work.reduction = Reduction::pass;
  c.work.exchanges = draw.coin();
  c.work.meets_in_host = c.work.ranks() > 1 && draw.coin();
  c.work.collects_on_device = c.work.meets_in_host && draw.coin();
  c.work.sums = draw.of({RankSums::tree, RankSums::bf16, RankSums::native, RankSums::int4});
  if (draw.coin()) {
    c.work.gathers = RankGathers::int8;
    for (UnitChoice& unit : c.schedule.units) unit.resident = false;
  }
  if (draw.coin()) c.work.gradient_dtype = Dtype::bf16;
  c.work.activation_dtype = static_cast<ActivationDtype>(draw.between(0, 2));
  if (draw.coin()) return;
  const int slices = draw.of({2, 4});
  c.model.config.window = draw.of({0, 0, 1, 9, 12});
  c.work.shape.slices = slices;
  c.work.shape.sequence = draw.of({32, 28, 12}) / slices;  // of which no piece fills its last 64 bytes, or some do
  c.work.micro_batches *= slices;
  c.schedule.group *= slices;
}

std::string text(const DrawnCase& c) {
  return c.model.config.name + " window " + std::to_string(c.model.config.window) + " micro-batches " +
         std::to_string(c.work.micro_batches) + " slices " + std::to_string(c.work.shape.slices) + " ranks " +
         std::to_string(c.work.ranks()) + " shards " + std::to_string(c.work.shards()) + " close " +
         std::to_string(c.work.close_ranks()) + " lots " + std::to_string(c.work.lots) + " reduction " +
         reduction_names[static_cast<std::size_t>(c.work.reduction)] + " reduce " +
         rank_sums_names[static_cast<std::size_t>(c.work.sums)] + " " +
         rank_gathers_names[static_cast<std::size_t>(c.work.gathers)] +
         (c.work.collects_on_device ? " on devices"
          : c.work.meets_in_host    ? " in host memory"
                                    : "") +
         (c.work.durable ? " durable " : " ") + (c.work.saves ? "saves " : "") +
         (c.work.documents ? "documents " : "") + dtype_name(c.work.dtype) +
         (c.work.gradient_dtype == Dtype::bf16 ? " gradients bf16 " : " ") + "activations " +
         activation_dtype_names[static_cast<std::size_t>(c.work.activation_dtype)] + " " + describe(c.schedule);
}

void expect_legal(const StepPlan& plan, const Workload& w, const Schedule& s) {
  SCOPED_TRACE(plan_kind_names[static_cast<std::size_t>(plan.kind)]);
  for (const Violation& v : prove(plan, w, s)) ADD_FAILURE() << v.message;
  std::vector<StepPlan> world;
  for (RankId r = 0; r < w.ranks() && w.ranks() > 1; ++r) {
    world.push_back(build_alike(plan, w, s, r));
    EXPECT_EQ(plan_signature(world.back()), plan_signature(plan)) << "ranks " << r << " and " << w.topology.rank();
    EXPECT_NE(plan_hash(world.back()) == plan_hash(plan), r != w.topology.rank());
  }
  for (const Violation& v : check_world(world)) ADD_FAILURE() << "of all ranks: " << v.message;
  const auto implied = implied_waits(plan);
  EXPECT_TRUE(implied.empty()) << implied.size() << " implied waits, first of " << describe(plan, implied.front().op)
                               << " for " << describe(plan, implied.front().wait.op);
}

using Offsets = std::map<std::string, std::uint64_t>;
/// Of what a step's plan hands to a flush.
Offsets lasting_offsets(const StepPlan& plan) {
  Offsets offsets;
  for (const Buffer& b : plan.buffers)
    if (!is_transient(b.life)) offsets[b.name] = b.offset;
  return offsets;
}
/// Of what plans of either order hand to each other, with the buffers' numbers; parameters that stay on the device are
/// loaded anew.
std::map<std::string, std::pair<BufferId, std::uint64_t>> persistent_places(const StepPlan& plan) {
  std::map<std::string, std::pair<BufferId, std::uint64_t>> places;
  for (BufferId id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& b = plan.buffers[id];
    if (b.life == Life::persistent && b.holds != Holds::resident) places[b.name] = {id, b.offset};
  }
  return places;
}

/// Worst ratio of arena to the most bytes alive at one point.
double arena_ratio(const StepPlan& plan) {
  double worst = 1;
  for (const Arena& a : plan.arenas)
    if (a.max_live_bytes > 0)
      worst = std::max(worst, static_cast<double>(a.arena_bytes) / static_cast<double>(a.max_live_bytes));
  return worst;
}

/// Every state has one home; those in host memory have a mirror where the run is durable.
void expect_table(const StepPlan& plan, const Workload& w, const Schedule& s) {
  const StateTable table(plan);
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u) {
    const UnitChoice& c = s.units[static_cast<std::size_t>(u)];
    EXPECT_EQ(table.resident(u) != no_buffer, c.resident);
    for (const StateKind kind : {StateKind::parameter, StateKind::exp_avg, StateKind::exp_avg_sq}) {
      const BufferId home = table.home(u, kind), mirror = table.mirror(u, kind);
      ASSERT_NE(home, no_buffer);
      const Buffer& b = plan.buffers[home];
      const bool on_drive = (kind == StateKind::parameter ? c.parameter_home : c.state_home) == Place::nvme;
      EXPECT_EQ(b.tier, on_drive ? Tier::nvme : Tier::host);
      EXPECT_EQ(b.unit, u);
      EXPECT_EQ(b.state, kind);
      EXPECT_EQ(mirror != no_buffer, w.durable && !on_drive);
      EXPECT_EQ(table.kept(u, kind), on_drive ? home : mirror);
    }
    EXPECT_EQ(table.home(u, StateKind::remainder) != no_buffer, w.dtype == Dtype::bf16);
    const bool on_device = s.units[static_cast<std::size_t>(u)].gradient == Place::device;
    EXPECT_EQ(table.home(u, StateKind::gradient) != no_buffer,
              on_device ? s.stores_gradient(u) : s.has_waiting_gradient(u));
  }
}

/// Each state of each unit once, as the update has left it: what a tile's save reads was last written by its update, or
/// came up from the device. Saving takes no memory.
void expect_saved(const StepPlan& plan, const Workload& w, const Schedule& s) {
  std::map<UnitId, std::uint64_t> saved, home;
  for (const Buffer& b : plan.buffers)
    if (b.holds == Holds::home && b.state != StateKind::gradient) home[b.unit] += b.bytes;
  std::map<std::pair<BufferId, std::uint64_t>, OpKind> writer;
  for (const Op& op : plan.ops) {
    for (const Access& a : op.accesses)
      if (a.mode != Mode::read) writer[{a.buffer, a.offset}] = op.kind;
    if (op.kind != OpKind::save) continue;
    for (const Access& a : op.accesses) {
      saved[op.unit] += a.bytes;
      const OpKind last = writer[{a.buffer, a.offset}];
      EXPECT_TRUE(last == OpKind::update || last == OpKind::copy) << op_names[static_cast<std::size_t>(last)];
    }
  }
  if (!w.saves) {
    EXPECT_TRUE(saved.empty());
    return;
  }
  EXPECT_EQ(saved, home);
  Workload stops = w;
  stops.saves = false;
  const StepPlan without = build_layout(PlanKind::train, stops, s);
  for (std::size_t i = 0; i < plan.arenas.size(); ++i)
    EXPECT_EQ(plan.arenas[i].max_live_bytes, without.arenas[i].max_live_bytes);
}

class RandomSchedules : public testing::TestWithParam<int> {};

TEST_P(RandomSchedules, AreLegalPlans) {
  double worst = 1;
  for (int i = 0; i < 20; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * 1000 + i);
    DrawnCase c;
    draw_case(seed, c);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text(c));
    const StepPlan train = build_plan(PlanKind::train, c.work, c.schedule);
    expect_legal(train, c.work, c.schedule);
    expect_table(train, c.work, c.schedule);
    expect_saved(train, c.work, c.schedule);
    EXPECT_EQ(plan_hash(train), plan_hash(build_plan(PlanKind::train, c.work, c.schedule)));
    worst = std::max(worst, arena_ratio(train));
    const auto places = persistent_places(train);
    const StepPlan evaluate = build_plan(PlanKind::evaluate, c.work, c.schedule);
    expect_legal(evaluate, c.work, c.schedule);
    EXPECT_EQ(persistent_places(evaluate), places);
    for (const auto& [name, offset] : lasting_offsets(evaluate)) EXPECT_EQ(lasting_offsets(train).at(name), offset);
    if (c.schedule.update_ahead || c.schedule.mixes()) {
      const StepPlan flush = build_plan(PlanKind::flush, c.work, c.schedule);
      expect_legal(flush, c.work, c.schedule);
      EXPECT_EQ(lasting_offsets(flush), lasting_offsets(train));
    }
    // What a run may change over to, and what it repairs steps with.
    if (c.schedule.flushes_all() && !c.schedule.update_ahead)
      for (const PlanKind kind : {PlanKind::train, PlanKind::flush}) {
        const Schedule ahead = c.schedule.ahead();
        const StepPlan other = build_plan(kind, c.work, ahead);
        expect_legal(other, c.work, ahead);
        EXPECT_EQ(persistent_places(other), places);
        if (c.schedule.keeps_gradients) {
          EXPECT_EQ(lasting_offsets(other), lasting_offsets(train));
        }
      }
    Workload decoding = c.work;
    decoding.inference = true;
    decoding.durable = false;
    decoding.micro_batches = 1;
    decoding.shape = {1, 16};
    decoding.kv_capacity = 64;
    decoding.topology = data_parallel(1);
    expect_legal(build_plan(PlanKind::decode, decoding, c.schedule), decoding, c.schedule);
    if (HasFailure()) return;
  }
  RecordProperty("worst_arena_ratio", std::to_string(worst));
}

TEST_P(RandomSchedules, MoveWhatTheByteLawSays) {
  for (int i = 0; i < 40; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * 1000 + i);
    DrawnCase c;
    draw_case(seed, c);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text(c));
    const LinkBytes plan = plan_link_bytes(build_layout(PlanKind::train, c.work, c.schedule));
    const LinkBytes law = byte_law(c.work, c.schedule);
    EXPECT_EQ(plan.nvme_read, law.nvme_read);
    EXPECT_EQ(plan.nvme_write, law.nvme_write);
    EXPECT_EQ(plan.h2d, law.h2d);
    EXPECT_EQ(plan.d2h, law.d2h);
    EXPECT_EQ(plan.collective, law.collective);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedules, testing::Range(0, 8));

// The figures of the law for one owned parameter: everything on the drive, bf16, global norm, vertical.
TEST(ByteLaw, OfAVerticalStepOnTheDrive) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 4;
  Schedule s = frugal_schedule(w);
  s.group = 4;
  s.hold = true;
  for (UnitChoice& c : s.units) c.boundary = Place::device;
  std::uint64_t blocks = 0, all = 0;
  for (UnitId u = 0; u < static_cast<UnitId>(model.units.size()); ++u) {
    all += w.shard_numel(u);
    if (u > 0 && u + 1 < static_cast<UnitId>(model.units.size())) blocks += w.shard_numel(u);
  }
  // Two passes over a block, of which the first is its update; a gradient of 4 bytes waits.
  LinkBytes law = byte_law(w, s);
  EXPECT_EQ(law.nvme_read, 2 * blocks + (2 + 10 + 4) * all);
  EXPECT_EQ(law.nvme_write, (12 + 4) * all);
  w.gradient_dtype = Dtype::bf16;
  law = byte_law(w, s);
  EXPECT_EQ(law.nvme_read, 2 * blocks + (2 + 10 + 2) * all);
  EXPECT_EQ(law.nvme_write, (12 + 2) * all);
  w.gradient_dtype = Dtype::f32;
  // Horizontally the blocks travel twice for each micro-batch, embedding and head once; accumulators wait thrice.
  s.group = 1;
  law = byte_law(w, s);
  EXPECT_EQ(law.nvme_read, 7 * 2 * blocks + 3 * 2 * (all - blocks) + (2 + 10 + 4) * all + 3 * 4 * all);
  EXPECT_EQ(law.nvme_write, (12 + 4) * all + 3 * 4 * all);
}

// ZeRO's stages: bytes that arrive at a rank for each parameter of a unit that a step passes twice.
TEST(ByteLaw, OfWhatRanksShare) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 4;
  constexpr RankId ranks = 4;
  /// Times ranks / (ranks - 1), over the unit's parameters and padding.
  const auto bytes = [&](RankId shards, bool resident, bool held, int group, bool ahead) {
    w.topology = data_parallel(ranks, 0, shards);
    Schedule s = frugal_schedule(w);
    s.group = group;
    s.update_ahead = ahead;
    for (UnitChoice& c : s.units) c.resident = resident, c.held = held;
    const StepPlan plan = build_layout(PlanKind::train, w, s);
    EXPECT_EQ(plan_link_bytes(plan).collective, byte_law(w, s).collective);
    std::uint64_t arrives = 0;
    constexpr UnitId unit = 1;
    for (const Op& op : plan.ops)
      if (op.unit == unit && (op.kind == OpKind::all_gather || op.kind == OpKind::reduce_scatter)) arrives += op.bytes;
    EXPECT_EQ(arrives * ranks % (w.full_numel(unit) * (ranks - 1)), 0u);
    return arrives * ranks / (w.full_numel(unit) * (ranks - 1));
  };
  for (const bool ahead : {true, false}) {
    EXPECT_EQ(bytes(1, false, false, 4, ahead), 8u) << "ZeRO-0: all-reduce";
    EXPECT_EQ(bytes(ranks, true, false, 4, ahead), 6u) << "ZeRO-1 and 2: reduced, gathered once";
    EXPECT_EQ(bytes(ranks, false, true, 4, ahead), 6u) << "held through the step";
    EXPECT_EQ(bytes(ranks, false, false, 4, ahead), 8u) << "ZeRO-3: gathered for both passes";
    EXPECT_EQ(bytes(ranks, false, false, 1, ahead), 4u + 2 * 8) << "for both passes of every micro-batch";
    EXPECT_EQ(bytes(ranks, false, true, 1, ahead), 6u);
    EXPECT_EQ(bytes(1, false, false, 1, ahead), 8u);
  }
  // Behind every lot.
  w.lots = 2;
  w.reduction = Reduction::pass;
  EXPECT_EQ(bytes(1, true, false, 2, true), 2u * 8);
  EXPECT_EQ(bytes(ranks, true, false, 2, true), 2u * 4 + 2);
  EXPECT_EQ(bytes(ranks, false, true, 1, true), 2u * 4 + 2);
  EXPECT_EQ(bytes(ranks, false, false, 2, true), 2u * (4 + 2 * 2));
}

// A wait that is taken away is missed.
TEST(Waits, EachIsNeeded) {
  std::size_t waits = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Draw draw(seed);
    const ModelSpec model = build_model(tiny_config(seed % 2 ? Family::gpt2 : Family::llama, seed % 3 == 0, 1));
    Workload w;
    w.model = &model;
    w.shape = {1, 16};
    w.micro_batches = 2;
    w.topology = data_parallel(seed % 3 == 2 ? 4 : 1, 0, seed == 2 ? 2 : 0);
    w.durable = seed % 2 == 0;
    w.saves = seed % 2 == 1 || seed == 4;
    Schedule s = random_schedule(draw, w);
    s.tile_numel = 1u << 14;
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + describe(s));
    StepPlan plan = build_plan(PlanKind::train, w, s);
    for (Op& op : plan.ops) {
      for (std::size_t i = 0; i < op.waits.size(); ++i) {
        const Wait removed = op.waits[i];
        op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(i));
        const auto id = static_cast<OpId>(&op - plan.ops.data());
        EXPECT_FALSE(check(plan, 1).empty())
            << describe(plan, id) << " need not wait for " << describe(plan, removed.op);
        op.waits.insert(op.waits.begin() + static_cast<std::ptrdiff_t>(i), removed);
        ++waits;
      }
    }
  }
  EXPECT_GT(waits, 500u);
}

struct Arrangement {
  const char* name;
  void (*change)(Schedule&);
};

void each(Schedule& s, void (*change)(UnitChoice&)) {
  for (UnitChoice& c : s.units) change(c);
}

// The schedules that people will meet: the arena is hardly larger than what is alive in it.
TEST(Arenas, AreTight) {
  const Arrangement arrangements[] = {
      {"frugal", [](Schedule&) {}},
      {"vertical",
       [](Schedule& s) {
         s.group = 4;
         s.hold = true;
         s.prefetch = s.lag = 1;
         s.tiles_in_flight = 4;
         s.tile_numel = 1u << 18;
         each(s, [](UnitChoice& c) { c.boundary = c.gradient = c.accumulator = Place::host; });
       }},
      {"travelling",
       [](Schedule& s) {
         s.group = 4;
         s.prefetch = s.lag = 1;
         s.tiles_in_flight = 2;
         each(s, [](UnitChoice& c) { c.gradient = c.accumulator = Place::host; });
       }},
      {"horizontal",
       [](Schedule& s) {
         s.prefetch = 2;
         s.lag = 1;
         s.tiles_in_flight = 4;
         s.tile_numel = 1u << 18;
         each(s, [](UnitChoice& c) {
           c.boundary = Place::device;
           c.saved = Saved::keep;
         });
       }},
      {"resident", [](Schedule& s) {
         s.group = 4;
         s.hold = true;
         s.prefetch = s.lag = 1;
         s.tile_numel = 1u << 18;
         each(s, [](UnitChoice& c) {
           c.resident = true;
           c.parameter_home = c.state_home = c.gradient = Place::host;
           c.accumulator = c.boundary = Place::device;
           c.saved = Saved::keep;
         });
       }}};
  for (const auto& [preset, limit] : {std::pair("llama-tiny", 1.035), std::pair("llama-25m", 1.02)}) {
    const auto config = preset_config(preset);
    ASSERT_TRUE(config.ok());
    const ModelSpec model = build_model(*config);
    Workload w;
    w.model = &model;
    w.shape = {1, 256};
    w.micro_batches = 8;
    for (const Arrangement& a : arrangements) {
      Schedule s = frugal_schedule(w);
      a.change(s);
      for (bool ahead : {true, false}) {
        s.update_ahead = ahead;
        const double ratio = arena_ratio(build_layout(PlanKind::train, w, s));
        EXPECT_LE(ratio, limit) << preset << " " << a.name << (ahead ? " ahead" : " backward");
      }
    }
  }
}

// What the search finds for a preset, with room, with little and with hardly any. Of the largest, whose searches take
// most of the time, only with little; SLUICE_EXHAUSTIVE=1 has all.
TEST(Arenas, OfFoundSchedulesAreTight) {
  ScheduleWish wish;
  wish.update = UpdateOrder::ahead;
  for (const char* preset : {"llama-tiny", "llama-25m", "llama-1b", "gpt2-124m"}) {
    const auto config = preset_config(preset);
    ASSERT_TRUE(config.ok());
    const ModelSpec model = build_model(*config);
    Workload w;
    w.model = &model;
    w.shape = {1, 512};
    w.micro_batches = 2;
    const TierBytes least = FrugalFamily(w, wish).corner();
    const bool few = preset == std::string("llama-1b") && !test::is_exhaustive();
    for (const double room : few ? std::vector{1.5} : std::vector{1.0, 1.5, 4.0}) {
      const auto budget = [room](std::uint64_t bytes) {
        return static_cast<std::uint64_t>(room * static_cast<double>(bytes));
      };
      w.budget_bytes = {budget(least.device), std::max(budget(least.host), std::uint64_t{64} << 20), 0};
      const SearchResult found = search_schedule(w, wish, HardwareProfile{});
      ASSERT_TRUE(found.fits) << preset << " " << room;
      for (const Arena& a : build_layout(PlanKind::train, w, found.schedule).arenas) {
        EXPECT_LE(static_cast<double>(a.arena_bytes), 1.035 * static_cast<double>(a.max_live_bytes))
            << preset << " with " << room << " of the smallest, tier " << static_cast<int>(a.tier) << ": "
            << describe(found.schedule);
      }
    }
  }
}

TEST(Updates, OfAShareOfTheUnitsAreSpreadEvenly) {
  Schedule s;
  s.units.resize(8);
  const auto on_device = [&] {
    std::string text;
    for (const UnitChoice& c : s.units) text += c.update_on_device ? 'd' : 'c';
    return text;
  };
  EXPECT_FALSE(spread_updates(s, 0));
  EXPECT_TRUE(spread_updates(s, 0.25));
  EXPECT_EQ(on_device(), "cccdcccd");
  EXPECT_TRUE(spread_updates(s, 0.5));
  EXPECT_EQ(on_device(), "cdcdcdcd");
  EXPECT_TRUE(spread_updates(s, 1));
  EXPECT_EQ(on_device(), "dddddddd");
  EXPECT_FALSE(spread_updates(s, 1));
}

TEST(Updates, AreWhereTheUserWants) {
  const ModelSpec model = build_model(tiny_config(Family::llama, true));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 2;
  for (const std::optional<bool> wished : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    ScheduleWish wish;
    wish.update_on_device = wished;
    const SearchResult found = search_schedule(w, wish, HardwareProfile{});
    ASSERT_TRUE(found.fits);
    for (const UnitChoice& c : found.schedule.units) EXPECT_EQ(c.update_on_device, wished.value_or(false));
  }
}

TEST(Updates, GoToADeviceThatIsApartWhereTheCpuIsSlow) {
  const ModelSpec model = build_model(tiny_config(Family::llama, true));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 2;
  HardwareProfile hw;
  hw.adamw_parameters_per_second = 1e7;
  const auto on_device = [&] {
    const SearchResult found = search_schedule(w, {}, hw);
    EXPECT_TRUE(found.fits);
    return std::ranges::count(found.schedule.units, true, &UnitChoice::update_on_device);
  };
  EXPECT_EQ(on_device(), 0) << "the CPU is its own device";
  hw.device.emplace().host_adamw_parameters_per_second = 1e7;
  EXPECT_GT(on_device(), 0);
}

/// Bytes on the device that an op works on.
std::uint64_t device_operands(const StepPlan& plan, const Op& op) {
  std::set<BufferId> buffers;
  for (const Access& a : op.accesses)
    if (plan.buffers[a.buffer].tier == Tier::device) buffers.insert(a.buffer);
  std::uint64_t bytes = 0;
  for (const BufferId b : buffers) bytes += footprint_bytes(plan.buffers[b]);
  return bytes;
}

// A device that holds one op's operands and one sublayer that is fetched meanwhile is nearly enough.
TEST(Arenas, SmallestDeviceBudgetIsAboutOneOp) {
  for (const std::string& preset : preset_names()) {
    const auto config = preset_config(preset);
    ASSERT_TRUE(config.ok());
    const ModelSpec model = build_model(*config);
    Workload w;
    w.model = &model;
    w.shape = {1, 512};
    w.micro_batches = 2;
    const Schedule frugal = frugal_schedule(w);
    std::uint64_t largest_op = 0, largest_unit = 0;
    const StepPlan plan = build_ops(PlanKind::train, w, frugal);
    for (const Op& op : plan.ops) largest_op = std::max(largest_op, device_operands(plan, op));
    for (UnitId u = 0; u < static_cast<UnitId>(model.units.size()); ++u)
      largest_unit = std::max(largest_unit, w.full_numel(u) * dtype_bytes(w.dtype));
    const std::uint64_t smallest = run_needs(w, frugal).device;
    EXPECT_LE(static_cast<double>(smallest), 1.25 * static_cast<double>(largest_op + largest_unit)) << preset;
    EXPECT_GE(smallest, largest_op) << preset;
  }
}

}  // namespace
}  // namespace sluice::test
