// Updates that are made before the norm is known: the bits of those that wait for it, whatever clips, however often,
// and wherever the states lie.
#include <algorithm>

#include "src/train/request/repair.h"
#include "tests/equivalence/cut_runs.h"

namespace sluice::test {
namespace {

class Speculation : public CutRuns {
 protected:
  struct Made {
    Finished run;
    Attempt attempt;
    std::vector<std::int64_t> repaired;  ///< steps that clipped where that was not expected
    std::vector<double> loaded;          ///< bytes that those have copied to the device
  };
  Made made(const RunConfig& c, const Schedule& s) {
    Made m;
    const std::string path = fresh_directory();
    m.attempt = attempt(c, path, s);
    m.run = finished(path, m.attempt);
    std::ifstream in(path + ".jsonl");
    for (std::string line; std::getline(in, line);)
      if (const json j = json::parse(line); j.contains("repaired")) {
        m.repaired.push_back(j["step"].get<std::int64_t>());
        m.loaded.push_back(j["h2d_bytes"].get<double>());
      }
    EXPECT_EQ(m.attempt.result.repaired, std::ssize(m.repaired));
    return m;
  }

  /// Updates in both passes, or in the backward pass alone.
  static void mix(Schedule& s, bool late) {
    for (std::size_t u = 0; u < s.units.size(); ++u) s.units[u].late = late && u % 3 != 1;
  }

