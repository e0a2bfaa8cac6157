// Measuring on a machine that others use: on clocks that tests set.
#include "src/device/quiet.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/device/calibrate.h"
#include "src/device/efficiency.h"
#include "src/device/profile.h"
#include "src/device/profile_rates.h"
#include "src/train/request/profile_doubts.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

/// Four cores, of which others use so many while something is measured, one measurement after the other. Measurements
/// take so many seconds, in which this process uses one core.
class PlayedClock final : public CpuClock {
 public:
  explicit PlayedClock(std::vector<double> others, double seconds = 1)
      : others_(std::move(others)), seconds_(seconds) {}
  CpuReading read() override {
    const CpuReading now = now_;
    if (++reads_ % 2 == 1) pass(seconds_);
    return now;
  }
  void sleep(double) override {}
  int cores() const override { return 4; }
  std::size_t measured() const { return next_; }

 private:
  void pass(double seconds) {
    const double others = others_[std::min(next_++, others_.size() - 1)];
    now_.wall += seconds;
    now_.own += seconds;
    now_.all += seconds * (1 + others);
  }
  std::vector<double> others_;
  double seconds_;
  CpuReading now_;
  std::size_t next_ = 0;
  int reads_ = 0;
};

using Better = QuietMeasurer::Better;

Result<QuietMeasurer::Measured> measure(PlayedClock& clock, std::vector<double> values, Better better,
                                        double patience = 100) {
  QuietMeasurer quiet(&clock, patience);
  return quiet.measure(better, [&, i = std::size_t{0}]() mutable -> Result<double> { return values[i++]; });
}

TEST(Quiet, AQuietMachineIsMeasuredOnce) {
  PlayedClock clock({0.1});
  const auto m = measure(clock, {5}, Better::more);
  EXPECT_EQ(m->value, 5);
  EXPECT_EQ(m->disturbance, "");
  EXPECT_EQ(clock.measured(), 1u);
}

TEST(Quiet, WhatWasDisturbedIsMeasuredAgain) {
  PlayedClock clock({2, 1.5, 0});
  const auto m = measure(clock, {5, 6, 9}, Better::more);
  EXPECT_EQ(m->value, 9);
  EXPECT_EQ(m->disturbance, "");
  PlayedClock seconds({2, 0});
  EXPECT_EQ(measure(seconds, {5, 3}, Better::less)->value, 3);
}

TEST(Quiet, AMachineThatStaysBusyGivesItsBestAndSaysSo) {
  PlayedClock clock({2});
  const auto m = measure(clock, {5, 7, 6, 100}, Better::more);
  EXPECT_EQ(m->value, 7);
  EXPECT_EQ(m->disturbance, "other programs used 2.0 of 4 cores");
  EXPECT_EQ(clock.measured(), 3u);
}

TEST(Quiet, PatienceEnds) {
  PlayedClock clock({2});
  EXPECT_EQ(measure(clock, {5, 7, 6}, Better::more, 0.5)->value, 7);
  EXPECT_EQ(clock.measured(), 2u);
}

TEST(Quiet, AnErrorEndsIt) {
  PlayedClock clock({2});
  QuietMeasurer quiet(&clock);
  const auto m = quiet.measure(Better::more, []() -> Result<double> { return fault("broken"); });
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.error().message, "broken");
}

TEST(Quiet, OwnWorkIsNoDisturbance) {
  EXPECT_EQ(disturbance({10, 5, 8}, {12, 13, 16}, 4), "") << "4 cores of its own";
  EXPECT_EQ(disturbance({10, 5, 8}, {12, 9, 18}, 4), "other programs used 3.0 of 4 cores");
}

TEST(Quiet, TheSystemsClockGoesForward) {
  SystemCpuClock clock;
  const CpuReading before = clock.read();
  volatile double sink = 0;
  for (int i = 0; i < 1000000; ++i) sink = sink + 1;
  const CpuReading after = clock.read();
  EXPECT_GT(after.wall, before.wall);
  EXPECT_GE(after.own, before.own);
  EXPECT_GE(after.all, before.all);
  EXPECT_GE(clock.cores(), 1);
}

