// Activations that are parked in blocks of 8 bits: what a plan parks decides the bits of a run, and nothing else does,
// neither whether it waits on the host or on the drive nor how far ahead it moves; and runs learn what exact ones do.
#include <random>

#include "cut_runs.h"

namespace sluice::test {
namespace {

using Format = std::tuple<Dtype, ActivationDtype>;

class ParkedActivations : public CutRuns, public testing::WithParamInterface<Format> {
 protected:
  /// Embedding, two layers of two sublayers, head: six units; four micro-batches in two lots.
  RunConfig config(std::int64_t steps = 6) const {
    RunConfig c = bench_.config(2, true, std::get<0>(GetParam()), steps);
    c.activation_dtype = std::get<1>(GetParam());
    c.lots = 2;
    return c;
  }
  static Schedule parked(Saved saved, Saved core, Place boundary) {
    Schedule s;
    s.group = 2;
    s.tile_numel = 1 << 13;
    UnitChoice unit;
    unit.saved = saved;
    if (core != saved) unit.core = core;
    unit.boundary = boundary;
    s.units.assign(6, unit);
    return s;
  }
};

/// All of them are away: on the host, on the drive, or some on each, with whatever else a schedule has.
TEST_P(ParkedActivations, HaveTheSameBitsWhereverTheyWait) {
  const Outcome reference = measured(config(3), parked(Saved::host, Saved::host, Place::host));
  ASSERT_EQ(reference.losses.size(), 3u);
  {
    SCOPED_TRACE("on the drive");
    test::expect_same(measured(config(3), parked(Saved::nvme, Saved::nvme, Place::nvme)), reference);
  }
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto away = [&] { return any(2) == 0 ? Saved::host : Saved::nvme; };
    Schedule s = parked(away(), away(), Place::host);
    s.prefetch = any(4);
    s.lag = std::min(s.prefetch, any(2));
    s.activations_ahead = 1 + any(4);
    s.gradients_ahead = any(2) == 0;
    s.update_ahead = any(2) == 0;
    // What travels between passes forward does so as it is.
    s.group = 1 + any(4);
    s.hold = s.group > 1 || any(2) == 0;
    s.tile_numel = any(2) == 0 ? 4096 : 1u << 15;
    for (UnitChoice& unit : s.units) {
      unit.boundary = any(2) == 0 ? Place::host : Place::nvme;
      unit.accumulator = static_cast<Place>(any(3));
      unit.resident = any(2) == 0;
      unit.state_home = any(2) == 0 ? Place::host : Place::nvme;
      unit.update_on_device = any(2) == 0;
    }
    RunConfig c = config(3);
    c.delay_seed = seed % 3;
    c.io_backend = seed % 2 == 0 ? "io_uring" : "threads";
    test::expect_same(measured(c, s), reference);
    if (HasFailure()) return;
  }
}

/// Codes and scales are a half of bf16 and a quarter of fp32, and a scale for 128 of them.
TEST_P(ParkedActivations, TakeAsManyBytesLess) {
  RunConfig c = config();
  const Schedule there = parked(Saved::host, Saved::host, Place::host),
                 here = parked(Saved::keep, Saved::keep, Place::device);
  const auto up = [&](const Schedule& s) {
    const auto prepared = prepared_with(c, s);
    return static_cast<double>(plan_link_bytes(prepared->main()).d2h);
  };
  const double none = up(here), packed = up(there) - none;
  c.activation_dtype = ActivationDtype::exact;
  const double exact = up(there) - none, element = static_cast<double>(dtype_bytes(c.dtype));
  EXPECT_NEAR(packed / exact, (1 + 4.0 / 128) / element, 0.02);
}

/// Nothing is parked, or only what a pass forward goes on with: the exact run's bits. Else other gradients, of the same
/// losses as long as the parameters are the same.
TEST_P(ParkedActivations, ChangeGradientsAndNoLoss) {
  RunConfig exact = config(3);
  exact.activation_dtype = ActivationDtype::exact;
  const Outcome reference = run(*prepared_with(exact, parked(Saved::host, Saved::host, Place::host)));
  const Outcome packed = run(*prepared_with(config(3), parked(Saved::host, Saved::host, Place::host)));
  EXPECT_EQ(packed.loss_bits.front(), reference.loss_bits.front());
  EXPECT_NE(packed.norm_bits.front(), reference.norm_bits.front());
  EXPECT_NE(packed.state_hash, reference.state_hash);
  {
    SCOPED_TRACE("on the device");
    test::expect_same(run(*prepared_with(config(3), parked(Saved::keep, Saved::keep, Place::device))), reference);
  }
  Schedule travels = parked(Saved::recompute, Saved::recompute, Place::nvme);
  travels.hold = false;
  SCOPED_TRACE("on the way");
  test::expect_same(measured(config(3), travels), reference);
}

/// 40 steps: how far apart losses come.
TEST_P(ParkedActivations, LearnWhatExactOnesLearn) {
  RunConfig c = config(40);
  const Schedule s = parked(Saved::host, Saved::host, Place::host);
  const Outcome packed = run(*prepared_with(c, s));
  c.activation_dtype = ActivationDtype::exact;
  const Outcome exact = run(*prepared_with(c, s));
  ASSERT_EQ(packed.losses.size(), exact.losses.size());
  double farthest = 0;
  for (std::size_t i = 0; i < exact.losses.size(); ++i)
    farthest = std::max(farthest, std::abs(packed.losses[i] / exact.losses[i] - 1));
  std::cout << "losses of " << exact.losses.size() << " steps are within " << 100 * farthest << "%, the last "
            << exact.losses.back() << " and " << packed.losses.back() << "\n";
  EXPECT_LT(exact.losses.back(), exact.losses.front() - 0.5);
  EXPECT_LT(farthest, 0.005);
}

/// Ranks that share the batch, the stages of a pipeline in any order, and updates that are made again.
TEST_P(ParkedActivations, AreThoseOfOneRankOnRanksAndStages) {
  const Saved host = Saved::host;
  const Outcome one = measured(config(2), parked(host, host, Place::host));
  const auto expect_alike = [&](const char* what, int data, int stages, PipelineChoice pipeline,
                                std::vector<UnitId> cut, Saved saved, Place boundary) {
    SCOPED_TRACE(what);
    RunConfig c = config(2);
    c.stages = stages;
    c.ranks = stages * data;
    c.pipeline = pipeline;
    Schedule s = parked(saved, saved, boundary);
    s.pipeline = pipeline;
    s.cut = std::move(cut);
    s.group = 1;
    test::expect_same(run(*prepared_with(c, s)), one);
  };
  expect_alike("two ranks", 2, 1, {}, {}, Saved::nvme, Place::host);
  expect_alike("two stages", 1, 2, {}, {3}, Saved::host, Place::nvme);
  expect_alike("two stages of two ranks", 2, 2, {}, {2}, Saved::nvme, Place::nvme);
  expect_alike("interleaved", 1, 2, interleaved, {1, 3, 5}, Saved::host, Place::host);
  expect_alike("zb-h1", 1, 2, zb_h1, {3}, Saved::nvme, Place::host);
  expect_alike("zb-v", 1, 2, zb_v, {1, 3, 4}, Saved::host, Place::nvme);
}

/// Parts of sublayers and slices of sequences have statistics of their own, and inputs that some make again.
TEST_P(ParkedActivations, OfPartsAndSlicesHaveTheSameBitsWhereverTheyWait) {
  const auto run_of = [&](int tensor, int context, ContextAttention attention, Saved saved, Place boundary) {
    RunConfig c = config(2);
    c.tensor = tensor;
    c.context = context;
    c.context_attention = attention;
    c.ranks = tensor * context;
    Schedule s = parked(saved, saved, boundary);
    s.units[2].sweep = s.units[4].sweep = 1;
    return run(*prepared_with(c, s));
  };
  for (const auto& [tensor, context, attention] :
       {std::tuple(2, 1, ContextAttention::ulysses), std::tuple(1, 2, ContextAttention::ulysses),
        std::tuple(1, 2, ContextAttention::ring), std::tuple(2, 2, ContextAttention::ring)}) {
    SCOPED_TRACE(std::to_string(tensor) + " parts, " + std::to_string(context) + " slices");
    test::expect_same(run_of(tensor, context, attention, Saved::host, Place::nvme),
                      run_of(tensor, context, attention, Saved::nvme, Place::host));
  }
}

TEST_P(ParkedActivations, OfARunThatWasCutShortAreThoseOfOneThatWasNot) {
  for (const bool speculates : {false, true}) {
    SCOPED_TRACE(speculates ? "speculative" : "ahead");
    RunConfig c = config();
    c.durable = Durable::on;
    c.hash_every = 1;
    c.optimizer.clip_norm = 0.7;
    Schedule s = parked(Saved::nvme, Saved::host, Place::nvme);
    s.update_ahead = !speculates;
    const std::string whole = fresh_directory(), cut = fresh_directory();
    const Finished expected = finished(whole, attempt(c, whole, s));
    attempt(c, cut, s, 2);
    attempt(c, cut, s, 5);
    expect_same(finished(cut, attempt(c, cut, s)), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ParkedActivations,
                         testing::Values(Format{Dtype::bf16, ActivationDtype::int8},
                                         Format{Dtype::bf16, ActivationDtype::fp8},
                                         Format{Dtype::f32, ActivationDtype::fp8}),
                         [](const auto& p) {
                           return std::string(dtype_name(std::get<0>(p.param))) + "_" +
                                  activation_dtype_names[static_cast<std::size_t>(std::get<1>(p.param))];
                         });

}  // namespace
}  // namespace sluice::test
