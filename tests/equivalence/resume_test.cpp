// A run that was cut short and goes on ends with the bits, and the metrics, of one that was not: wherever its states
// lie, whenever it was cut, and whatever the drive has done to what was not yet durable.
#include "resume.h"

#include <random>

#include "io/drives/power_cut.h"

namespace sluice::test {
namespace {

struct Kind {
  const char* name;
  bool ahead;
  Place home;
  bool resident = false;
  int ranks = 1;
  bool durable = true;
  MomentFormat moments = MomentFormat::f32;
  bool update_on_device = false;
  Dtype gradient_dtype = Dtype::f32;
  bool speculates = false;
  bool mixes = false;
  Place gradient = Place::nvme;  ///< where it waits
};

class ResumeEverywhere : public Resume, public testing::WithParamInterface<Kind> {
 protected:
  RunConfig config() const {
    RunConfig c = Resume::config(GetParam().durable);
    if (!GetParam().ahead && !GetParam().speculates) c.optimizer.clip_norm = 0;
    c.ranks = GetParam().ranks;
    c.moments = GetParam().moments;
    c.gradient_dtype = GetParam().gradient_dtype;
    if (GetParam().mixes) c.hash_every = 0;  // else every iteration is a first one, in which no late update is due
    return c;
  }
  Schedule schedule() const {
    Schedule s = Resume::schedule(GetParam().ahead, GetParam().home);
    s.both_orders = GetParam().speculates && GetParam().ranks == 1 && !GetParam().mixes;
    s.keeps_gradients = GetParam().speculates && GetParam().home == Place::host;
    for (UnitChoice& unit : s.units) {
      unit.resident = GetParam().resident;
      unit.gradient = GetParam().gradient;
      unit.update_on_device = GetParam().update_on_device;
    }
    if (GetParam().mixes) s.units[1].late = s.units[2].late = true;
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
    if (config().hash_every == 0) {  // steps overlap: the one that follows is ended too
      Attempt last = attempt(config(), path, schedule(), stop);
      while (!last.error && last.result.interrupted) {
        const std::int64_t next = last.result.steps + 1;
        last = attempt(config(), path, schedule(), next < all_steps ? next : 0);
      }
      expect_same(finished(path, last), expected);
      continue;
    }
    const Attempt first = attempt(config(), path, schedule(), stop);
    ASSERT_FALSE(first.error) << first.error->message;
    EXPECT_TRUE(first.result.interrupted && first.result.resumable);
    EXPECT_EQ(first.result.steps, stop);
    const Attempt second = attempt(config(), path, schedule(), stop + 1 < all_steps ? stop + 1 : 0);
    ASSERT_FALSE(second.error) << second.error->message;
    EXPECT_NE(second.notes.find("continuing after step " + std::to_string(stop)), std::string::npos) << second.notes;
    expect_same(finished(path, stop + 1 == all_steps ? second : attempt(config(), path, schedule())), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ResumeEverywhere,
    testing::Values(
        Kind{"ahead_nvme", true, Place::nvme, false, 1, true}, Kind{"ahead_host", true, Place::host, false, 1, true},
        Kind{"ahead_nvme_resident", true, Place::nvme, true, 1, true},
        Kind{"backward_nvme", false, Place::nvme, false, 1, true},
        Kind{"backward_host_resident", false, Place::host, true, 1, true},
        Kind{"ahead_nvme_ranks", true, Place::nvme, false, 2, true},
        Kind{"backward_host_ranks", false, Place::host, false, 2, true},
        Kind{"not_durable_nvme", true, Place::nvme, true, 1, false},
        Kind{"not_durable_host_ranks", false, Place::host, false, 2, false},
        Kind{"bf16_moments", true, Place::nvme, false, 1, true, MomentFormat::bf16},
        Kind{"int8_moments", true, Place::nvme, false, 1, true, MomentFormat::int8},
        Kind{"int8_moments_host_ranks", false, Place::host, false, 2, true, MomentFormat::int8},
        Kind{"int8_moments_not_durable", true, Place::host, true, 2, false, MomentFormat::int8},
        Kind{"ahead_nvme_on_device", true, Place::nvme, false, 1, true, MomentFormat::f32, true},
        Kind{"backward_host_resident_on_device", false, Place::host, true, 2, true, MomentFormat::int8, true},
        Kind{"not_durable_on_device", true, Place::host, false, 1, false, MomentFormat::bf16, true},
        Kind{"bf16_gradients", true, Place::nvme, false, 1, true, MomentFormat::int8, false, Dtype::bf16},
        Kind{"bf16_gradients_host_ranks", true, Place::host, true, 2, true, MomentFormat::f32, false, Dtype::bf16},
        Kind{"bf16_gradients_backward_on_device", false, Place::nvme, false, 2, true, MomentFormat::int8, true,
             Dtype::bf16},
        Kind{"speculative", false, Place::nvme, false, 1, true, MomentFormat::f32, false, Dtype::f32, true},
        Kind{"speculative_host_ranks", false, Place::host, true, 2, true, MomentFormat::int8, true, Dtype::f32, true},
        Kind{"both_passes", false, Place::nvme, false, 1, true, MomentFormat::f32, false, Dtype::f32, false, true},
        Kind{"both_passes_not_durable", false, Place::host, true, 2, false, MomentFormat::int8, true, Dtype::f32, false,
             true},
        Kind{"both_passes_speculative", false, Place::nvme, false, 1, true, MomentFormat::f32, false, Dtype::f32, true,
             true},
        Kind{"both_passes_speculative_host_ranks", false, Place::host, true, 2, true, MomentFormat::int8, true,
             Dtype::bf16, true, true},
        Kind{"bf16_gradients_not_durable", true, Place::host, false, 1, false, MomentFormat::bf16, true, Dtype::bf16},
        Kind{.name = "waiting_on_device",
             .ahead = true,
             .home = Place::nvme,
             .ranks = 1,
             .durable = true,
             .gradient = Place::device},
        Kind{.name = "waiting_on_device_not_durable_ranks",
             .ahead = true,
             .home = Place::host,
             .ranks = 2,
             .durable = false,
             .update_on_device = true,
             .gradient = Place::device},
        Kind{.name = "waiting_on_device_both_passes_speculative",
             .ahead = false,
             .home = Place::nvme,
             .ranks = 1,
             .durable = true,
             .speculates = true,
             .mixes = true,
             .gradient = Place::device},
        Kind{.name = "waiting_on_device_speculative",
             .ahead = false,
             .home = Place::host,
             .ranks = 2,
             .durable = true,
             .update_on_device = true,
             .speculates = true,
             .gradient = Place::device}),
    [](const auto& kind) { return kind.param.name; });

TEST_F(Resume, StoppedBeforeItsFirstStepItSaysHowToGoOn) {
  const std::string path = fresh_directory(), whole = fresh_directory();
  const Schedule plan = schedule(true, Place::nvme);
  const auto expect_stopped = [&](const std::string& what) {
    const Attempt a = attempt(config(true), path, plan, at_once);
    ASSERT_TRUE(a.error);
    EXPECT_EQ(a.error->code, ErrorCode::cancelled);
    EXPECT_NE(a.error->message.find(what), std::string::npos) << a.error->message;
  };
  expect_stopped("the same command starts over");
  expect_stopped("the same command starts over");
  ASSERT_FALSE(attempt(config(true), path, plan, 2).error);
  expect_stopped("the same command goes on");
  expect_same(finished(path, attempt(config(true), path, plan)), finished(whole, attempt(config(true), whole, plan)));
}

TEST_F(Resume, MomentsOfAnyFormatHaveTheSameBitsWhereverTheyLie) {
  for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::int8}) {
    SCOPED_TRACE(moment_format_name(format));
    RunConfig c = config(true);
    c.moments = format;
    std::optional<Finished> expected;
    for (const auto& [home, tile_numel] : {std::pair(Place::nvme, 1u << 12), std::pair(Place::nvme, 1u << 14),
                                           std::pair(Place::host, 1u << 13), std::pair(Place::host, 1u << 20)}) {
      Schedule s = schedule(true, home);
      s.tile_numel = tile_numel;
      const std::string path = fresh_directory();
      const Finished got = finished(path, attempt(c, path, s));
      if (expected) expect_same(got, *expected);
      expected = got;
    }
    const std::string path = fresh_directory();
    EXPECT_NE(finished(path, attempt(config(true), path, schedule(true, Place::nvme))).state_hash,
              expected->state_hash);
  }
}

TEST_F(Resume, UpdatesOnTheDeviceHaveTheBitsOfTheCpu) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8})
      for (const int ranks : {1, 2})
        for (const bool ahead : {true, false}) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + moment_format_name(format) + " " + std::to_string(ranks) +
                       (ahead ? " ahead" : " backward"));
          RunConfig c = config(true);
          c.dtype = dtype;
          c.moments = format;
          c.ranks = ranks;
          if (!ahead) c.optimizer.clip_norm = 0;
          const std::string on_cpu = fresh_directory();
          const Finished expected = finished(on_cpu, attempt(c, on_cpu, schedule(ahead, Place::nvme)));
          for (const std::size_t every : {std::size_t{1}, std::size_t{2}}) {
            Schedule s = schedule(ahead, every == 1 ? Place::nvme : Place::host);
            for (std::size_t u = 0; u < s.units.size(); u += every) s.units[u].update_on_device = true;
            s.units[0].resident = s.units[1].resident = true;
            const std::string path = fresh_directory();
            expect_same(finished(path, attempt(c, path, s)), expected);
          }
        }
}