TEST(Doubts, RatesOfABusyMachineAreMarkedAndOthersAreNot) {
  HardwareProfile profile;
  Doubts doubts;
  PlayedClock clock({2, 2, 2, 0});
  const auto chosen = [](const std::string& name) {
    return name == "checksum_bytes_per_second" || name == "op_overhead_seconds";
  };
  std::vector<std::string> said;
  ASSERT_TRUE(
      measure_rates(profile, chosen, doubts, &clock, [&](const std::string& text) { said.push_back(text); }).ok());
  EXPECT_EQ(said, (std::vector<std::string>{"optimizer", "executor"}));
  EXPECT_TRUE(doubts.has("checksum_bytes_per_second"));
  EXPECT_TRUE(doubts.all().at("checksum_bytes_per_second").disturbed);
  EXPECT_FALSE(doubts.has("op_overhead_seconds"));
  EXPECT_EQ(doubts.describe(rate_names()),
            "checksum_bytes_per_second (other programs used 2.0 of 4 cores while it was measured)");
}

TEST(Doubts, OfAProfileAreInItsFileAndStayThere) {
  const ScratchDir folder;
  const std::string path = folder / "profile.json";
  HardwareProfile profile;
  profile.machine = machine_id();
  ASSERT_TRUE(save_profile(path, profile).ok());
  EXPECT_TRUE(load_doubts(path).all().empty());
  Doubts doubts;
  doubts.measured("gemm_flops_bf16", "other programs used 1.0 of 2 cores");
  doubts.contradict("mlp.forward b1", "it took 2 s");
  ASSERT_TRUE(save_doubts(path, doubts).ok());
  ASSERT_TRUE(load_profile(path).ok()) << "as profiles that have none";
  ASSERT_TRUE(save_profile(path, profile).ok());
  const Doubts read = load_doubts(path);
  ASSERT_EQ(read.all().size(), 2u);
  EXPECT_TRUE(read.all().at("gemm_flops_bf16").disturbed);
  EXPECT_EQ(read.all().at("mlp.forward b1").reason, "it took 2 s");
  EXPECT_FALSE(read.all().at("mlp.forward b1").disturbed);
  EXPECT_FALSE(save_doubts(folder / "none.json", doubts).ok());
}

/// A tiny model's training, with all its ops "measured" to take a second.
struct Rig {
  ModelSpec model = build_model(*preset_config("llama-tiny"));
  Workload work;
  HardwareProfile profile;
  std::string key;
  Rig() {
    work.model = &model;
    work.shape = {1, 32};
    key = cost_key(work, Sublayer::mlp, OpKind::forward);
    profile.op_seconds[key] = 1;
  }
};

TEST(Doubts, AreMeasuredAgainWhenTheMachineIsQuietAndNotForEver) {
  Rig rig;
  Doubts doubts;
  doubts.contradict(rig.key, "it took 2 s");
  doubts.contradict("checksum_bytes_per_second", "it took 2 s");
  rig.profile.checksum_bytes_per_second = 1;
  PlayedClock busy({3});
  auto again = settle_doubts(rig.profile, rig.work, {}, doubts, {}, &busy);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->changed);
  EXPECT_EQ(rig.profile.checksum_bytes_per_second, 1);
  std::vector<std::string> said;
  say_doubts(rig.work, {}, doubts, [&](const std::string& text) { said.push_back(text); });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("checksum_bytes_per_second and 1 more (it took 2 s)"), std::string::npos) << said[0];

  for (int i = 0; i < Doubts::measured_again_max; ++i) {
    PlayedClock quiet({0});
    again = settle_doubts(rig.profile, rig.work, {}, doubts, {}, &quiet);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(again->changed);
    EXPECT_GT(rig.profile.checksum_bytes_per_second, 1);
    EXPECT_FALSE(doubts.has("checksum_bytes_per_second"));
    EXPECT_FALSE(rig.profile.op_seconds.contains(rig.key)) << "for calibrate to measure";
    rig.profile.checksum_bytes_per_second = 1;
    rig.profile.op_seconds[rig.key] = 1;
    doubts.measured(rig.key, "");
    doubts.contradict(rig.key, "it took 2 s");
    doubts.contradict("checksum_bytes_per_second", "it took 2 s");
  }
  PlayedClock quiet({0});
  again = settle_doubts(rig.profile, rig.work, {}, doubts, {}, &quiet);
  EXPECT_FALSE(again->changed) << "measured often enough";
  say_doubts(rig.work, {}, doubts, [&](const std::string& text) { said.push_back(text); });
  EXPECT_NE(said.back().find("runs still differ"), std::string::npos) << said.back();
}

