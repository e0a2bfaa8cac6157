#include "src/device/profile.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "src/device/calibrate.h"
#include "src/device/profile_measure.h"
#include "src/schedule/build.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class Profile : public testing::Test {
 protected:
  void write(const std::string& text) {
    fs::create_directories(path_.parent_path());
    std::ofstream(path_) << text;
  }
  std::string text() const {
    std::stringstream s;
    s << std::ifstream(path_).rdbuf();
    return s.str();
  }
  void expect_refused(const std::string& reason) {
    const auto loaded = load_profile(path_);
    ASSERT_FALSE(loaded.ok()) << reason;
    EXPECT_EQ(loaded.error().code, ErrorCode::bad_request);
    EXPECT_EQ(loaded.error().message.find('\n'), std::string::npos);
    EXPECT_NE(loaded.error().message.find(path_.string()), std::string::npos) << loaded.error().message;
    EXPECT_NE(loaded.error().message.find(reason), std::string::npos) << loaded.error().message;
  }

  const ScratchDir scratch_;
  const fs::path folder_ = scratch_.path(), path_ = folder_ / "deeper" / "profile.json";
};

HardwareProfile sample() {
  HardwareProfile p;
  p.machine = machine_id();
  p.cores = 3;
  p.gemm_flops_f32 = 1.0 / 3 * 1e11;
  p.drives["/dev/x ext4"].mixed_bytes_per_second = 1234567890.123456789;
  p.drives["/dev/x ext4"].block_bytes = 256 << 10;
  DriveProfile& pair = p.drives["/dev/x ext4 + /dev/y xfs"];
  pair.backend = "libaio";
  pair.depth = 32;
  pair.stripe_weights = {0.5, 1.5};
  p.devices["NVIDIA X"].both_bytes_per_second = 1e11 / 7;
  p.op_overhead_seconds = 0.1 * 3e-6;
  p.op_seconds["mlp.forward b1 s512 t2 bf16"] = 1.0 / 7;
  return p;
}