// ---- steps that are not finite

class NotFinite : public Resume {
 protected:
  void expect_skipped(const Finished& f, std::initializer_list<std::size_t> steps) {
    ASSERT_EQ(f.lines.size(), static_cast<std::size_t>(all_steps));
    for (std::size_t i = 0; i < f.lines.size(); ++i) {
      const bool skipped = std::find(steps.begin(), steps.end(), i + 1) != steps.end();
      EXPECT_EQ(f.lines[i].contains("skipped"), skipped) << f.lines[i];
      EXPECT_EQ(f.lines[i]["loss"].is_null(), skipped) << f.lines[i];
      if (i > 0 && f.lines[i].contains("state_hash")) {
        EXPECT_EQ(f.lines[i]["state_hash"] == f.lines[i - 1]["state_hash"], skipped)
            << "a skipped step changes nothing";
      }
    }
  }
};

TEST_F(NotFinite, StepsAreSkippedByKeepingTheOldSlots) {
  for (const auto& [ahead, mixes] : {std::pair(true, false), std::pair(false, false), std::pair(false, true)})
    for (const Place home : {Place::nvme, Place::host})
      for (const auto& [ranks, on_device] :
           {std::pair(1, false), std::pair(1, true), std::pair(2, false), std::pair(2, true)}) {
        SCOPED_TRACE(std::string(ahead   ? "ahead "
                                 : mixes ? "both passes "
                                         : "backward ") +
                     place_names[static_cast<std::size_t>(home)] + " " + std::to_string(ranks) +
                     (on_device ? " updated on the device" : ""));
        RunConfig c = config(true);
        if (!ahead) c.optimizer.clip_norm = 0;
        c.ranks = ranks;
        c.poison_steps = {1, 3, 4, 6};
        Schedule s = schedule(ahead, home);
        s.units[1].resident = true;
        s.units[1].update_on_device = s.units[2].update_on_device = on_device;
        s.units[1].late = s.units[3].late = mixes;
        const std::string path = fresh_directory(), overlapped = fresh_directory();
        const Finished f = finished(path, attempt(c, path, s));
        expect_skipped(f, {1, 3, 4, 6});
        // Without hashes in between, steps overlap their neighbours.
        c.hash_every = 0;
        const Finished g = finished(overlapped, attempt(c, overlapped, s));
        expect_skipped(g, {1, 3, 4, 6});
        EXPECT_EQ(f.state_hash, g.state_hash);
        EXPECT_EQ(f.eval_loss, g.eval_loss);
      }
}