TEST(Doubts, OfADriveThatIsFullStay) {
  const ScratchDir scratch;
  const std::string drive = scratch.path() + "/drive";
  std::filesystem::create_directory(drive);
  if (mount("tmpfs", drive.c_str(), "tmpfs", 0, "size=64m") != 0) GTEST_SKIP() << "no file system can be mounted here";
  Rig rig;
  Doubts doubts;
  const std::string key = drive_key(std::vector<std::string>{drive});
  rig.profile.drives[key] = {};
  doubts.contradict(drive_doubt(key), "it took 2 s");
  PlayedClock quiet({0});
  const auto again = settle_doubts(rig.profile, rig.work, {drive}, doubts, {}, &quiet);
  EXPECT_EQ(umount(drive.c_str()), 0);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(rig.profile.drives[key].read_bytes_per_second, DriveProfile().read_bytes_per_second);
  EXPECT_TRUE(doubts.to_measure(drive_doubt(key)));
}

TEST(Doubts, OpsMeasuredOnABusyMachineAreMarked) {
  const ModelSpec model = build_model(*preset_config("llama-25m"));
  Workload work;
  work.model = &model;
  work.shape = {2, 256};
  work.inference = true;
  HardwareProfile profile;
  Doubts doubts;
  PlayedClock busy({3}, 60);
  bool changed = false;
  const auto device = std::move(*Device::open("cpu"));
  ASSERT_TRUE(calibrate(work, *device, profile, 60, &changed, &doubts, &busy).ok());
  EXPECT_TRUE(changed);
  EXPECT_FALSE(profile.op_seconds.empty());
  for (const auto& [key, seconds] : profile.op_seconds)
    EXPECT_TRUE(seconds < 2e-3 || doubts.has(key)) << key << " takes " << seconds << " s";
}

/// A plan of one op that is predicted to take a second.
Prepared one_op() {
  Prepared run;
  StagePlans& stage = run.stages.emplace_back();
  stage.main.units = {"a"};
  stage.main.lanes = {{LaneKind::compute, 0, false}};
  stage.main.cost_keys = {"mlp.forward b1"};
  Op op;
  op.kind = OpKind::forward;
  op.flop = 1e11;
  op.cost = 0;
  stage.main.ops = {op};
  run.profile.op_seconds["mlp.forward b1"] = 1;
  stage.predicted = simulate(stage.main, run.profile);
  return run;
}

TEST(Doubts, AStepThatBeatsItsBoundContradictsWhatTheBoundIsMadeOf) {
  const Prepared run = one_op();
  EXPECT_TRUE(contradictions(run, {1.0, {1.0}, false}).empty());
  EXPECT_TRUE(contradictions(run, {0.99, {0.99}, false}).empty());
  const auto found = contradictions(run, {0.5, {}, true});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].names, (std::vector<std::string>{"gemm_flops_bf16", "mlp.forward b1"}));
  EXPECT_NE(found[0].text.find("500.00 ms"), std::string::npos) << found[0].text;
}

TEST(Doubts, OpsFarFromTheirCalibrationContradictIt) {
  const Prepared run = one_op();
  EXPECT_EQ(contradictions(run, {1.0, {0.5}, true}).size(), 1u) << "quicker than calibrated, whoever else is there";
  EXPECT_EQ(contradictions(run, {2.0, {2.0}, false}).size(), 1u);
  EXPECT_TRUE(contradictions(run, {2.0, {2.0}, true}).empty()) << "others slowed it down";
  EXPECT_TRUE(contradictions(run, {1.2, {1.2}, false}).empty());
}

TEST(Efficiency, AboveOneSaysThatTheProfileIsWrong) {
  EXPECT_EQ(format_efficiency(0.834), "0.83");
  EXPECT_EQ(format_efficiency(1), "1.00");
  EXPECT_EQ(format_efficiency(1.2), "1.20 (profile wrong)");
  EXPECT_EQ(format_efficiency(1.2, "bound"), "1.20 (bound wrong)");
}

}  // namespace
}  // namespace sluice
