// The command line tool on the model of a device: what it refuses, and a run that a device's failure ends.
#include "tests/tools/command.h"

#include <stdlib.h>

#include <map>
#include <nlohmann/json.hpp>

#include "src/device/profile.h"
#include "tests/comm/mpirun.h"

namespace sluice {
namespace {

class CommandOnModel : public CommandTest {
 protected:
  void SetUp() override {
    set_up_training();
    Result<HardwareProfile> profile = load_profile(path("cache/sluice/profile.json"));
    ASSERT_TRUE(profile.ok()) << profile.error().message;
    profile->devices["model of a CUDA device"] = {};
    ASSERT_TRUE(save_profile(path("cache/sluice/profile.json"), *profile).ok());
    write("model.json",
          R"({"model_type":"llama","vocab_size":256,"hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
          R"("num_key_value_heads":2,"head_dim":16,"max_position_embeddings":64,"rms_norm_eps":1e-5,)"
          R"("rope_theta":10000.0,"hidden_act":"silu","num_hidden_layers":1,"tie_word_embeddings":true})");
  }
  void TearDown() override {
    for (const auto& [name, value] : card_) unsetenv(name.c_str());
  }
  /// Of the card that commands find from here on.
  void set(const std::string& field, const std::string& value) {
    card_["SLUICE_MODEL_" + field] = value;
    setenv(("SLUICE_MODEL_" + field).c_str(), value.c_str(), 1);
  }
  std::string train(const std::string& more) const {
    return "train --model " + path("model.json") + " --data " + path("text") +
           " --seq 32 --batch 2 --steps 4 --eval-batches 1 --host-memory 32MiB " + more;
  }