  using CutRuns::schedule;
  using Resume::schedule;
  static constexpr float never = 100, always = 1e-3f;
  std::vector<std::int64_t> clipped(const Finished& f, float limit) const {
    std::vector<std::int64_t> steps;
    for (const json& line : f.lines)
      if (!line["grad_norm"].is_null() && line["grad_norm"].get<double>() > limit)
        steps.push_back(line["step"].get<std::int64_t>());
    return steps;
  }
  /// A norm that some steps exceed and others do not, whose runs are those that they would be without the others.
  float between(const RunConfig& c, const Schedule& s) {
    RunConfig free = c;
    free.optimizer.clip_norm = never;
    std::vector<float> norms;
    for (const json& line : made(free, s).run.lines)
      if (!line["grad_norm"].is_null()) norms.push_back(line["grad_norm"].get<float>());
    std::ranges::sort(norms);
    return norms[norms.size() / 2];
  }
};

/// Where the states lie, and on how many ranks.
class SpeculationOnTiers : public Speculation, public testing::WithParamInterface<std::tuple<Place, int>> {};

TEST_P(SpeculationOnTiers, ChangesNoBit) {
  const auto [home, ranks] = GetParam();
  const bool on_device = (home == Place::nvme) == (ranks == 2);
  RunConfig c = config(true);
  c.ranks = ranks;
  if (on_device) c.gradient_dtype = Dtype::bf16;
  Schedule waiting = schedule(true, home);
  waiting.units[1].resident = true;
  waiting.units[1].update_on_device = waiting.units[2].update_on_device = on_device;
  waiting.units[2].gradient = waiting.units[3].gradient = Place::device;
  Schedule s = waiting;
  s.update_ahead = false;
  const float some = between(c, waiting);
  for (const float limit : {never, some, always})
    for (const bool poisoned : {false, true}) {
      SCOPED_TRACE(std::string(place_names[static_cast<std::size_t>(home)]) + " " + std::to_string(ranks) +
                   (on_device ? " updated on the device" : "") + " clip " + std::to_string(limit) +
                   (poisoned ? " poisoned" : ""));
      c.optimizer.clip_norm = limit;
      c.poison_steps = poisoned ? std::vector<std::int64_t>{2, 5} : std::vector<std::int64_t>{};
      c.hash_every = 1;
      c.eval_every = poisoned ? 1 : 0;
      const Made expected = made(c, waiting);
      const std::vector<std::int64_t> clips = clipped(expected.run, limit);
      EXPECT_EQ(clips.empty(), limit == never);
      if (limit == always) {
        EXPECT_EQ(clips.size(), poisoned ? 4u : 6u);
      }
      if (limit == some && !poisoned) {
        EXPECT_LT(clips.size(), 6u);
      }
      s.both_orders = false;
      for (const auto& [keeps, late] : {std::pair(false, false), std::pair(true, false), std::pair(poisoned, true)}) {
        s.keeps_gradients = keeps;
        mix(s, late);
        const Made alone = made(c, s);
        expect_same(alone.run, expected.run);
        EXPECT_EQ(alone.repaired, clips);
        EXPECT_EQ(alone.attempt.notes.find("from gradients that were kept") != std::string::npos,
                  keeps && !clips.empty())
            << alone.attempt.notes;
      }
      // Steps overlap where nothing stops them.
      c.hash_every = c.eval_every = 0;
      c.delay_seed = 3;
      for (const auto& [both, keeps, late] :
           {std::tuple(false, false, false), std::tuple(false, true, false), std::tuple(true, true, false),
            std::tuple(false, false, true), std::tuple(false, true, true), std::tuple(true, false, true)}) {
        s.both_orders = both;
        s.keeps_gradients = keeps;
        mix(s, late);
        const Made overlapped = made(c, s);
        EXPECT_EQ(overlapped.run.state_hash, expected.run.state_hash);
        EXPECT_EQ(overlapped.run.eval_loss, expected.run.eval_loss);
        if (!both) {
          EXPECT_EQ(overlapped.repaired, clips);
        }
        EXPECT_LE(overlapped.repaired.size(), clips.size());
      }
      c.delay_seed = 0;
    }
}

INSTANTIATE_TEST_SUITE_P(Runs, SpeculationOnTiers,
                         testing::Combine(testing::Values(Place::nvme, Place::host), testing::Values(1, 2)),
                         [](const auto& p) {
                           return std::string(place_names[static_cast<std::size_t>(std::get<0>(p.param))]) +
                                  (std::get<1>(p.param) > 1 ? "_ranks" : "");
                         });

TEST_F(Speculation, ChangesNoBitAmongStagesAndPartsOfARun) {
  RunConfig c = config(true);
  c.model = bench_.model(2, true);
  c.batch = 8;
  c.lots = 2;
  const Made expected = made(c, CutRuns::schedule(c, {}, 8, {}, true));
  const std::vector<std::int64_t> clips = clipped(expected.run, c.optimizer.clip_norm);
  ASSERT_FALSE(clips.empty());
  for (const auto& [stages, data] : {std::pair(2, 1), std::pair(2, 2), std::pair(3, 1)})
    for (const auto& [both, keeps] : {std::pair(false, false), std::pair(false, true), std::pair(true, true)}) {
      SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(data) + " ranks each" +
                   (both ? ", both" : "") + (keeps ? ", gradients are kept" : ""));
      RunConfig cut = c;
      cut.stages = stages;
      cut.ranks = stages * data;
      Schedule s =
          CutRuns::schedule(cut, stages == 2 ? std::vector<UnitId>{3} : std::vector<UnitId>{2, 5}, 1, {}, false);
      s.both_orders = both;
      s.keeps_gradients = keeps;
      expect_same(made(cut, s).run, expected.run);
    }
}

/// The first step waits for its norm, and it clips: so do the next ones.
TEST_F(Speculation, IsGivenUpWhereStepsClipOften) {
  RunConfig c = config(true);
  c.steps = 12;
  c.hash_every = 0;
  c.optimizer.clip_norm = always;
  Schedule s = schedule(false, Place::nvme);
  const Made alone = made(c, s);
  EXPECT_EQ(alone.repaired.size(), 12u);
  s.both_orders = true;
  const Made both = made(c, s);
  EXPECT_EQ(both.run.state_hash, alone.run.state_hash);
  EXPECT_TRUE(both.repaired.empty());
  // Another process knows what the last steps were.
  c.steps = 6;
  const std::string path = fresh_directory(), whole = fresh_directory();
  const Finished expected = finished(whole, attempt(c, whole, s));
  ASSERT_FALSE(attempt(c, path, s, 3).error);
  const Attempt second = attempt(c, path, s);
  EXPECT_EQ(second.result.repaired, 0);
  expect_same(finished(path, second), expected);
}

/// With updates in both passes a run's first step leaves the states of late units where they are, and the others write
/// what the plan says.
TEST_F(Speculation, InBothPassesTheFirstStepHasNoLateUpdate) {
  RunConfig c = config(true);
  c.hash_every = 0;
  c.optimizer.clip_norm = never;
  Schedule s = schedule(false, Place::nvme);
  mix(s, true);
  const std::string path = fresh_directory();
  RunConfig planned = c;
  planned.run = path;
  const auto prepared = prepare_with(planned, Purpose::train, s);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  std::uint64_t of_late = 0;
  for (const Op& op : (*prepared)->main().ops)
    if (op.kind == OpKind::write && op.bytes > 0 && (*prepared)->main().buffers[op.accesses.back().buffer].behind)
      of_late += op.bytes;
  EXPECT_GT(of_late, 0u);
  const std::uint64_t all = plan_link_bytes((*prepared)->main()).nvme_write;
  ASSERT_FALSE(attempt(c, path, s).error);
  std::ifstream in(path + ".jsonl");
  std::vector<std::uint64_t> written;
  for (std::string line; std::getline(in, line);) written.push_back(json::parse(line)["nvme_write_bytes"]);
  ASSERT_EQ(written.size(), static_cast<std::size_t>(c.steps));
  EXPECT_EQ(written.front(), all - of_late);
  for (std::size_t i = 1; i < written.size(); ++i) EXPECT_EQ(written[i], all) << "step " << i + 1;
}

/// What a step is repaired from is as much as its updates read, and no second pass over the model.
TEST_F(Speculation, RepairsFromGradientsMoveUpdatesAlone) {
  RunConfig c = config(true);
  c.optimizer.clip_norm = always;
  Schedule s = schedule(false, Place::nvme);
  const Made again = made(c, s);
  s.keeps_gradients = true;
  const Made kept = made(c, s);
  ASSERT_EQ(again.repaired.size(), static_cast<std::size_t>(c.steps));
  ASSERT_EQ(kept.repaired, again.repaired);
  // Parameters go down once and not twice.
  for (std::size_t i = 0; i < kept.loaded.size(); ++i) EXPECT_LT(kept.loaded[i], 0.7 * again.loaded[i]) << i;
}

/// Of a run that clips rarely all steps but the first are speculative, and the second, which overlaps it.
TEST_F(Speculation, BeginsWhereAStepHasNotClipped) {
  RunConfig c = config(true);
  c.hash_every = 0;
  const Schedule waiting = schedule(true, Place::host);
  c.optimizer.clip_norm = never;
  Schedule s = schedule(false, Place::host);
  s.both_orders = true;
  const Made rarely = made(c, s);
  EXPECT_TRUE(rarely.repaired.empty());
#if !defined(__SANITIZE_THREAD__)
  // There computing takes many times as long, so that nothing is predicted to be gained.
  EXPECT_NE(rarely.attempt.notes.find("0 of the last 2 steps have clipped: from step 3 on updates are made before"),
            std::string::npos)
      << rarely.attempt.notes;
#endif
  EXPECT_EQ(rarely.run.state_hash, made(c, waiting).run.state_hash);
}

/// Gradients that wait have memory which parameters have in other steps.
TEST_P(SpeculationOnTiers, WhereStepsThatWaitUseMemoryOtherwise) {
  const auto [home, ranks] = GetParam();
  RunConfig c = config(true);
  c.ranks = ranks;
  c.steps = 10;
  const Schedule waiting = schedule(true, home);
  Schedule s = waiting;
  s.update_ahead = false;
  s.both_orders = true;
  s.waiting = s.units;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    s.units[u].resident = u % 4 != 3;
    s.waiting[u].held = u % 2 == 1;
    s.waiting[u].saved = u % 2 == 1 ? Saved::keep : Saved::recompute;
    s.units[u].update_on_device = s.waiting[u].update_on_device = ranks == 2 && u % 2 == 0;
    s.units[u].gradient = s.waiting[u].gradient = u < 4 ? Place::device : s.units[u].gradient;
  }
  const float some = between(c, waiting);
  int changes = 0;
  for (const float limit : {never, some, always})
    for (const auto& [evaluates, late] : {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
      SCOPED_TRACE("clip " + std::to_string(limit) + (evaluates ? ", evaluated" : "") + (late ? ", late" : ""));
      c.optimizer.clip_norm = limit;
      c.poison_steps = evaluates ? std::vector<std::int64_t>{6} : std::vector<std::int64_t>{};
      c.eval_every = evaluates ? 2 : 0;
      c.hash_every = evaluates ? 3 : 0;
      const Made expected = made(c, waiting);
      mix(s, late);
      const Made got = made(c, s);
      if (evaluates)
        expect_same(got.run, expected.run);
      else
        EXPECT_EQ(got.run.state_hash, expected.run.state_hash);
      EXPECT_EQ(got.run.eval_loss, expected.run.eval_loss);
      EXPECT_LE(got.repaired.size(), clipped(expected.run, limit).size());
      changes += got.attempt.notes.find("updates are made before the norm is known") != std::string::npos;
    }
  // Where that is predicted to be quicker.
  c.run = fresh_directory();
  const auto prepared = prepare_with(c, Purpose::train, s);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  const double change = predict_change_seconds(**prepared) / static_cast<double>(ClipForecast::steps_max);
  const double quicker = (*prepared)->predicted(true).step_seconds / ((*prepared)->step_seconds() + change);
  std::printf("steps that speculate are predicted to be %.2f times as quick, %d runs have changed over\n", quicker,
              changes);
  if (quicker > 1.05) {
    EXPECT_GT(changes, 0);
  }
}

TEST_F(Speculation, IsRefusedWhereStepsThatWaitWouldLookElsewhere) {
  RunConfig c = config(true);
  c.run = fresh_directory();
  Schedule s = schedule(false, Place::nvme);
  s.both_orders = s.keeps_gradients = true;
  s.units[1].gradient = Place::device;
  s.units[2].resident = true;
  s.waiting = s.units;
  s.waiting[2].resident = false;
  const auto expect_refused = [&](const char* why) {
    const auto refused = prepare_with(c, Purpose::train, s);
    ASSERT_FALSE(refused.ok()) << why;
    EXPECT_EQ(refused.error().code, ErrorCode::bad_request);
    EXPECT_NE(refused.error().message.find(why), std::string::npos) << refused.error().message;
  };
  expect_refused("repairs would not find them");
  s.keeps_gradients = false;
  s.waiting[3].state_home = s.units[3].state_home == Place::host ? Place::nvme : Place::host;
  expect_refused("states elsewhere");
  s.waiting[3].state_home = s.units[3].state_home;
  s.waiting[3].resident = true;
  expect_refused("resident parameters");
  s.waiting[3].resident = false;
  EXPECT_TRUE(prepare_with(c, Purpose::train, s).ok());
}

TEST(ClipForecast, WaitsWhereThatIsQuicker) {
  ClipForecast forecast({.speculative = 1.0, .repaired = 2.0, .ahead = 1.25}, true);
  EXPECT_TRUE(forecast.waits(false)) << "nothing is known";
  forecast.add(true);
  EXPECT_TRUE(forecast.waits(false));
  int until = 0;
  for (; forecast.waits(true) && until < 100; ++until) forecast.add(false);
  EXPECT_EQ(until, 4) << "1 of 5 steps: 1.2 seconds and a hundredth are less than 1.25";
  EXPECT_FALSE(forecast.waits(false));
  for (std::size_t i = 0; i < 2 * ClipForecast::steps_max; ++i) forecast.add(false);
  EXPECT_EQ(forecast.clipped(), 0u);
  EXPECT_EQ(forecast.steps(), ClipForecast::steps_max);
  for (int i = 0; i < 8; ++i) forecast.add(true);
  EXPECT_FALSE(forecast.waits(false)) << "8 of 32: not a hundredth quicker";
  forecast.add(true);
  EXPECT_TRUE(forecast.waits(false));
  EXPECT_TRUE(forecast.waits(true));
  EXPECT_FALSE(ClipForecast({1.0, 2.0, 0.5, 0}, false).waits(false)) << "there is no plan for it";
  // What a change takes is made good in 32 steps, or there is none.
  for (const double change : {0.0, 7.0, 9.0}) {
    ClipForecast costly({.speculative = 1.0, .repaired = 2.0, .ahead = 1.25, .changing = change}, true);
    costly.add(false);
    EXPECT_EQ(costly.waits(true), change > 8) << change;
  }
}

/// Nobody would find out otherwise that nothing was clipped.
TEST_F(Speculation, IsAFaultWhereNothingIsCommitted) {
  RunConfig c = config(false);
  c.optimizer.clip_norm = always;
  const Attempt a = attempt(c, fresh_directory(), schedule(false, Place::nvme));
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::mispredicted);
  EXPECT_NE(a.error->message.find("step 1"), std::string::npos) << a.error->message;
}

}  // namespace
}  // namespace sluice::test
