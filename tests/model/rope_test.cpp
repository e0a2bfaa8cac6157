// Rotary tables against transformers', for every kind of scaling.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/elementwise.h"
#include "src/model/sublayer.h"

namespace sluice {
namespace {

TEST(Rope, tables_equal_transformers) {
  nlohmann::json cases;
  std::ifstream(std::string(SLUICE_FIXTURES) + "/rope.json") >> cases;
  ASSERT_EQ(cases.size(), 8u);
  for (const auto& c : cases) {
    const auto config = parse_hf_config(c["config"].dump(), c["name"].get<std::string>());
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Rope table = make_rope(*config, BatchShape{}, c["positions"].get<std::int64_t>());
    const auto rows = c["rows"].get<std::vector<std::size_t>>();
    const auto cos = c["cos"].get<std::vector<std::vector<float>>>(),
               sin = c["sin"].get<std::vector<std::vector<float>>>();
    const std::size_t half = cos[0].size();
    ASSERT_EQ(table.cos.size(), c["positions"].get<std::size_t>() * half);
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::size_t i = 0; i < half; ++i) {
        EXPECT_NEAR(table.cos[rows[r] * half + i], cos[r][i], 2e-5) << c["name"] << " position " << rows[r];
        EXPECT_NEAR(table.sin[rows[r] * half + i], sin[r][i], 2e-5) << c["name"] << " position " << rows[r];
      }
  }
}

TEST(Rope, RowsOfSomePositionsAreThoseOfTheTables) {
  nlohmann::json cases;
  std::ifstream(std::string(SLUICE_FIXTURES) + "/rope.json") >> cases;
  for (const auto& c : cases) {
    const auto config = parse_hf_config(c["config"].dump(), c["name"].get<std::string>());
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto positions = c["positions"].get<std::int64_t>(), half = config->head_dim / 2;
    const BatchShape slices{.batch = 1, .sequence = 16, .slices = 4};
    const Rope whole = make_rope(*config, BatchShape{}, positions), rows = make_rope(*config, slices, positions);
    EXPECT_TRUE(rows.cos.empty());
    EXPECT_EQ(rope_bytes(*config, slices, positions), 4 * static_cast<std::uint64_t>(half));
    EXPECT_EQ(rope_bytes(*config, BatchShape{}, positions), 8 * static_cast<std::uint64_t>(positions * half));
    std::vector<std::int32_t> some;
    for (std::int64_t t = 0; t < 3000; ++t) some.push_back(static_cast<std::int32_t>(t * t % positions));
    std::vector<float> cos(some.size() * static_cast<std::size_t>(half)), sin(cos.size());
    kernels::rope_rows(rows.frequencies.data(), half, rows.scale, {1, 0, some.data()}, 3000, cos.data(), sin.data());
    for (std::size_t t = 0; t < some.size(); ++t)
      for (std::size_t i = 0; i < static_cast<std::size_t>(half); ++i) {
        const std::size_t in_table = static_cast<std::size_t>(some[t] * half) + i,
                          in_rows = t * static_cast<std::size_t>(half) + i;
        ASSERT_EQ(cos[in_rows], whole.cos[in_table]) << c["name"] << " position " << some[t];
        ASSERT_EQ(sin[in_rows], whole.sin[in_table]) << c["name"] << " position " << some[t];
      }
  }
}

}  // namespace
}  // namespace sluice
