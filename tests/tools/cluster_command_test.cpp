// Plans for machines that are not there, and what messages between ranks carry.
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"
#include "src/device/device.h"
#include "src/device/profile.h"
#include "tests/comm/mpirun.h"

namespace sluice {
namespace {

using nlohmann::json;

class ClusterCommand : public RunCommandTest {
 protected:
  /// Rates in GB/s, latencies in microseconds.
  static json cluster(int ranks, double inside, double between) {
    const auto messages = [](double rate) {
      return json{
          {"latency_seconds", 1e-5}, {"gather_bytes_per_second", rate * 1e9}, {"reduce_bytes_per_second", rate * 1e9}};
    };
    return {
        {"ranks_of_machine", ranks}, {"messages_inside", messages(inside)}, {"messages_between", messages(between)}};
  }
  std::string plan(int ranks) const {
    return "plan --model llama-tiny --seq 32 --batch " + std::to_string(ranks) + " --ranks " + std::to_string(ranks) +
           " --device-memory 32MiB --host-memory 256MiB --cluster " + path("cluster.json") + " ";
  }
  json planned(int ranks) const {
    const Finished f = sluice(plan(ranks) + "--json");
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json();
  }
};

TEST_F(ClusterCommand, SlowerLinksMakeSlowerSteps) {
  write("cluster.json", cluster(4, 10, 10).dump());
  const json quick = planned(16);
  write("cluster.json", cluster(4, 10, 0.001).dump());
  const json slow = planned(16);
  EXPECT_GT(slow["predicted"]["step_seconds"], 2 * quick["predicted"]["step_seconds"].get<double>()) << slow;
  // Memory and drive are one machine's: those of four ranks.
  write("cluster.json", cluster(4, 10, 10).dump());
  EXPECT_NE(sluice(plan(512)).out.find("512 on 128 machines"), std::string::npos);
}

TEST_F(ClusterCommand, RefusesWhatIsNoCluster) {
  const auto refused = [&](const json& file, int ranks, const std::string& what) {
    write("cluster.json", file.dump());
    expect_refused(plan(ranks), what);
  };
  json file = cluster(4, 10, 10);
  refused(file, 6, "are no whole number of machines with 4 ranks");
  file.erase("messages_between");
  refused(file, 8, "has no 'messages_between'");
  file = cluster(4, 10, -1);
  refused(file, 8, "is -1000000000, which is no rate");
  file = cluster(0, 10, 10);
  refused(file, 8, "ranks_of_machine");
  file = cluster(4, 10, 10);
  file["latency"] = 1;
  refused(file, 8, "has 'latency', which means nothing");
  write("cluster.json", "{");
  expect_refused(plan(8), "--cluster");
  std::filesystem::remove(path("cluster.json"));
  expect_refused(plan(8), "cluster.json");
  expect_refused("plan --model llama-tiny --ranks 65", "planned with --cluster FILE");
  expect_refused("plan --model llama-tiny --pp 50 --tp 2", "--pp 50 x --tp 2 are 100 ranks: a process has 1 to 64");
}

/// Machines whose devices are not here: nothing of this one is in the answer.
class OtherDevices : public ClusterCommand {
 protected:
  static json devices() {
    json file = cluster(4, 10, 10);
    file["device"] = {{"name", "fake"},
                      {"memory_bytes", 1e9},
                      {"flops_bf16", 2e12},
                      {"flops_f32", 1e12},
                      {"memory_bytes_per_second", 1e11},
                      {"link_bytes_per_second", 1e10},
                      {"efficiency", 0.5}};
    file["host"] = {{"memory_bytes", 8e9}, {"cores", 16}, {"memory_bytes_per_second", 1e11}};
    return file;
  }
  std::string plan_there(const std::string& more = "") const {
    return "plan --model llama-25m --seq 256 --batch 32 --ranks 8 --cluster " + path("cluster.json") + " " + more;
  }
  json planned_there(const json& file, const std::string& more = "") {
    write("cluster.json", file.dump());
    const Finished f = sluice(plan_there(more) + "--json");
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json();
  }
  void SetUp() override {
    ClusterCommand::SetUp();
    if (!kernel_sizes_of("cuda").ok()) GTEST_SKIP() << "built without CUDA";
  }
};

TEST_F(OtherDevices, AreAssumedAndSaidSo) {
  write("cluster.json", devices().dump());
  // No profile is there, and none is made.
  std::filesystem::remove_all(path("cache"));
  const Finished f = sluice(plan_there());
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("assumed, not measured: 4 x fake a machine"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("multiplying bf16 at 0.5 of 2 TFLOP/s"), std::string::npos) << f.out;
  EXPECT_FALSE(std::filesystem::exists(path("cache/sluice/profile.json")));
  // Twice as large a share of the peak, and all that a step computes takes half as long.
  json file = devices();
  const json slow = planned_there(file);
  file["device"]["efficiency"] = 1.0;
  const json quick = planned_there(file);
  const double ratio =
      slow["predicted"]["bound_seconds"].get<double>() / quick["predicted"]["bound_seconds"].get<double>();
  EXPECT_NEAR(ratio, 2, 0.01) << "llama-25m on such devices is bound by computing";
  EXPECT_NE(slow["assumed"]["cluster"].get<std::string>().find("fake"), std::string::npos);
  // Budgets are shares of what is described.
  EXPECT_LE(slow["device"]["arena_bytes"], 900'000'000u);
  // A device of the data sheets needs its name alone, and its links are known.
  file["device"] = {{"name", "H200"}};
  file.erase("messages_inside");
  const json sheet = planned_there(file);
  EXPECT_LT(sheet["predicted"]["step_seconds"], quick["predicted"]["step_seconds"]) << sheet;
}

TEST_F(OtherDevices, HaveDrivesOfTheirOwn) {
  json file = devices();
  file["host"]["memory_bytes"] = 64 << 20;
  write("cluster.json", file.dump());
  const Finished none = sluice(plan_there());
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("does not fit"), std::string::npos) << none.err;
  file["drives"] = {{"count", 2}, {"bytes", 1e10}, {"read_bytes_per_second", 2e9}, {"write_bytes_per_second", 1e9}};
  EXPECT_GT(planned_there(file)["nvme"]["arena_bytes"], 0);
}

TEST_F(OtherDevices, MessagesMayPassThroughHosts) {
  json file = devices();
  const json direct = planned_there(file);
  file["device"]["meets_in_host"] = true;
  const json staged = planned_there(file);
  EXPECT_GT(staged["bytes"]["h2d"], direct["bytes"]["h2d"]);
}

TEST_F(OtherDevices, AreRefusedInALine) {
  const auto refused = [&](const json& file, const std::string& what) {
    write("cluster.json", file.dump());
    expect_refused(plan_there(), what);
  };
  const auto with = [&](const char* part, const char* key, const json& value) {
    json file = devices();
    if (value.is_null())
      file[part].erase(key);
    else
      file[part][key] = value;
    return file;
  };
  refused(with("device", "name", nullptr), "the device has no 'name'");
  refused(with("device", "name", 7), "the device has no 'name'");
  refused(with("device", "memory_bytes", nullptr), "is not known by its data sheet, as A100 40GB, A100 80GB, H100");
  refused(with("device", "efficiency", nullptr), "the device has no number 'efficiency'");
  refused(with("device", "efficiency", 1.2), "a share above 1");
  refused(with("device", "efficiency", 0), "'efficiency' is 0");
  refused(with("device", "flops_bf16", "much"), "the device has no number 'flops_bf16'");
  refused(with("device", "memory_bytes", 0.5), "no number of bytes");
  refused(with("device", "meets_in_host", 1), "neither true nor false");
  refused(with("device", "tensor_cores", 1), "the device has 'tensor_cores', which means nothing");
  refused(with("host", "cores", 0), "the host 'cores' is 0");
  refused(with("host", "memory_bytes", nullptr), "the host has no number 'memory_bytes'");
  refused(with("host", "sockets", 2), "the host has 'sockets', which means nothing");
  refused(with("drives", "count", 2), "drives: has no number 'bytes'");
  json file = devices();
  file.erase("host");
  refused(file, "has a 'device' and no 'host'");
  file = devices();
  file.erase("device");
  refused(file, "has 'host' and no 'device'");
  file = devices();
  file["device"] = "H200";
  refused(file, "has 'device', which is no object");
  file = devices();
  file.erase("messages_inside");
  refused(file, "has no 'messages_inside'");
  // What is of this machine does not go with it.
  write("cluster.json", devices().dump());
  expect_refused(plan_there("--nvme " + path("")), "--nvme is of this machine");
  expect_refused(plan_there("--device cpu"), "--device is of this machine");
  expect_refused(plan_there("--transport nccl"), "--transport is of this machine");
  expect_refused(plan_there("--device-memory 2GiB"), "fake of --cluster");
  expect_refused(plan_there("--host-memory 9GiB"), "a host of --cluster");
  expect_refused(plan_there("--nvme-space 1GiB"), "--nvme-space is of the drive, and there is none");
  expect_refused("train --model llama-tiny --data x --cluster " + path("cluster.json"), "--cluster");
}

TEST_F(ClusterCommand, CollectivesAreMeasuredAndKept) {
  const Finished threads = sluice("bench collective --size 4KiB,64KiB --seconds 0.01 --ranks 3 --json");
  ASSERT_EQ(threads.status, 0) << threads.err;
  const json of_threads = json::parse(threads.out);
  EXPECT_EQ(of_threads["transport"], "in-process");
  std::map<std::string, int> sizes;
  for (const json& row : of_threads["results"]) {
    EXPECT_GT(row["achieved"], 0) << row;
    ++sizes[row["collective"].get<std::string>()];
  }
  for (const char* name : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "exchange"})
    EXPECT_EQ(sizes[name], 2) << name;
  expect_refused("bench collective --size 8 --ranks 3", "have no part of it");
  expect_refused("bench collective --size 10TiB --ranks 2", "of memory are needed");
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command =
      "XDG_CACHE_HOME=" + path("cache") + " " + test::mpi_environment +
      "mpirun -n 2 " SLUICE_BINARY " bench collective --size 4KiB,1MiB --seconds 0.01 --json >" + path("out.json");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(json::parse(read(path("out.json")))["transport"], "mpi");
  const auto profile = load_profile(path("cache/sluice/profile.json"));
  ASSERT_TRUE(profile.ok()) << profile.error().message;
  ASSERT_TRUE(profile->messages_inside.has_value());
  EXPECT_GT(profile->messages_inside->reduce_bytes_per_second, 1e6);
  EXPECT_FALSE(profile->messages_between.has_value());
}

}  // namespace
}  // namespace sluice
