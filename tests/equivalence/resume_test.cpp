// A run that was cut short and goes on ends with the bits, and the metrics, of one that was not: wherever its states
// lie, whenever it was cut, and whatever the drive has done to what was not yet durable.
#include <nlohmann/json.hpp>
#include <random>

#include "io/power_cut.h"
#include "runs.h"

namespace sluice::test {
namespace {

using nlohmann::json;

/// Stops the run after a step, as a signal would.
class Stopper final : public TrainObserver {
 public:
  explicit Stopper(std::int64_t after) : after_(after) {}
  void note(const std::string& text) override { notes += text + "\n"; }
  void step(const StepRecord& r) override { stop = stop || r.step == after_; }
  std::atomic<bool> stop{false};
  std::string notes;

 private:
  std::int64_t after_;
};

struct Attempt {
  std::optional<Error> error;
  TrainResult result;
  std::string notes;
};

struct Finished {
  std::uint64_t state_hash = 0;
  double eval_loss = 0;
  std::vector<json> lines;
};

class Resume : public testing::Test {
 protected:
  static constexpr std::int64_t all_steps = 6;

  RunConfig config(bool durable) const {
    RunConfig c = bench_.config(1, true, Dtype::bf16, all_steps);
    c.optimizer.clip_norm = 0.7;
    c.hash_every = 1;
    c.durable = durable ? Durable::on : Durable::off;
    return c;
  }

  std::string fresh_directory() { return bench_.path("run" + std::to_string(++runs_)); }

  /// One process's part of a run: prepared anew each time, from the directory if a run is there.
  static Attempt attempt(RunConfig c, const std::string& path, const Schedule& schedule, std::int64_t stop_after = 0) {
    Attempt a;
    c.run = path;
    c.metrics = path + ".jsonl";
    auto directory = RunDirectory::open(path);
    if (!directory.ok()) {
      a.error = directory.error();
      return a;
    }
    auto prepared = prepare_with(c, Purpose::train, schedule);
    EXPECT_TRUE(prepared.ok() && (*prepared)->search.fits);
    Stopper observer(stop_after);
    auto trainer = Trainer::create(**prepared, observer, &*directory, &observer.stop);
    if (trainer.ok()) {
      auto result = (*trainer)->run(observer.stop);
      if (result.ok()) a.result = *result;
      if (!result.ok()) a.error = result.error();
    } else {
      a.error = trainer.error();
    }
    a.notes = observer.notes;
    return a;
  }

  static Finished finished(const std::string& path, const Attempt& last) {
    EXPECT_FALSE(last.error) << last.error->message;
    Finished f;
    f.eval_loss = last.result.eval_loss;
    f.state_hash = last.result.state_hash.value_or(0);
    std::ifstream in(path + ".jsonl");
    for (std::string line; std::getline(in, line);) {
      json j = json::parse(line), kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "state_hash", "eval_loss", "skipped"})
        if (j.contains(key)) kept[key] = j[key];
      f.lines.push_back(kept);
    }
    return f;
  }

  static void expect_same(const Finished& a, const Finished& b) {
    EXPECT_EQ(a.state_hash, b.state_hash);
    EXPECT_EQ(a.eval_loss, b.eval_loss);
    ASSERT_EQ(a.lines.size(), b.lines.size());
    for (std::size_t i = 0; i < a.lines.size(); ++i) EXPECT_EQ(a.lines[i], b.lines[i]) << "line " << i;
  }

  Schedule schedule(bool ahead, Place home) const {
    Schedule s;
    s.group = 2;
    s.update_ahead = ahead;
    s.tile_numel = 1 << 13;
    UnitChoice unit;
    unit.parameter_home = unit.state_home = home;
    unit.gradient = Place::nvme;
    s.units.assign(4, unit);
    return s;
  }

  Bench bench_;
  int runs_ = 0;
};

struct Kind {
  const char* name;
  bool ahead;
  Place home;
  bool resident;
  int ranks;
  bool durable;
};

