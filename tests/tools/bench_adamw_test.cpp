// sluice bench adamw as a person runs it, at smoke size.
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

using nlohmann::json;

TEST_F(CommandTest, BenchAdamwHasEveryFormatWithItsBytes) {
  const Finished f = sluice("bench adamw --numel 100000 --threads 2 --seconds 0.01 --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json results = json::parse(f.out)["results"];
  EXPECT_EQ(results.size(), 24u);  // 2 parameters x 3 moments x 2 gradients, in cache and out of it
  for (const json& row : results) {
    EXPECT_GT(row["parameters_per_second"], 0) << row.dump();
    EXPECT_NEAR(row["bytes_per_second"].get<double>(),
                row["parameters_per_second"].get<double>() * row["bytes_per_parameter"].get<double>(),
                1e-6 * row["bytes_per_second"].get<double>());
    EXPECT_NEAR(row["ratio"].get<double>(),
                row["bytes_per_second"].get<double>() / row["stream_bytes_per_second"].get<double>(), 1e-6);
    const std::map<std::string, double> bytes{{"bf16/f32/bf16", 26}, {"f32/f32/f32", 28}, {"bf16/int8/bf16", 14.0625}};
    const auto known = bytes.find(row["format"].get<std::string>());
    if (known != bytes.end()) {
      EXPECT_EQ(row["bytes_per_parameter"], known->second) << row.dump();
    }
  }
}

// By default one thread, and then as many as there are cores; else the numbers that are given, in their order.
TEST_F(CommandTest, BenchAdamwRunsTheThreadsThatItsHelpSays) {
  const std::string bench = "bench adamw --formats bf16/f32/bf16 --seconds 0.01 --json ";
  const auto threads = [&](const std::string& arguments) {
    const Finished f = sluice(bench + arguments);
    EXPECT_EQ(f.status, 0) << f.err;
    std::vector<int> found;
    const json printed = json::parse(f.out);
    for (const json& row : printed["results"]) {
      found.push_back(row["threads"]);
      EXPECT_EQ(row["numel"].get<int>() % found.back(), 0) << row.dump();
    }
    return found;
  };
  EXPECT_NE(sluice("bench adamw --help").out.find("(default: 1, and then all"), std::string::npos);
  const int cores = usable_cores();
  EXPECT_EQ(threads("--where cache"), cores == 1 ? std::vector<int>{1} : (std::vector<int>{1, cores}));
  EXPECT_EQ(threads("--where cache --threads 3,1"), (std::vector<int>{3, 1}));
  EXPECT_EQ(threads("--numel 100000 --threads 1,3"), (std::vector<int>{1, 3, 1, 3}));
  expect_refused("bench adamw --where cache --numel 1000", "--numel");
}

TEST_F(CommandTest, BenchAdamwPrintsATable) {
  const Finished f = sluice("bench adamw --formats bf16/int8/f32 --where cache --threads 1 --seconds 0.01");
  ASSERT_EQ(f.status, 0) << f.err;
  for (const char* text : {"Mparam/s", "ratio", "bf16/int8/f32", "cache"})
    EXPECT_NE(f.out.find(text), std::string::npos) << text << "\n" << f.out;
}

TEST_F(CommandTest, BenchAdamwRefusesWhatItCannotMeasure) {
  expect_refused("bench adamw --formats bf16/int4/bf16", "int4");
  expect_refused("bench adamw --threads 0", "--threads");
  expect_refused("bench adamw --where disk", "--where");
  expect_refused("bench adamw --numel 0", "--numel");
  expect_refused("bench adamw --numel 1000000000000", "--numel");
}

}  // namespace
}  // namespace sluice
