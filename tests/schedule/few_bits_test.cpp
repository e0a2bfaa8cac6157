// What ranks of several machines give each other where it goes in few bits (ZeRO++), against the formula.
#include <gtest/gtest.h>

#include "random_schedule.h"
#include "src/schedule/build.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/rank_moves.h"

namespace sluice::test {
namespace {

constexpr RankId ranks = 8, of_machine = 4, machines = ranks / of_machine;

/// Bytes a parameter, padding included, that a rank receives from other machines in a step.
double between_machines(const Workload& w, const Schedule& s) {
  const double elsewhere = static_cast<double>(ranks - of_machine) / (ranks - 1);
  double bytes = 0, parameters = 0;
  for (const Op& op : build_ops(PlanKind::train, w, s).ops) {
    if (op.group == sharding_group) bytes += static_cast<double>(op.bytes) * elsewhere;
    if (op.group == far_group) bytes += static_cast<double>(op.bytes);
  }
  for (std::size_t u = 0; u < w.model->units.size(); ++u)
    parameters += static_cast<double>(w.full_numel(static_cast<UnitId>(u)));
  return bytes / parameters;
}

/// fp32 gradients and bf16 parameters for both passes are 8 bytes, 1 of each with codes and scales of 8 bits once, and
/// sums of a machine in 4 bits.
TEST(FewBits, EightBytesAParameterBecomeLessThanOneAndAHalf) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false, 4));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.micro_batches = 4;
  w.topology = data_parallel(ranks, 0, 0, of_machine);
  Schedule s = frugal_schedule(w);
  s.group = 4;
  s.prefetch = 0;
  // Embedding and head are read once a step.
  double once = 0, all = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto numel = static_cast<double>(w.full_numel(static_cast<UnitId>(u)));
    all += numel;
    if (u == 0 || u + 1 == model.units.size()) once += numel;
  }
  constexpr double share = static_cast<double>(ranks - of_machine) / ranks;  // of all that other machines have
  const double passes = 2 - once / all;
  EXPECT_NEAR(between_machines(w, s), share * (2 * passes + 4), 1e-12);

  w.gathers = RankGathers::int8;
  w.sums = RankSums::int4;
  for (UnitChoice& unit : s.units) unit.second_copy = true;
  const double int8 = 1 + 4.0 / static_cast<double>(gathered_blocks.block),
               int4 = 0.5 + 4.0 / static_cast<double>(reduced_blocks.block);
  const double got = between_machines(w, s);
  EXPECT_NEAR(got, share * int8 + static_cast<double>(machines - 1) / ranks * int4, 1e-12);
  EXPECT_LT(got, share * 1.5);

  s.units.assign(s.units.size(), frugal_schedule(w).units.front());
  EXPECT_NEAR(between_machines(w, s), share * int8 * passes + static_cast<double>(machines - 1) / ranks * int4, 1e-12);
}

/// What the search takes a sublayer's passes to compute is what the sublayer does, and not the packing of parameters
/// that comes first.
TEST(FewBits, PassesComputeAsLong) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false, 2));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.topology = data_parallel(ranks, 0, 0, of_machine);
  const auto chain = [&](RankGathers gathers) {
    w.gathers = gathers;
    return chains_of(w, frugal_schedule(w), HardwareProfile()).front().chain;
  };
  const Chain exact = chain(RankGathers::exact), int8 = chain(RankGathers::int8);
  ASSERT_EQ(exact.size(), int8.size());
  constexpr auto compute = static_cast<std::size_t>(Resource::compute);
  for (std::size_t u = 0; u < exact.size(); ++u) {
    EXPECT_DOUBLE_EQ(int8[u].forward[compute], exact[u].forward[compute]) << u;
    EXPECT_DOUBLE_EQ(int8[u].again[compute], exact[u].again[compute]) << u;
    EXPECT_DOUBLE_EQ(int8[u].backward[compute], exact[u].backward[compute]) << u;
  }
  EXPECT_GT(exact[1].backward[compute], 0);
}

/// Of one machine all are close: one exchange.
TEST(FewBits, OneMachineExchangesOnce) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false, 2));
  Workload w;
  w.model = &model;
  w.shape = {1, 32};
  w.topology = data_parallel(4);
  w.sums = RankSums::int4;
  std::size_t exchanges = 0;
  for (const Op& op : build_ops(PlanKind::train, w, frugal_schedule(w)).ops) {
    EXPECT_NE(op.kind, OpKind::reduce_scatter);
    exchanges += op.kind == OpKind::all_to_all ? 1 : 0;
  }
  EXPECT_EQ(exchanges, model.units.size());
}

}  // namespace
}  // namespace sluice::test