TEST_F(Profile, ReadsBackExactly) {
  const HardwareProfile p = sample();
  ASSERT_TRUE(save_profile(path_, p).ok());
  const auto q = load_profile(path_);
  ASSERT_TRUE(q.ok()) << q.error().message;
  EXPECT_EQ(q->machine, p.machine);
  EXPECT_TRUE(profile_is_of_this_machine(*q));
  EXPECT_EQ(q->cores, 3);
  EXPECT_EQ(q->gemm_flops_f32, p.gemm_flops_f32);
  EXPECT_EQ(q->drives.at("/dev/x ext4").mixed_bytes_per_second, 1234567890.123456789);
  EXPECT_EQ(q->drives.at("/dev/x ext4").block_bytes, 256u << 10);
  const DriveProfile& pair = q->drives.at("/dev/x ext4 + /dev/y xfs");
  EXPECT_EQ(pair.backend, "libaio");
  EXPECT_EQ(pair.depth, 32u);
  EXPECT_EQ(pair.stripe_weights, (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(q->devices.at("NVIDIA X").both_bytes_per_second, 1e11 / 7);
  HardwareProfile chosen = *q;
  EXPECT_TRUE(select_device(chosen, "NVIDIA X"));
  EXPECT_EQ(chosen.device->both_bytes_per_second, 1e11 / 7);
  EXPECT_FALSE(select_device(chosen, "NVIDIA Y"));
  EXPECT_TRUE(select_device(chosen, ""));
  EXPECT_FALSE(chosen.device.has_value());
  EXPECT_EQ(q->op_overhead_seconds, p.op_overhead_seconds);
  EXPECT_EQ(q->op_seconds, p.op_seconds);
  EXPECT_TRUE(q->measures_ops);
  HardwareProfile predicts = p;
  predicts.measures_ops = false;
  ASSERT_TRUE(save_profile(path_, predicts).ok());
  const auto r = load_profile(path_);
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_FALSE(r->measures_ops);
}

TEST_F(Profile, SavingTwiceLeavesOneFile) {
  ASSERT_TRUE(save_profile(path_, sample()).ok());
  HardwareProfile p = sample();
  p.op_seconds.clear();
  ASSERT_TRUE(save_profile(path_, p).ok());
  const auto q = load_profile(path_);
  ASSERT_TRUE(q.ok()) << q.error().message;
  EXPECT_TRUE(q->op_seconds.empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(path_.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(Profile, RefusesWhatIsNoProfile) {
  expect_refused("");
  for (const char* text : {"", "{", "[]", "null", "3", "\"profile\"", "{}", "{\"schema_version\": \"1\"}"}) {
    write(text);
    expect_refused("");
  }
}

TEST_F(Profile, RefusesDamagedFields) {
  ASSERT_TRUE(save_profile(path_, sample()).ok());
  const auto whole = nlohmann::json::parse(text());
  const auto with = [&](const char* name, const nlohmann::json& value) {
    auto damaged = whole;
    damaged[name] = value;
    write(damaged.dump());
  };
  with("schema_version", profile_schema_version + 1);
  expect_refused("schema version");
  with("machine", 3);
  expect_refused("machine");
  for (const auto& [name, value] : whole.items()) {
    if (name == "schema_version" || name == "machine") continue;
    with(name.c_str(), "fast");
    expect_refused(name);
    with(name.c_str(), -1);
    expect_refused(name);
    auto damaged = whole;
    damaged.erase(name);
    write(damaged.dump());
    expect_refused(name);
  }
  with("op_seconds", {{"mlp.forward", 0}});
  expect_refused("mlp.forward");
  with("measures_ops", 0);
  expect_refused("measures_ops");
  with("cores", 1.5);
  expect_refused("cores");
  const auto of_drive = [&](const char* name, const nlohmann::json& value) {
    auto damaged = whole;
    damaged["drives"]["/dev/x ext4"][name] = value;
    write(damaged.dump());
  };
  for (const auto& [name, value] : whole["drives"]["/dev/x ext4"].items()) {
    of_drive(name.c_str(), {{"a", 1}});
    expect_refused(name);
  }
  for (const auto& [name, value] : whole["devices"]["NVIDIA X"].items()) {
    auto damaged = whole;
    damaged["devices"]["NVIDIA X"][name] = {{"a", 1}};
    write(damaged.dump());
    expect_refused(name);
  }
  of_drive("backend", "aio");
  expect_refused("aio");
  of_drive("block_bytes", 3000);
  expect_refused("3000");
  of_drive("depth", 1 << 20);
  expect_refused("depth");
  of_drive("stripe_weights", {1.0, 0.0});
  expect_refused("weight");
  const std::string full = whole.dump();
  for (std::size_t n = 0; n < full.size(); n += 37) {
    write(full.substr(0, n));
    expect_refused("");
  }
}

TEST_F(Profile, DrivesAreKnownByTheirDevice) {
  HardwareProfile p = sample();
  const std::vector<std::string> here{folder_.string()}, twice{folder_.string(), folder_.string()};
  EXPECT_FALSE(select_drive(p, here));
  EXPECT_EQ(p.drive.depth, drive_window);
  p.drives[drive_key(here)].depth = 5;
  p.drives[drive_key(twice)].depth = 6;
  fs::create_directory(folder_ / "sub");
  EXPECT_TRUE(select_drive(p, std::vector<std::string>{(folder_ / "sub").string()})) << "of the same drive";
  EXPECT_EQ(p.drive.depth, 5u);
  EXPECT_TRUE(select_drive(p, twice));
  EXPECT_EQ(p.drive.depth, 6u);
}

TEST_F(Profile, UnwritablePlaceIsOneLine) {
  std::ofstream(folder_ / "file") << "x";
  const Status saved = save_profile(folder_ / "file" / "profile.json", sample());
  ASSERT_FALSE(saved.ok());
  EXPECT_NE(saved.error().message.find("file"), std::string::npos);
}

TEST(ProfilePath, FollowsTheEnvironment) {
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(*default_profile_path(), "/cache/sluice/profile.json");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/somebody", 1);
  EXPECT_EQ(*default_profile_path(), "/home/somebody/.cache/sluice/profile.json");
  unsetenv("HOME");
  EXPECT_FALSE(default_profile_path().ok());
}

TEST(MeasureProfile, WhatTheExecutorCostsIsMeasured) {
  const auto overhead = measure_op_overhead_seconds(0.01), handoff = measure_handoff_seconds(1, 0.02);
  ASSERT_TRUE(overhead.ok()) << overhead.error().message;
  ASSERT_TRUE(handoff.ok()) << handoff.error().message;
  EXPECT_GT(*overhead, 0);
  EXPECT_GE(*handoff, 0);
}

TEST(CostKey, TellsApartWhatTakesOtherTimes) {
  ModelConfig config;
  const ModelSpec model = build_model(config);
  const BatchShape shape{2, 64};
  const auto workload = [](const ModelSpec& m, BatchShape s, Dtype d, int threads) {
    Workload w;
    w.model = &m;
    w.shape = s;
    w.dtype = d;
    w.threads = threads;
    return w;
  };
  const auto key = [&](const ModelSpec& m, BatchShape s, Dtype d, int threads) {
    return cost_key(workload(m, s, d, threads), Sublayer::attention, OpKind::backward);
  };
  const std::string base = key(model, shape, Dtype::f32, 2);
  EXPECT_TRUE(base.ends_with(" f32")) << base;
  EXPECT_TRUE(key(model, shape, Dtype::bf16, 2).ends_with(" bf16"));
  EXPECT_NE(base, key(model, {1, 64}, Dtype::f32, 2));
  EXPECT_NE(base, key(model, {2, 65}, Dtype::f32, 2));
  EXPECT_NE(base, key(model, shape, Dtype::f32, 1));
  Workload w = workload(model, shape, Dtype::f32, 2);
  EXPECT_NE(base, cost_key(w, Sublayer::attention, OpKind::forward));
  EXPECT_NE(base, cost_key(w, Sublayer::mlp, OpKind::backward));
  w.document_length = 16;
  EXPECT_EQ(base, cost_key(w, Sublayer::attention, OpKind::backward));
  const std::string mlp = cost_key(w, Sublayer::mlp, OpKind::backward);
  w.documents = true;
  const std::string documents = cost_key(w, Sublayer::attention, OpKind::backward);
  EXPECT_NE(base, documents);
  EXPECT_EQ(mlp, cost_key(w, Sublayer::mlp, OpKind::backward));
  w.document_length = 20;
  EXPECT_NE(documents, cost_key(w, Sublayer::attention, OpKind::backward));
  w.documents = false;
  w.device = "NVIDIA X";
  const std::string gpu = cost_key(w, Sublayer::attention, OpKind::backward);
  EXPECT_NE(base, gpu);
  w.threads = 8;
  EXPECT_EQ(gpu, cost_key(w, Sublayer::attention, OpKind::backward));
  for (auto change : {+[](ModelConfig& c) { c.kv_heads = 2; }, +[](ModelConfig& c) { c.window = 32; },
                      +[](ModelConfig& c) { c.qk_norm = true; }, +[](ModelConfig& c) { c.qkv_bias = true; },
                      +[](ModelConfig& c) { c.hidden = 128; }, +[](ModelConfig& c) { c.head_dim = 32; }}) {
    ModelConfig other = config;
    change(other);
    EXPECT_NE(base, key(build_model(other), shape, Dtype::f32, 2));
  }
}

/// A training step, an evaluation and a decoding of one model.
std::vector<Workload> workloads(const ModelSpec& model, BatchShape shape) {
  Workload train;
  train.model = &model;
  train.shape = shape;
  train.threads = 2;
  Workload evaluate = train;
  evaluate.inference = true;
  Workload decode = evaluate;
  decode.kv_capacity = 2 * shape.sequence;
  return {train, evaluate, decode};
}

/// FLOP, by cost key, of the ops in the plans that a run of this workload has.
std::map<std::string, double> planned_flop(const Workload& workload) {
  std::map<std::string, double> flop;
  std::vector<PlanKind> kinds{workload.main_kind()};
  if (!workload.inference) kinds.insert(kinds.end(), {PlanKind::evaluate, PlanKind::flush});
  for (const PlanKind kind : kinds) {
    // Nothing of what attention saves is kept, or its core, or the rest.
    for (const auto& [saved, core] :
         {std::pair(Saved::recompute, Saved::recompute), std::pair(Saved::recompute, Saved::keep),
          std::pair(Saved::keep, Saved::recompute)}) {
      Schedule schedule = frugal_schedule(workload);
      for (UnitChoice& unit : schedule.units) {
        unit.saved = saved;
        unit.core = core;
      }
      const StepPlan plan = build_ops(kind, workload, schedule);
      for (const Op& op : plan.ops)
        if (op.cost >= 0) flop[plan.cost_keys[static_cast<std::size_t>(op.cost)]] = op.flop;
    }
  }
  return flop;
}

TEST(Calibrate, MeasuresTheOpsOfThePlansOnceAndKeepsWhatIsKnown) {
  const auto device = std::move(*Device::open("cpu"));
  for (const char* name : {"llama-tiny", "gpt2"}) {
    ModelConfig config = *preset_config("llama-tiny");
    if (std::string(name) == "gpt2") config.family = Family::gpt2, config.kv_heads = config.heads, config.tied = true;
    const ModelSpec model = build_model(config);
    for (const Workload& workload : workloads(model, {1, 32})) {
      SCOPED_TRACE(plan_kind_names[static_cast<std::size_t>(workload.main_kind())]);
      HardwareProfile profile;
      bool changed = false;
      ASSERT_TRUE(calibrate(workload, *device, profile, 60, &changed).ok());
      EXPECT_TRUE(changed);
      const auto planned = planned_flop(workload);
      EXPECT_EQ(profile.op_seconds.size(), planned.size());
      for (const auto& [key, flop] : planned) EXPECT_EQ(profile.op_seconds.count(key), 1u) << key;
      for (const auto& [key, seconds] : profile.op_seconds) EXPECT_GT(seconds, 0) << key;
      const auto before = profile.op_seconds;
      ASSERT_TRUE(calibrate(workload, *device, profile, 60, &changed).ok());
      EXPECT_FALSE(changed);
      EXPECT_EQ(profile.op_seconds, before);
    }
  }
}

TEST(Calibrate, WithoutTimeItExtrapolatesFromTheRate) {
  const auto device = std::move(*Device::open("cpu"));
  const ModelSpec model = build_model(*preset_config("llama-7b"));
  for (const Workload& workload : workloads(model, {1, 4096})) {
    HardwareProfile profile;
    bool changed = false;
    ASSERT_TRUE(calibrate(workload, *device, profile, 0, &changed).ok());
    EXPECT_TRUE(changed);
    for (const auto& [key, flop] : planned_flop(workload)) {
      const bool gathers = key.starts_with("embed.");
      EXPECT_EQ(flop == 0, gathers) << key;
      // A profile with an op that takes no time could not be read back.
      EXPECT_DOUBLE_EQ(profile.op_seconds[key], gathers ? 1e-9 : flop / profile.gemm_flops_bf16) << key;
    }
  }
}

/// Plans of copies, for which there is no backend.
TEST(Overhead, IsMeasured) {
  for (const Result<double>& seconds : {measure_op_overhead_seconds(0.01), measure_handoff_seconds(1, 0.02)}) {
    ASSERT_TRUE(seconds.ok()) << seconds.error().message;
    EXPECT_GE(*seconds, 0);
  }
}

}  // namespace
}  // namespace sluice