TEST_F(NotFinite, TooManyInARowStopTheRunWhereItStands) {
  RunConfig c = config(true);
  c.poison_steps = {3, 4, 5};
  const std::string path = fresh_directory(), whole = fresh_directory();
  const Attempt a = attempt(c, path, schedule(true, Place::nvme));
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::fault);
  EXPECT_NE(a.error->message.find("steps 3 to 5"), std::string::npos) << a.error->message;
  EXPECT_NE(a.error->message.find("stands at step 4"), std::string::npos) << a.error->message;
  // That two were skipped is committed with the steps that were tried after them.
  c.poison_steps = {5};
  EXPECT_TRUE(attempt(c, path, schedule(true, Place::nvme)).error) << "still the third in a row";
  c.poison_steps = {3, 4};
  const Finished expected = finished(whole, attempt(c, whole, schedule(true, Place::nvme)));
  c.poison_steps = {};
  expect_same(finished(path, attempt(c, path, schedule(true, Place::nvme))), expected);
}

TEST_F(NotFinite, WithoutOldSlotsTheFirstStopsTheRun) {
  RunConfig c = config(false);
  c.poison_steps = {3};
  const Attempt a = attempt(c, fresh_directory(), schedule(true, Place::nvme));
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::not_finite);
  EXPECT_NE(a.error->message.find("step 3"), std::string::npos) << a.error->message;
}

