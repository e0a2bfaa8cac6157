// Rotary tables against transformers', for every kind of scaling.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

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
    const RopeTable table = make_rope_table(*config, c["positions"].get<std::int64_t>());
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

}  // namespace
}  // namespace sluice