  std::map<std::string, std::string> card_;
};

TEST_F(CommandOnModel, Begins) {
  const Finished version = sluice("--version"), help = sluice("--help");
  EXPECT_EQ(version.status, 0) << version.err;
  EXPECT_EQ(version.out.rfind("sluice ", 0), 0u) << version.out;
  EXPECT_EQ(help.status, 0) << help.err;
}

TEST_F(CommandOnModel, RefusesDevicesThatItCannotUse) {
  expect_refused(train("--device gpu"), "give cpu, cuda or cuda:N");
  expect_refused(train("--device cuda:1"), "there is no device cuda:1");
  set("CAPABILITY", "75");
  expect_refused(train("--device cuda"), "has compute capability 7.5, 8.0 is needed");
  set("DRIVER", "11080");
  expect_refused(train("--device cuda"), "the CUDA driver is for 11.8");
  set("DRIVER", "0");
  expect_refused(train("--device cuda"), "no CUDA driver is installed");
}

TEST_F(CommandOnModel, MeasuresADeviceAndKeepsWhatItFound) {
  set("MEMORY", std::to_string(44u << 20));
  const Finished measured = sluice("bench device --json --profile " + path("cache/sluice/profile.json"));
  ASSERT_EQ(measured.status, 0) << measured.err;
  const auto result = nlohmann::json::parse(measured.out);
  EXPECT_EQ(result["device"], "model of a CUDA device (cuda:0)");
  for (const char* part : {"rates", "copies", "matmuls", "attention"}) {
    EXPECT_GT(result[part].size(), 3u) << part;
    for (const auto& [name, rate] : result[part].items()) EXPECT_GT(rate.get<double>(), 0) << name;
  }
  const Result<HardwareProfile> profile = load_profile(path("cache/sluice/profile.json"));
  ASSERT_TRUE(profile.ok()) << profile.error().message;
  EXPECT_EQ(profile->devices.at("model of a CUDA device").h2d_bytes_per_second,
            result["rates"]["h2d_bytes_per_second"].get<double>());
  expect_refused("bench device --device cpu", "is the host");
}

TEST_F(CommandOnModel, WhatItTrainedIsWhatTheCpuEvaluates) {
  const Finished trained = sluice(train("--device cuda --run " + path("run")));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto run = nlohmann::json::parse(read(path("run") + "/run.json"));
  EXPECT_EQ(run["plan"]["device"], "model of a CUDA device");
  EXPECT_GT(run["plan"]["kernels"].size(), 5u) << "the multiplies of each op";
  const std::string batch =
      " --data " + path("text") + " --seq 32 --batch 2 --host-memory 32MiB --device-memory 48MiB ";
  double losses[2] = {};
  std::string texts[2];
  for (const int on_device : {0, 1}) {
    const std::string device = on_device == 1 ? " --device cuda" : " --device cpu";
    const Finished evaluated = sluice("eval --json --model " + path("run") + batch + device);
    ASSERT_EQ(evaluated.status, 0) << evaluated.err;
    losses[on_device] = nlohmann::json::parse(evaluated.out)["loss"].get<double>();
    const Finished generated = sluice("generate --model " + path("run") +
                                      " --prompt ab --tokens 8 --temperature 0 --dtype fp32 --host-memory 32MiB "
                                      "--device-memory 48MiB" +
                                      device);
    ASSERT_EQ(generated.status, 0) << generated.err;
    texts[on_device] = generated.out;
  }
  EXPECT_NEAR(losses[0], losses[1], 0.02 * losses[0]);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(CommandOnModel, ProcessesShareADevice) {
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command = train("--device cuda --lots 2 --device-memory 34MiB --hash 4 --states nvme --nvme " +
                                    path("nvme") + " --nvme-space 256MiB --run ");
  const Finished one = sluice(command + path("one") + " --ranks 2");
  ASSERT_EQ(one.status, 0) << one.err;
  const test::Ended two =
      test::mpirun(2, "env XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " + command + path("two"));
  ASSERT_EQ(two.status, 0) << two.output;
  EXPECT_EQ(read(path("one") + "/model.safetensors"), read(path("two") + "/model.safetensors"));
  EXPECT_NE(read(path("one") + "/model.safetensors"), "");
  // Of what the card has, each has a part.
  set("MEMORY", std::to_string(60u << 20));
  expect_refused(command + path("three") + " --ranks 2", "--device-memory 34 MiB x 2 ranks");
  // Ranks go round the cards.
  set("MEMORY", std::to_string(80u << 20));
  set("DEVICES", "2");
  EXPECT_EQ(sluice(command + path("four") + " --ranks 2").status, 0);
  EXPECT_EQ(read(path("one") + "/model.safetensors"), read(path("four") + "/model.safetensors"));
}

#ifdef SLUICE_MODEL_NCCL
TEST_F(CommandOnModel, RanksMeetByNcclWhereTheyCan) {
  const std::string shape = " --model " + path("model.json") + " --seq 32 --batch 2 --host-memory 32MiB --device cuda ";
  const auto transport = [&](const std::string& more) {
    const Finished plan = sluice("plan --json" + shape + "--ranks 2 " + more);
    EXPECT_EQ(plan.status, 0) << plan.err;
    return plan.status == 0 ? nlohmann::json::parse(plan.out)["ranks"]["transport"].get<std::string>() : "";
  };
  EXPECT_EQ(transport(""), "staged") << "there is one card";
  expect_refused("plan" + shape + "--ranks 2 --transport nccl", "2 ranks of a machine would share a GPU");
  expect_refused(train("--ranks 2 --transport nccl"), "add --device cuda");
  set("DEVICES", "2");
  EXPECT_EQ(transport(""), "nccl");
  EXPECT_EQ(transport("--transport staged"), "staged");
  EXPECT_NE(sluice("plan" + shape + "--ranks 2").out.find("transport nccl: gathers and sums go from GPU to GPU"),
            std::string::npos);
  // A run that a card has failed may go on otherwise, which changes no bit.
  const auto command = [&](const std::string& run, const std::string& more) {
    return train("--device cuda --ranks 2 --states nvme --nvme " + path("nvme") + " --nvme-space 256MiB --run " +
                 path(run) + " " + more);
  };
  ASSERT_EQ(sluice(command("staged", "--transport staged")).status, 0);
  std::string name;
  Finished failed;
  for (int at = 4096; at > 1 && failed.status != 1; at /= 2) {
    name = "nccl" + std::to_string(at);
    set("FAILS_AT", std::to_string(at));
    failed = sluice(command(name, "--transport nccl"));
  }
  EXPECT_EQ(failed.status, 1) << failed.err;
  EXPECT_NE(failed.err.find("uncorrectable ECC error"), std::string::npos) << failed.err;
  set("FAILS_AT", "0");
  const Finished again = sluice(command(name, "--transport staged"));
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.err.find("continuing after step"), std::string::npos) << again.err;
  EXPECT_EQ(read(path("staged") + "/model.safetensors"), read(path(name) + "/model.safetensors"));
  EXPECT_NE(read(path(name) + "/model.safetensors"), "");
  set("NCCL", "21703");
  expect_refused(train("--device cuda --ranks 2 --transport nccl"), "NCCL 2.17.3 is too old");
  EXPECT_EQ(transport(""), "staged");
}
#endif

TEST_F(CommandOnModel, GoesOnAfterADeviceHasFailed) {
  const std::string nvme = "--device cuda --states nvme --nvme " + path("nvme") + " --nvme-space 256MiB ";
  const Finished whole = sluice(train(nvme + "--run " + path("whole")));
  ASSERT_EQ(whole.status, 0) << whole.err;
  // The first that is reached is in the second half of all that the device does.
  std::string name, run;
  Finished failed;
  for (int at = 4096; at > 1 && failed.status != 1; at /= 2) {
    name = "run" + std::to_string(at);
    run = train(nvme + "--run " + path(name));
    set("FAILS_AT", std::to_string(at));
    failed = sluice(run);
  }
  EXPECT_EQ(failed.status, 1) << failed.err;
  EXPECT_NE(failed.err.find("sluice train: #"), std::string::npos) << failed.err;
  EXPECT_NE(failed.err.find("uncorrectable ECC error"), std::string::npos) << failed.err;
  set("FAILS_AT", "0");
  const Finished again = sluice(run);
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.err.find("continuing after step"), std::string::npos) << again.err;
  EXPECT_EQ(read(path(name) + "/model.safetensors"), read(path("whole") + "/model.safetensors"));
}

}  // namespace
}  // namespace sluice