TEST_F(NotFinite, ParametersThatDivergeStopTheRunBeforeTheyAreCommitted) {
  for (const bool on_device : {false, true})
    for (const auto& [ahead, late] :
         {std::pair(true, 0), std::pair(false, 0), std::pair(false, 1), std::pair(false, 3)})
      for (const bool overlaps : {true, false}) {
        SCOPED_TRACE(std::string(on_device ? "device " : "cpu ") + (ahead ? "ahead" : "backward") +
                     (late > 0 ? " but " + std::to_string(late) : "") + (overlaps ? " overlapping" : ""));
        RunConfig c = config(true);
        if (!ahead) c.optimizer.clip_norm = 0;
        if (overlaps) c.hash_every = 0;
        c.optimizer.lr = 1e39;
        Schedule s = schedule(ahead, Place::nvme);
        for (UnitChoice& unit : s.units) unit.update_on_device = on_device;
        for (std::size_t u = 0; u < static_cast<std::size_t>(late); ++u) s.units[u].late = true;
        const std::string path = fresh_directory();
        for (int process = 0; process < 2; ++process) {
          const Attempt a = attempt(c, path, s);
          ASSERT_TRUE(a.error);
          EXPECT_EQ(a.error->code, ErrorCode::fault) << a.error->message;
          EXPECT_NE(a.error->message.find("step 1: "), std::string::npos) << a.error->message;
          EXPECT_NE(a.error->message.find("diverged"), std::string::npos) << a.error->message;
          EXPECT_NE(a.error->message.find("parameters of "), std::string::npos) << a.error->message;
          EXPECT_EQ(a.notes.find("continuing after step 0 ") != std::string::npos, process == 1) << a.notes;
        }
      }
}

// ---- damage between two processes

class Damage : public Resume {
 protected:
  /// A run that was stopped after step 3, and one that was not.
  void SetUp() override {
    const std::string whole = fresh_directory();
    expected_ = finished(whole, attempt(config(true), whole, plan_));
    stopped_ = fresh_directory();
    const Attempt a = attempt(config(true), stopped_, plan_, 3);
    ASSERT_TRUE(!a.error && a.result.steps == 3);
    for (const auto& entry : std::filesystem::directory_iterator(bench_.path("drive")))
      if (entry.path().extension() == ".swap" && entry.file_size() > 0) swap_ = entry.path();
    ASSERT_FALSE(swap_.empty());
    copy_ = bench_.path("copy");
    std::filesystem::copy(stopped_, copy_, std::filesystem::copy_options::recursive);
    std::filesystem::copy_file(swap_, copy_ + "/swap");
    std::filesystem::copy_file(stopped_ + ".jsonl", copy_ + "/jsonl");
  }

  void put_back() {
    const auto over = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::remove_all(stopped_);
    std::filesystem::create_directory(stopped_);
    for (const char* file : {"run.json", "commit.0"})
      std::filesystem::copy_file(copy_ + "/" + file, stopped_ + "/" + file);
    std::filesystem::copy_file(copy_ + "/swap", swap_, over);
    std::filesystem::copy_file(copy_ + "/jsonl", stopped_ + ".jsonl", over);
  }

  static void flip(const std::string& path, std::uint64_t at, std::uint64_t count = 1) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t i = at; i < at + count; ++i) {
      file.seekg(static_cast<std::streamoff>(i));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(i));
      file.put(static_cast<char>(byte ^ 0x10));
    }
  }

  Schedule plan_ = schedule(true, Place::nvme);
  Finished expected_;
  std::string stopped_, swap_, copy_;
};