class ResumeEverywhere : public Resume, public testing::WithParamInterface<Kind> {
 protected:
  RunConfig config() const {
    RunConfig c = Resume::config(GetParam().durable);
    if (!GetParam().ahead) c.optimizer.clip_norm = 0;
    c.ranks = GetParam().ranks;
    return c;
  }
  Schedule schedule() const {
    Schedule s = Resume::schedule(GetParam().ahead, GetParam().home);
    for (UnitChoice& unit : s.units) unit.resident = GetParam().resident;
    return s;
  }
};

TEST_P(ResumeEverywhere, StoppedAfterAnyStepItEndsTheSame) {
  const std::string whole = fresh_directory();
  const Finished expected = finished(whole, attempt(config(), whole, schedule()));
  ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
  for (std::int64_t stop = 1; stop < all_steps; stop += 2) {
    SCOPED_TRACE("stopped after step " + std::to_string(stop));
    const std::string path = fresh_directory();
    const Attempt first = attempt(config(), path, schedule(), stop);
    ASSERT_FALSE(first.error) << first.error->message;
    EXPECT_TRUE(first.result.interrupted && first.result.resumable);
    EXPECT_EQ(first.result.steps, stop);
    const Attempt second = attempt(config(), path, schedule(), stop + 1);
    ASSERT_FALSE(second.error) << second.error->message;
    EXPECT_NE(second.notes.find("continuing after step " + std::to_string(stop)), std::string::npos) << second.notes;
    expect_same(finished(path, stop + 1 == all_steps ? second : attempt(config(), path, schedule())), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResumeEverywhere,
                         testing::Values(Kind{"ahead_nvme", true, Place::nvme, false, 1, true},
                                         Kind{"ahead_host", true, Place::host, false, 1, true},
                                         Kind{"ahead_nvme_resident", true, Place::nvme, true, 1, true},
                                         Kind{"backward_nvme", false, Place::nvme, false, 1, true},
                                         Kind{"backward_host_resident", false, Place::host, true, 1, true},
                                         Kind{"ahead_nvme_ranks", true, Place::nvme, false, 2, true},
                                         Kind{"backward_host_ranks", false, Place::host, false, 2, true},
                                         Kind{"not_durable_nvme", true, Place::nvme, true, 1, false},
                                         Kind{"not_durable_host_ranks", false, Place::host, false, 2, false}),
                         [](const auto& kind) { return kind.param.name; });

class PowerCuts : public Resume {
 protected:
  /// The run with its power cut at random moments, until it comes through. Returns how many cuts it took.
  int run_with_cuts(const RunConfig& c, const std::string& path, const Schedule& s, std::mt19937_64& random,
                    Finished& out) {
    for (int cuts = 0;; ++cuts) {
      RunConfig cut_config = c;
      const std::uint64_t nth = 1 + random() % 400;
      auto cut = std::make_shared<PowerCut>(random(), nth);
      cut_config.faults.emplace();
      cut_config.faults->power_cut = cut;
      const Attempt a = attempt(cut_config, path, s);
      if (!a.error) {
        out = finished(path, a);
        return cuts;
      }
      EXPECT_EQ(a.error->code, ErrorCode::fault) << a.error->message;
      EXPECT_TRUE(cut->happened()) << a.error->message;
      if (testing::Test::HasFailure() || cuts > 1000) return cuts;
    }
  }
};

TEST_F(PowerCuts, LoseNothingThatWasCommitted) {
  const char* const wanted = std::getenv("SLUICE_POWER_CUTS");
  const int cuts_wanted = wanted != nullptr ? std::atoi(wanted) : 40;
  const char* const seed_text = std::getenv("SLUICE_CRASH_SEED");
  const std::uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 20261122;
  std::printf("power cuts from seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int cuts = 0;
  for (int round = 0; cuts < cuts_wanted && !HasFailure(); ++round) {
    const bool ahead = round % 2 == 0;
    RunConfig c = config(true);
    if (!ahead) c.optimizer.clip_norm = 0;
    const Schedule s = schedule(ahead, round % 4 < 2 ? Place::nvme : Place::host);
    const std::string whole = fresh_directory(), path = fresh_directory();
    const Finished expected = finished(whole, attempt(c, whole, s));
    Finished got;
    cuts += run_with_cuts(c, path, s, random, got);
    expect_same(got, expected);
  }
  std::printf("%d power cuts\n", cuts);
}

}  // namespace
}  // namespace sluice::test
