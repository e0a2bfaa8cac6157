// sluice plan takes what train takes, checks it as train does, and writes nothing.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "run_command.h"
#include "src/device/device.h"
#include "src/device/profile.h"

namespace sluice {
namespace {

using nlohmann::json;

class PlanCommand : public RunCommandTest {
 protected:
  std::string tiny() const { return "plan --model llama-tiny --seq 32 --batch 4 "; }

  /// "--steps INT" of each option in a command's help: the names, and what is written behind them.
  static std::vector<std::pair<std::string, std::string>> options_in(const std::string& help) {
    std::vector<std::pair<std::string, std::string>> found;
    const std::regex line("\n  (?:-h,)?(--[a-z0-9-]+)([^\n]*)");
    for (std::sregex_iterator at(help.begin(), help.end(), line), end; at != end; ++at)
      if ((*at)[1] != "--help") found.emplace_back((*at)[1], (*at)[2]);
    return found;
  }
  /// A value of the kind; a space in front.
  static std::string value_of(const std::string& kind) {
    std::smatch choice;
    if (std::regex_search(kind, choice, std::regex("\\{([^,}]+)"))) return " " + choice[1].str();
    if (kind.rfind(" SIZE", 0) == 0) return " 1TiB";
    if (kind.rfind(" INT", 0) == 0 || kind.rfind(" UINT", 0) == 0) return " 1";
    if (kind.rfind(" FLOAT", 0) == 0) return " 0.5";
    return kind.rfind(" TEXT", 0) == 0 || kind.rfind(" DIR", 0) == 0 ? " x" : "";
  }
};

/// Of devices that are not here, which takes a build with CUDA: it knows what buffers their kernels need.
class PlanElsewhere : public PlanCommand {
 protected:
  /// A machine of large devices, of which nothing is measured.
  std::string with_devices(int ranks, int drives = 0) const {
    const json messages{
        {"latency_seconds", 1e-5}, {"gather_bytes_per_second", 1e11}, {"reduce_bytes_per_second", 1e11}};
    json cluster{{"ranks_of_machine", ranks},
                 {"device", {{"name", "H200"}}},
                 {"host", {{"memory_bytes", 1e12}, {"cores", 64}, {"memory_bytes_per_second", 3e11}}},
                 {"messages_inside", messages},
                 {"messages_between", messages}};
    if (drives > 0)
      cluster["drives"] = {
          {"count", drives}, {"bytes", 4e12}, {"read_bytes_per_second", 6.8e9}, {"write_bytes_per_second", 4e9}};
    write("cluster.json", cluster.dump());
    return path("cluster.json") + " ";
  }
  void SetUp() override {
    PlanCommand::SetUp();
    if (!kernel_sizes_of("cuda").ok()) GTEST_SKIP() << "built without CUDA";
  }
};

TEST_F(PlanCommand, TakesEveryOptionOfTrain) {
  const auto options = options_in(sluice("train --help").out);
  ASSERT_GT(options.size(), 50u);
  for (const auto& [name, kind] : options) {
    const Finished f = sluice("plan " + name + value_of(kind));
    EXPECT_EQ(f.err.find("is not an option"), std::string::npos) << name << kind << "\n" << f.err;
  }
}

TEST_F(PlanCommand, TheCommandOfTrainIsAPlanAndLeavesNothing) {
  const std::string command = "plan" + options().substr(5) + drive() + run("run") +
                              "--steps 40 --eval-every 5 --hash 3 --max-skipped 2 --metrics " + path("m.jsonl") +
                              " --json";
  ASSERT_EQ(sluice(command).status, 0) << "the profile may be added to";
  const auto before = everything();
  const Finished f = sluice(command);
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(json::parse(f.out)["durable"]["on"], true);
  EXPECT_TRUE(before == everything()) << "something was touched";
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(PlanCommand, GradientsInBf16WaitInHalfTheBytes) {
  const auto planned = [&](const std::string& dtype) {
    const Finished f = sluice(tiny() + drive() + "--durable off --update ahead --json --gradient-dtype " + dtype);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  };
  const json exact = planned("fp32"), rounded = planned("bf16");
  EXPECT_EQ(exact["schedule"]["gradient_dtype"], "f32");
  EXPECT_EQ(rounded["schedule"]["gradient_dtype"], "bf16");
  const double parameters = exact["parameters"];
  const auto saved = [&](double bytes) { return std::abs(bytes / (2 * parameters) - 1) < 0.1; };
  const auto difference = [&](const char* part, const char* key) {
    return exact[part][key].get<double>() - rounded[part][key].get<double>();
  };
  EXPECT_TRUE(saved(difference("nvme", "max_live_bytes")));
  EXPECT_TRUE(saved(difference("bytes", "nvme_read")));
  EXPECT_TRUE(saved(difference("bytes", "nvme_write")));
  EXPECT_TRUE(saved(difference("wear", "bytes_per_step")));
  EXPECT_EQ(exact["state_bytes_per_parameter"], rounded["state_bytes_per_parameter"]);
  const Finished text = sluice(tiny() + drive() + "--update ahead --gradient-dtype bf16");
  EXPECT_NE(text.out.find("bf16 gradients until the update"), std::string::npos) << text.out;
}

TEST_F(PlanCommand, ActivationsInBlocksOf8BitsWaitInAboutHalfTheBytes) {
  const std::string away = tiny() + drive() + "--schedule horizontal --activations nvme --recompute full ";
  const auto planned = [&](const std::string& dtype) {
    const Finished f = sluice(away + "--json --activation-dtype " + dtype);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  };
  const json exact = planned("exact"), int8 = planned("int8"), fp8 = planned("fp8");
  EXPECT_FALSE(exact["schedule"].contains("activation_dtype"));
  EXPECT_EQ(int8["schedule"]["activation_dtype"], "int8");
  EXPECT_EQ(fp8["schedule"]["activation_dtype"], "fp8");
  EXPECT_LT(int8["bytes"]["d2h"], exact["bytes"]["d2h"]);
  EXPECT_LT(int8["bytes"]["h2d"], exact["bytes"]["h2d"]);
  EXPECT_EQ(int8["bytes"], fp8["bytes"]);
  const Finished text = sluice(away + "--activation-dtype fp8");
  EXPECT_NE(text.out.find("parked activations in blocks of fp8: "), std::string::npos) << text.out;
  const Finished none = sluice(tiny() + "--activations device --activation-dtype int8");
  EXPECT_NE(none.out.find("--activation-dtype int8 changes nothing: no activation waits away"), std::string::npos)
      << none.out;
  for (const auto& [options, why] : {std::pair("--activation-dtype int4", "exact"),
                                     std::pair("--activation-dtype int8 --activations device --recompute full",
                                               "is of activations that leave the device")}) {
    const Finished f = sluice(tiny() + options);
    EXPECT_EQ(f.status, 2);
    EXPECT_NE(f.err.find(why), std::string::npos) << f.err;
    EXPECT_EQ(std::ranges::count(f.err, '\n'), 1) << f.err;
  }
}

TEST_F(PlanCommand, SaysWhatAStepTakesThatIsMadeAgain) {
  const auto planned = [&](const std::string& options) {
    const Finished f = sluice(tiny() + "--nvme " + path("nvme") + " --json " + options);
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json();
  };
  const json p = planned("--update speculative --states host");
  EXPECT_EQ(p["schedule"]["update"], "speculative");
  const json& predicted = p["predicted"];
  EXPECT_EQ(predicted["repaired_step"]["from_gradients"], true) << "in host memory they cost nothing";
  EXPECT_GT(predicted["repaired_step"]["step_seconds"], predicted["step_seconds"].get<double>());
  EXPECT_EQ(predicted["repaired_step"]["loaded_bytes"],
            p["state_bytes_per_parameter"].get<double>() * p["parameters"].get<double>())
      << "all states are in host memory, and are loaded again";
  EXPECT_GT(predicted["ahead_step_seconds"], 0);
  // Without room for gradients that wait there is one order alone.
  const std::string on_drive = "--update speculative --states nvme ";
  const json tight = planned(on_drive + "--nvme-space " + planned(on_drive)["least"]["nvme"].dump());
  EXPECT_EQ(tight["schedule"]["update"], "speculative");
  EXPECT_FALSE(tight["predicted"].contains("ahead_step_seconds"));
  EXPECT_EQ(tight["predicted"]["repaired_step"]["from_gradients"], false);
  EXPECT_GE(tight["predicted"]["repaired_step"]["step_seconds"], 2 * tight["predicted"]["step_seconds"].get<double>());
  const auto says = [&](const std::string& states, const std::string& how) {
    const std::string text = sluice(tiny() + "--nvme " + path("nvme") + " --update speculative --states " + states).out;
    EXPECT_NE(text.find("speculative updates: a step that clips is " + how + ", and takes "), std::string::npos)
        << text;
  };
  says("host", "updated again from its gradients");
  says("nvme", "made again");  // where gradients would wait there too, a third more would be written
  // Nothing clips, and nothing is committed.
  EXPECT_EQ(planned("--update speculative --clip 0 --durable off")["schedule"]["update"], "backward");
}

/// Where drives have about as much to do as the device, steps come to the time bound, below that of the passes.
TEST_F(PlanElsewhere, UpdatesComeInBothPassesWhereThatIsQuicker) {
  const std::string command =
      "plan --model llama-1b --seq 2048 --batch 8 --micro-batch 1 --device-memory 6GiB "
      "--host-memory 7GiB --durable on " +
      run("run") + "--cluster " + with_devices(1, 6);
  const auto planned = [&](const std::string& more) {
    const Finished f = sluice(command + more + " --json");
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  };
  const json both = planned("--update auto"), ahead = planned("--update ahead"),
             back = planned("--update backward --clip 0");
  const int late = both["schedule"]["units_updated_ahead"], units = ahead["schedule"]["units_updated_ahead"];
  EXPECT_EQ(both["schedule"]["update"], "speculative");
  EXPECT_GT(late, 0);
  EXPECT_LT(late, units);
  EXPECT_EQ(back["schedule"]["units_updated_ahead"], 0);
  const auto seconds = [](const json& plan) { return plan["predicted"]["step_seconds"].get<double>(); };
  EXPECT_LT(seconds(both), 0.97 * seconds(ahead));
  EXPECT_LT(seconds(both), both["predicted"]["pass_bound_seconds"]);
  EXPECT_LE(both["predicted"]["ahead_step_seconds"], 1.021 * seconds(ahead)) << "of a run that clips in every step";
  const Finished text = sluice(command);
  const std::string says =
      "those of " + std::to_string(late) + " of " + std::to_string(units) + " units ahead of the next";
  EXPECT_NE(text.out.find(says), std::string::npos) << text.out;
}

/// In steps that wait for their norm gradients lie where others have parameters that stay on the device.
TEST_F(PlanElsewhere, StepsThatWaitUseMemoryOtherwise) {
  const std::string command =
      "plan --model llama-25m --seq 512 --batch 8 --micro-batch 1 --device-memory 150MiB --host-memory 40MiB "
      "--durable on " +
      run("run") + "--cluster " + with_devices(1, 4);
  const Finished f = sluice(command + " --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json p = json::parse(f.out);
  EXPECT_EQ(p["schedule"]["update"], "speculative");
  ASSERT_TRUE(p["schedule"].contains("waiting")) << p["schedule"];
  const int on_device = p["schedule"]["waiting"]["gradients_on_device"];
  EXPECT_GT(on_device, 0);
  EXPECT_GT(p["predicted"]["change_back_seconds"], 0) << "parameters that stay on the device are loaded";
  const std::string text = sluice(command).out;
  const std::string says = "with gradients of " + std::to_string(on_device) + " of 18 units on the device";
  EXPECT_NE(text.find(says), std::string::npos) << text;
}

/// The border is the smallest budgets': what is found fits, and the next length does not.
TEST_F(PlanElsewhere, FindsTheLongestSequences) {
  write("long.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 1048576})");
  for (const int ranks : {1, 8}) {
    SCOPED_TRACE(ranks);
    const std::string shape = ranks == 1 ? "--batch 2 " : "--batch 8 --ranks 8 --tp 2 --cp 2 ";
    const std::string rest =
        shape + "--device-memory 96MiB --host-memory 1GiB --run none --cluster " + with_devices(ranks);
    const Finished f = sluice("plan --model " + path("long.json") + " --max-seq --json " + rest);
    ASSERT_EQ(f.status, 0) << f.err;
    const json found = json::parse(f.out)["max_seq"];
    const auto plan_of = [&](const char* key) {
      return sluice("plan --model " + path("long.json") + " --seq " + found[key].dump() + " " + rest);
    };
    EXPECT_EQ(plan_of("tokens").status, 0);
    const Finished refused = plan_of("refused");
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("does not fit"), std::string::npos) << refused.err;
  }
  const std::string tiny = "plan --model llama-tiny --max-seq --cluster " + with_devices(1);
  // Of a budget that is left open there may be less when the search has ended: it is what it was before.
  const Finished open = sluice(tiny + " --batch 1 --device-memory 96MiB --run none --json");
  ASSERT_EQ(open.status, 0) << open.err;
  EXPECT_GT(json::parse(open.out)["settings"]["host_memory"], 0u);
  expect_refused(tiny + "--device-memory 1MiB --host-memory 1MiB --run none", "no budget of these has room");
  expect_refused(tiny + "--seq 32", "--max-seq looks for the longest --seq");
  expect_refused(tiny + "--ranks 2 --layout auto", "give one of them");
}

/// A search that gave up what is saved for larger tiles, though both had room, came to a step that took 14% longer.
TEST_F(PlanElsewhere, KeepsActivationsThatHaveRoom) {
  const std::string of = "plan --model llama-125m --seq 1024 --batch 16 --micro-batch 4 --run none --json --cluster " +
                         with_devices(1) + " --device-memory 3603MiB --host-memory 16GiB --recompute ";
  const auto seconds = [&](const std::string& recompute) {
    const Finished f = sluice(of + recompute);
    EXPECT_EQ(f.status, 0) << recompute << f.err;
    return f.status == 0 ? json::parse(f.out)["predicted"]["step_seconds"].get<double>() : 0;
  };
  EXPECT_LE(seconds("auto"), 1.005 * seconds("none"));
}

/// Where a few layers stand for many, the room of one more or one less of them decided whether anything was found: with
/// more memory the step took a third longer than with less.
TEST_F(PlanElsewhere, UsesTheRoomThatLargeModelsHave) {
  const Finished f = sluice("plan --model llama-8b --seq 2048 --batch 16 --micro-batch 1 --run none --json --cluster " +
                            with_devices(1) + " --host-memory 900GiB --device-memory 53243MiB");
  ASSERT_EQ(f.status, 0) << f.err;
  const json predicted = json::parse(f.out)["predicted"];
  EXPECT_LE(predicted["step_seconds"].get<double>(), 1.1 * predicted["pass_bound_seconds"].get<double>());
  EXPECT_LE(predicted["activations_above_bound"].get<double>(), 0.12);
}

/// What becomes of activations, by name; none is quicker than what is found without one.
TEST_F(PlanElsewhere, KnowsSchedulesOfActivationsByName) {
  const std::string of = "plan --model llama-25m --seq 512 --batch 8 --micro-batch 4 --run none --cluster " +
                         with_devices(1) + " --device-memory 200MiB --host-memory 1GiB ";
  const auto planned = [&](const std::string& recompute) {
    const Finished f = sluice(of + "--json --recompute " + recompute);
    EXPECT_EQ(f.status, 0) << recompute << f.err;
    return f.status == 0 ? json::parse(f.out) : json();
  };
  const json found = planned("auto");
  const double quickest = found["predicted"]["step_seconds"];
  const double gap = found["predicted"]["activations_above_bound"];
  EXPECT_GE(gap, -1e-6);
  EXPECT_LT(gap, 1);
  for (const char* name : {"full", "sqrt", "revolve", "optimal"}) {
    const json plan = planned(name);
    EXPECT_GE(plan["predicted"]["step_seconds"].get<double>(), 0.995 * quickest) << name;
  }
  const Finished text = sluice(of + "--recompute sqrt");
  EXPECT_NE(text.out.find("inputs made again on the way back"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("above the bound of what could become of them"), std::string::npos) << text.out;
  expect_refused(of + "--recompute root", "--recompute");
}

TEST_F(PlanElsewhere, SaysWhereSumsOfGradientsAre) {
  const std::string of = "plan --model llama-125m --seq 512 --batch 8 --micro-batch 1 --run none --cluster " +
                         with_devices(1) + " --host-memory 16GiB ";
  const auto says = [&](const std::string& options, bool ahead, bool parked) {
    SCOPED_TRACE(options);
    const Finished text = sluice(of + options), found = sluice(of + options + "--json");
    ASSERT_EQ(text.status, 0) << text.err;
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_EQ(json::parse(found.out)["schedule"]["gradients_ahead"], ahead);
    EXPECT_EQ(text.out.find(", sums of gradients beside the passes") != std::string::npos, ahead) << text.out;
    EXPECT_EQ(text.out.find("\nsums of gradients ") != std::string::npos, parked) << text.out;
  };
  says("--device-memory 400MiB --group 2 ", true, true);
  says("--device-memory 400MiB --group 8 ", false, false);
  says("--device-memory 8GiB --group 2 ", false, false);
}

/// Rotary positions can be extended, and how is said; learned ones end there.
TEST_F(PlanElsewhere, SequencesBeyondTheModelsPositions) {
  const std::string room =
      " --batch 1 --device-memory 192MiB --host-memory 1GiB --run none --cluster " + with_devices(1);
  const Finished found = sluice("plan --model llama-tiny --max-seq" + room);
  ASSERT_EQ(found.status, 0) << found.err;
  const std::regex hint(R"re("max_position_embeddings": (\d+) and ("rope_scaling": \{[^}]*\}))re");
  std::smatch said;
  ASSERT_TRUE(std::regex_search(found.out, said, hint)) << found.out;
  const Finished refused = sluice("plan --model llama-tiny --seq 4096" + room);
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("extends them"), std::string::npos) << refused.err;
  // What it says is a configuration that is taken.
  write("config.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": )" +
                           said[1].str() + ", " + said[2].str() + "}");
  EXPECT_EQ(sluice("plan --model " + path("config.json") + " --seq " + said[1].str() + room).status, 0);
  write("learned.json",
        R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64})");
  const Finished learned = sluice("plan --model " + path("learned.json") + " --max-seq --json" + room);
  ASSERT_EQ(learned.status, 0) << learned.err;
  EXPECT_EQ(json::parse(learned.out)["max_seq"], (json{{"tokens", 64}, {"refused", nullptr}, {"positions", 64}}));
}

TEST_F(PlanCommand, DataThatIsGivenIsLookedAt) {
  EXPECT_EQ(sluice(tiny() + "--data " + path("text")).status, 0);
  expect_refused(tiny() + "--data " + path("nowhere"), "nowhere");
  expect_refused(tiny() + "--data " + path("nvme"), "nvme");
  write("short", std::string(64, 'a'));
  expect_refused(tiny() + "--data " + path("short"), "64 tokens are too few for sequences of 32");
  write("bad.jsonl", "{\"body\": \"" + std::string(100, 'a') + "\"}\n");
  expect_refused(tiny() + "--data " + path("bad.jsonl"), "bad.jsonl line 1");
  ASSERT_EQ(sluice("data tokenize --pack 16 --input " + path("text") + " --output " + path("packed.tokens") +
                   " --too-long cut")
                .status,
            0);
  expect_refused(tiny() + "--data " + path("packed.tokens"), "give --seq 16");
  const std::string config = path("config.json");
  ASSERT_EQ(sluice(options() + "--steps 1 " + run("run")).status, 0);
  json small = json::parse(read(path("run/config.json")));
  small["vocab_size"] = 100;
  write("config.json", small.dump());
  for (const std::string& command : {"plan --data " + path("text"), "train --data " + path("text")})
    expect_refused(command + " --seq 32 --batch 4 --model " + config, "bytes need a vocabulary of 256");
}

TEST_F(PlanCommand, ARunThatIsThereIsPlannedAsItGoesOn) {
  stop_a_run();
  const auto before = everything();
  const Finished plan = sluice("plan --json " + run("run"));
  ASSERT_EQ(plan.status, 0) << plan.err;
  const json stored = json::parse(read(path("run/run.json")))["plan"]["schedule"];
  EXPECT_EQ(json::parse(plan.out)["schedule"]["tile_numel"], stored["tile_numel"]);
  EXPECT_EQ(json::parse(plan.out)["durable"]["on"], true);
  expect_refused("plan --batch 8 " + run("run"), "contradicts the run");
  expect_refused("plan --resume " + run("none"), "holds no run");
  EXPECT_TRUE(before == everything()) << "something was touched";
  copy("run", "copy");
  expect_refused("plan " + run("copy"), "both would write to one swap file");
  ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
  EXPECT_EQ(sluice("plan " + run("run")).status, 0);
  expect_refused("plan --resume --steps 90 " + run("run"), "is complete after 40");
}

TEST_F(PlanCommand, ARunThatIsUnderWayIsPlannedToo) {
  const std::string script = "XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " + options() + drive() +
                             run("run") + "--steps 1000000 >/dev/null 2>&1 & echo $! >" + path(".pid") +
                             "; until [ -s " + path("run") +
                             "/metrics.jsonl ]; do kill -0 $! || exit 1; sleep 0.02; done";
  ASSERT_EQ(std::system(script.c_str()), 0);
  const Finished f = sluice("plan " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(std::system(("kill -9 $(cat " + path(".pid") + ")").c_str()), 0);
}

/// What the present schedule has no use for may be what another one needs.
TEST_F(PlanCommand, AdviceLooksBeyondTheRoomThatIsUsed) {
  const std::string command = "plan --model llama-tiny --device-memory 16MiB --nvme " + path("nvme") + " --json ";
  // Both by one profile: what the second has to measure, the first may use.
  for (const char* host : {"1MiB", "2MiB"}) ASSERT_EQ(sluice(command + "--host-memory " + host).status, 0);
  const json little = json::parse(sluice(command + "--host-memory 1MiB").out),
             more = json::parse(sluice(command + "--host-memory 2MiB").out);
  ASSERT_LT(little["host"]["reserved_bytes"].get<std::uint64_t>(), 3u << 18);
  ASSERT_GT(little["predicted"]["step_seconds"].get<double>(), 1.2 * more["predicted"]["step_seconds"].get<double>());
  EXPECT_NE(little["advice"].dump().find("host"), std::string::npos) << little["advice"];
}

/// Second slots that just fit on the drive leave no room there for what makes steps quick.
TEST_F(PlanCommand, AdviceSaysWhatDurableStepsCost) {
  const std::string file = path("cache/sluice/profile.json");
  auto profile = load_profile(file);
  ASSERT_TRUE(profile.ok()) << profile.error().message;
  for (auto& [where, drive] : profile->drives)
    drive.read_bytes_per_second = drive.write_bytes_per_second = drive.mixed_bytes_per_second = 5e7;
  ASSERT_TRUE(save_profile(file, *profile).ok());
  const std::string command = "plan --model llama-tiny --seq 256 --batch 8 --device-memory 4MiB --host-memory 1MiB " +
                              ("--nvme-space 26MiB --json --nvme " + path("nvme")) + " ";
  for (const char* durable : {"auto", "off"}) ASSERT_EQ(sluice(command + "--durable " + durable).status, 0);
  const json open = json::parse(sluice(command).out), off = json::parse(sluice(command + "--durable off").out),
             on = json::parse(sluice(command + "--durable on").out);
  ASSERT_TRUE(open["durable"]["on"].get<bool>()) << open["durable"];
  const auto seconds = [](const json& plan) { return plan["predicted"]["step_seconds"].get<double>(); };
  const double gain = seconds(open) / seconds(off);
  ASSERT_GT(gain, 1.2);
  EXPECT_NEAR(open["advice"]["not_durable"]["gain"].get<double>(), gain, 0.3 * gain) << open["advice"];
  EXPECT_NE(open["advice"]["text"].get<std::string>().find("--durable off"), std::string::npos) << open["advice"];
  for (const json& asked : {on, off}) EXPECT_FALSE(asked["advice"].contains("not_durable")) << asked["advice"];
}

/// Two ranks of a thread each take both cores, whatever a rank alone would take: beside each other they do in the time
/// of one what one does.
TEST_F(PlanCommand, AnOpTakesTheCoresOfItsRank) {
  HardwareProfile profile;
  profile.machine = machine_id();
  profile.cores = profile.compute_threads = 2;
  ASSERT_TRUE(save_profile(path("cache/sluice/profile.json"), profile).ok());
  const auto predicted = [&](const std::string& more) {
    const Finished f =
        sluice("plan --model llama-tiny --seq 256 --threads 1 --json --data " + path("text") + " " + more);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out)["predicted"]["step_seconds"].get<double>();
  };
  const double one = predicted("--batch 4 --lots 1"), two = predicted("--batch 8 --lots 2 --ranks 2");
  EXPECT_GT(two, 0.7 * one);
  EXPECT_LT(two, 1.5 * one);
}

}  // namespace
}  // namespace sluice