TEST_F(Damage, InOneSlotIsNoticedAndTheOtherOneUsed) {
  const std::uint64_t bytes = std::filesystem::file_size(swap_);
  int fell_back = 0, unharmed = 0;
  for (std::uint64_t at = 1234; at < bytes; at += bytes / 60) {
    SCOPED_TRACE("byte " + std::to_string(at));
    put_back();
    flip(swap_, at);
    const Attempt a = attempt(config(true), stopped_, plan_);
    expect_same(finished(stopped_, a), expected_);
    (a.notes.find("continuing after step 2") != std::string::npos ? fell_back : unharmed) += 1;
    if (a.notes.find("continuing after step 2") != std::string::npos) {
      EXPECT_NE(a.notes.find("block "), std::string::npos) << a.notes;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(fell_back, 10);
  EXPECT_GT(unharmed, 10);
}

TEST_F(Damage, InBothSlotsIsRefusedNamingTheBlock) {
  flip(swap_, 0, std::filesystem::file_size(swap_));
  const Attempt a = attempt(config(true), stopped_, plan_);
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::bad_request);
  EXPECT_NE(a.error->message.find("embed.parameter: block 0"), std::string::npos) << a.error->message;
}

TEST_F(Damage, OfACommitRecordIsNoticedAndTheOtherOneUsed) {
  const std::uint64_t bytes = std::filesystem::file_size(copy_ + "/commit.0");
  for (std::uint64_t place : {0, 1})
    for (const std::uint64_t at : {0ull, 8ull, 20ull, 33ull, 50ull, 70ull, 100ull, 2700ull}) {
      SCOPED_TRACE(std::to_string(place) + " at " + std::to_string(at));
      put_back();
      flip(stopped_ + "/commit.0", place * bytes / 2 + at);
      const Attempt a = attempt(config(true), stopped_, plan_);
      EXPECT_NE(a.notes.find("record " + std::to_string(place) + " in "), std::string::npos) << a.notes;
      expect_same(finished(stopped_, a), expected_);
      if (HasFailure()) return;
    }
  put_back();
  flip(stopped_ + "/commit.0", 40);
  flip(stopped_ + "/commit.0", bytes / 2 + 40);
  const Attempt a = attempt(config(true), stopped_, plan_);
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::bad_request);
  EXPECT_NE(a.error->message.find("no commit record is whole"), std::string::npos) << a.error->message;
}

// With the newest record gone the step before is all there is, and its slots may have been overwritten already.
TEST_F(Damage, OfACommitRecordIsNotTakenForTheDrives) {
  const std::uint64_t place = std::filesystem::file_size(copy_ + "/commit.0") / 2;
  flip(stopped_ + "/commit.0", place + 70);
  flip(swap_, 0, std::filesystem::file_size(swap_));
  const Attempt a = attempt(config(true), stopped_, plan_);
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->code, ErrorCode::bad_request);
  EXPECT_NE(a.error->message.find("record 1 in " + stopped_ + "/commit.0"), std::string::npos) << a.error->message;
  EXPECT_EQ(a.error->message.find("check the drive"), std::string::npos) << a.error->message;
}

TEST_F(Damage, AFailingSyncCommitsNothing) {
  for (std::uint64_t n = 1; n < 30; ++n) {
    RunConfig c = config(true);
    c.faults.emplace();
    c.faults->fail_target = FaultOptions::Target::sync;
    c.faults->fail_nth = n;
    const std::string path = fresh_directory();
    const Attempt a = attempt(c, path, plan_);
    if (!a.error) {
      EXPECT_GT(n, 5u);
      return;
    }
    EXPECT_EQ(a.error->code, ErrorCode::fault);
    EXPECT_NE(a.error->message.find("Input/output error"), std::string::npos) << a.error->message;
    expect_same(finished(path, attempt(config(true), path, plan_)), expected_);
  }
  FAIL() << "every sync fails";
}

// ---- power cuts

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
    const bool ahead = round % 2 == 0, speculates = round % 4 == 1 || round % 8 == 3;
    RunConfig c = config(true);
    if (!ahead && !speculates) c.optimizer.clip_norm = 0;
    Schedule s = schedule(ahead, round % 4 < 2 ? Place::nvme : Place::host);
    s.both_orders = round % 8 == 5;
    s.keeps_gradients = speculates && round % 8 != 1;
    const bool mixes = !ahead && round % 6 != 1;
    s.units[0].late = s.units[2].late = mixes;
    if (mixes) {
      c.hash_every = 0;  // so that late updates are due
      c.steps = 10;
      c.ranks = round % 4 == 3 ? 2 : 1;
    }
    s.units[1].update_on_device = s.units[2].update_on_device = round % 3 == 1;
    // Steps that wait have gradients on the device, where the others have parameters.
    if (s.both_orders && round % 16 == 5) {
      s.keeps_gradients = false;
      s.units[0].gradient = s.units[1].gradient = Place::device;
      s.waiting = s.units;
      for (UnitChoice& u : s.waiting) u.resident = false;
      for (UnitChoice& u : s.units) u.resident = true;
    }
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
