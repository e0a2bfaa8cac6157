// sluice bench copy, and what it is made of.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "command.h"
#include "src/device/in_turn.h"
#include "src/device/link_measure.h"

namespace sluice {
namespace {

using nlohmann::json;

TEST(CopyBench, EveryThreadDoesEveryPassInTurn) {
  constexpr int threads = 3;
  std::array<std::array<std::atomic<int>, threads>, 2> calls{};
  std::atomic<int> inside = 0;
  const auto pass = [&](std::size_t which) {
    return [&, which](int thread) {
      // Passes of the other kind must have ended: their count is in units of 1000.
      const int unit = which == 0 ? 1 : 1000;
      const int seen = inside.fetch_add(unit);
      EXPECT_EQ(which == 0 ? seen / 1000 : seen % 1000, 0);
      ++calls[which][static_cast<std::size_t>(thread)];
      inside.fetch_sub(unit);
    };
  };
  const std::array<ThreadPass, 2> passes{pass(0), pass(1)};
  const std::vector<Passes> rates = measure_in_turn(passes, threads, 0.005);
  ASSERT_EQ(rates.size(), 2u);
  for (std::size_t which = 0; which < 2; ++which) {
    EXPECT_GT(rates[which].per_second, 0);
    EXPECT_GE(rates[which].spread, 0);
    EXPECT_GT(calls[which][0], in_turn_rounds);
    for (const std::atomic<int>& each : calls[which]) EXPECT_EQ(each, calls[which][0]);
  }
}

/// Doubles of c that no loop has written: it is filled with 4, which none of them makes.
std::uint64_t untouched(const HostArrays& arrays) {
  const auto* const c = reinterpret_cast<const double*>(arrays.c.data());
  return static_cast<std::uint64_t>(std::count(c, c + arrays.c.bytes() / sizeof(double), 4.0));
}

TEST(CopyBench, StaysInTheFirstBytesOrWalksThroughAll) {
  constexpr std::uint64_t array_bytes = 1 << 20, bytes = 128 << 10;
  for (const bool cold : {false, true}) {
    const auto arrays = HostArrays::make(array_bytes);
    ASSERT_TRUE(arrays.ok()) << arrays.error().message;
    const HostLink link = measure_host_link(*arrays, {bytes, 3, 0.005, cold});
    for (const Bandwidth& b : link.loops) EXPECT_GT(b.bytes_per_second, 0);
    EXPECT_EQ(untouched(*arrays), cold ? 0 : (array_bytes - bytes) / sizeof(double));
  }
}

TEST(CopyBench, ReadsListsOfTheKernel) {
  EXPECT_EQ(parse_index_list("0"), std::vector<int>{0});
  EXPECT_EQ(parse_index_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_EQ(parse_index_list("3,5-5"), (std::vector<int>{3, 5}));
  for (const char* wrong : {"", ",", "1,", "1-", "2-1", "-1", "a", "1 2", "99999999999", "0-99999999"})
    EXPECT_TRUE(parse_index_list(wrong).empty()) << wrong;
  EXPECT_FALSE(numa_nodes().empty());
}

TEST(Numa, RanksAreDealtOutToNodes) {
  const std::vector<NumaNode> one{{0, {0, 1}}, {1, {}}}, two{{0, {0, 1}}, {1, {2, 3}}, {2, {}}},
      four{{0, {0}}, {1, {1}}, {2, {2}}, {3, {3}}};
  const auto cores = [](const std::vector<NumaNode>& nodes, int place, int ranks, int near = -1) {
    const auto node = node_of_rank(nodes, place, ranks, near);
    return node ? node->cores : std::vector<int>();
  };
  const std::vector<int> anywhere;
  for (int place = 0; place < 4; ++place) {
    EXPECT_EQ(cores(one, place, 4), anywhere);
    EXPECT_EQ(cores(two, place, 4), two[static_cast<std::size_t>(place / 2)].cores);
    EXPECT_EQ(cores(four, place, 4), four[static_cast<std::size_t>(place)].cores);
    EXPECT_EQ(cores(two, place, 4, 1), two[1].cores) << "next to its GPU";
    EXPECT_EQ(cores(two, place, 4, 2), two[static_cast<std::size_t>(place / 2)].cores) << "a node without cores";
  }
  EXPECT_EQ(cores(two, 0, 1), anywhere);
  EXPECT_EQ(cores(two, 2, 3), anywhere);
  EXPECT_EQ(cores(four, 1, 3), anywhere);
  EXPECT_EQ(cores(four, 0, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(cores(four, 1, 2), (std::vector<int>{2, 3}));
}

TEST(Numa, ThreadsStayWhereTheirRankIs) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &all)) --last;
  int inside = -1, of_child = -1, allowed = 0;
  bool placed = false;
  ASSERT_TRUE(run_on({0, {last}}, [&] {
                inside = sched_getcpu();
                placed = is_placed();
                std::thread([&] {
                  cpu_set_t own;
                  sched_getaffinity(0, sizeof own, &own);
                  of_child = sched_getcpu(), allowed = CPU_COUNT(&own);
                }).join();
              }).ok());
  EXPECT_EQ(inside, last);
  EXPECT_EQ(of_child, last);
  EXPECT_EQ(allowed, 1);
  EXPECT_EQ(placed, sysconf(_SC_NPROCESSORS_ONLN) > 1);
}

TEST_F(CommandTest, BenchCopyPrintsEveryLoopOfEverySizeAndTeam) {
  const Finished f = sluice("bench copy --size 1MiB,64KiB --size 64KiB --threads 2,1 --seconds 0.01 --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json result = json::parse(f.out);
  EXPECT_GE(result["numa_nodes"], 1);
  EXPECT_EQ(result["rounds"], in_turn_rounds);
  EXPECT_EQ(result["cold"], false);
  std::map<std::tuple<std::string, std::uint64_t, int>, json> rows;
  for (const json& row : result["results"]) {
    EXPECT_GT(row["achieved"], 0) << row.dump();
    EXPECT_GE(row["spread"], 0) << row.dump();
    if (!row.contains("from_node"))
      rows[{row["name"].get<std::string>(), row["size_bytes"].get<std::uint64_t>(), row["threads"].get<int>()}] = row;
  }
  EXPECT_EQ(rows.size(), 4 * host_loop_names.size() + 1) << f.out;
  for (const char* loop : host_loop_names) EXPECT_TRUE(rows.contains({loop, 65536, 2})) << loop;
  EXPECT_TRUE(rows.contains({"checksum", 1 << 20, 1}));
  const auto achieved = [&](const char* loop) { return rows.at({loop, 1 << 20, 2})["achieved"].get<double>(); };
  const json engine = rows.at({"engine copy", 1 << 20, 2});
  EXPECT_EQ(engine["bound"], std::max(achieved("STREAM copy"), achieved("STREAM copy, non-temporal")));
  EXPECT_DOUBLE_EQ(engine["ratio"].get<double>(), achieved("engine copy") / engine["bound"].get<double>());
}

TEST_F(CommandTest, BenchCopyPrintsATable) {
  const Finished f = sluice("bench copy --size 64KiB --threads 1 --seconds 0.01");
  ASSERT_EQ(f.status, 0) << f.err;
  for (const char* text : {"NUMA node", "engine copy", "STREAM copy", "triad", "\n64 KiB", "checksum, 1 thread"})
    EXPECT_NE(f.out.find(text), std::string::npos) << text << "\n" << f.out;
}

TEST_F(CommandTest, BenchCopyBetweenNodesThatAreAsked) {
  const int node = numa_nodes().front().id;
  const Finished f = sluice("bench copy --size 64KiB --threads 1 --seconds 0.01 --json --node " + std::to_string(node));
  if (f.status == 1) {  // only where memory of a node cannot be chosen
    EXPECT_NE(f.err.find("set_mempolicy"), std::string::npos) << f.err;
    GTEST_SKIP() << f.err;
  }
  ASSERT_EQ(f.status, 0) << f.err;
  int copies = 0;
  const json result = json::parse(f.out);
  for (const json& row : result["results"])
    if (row.contains("from_node")) {
      ++copies;
      EXPECT_EQ(row["from_node"], node);
      EXPECT_EQ(row["to_node"], node);
      EXPECT_GT(row["achieved"], 0);
    }
  EXPECT_EQ(copies, 1);
}

TEST_F(CommandTest, BenchCopyRefusesWhatItCannotMeasure) {
  for (const char* size : {"12XB", "-5MiB", "1e9", "1000", "0", "99999999999GiB", "1PiB", "64KiB,1PiB", "64KiB,12XB"})
    expect_refused(std::string("bench copy --size ") + size, "--size");
  expect_refused("bench copy --size 4KiB --threads 1,2", "8192");
  for (const char* threads : {"0", "many", "1,0", "-1", "1025"})
    expect_refused(std::string("bench copy --threads ") + threads, "--threads");
  expect_refused("bench copy --node 1023", "1023");
  expect_refused("bench copy --seconds 0", "--seconds");
}

}  // namespace
}  // namespace sluice
