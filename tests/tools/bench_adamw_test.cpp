// sluice bench adamw as a person runs it, at smoke size.
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"

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
