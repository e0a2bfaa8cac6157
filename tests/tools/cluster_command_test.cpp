// Plans for machines that are not there, and what messages between ranks carry.
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"
#include "tests/comm/mpirun.h"

namespace sluice {
namespace {

using nlohmann::json;

class ClusterCommand : public RunCommandTest {
 protected:
  /// Rates in GB/s, latencies in microseconds.
  static json cluster(int ranks, double inside, double between) {
    const auto messages = [](double rate) {
      return json{{"latency_seconds", 1e-5},
                  {"gather_bytes_per_second", rate * 1e9},
                  {"reduce_bytes_per_second", rate * 1e9}};
    };
    return {{"ranks_of_machine", ranks}, {"messages_inside", messages(inside)}, {"messages_between", messages(between)}};
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
  if (!testing::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command = "XDG_CACHE_HOME=" + path("cache") + " " + testing::mpi_environment +
                              "mpirun -n 2 " SLUICE_BINARY " bench collective --size 4KiB,1MiB --seconds 0.01 --json >" +
                              path("out.json");
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
