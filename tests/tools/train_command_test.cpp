// sluice train and plan as a person meets them: what they write, and what they refuse before they touch a file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "command.h"
#include "io/tokens/token_sink.h"
#include "src/device/profile.h"

namespace sluice {
namespace {

using nlohmann::json;

class TrainCommand : public CommandTest {
 protected:
  void SetUp() override { set_up_training(); }

  std::string tiny() const { return " --model llama-tiny --seq 32 --batch 4 "; }
  std::string budgets() const { return " --device-memory 8MiB --host-memory 4MiB --nvme " + path("nvme") + " "; }
  std::string data() const { return " --data " + path("text") + " "; }

  std::vector<json> lines(const std::string& name) const {
    std::vector<json> result;
    std::stringstream text(read(path(name)));
    for (std::string line; std::getline(text, line);) result.push_back(json::parse(line));
    return result;
  }
  bool is_empty(const std::string& folder) const { return std::filesystem::is_empty(path(folder)); }
};

TEST_F(TrainCommand, WritesMetricsTraceAndModel) {
  const Finished f = sluice("train" + tiny() + data() + budgets() + "--steps 3 --hash 3 --run " + path("run") +
                            " --metrics " + path("m.jsonl") + " --trace " + path("t.json"));
  ASSERT_EQ(f.status, 0) << f.err;
  const std::vector<json> steps = lines("m.jsonl");
  ASSERT_EQ(steps.size(), 3u);
  for (const json& s : steps)
    for (const char* field :
         {"step", "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "mfu", "bound_seconds",
          "predicted_seconds", "efficiency", "device_peak_bytes", "host_peak_bytes", "nvme_peak_bytes",
          "nvme_read_bytes", "nvme_write_bytes", "h2d_bytes", "d2h_bytes", "rss_bytes"})
      EXPECT_TRUE(s.contains(field) && s[field].is_number()) << field;
  EXPECT_TRUE(steps[2].contains("state_hash"));
  EXPECT_EQ(steps[2]["tokens"], 3 * 4 * 32);
  EXPECT_LE(steps[2]["device_peak_bytes"], 8u << 20);
  EXPECT_LE(steps[2]["host_peak_bytes"], 4u << 20);
  EXPECT_TRUE(json::accept(read(path("t.json"))));
  EXPECT_TRUE(std::filesystem::exists(path("run/model.safetensors")));
  EXPECT_TRUE(json::accept(read(path("run/config.json"))));
  EXPECT_TRUE(is_empty("nvme")) << "the swap file of a run that ended is gone";
}

TEST_F(TrainCommand, JsonOutputIsNothingButJson) {
  const Finished f = sluice("train" + tiny() + data() + "--run none --steps 2 --json");
  ASSERT_EQ(f.status, 0) << f.err;
  std::stringstream text(f.out);
  int count = 0;
  for (std::string line; std::getline(text, line); ++count) EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_EQ(count, 3);
}

TEST_F(TrainCommand, TokensOfTextLieInTheRunDirectoryOrInTheUsersCache) {
  const auto files = [&](const std::string& folder) {
    std::error_code missing;
    const std::filesystem::directory_iterator all(path(folder), missing);
    return missing ? 0 : std::distance(all, {});
  };
  ASSERT_EQ(sluice("train" + tiny() + data() + "--steps 1 --run " + path("run")).status, 0);
  EXPECT_EQ(files("run/tokens"), 1);
  EXPECT_EQ(files("cache/sluice/tokens"), 0);
  ASSERT_EQ(sluice("train" + tiny() + data() + "--run none --steps 1").status, 0);
  EXPECT_EQ(files("cache/sluice/tokens"), 1);
}

TEST_F(TrainCommand, ASmallLearningRateDecaysToo) {
  const Finished f = sluice("train" + tiny() + data() + budgets() +
                            "--run none --steps 4 --warmup 1 --lr 1e-5 --metrics " + path("lr.jsonl"));
  ASSERT_EQ(f.status, 0) << f.err;
  const std::vector<json> steps = lines("lr.jsonl");
  ASSERT_EQ(steps.size(), 4u);
  for (std::size_t i = 1; i < steps.size(); ++i) EXPECT_LT(steps[i]["lr"], steps[i - 1]["lr"]);
  EXPECT_NEAR(steps[3]["lr"], 1e-6, 1e-12);
}

TEST_F(TrainCommand, PlanSaysWhatFits) {
  const Finished f = sluice("plan" + tiny() + budgets() + "--json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json plan = json::parse(f.out);
  EXPECT_EQ(plan["fits"], true);
  for (const char* tier : {"device", "host", "nvme"}) {
    EXPECT_TRUE(plan[tier].contains("arena_bytes")) << tier;
    EXPECT_GE(plan[tier]["arena_bytes"], plan[tier]["max_live_bytes"]) << tier;
  }
  EXPECT_LE(plan["device"]["arena_bytes"], 8u << 20);
  EXPECT_GT(plan["predicted"]["step_seconds"], 0);
  EXPECT_GE(plan["predicted"]["step_seconds"].get<double>(), 0.999 * plan["predicted"]["bound_seconds"].get<double>());
  EXPECT_TRUE(plan["predicted"]["bottleneck"].is_string());
  for (const char* link : {"nvme_read", "nvme_write", "h2d", "d2h"}) EXPECT_TRUE(plan["bytes"].contains(link)) << link;
  EXPECT_TRUE(is_empty("nvme"));
}

TEST_F(TrainCommand, PlanTellsWhereUpdatesAre) {
  for (const bool on_device : {false, true}) {
    const std::string command = "plan" + tiny() + budgets() + (on_device ? "--optimizer device " : "--optimizer cpu ");
    const Finished f = sluice(command + "--json"), people = sluice(command);
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(json::parse(f.out)["schedule"]["units_updated_on_device"] > 0, on_device);
    EXPECT_NE(people.out.find("AdamW (units)"), std::string::npos) << people.out;
  }
}

TEST_F(TrainCommand, PlanTellsHowTheDriveWears) {
  const Finished f = sluice("plan" + tiny() + budgets() + "--states nvme --drive-tbw 600TB --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json plan = json::parse(f.out);
  const json& wear = plan.at("wear");
  EXPECT_GT(wear["bytes_per_step"], 0);
  EXPECT_EQ(wear["bytes_per_step"], plan["bytes"]["nvme_write"]);
  const double steps_per_day = 86400 / plan["predicted"]["step_seconds"].get<double>();
  EXPECT_DOUBLE_EQ(wear["bytes_per_day"].get<double>(), wear["bytes_per_step"].get<double>() * steps_per_day);
  EXPECT_EQ(wear["tbw_bytes"], 600'000'000'000'000);
  EXPECT_DOUBLE_EQ(wear["days"].get<double>() * wear["bytes_per_day"].get<double>(), 600e12);
  const Finished people = sluice("plan" + tiny() + budgets() + "--states nvme --drive-tbw 600TB");
  EXPECT_NE(people.out.find("\ndrive wear "), std::string::npos) << people.out;
  EXPECT_NE(people.out.find("rated for 600 TB written lasts"), std::string::npos) << people.out;
}

/// Checkpoints wear the drive where they are on it.
TEST_F(TrainCommand, CheckpointsWearTheDriveToo) {
  const std::string command = tiny() + data() + budgets() + "--states nvme --save-every 2 --run " + path("saves") + " ";
  const Finished f = sluice("plan" + command + "--json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json plan = json::parse(f.out), saving = plan.at("saving_step");
  EXPECT_TRUE(saving["to_swap_drive"]);
  EXPECT_EQ(plan["wear"]["bytes_per_step"].get<std::uint64_t>(),
            plan["bytes"]["nvme_write"].get<std::uint64_t>() + saving["bytes"].get<std::uint64_t>() / 2);
  const Finished people = sluice("plan" + command);
  EXPECT_NE(people.out.find("\nsaving          every 2 steps one writes "), std::string::npos) << people.out;
  const Finished run = sluice("train" + command + "--steps 4 --json");
  ASSERT_EQ(run.status, 0) << run.err;
  std::uint64_t bytes = 0;
  json last;
  std::stringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    last = json::parse(line);
    if (last.contains("nvme_write_bytes")) bytes += last["nvme_write_bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(last.at("wear")["bytes_per_step"].get<std::uint64_t>(),
            (bytes + 2 * saving["bytes"].get<std::uint64_t>()) / 4);
  std::filesystem::remove_all(path("saves"));
  const Finished told = sluice("train" + command + "--steps 2");
  EXPECT_NE(told.err.find("checkpoints: every 2 steps one writes "), std::string::npos) << told.err;
}

TEST_F(TrainCommand, TrainTellsHowTheDriveWears) {
  const std::string run =
      "train" + tiny() + data() + budgets() + "--run none --states nvme --steps 3 --metrics " + path("m.jsonl");
  const Finished f = sluice(run + " --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json last = json::parse(f.out.substr(f.out.rfind('\n', f.out.size() - 2) + 1));
  const json& wear = last.at("wear");
  double seconds = 0;
  std::uint64_t bytes = 0;
  for (const json& step : lines("m.jsonl")) {
    seconds += step["step_seconds"].get<double>();
    bytes += step["nvme_write_bytes"].get<std::uint64_t>();
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(wear["bytes_per_step"], bytes / 3);
  EXPECT_DOUBLE_EQ(wear["bytes_per_day"].get<double>(), wear["bytes_per_step"].get<double>() * 86400 / (seconds / 3));
  EXPECT_TRUE(wear["tbw_bytes"].is_null());
  EXPECT_TRUE(wear["days"].is_null());
  std::filesystem::remove(path("m.jsonl"));
  const Finished people = sluice(run + " --drive-tbw 600TB");
  ASSERT_EQ(people.status, 0) << people.err;
  EXPECT_NE(people.err.find("drive wear: "), std::string::npos) << people.err;
  EXPECT_NE(people.out.find("at the measured rate; a drive rated for 600 TB written lasts"), std::string::npos)
      << people.out;
}

TEST_F(TrainCommand, WearIsOfDrives) {
  for (const std::string& command : {"plan" + tiny(), "train" + tiny() + data() + "--run none --steps 1"}) {
    expect_refused(command + " --drive-tbw 600TB", "--nvme");
    expect_refused(command + budgets() + "--drive-tbw 600", "600TB");
    expect_refused(command + budgets() + "--drive-tbw 0", "600TB");
    expect_refused(command + budgets() + "--drive-tbw 6x", "6x");
    const Finished f = sluice(command + " --json");
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(f.out.find("wear"), std::string::npos) << f.out;
  }
}

TEST_F(TrainCommand, BudgetsThatAreTooSmallNameTheSmallestAndTouchNothing) {
  const std::string small = " --device-memory 64KiB --host-memory 4MiB --nvme " + path("nvme") + " ";
  const Finished f =
      sluice("train" + tiny() + data() + small + "--run " + path("run") + " --metrics " + path("m.jsonl"));
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_EQ(f.out, "");
  EXPECT_NE(f.err.find("smallest budgets"), std::string::npos) << f.err;
  for (const char* name : {"run", "m.jsonl"}) EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
  EXPECT_TRUE(is_empty("nvme"));
  const Finished plan = sluice("plan" + tiny() + small + "--json");
  EXPECT_EQ(plan.status, 2);
  const json smallest = json::parse(plan.out)["smallest"];
  EXPECT_GT(smallest["device"], 64u << 10);
  const auto with = [&](std::uint64_t device) {
    return sluice("plan" + tiny() + "--device-memory " + std::to_string(device) + " --host-memory 64MiB --nvme " +
                  path("nvme"))
        .status;
  };
  EXPECT_EQ(with(smallest["device"].get<std::uint64_t>()), 0);
  EXPECT_EQ(with(smallest["device"].get<std::uint64_t>() - 4096), 2);
}

TEST_F(TrainCommand, RefusesDataThatDoesNotServe) {
  const auto refused = [&](const std::string& arguments, const std::string& what) {
    const Finished f =
        sluice("train" + tiny() + budgets() + "--run none --steps 1 --metrics " + path("m.jsonl") + arguments);
    EXPECT_EQ(f.status, 2) << arguments << "\n" << f.err;
    EXPECT_NE(f.err.find(what), std::string::npos) << f.err;
    EXPECT_TRUE(is_empty("nvme"));
  };
  refused(" --data " + path("missing"), "missing");
  write("short", "too short");
  refused(" --data " + path("short"), "short");
  auto writer = TokenWriter::create(path("wide"), 50000);
  ASSERT_TRUE(writer.ok());
  std::vector<std::int32_t> tokens(5000);
  std::iota(tokens.begin(), tokens.end(), 0);
  ASSERT_TRUE(writer->append(tokens).ok());
  ASSERT_TRUE(writer->finish().ok());
  refused(" --data " + path("wide"), "wide");
}

TEST_F(TrainCommand, RefusesPlacesThatDoNotExist) {
  const Finished f =
      sluice("train" + tiny() + data() + "--steps 1 --device-memory 8MiB --host-memory 4MiB --nvme " + path("nowhere"));
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_NE(f.err.find("nowhere"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace sluice
