// Documents packed into one row are computed as if each had a row of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/model/model_runner.h"
#include "tests/model/models.h"

namespace sluice {
namespace {

using test::ModelRunner;

const std::vector<std::int64_t> lengths{5, 1, 17, 40, 9};

class Documents : public testing::TestWithParam<ModelConfig> {
 protected:
  static std::int64_t total() {
    std::int64_t sum = 0;
    for (const std::int64_t n : lengths) sum += n;
    return sum;
  }
};

/// Largest difference relative to the norm.
double relative_error(std::span<const float> got, std::span<const float> expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-12));
}

std::vector<float> gradients(ModelRunner& run) {
  run.add_tied_gradient();
  std::vector<float> all;
  for (const auto& g : run.gradients) {
    const float* values = const_cast<test::Guarded&>(g).as<float>();
    all.insert(all.end(), values, values + g.size() / 4);
  }
  return all;
}

/// Two rows: the documents one after the other, and turned around. Their last tokens have no targets.
TEST_P(Documents, packed_learn_what_they_learn_alone) {
  const ModelConfig& config = GetParam();
  const std::int64_t sequence = total();
  std::vector<std::vector<std::int32_t>> documents;
  for (int row = 0; row < 2; ++row) {
    std::vector<std::vector<std::int32_t>> of_row;
    for (const std::int64_t n : lengths) {
      of_row.push_back(test::some_tokens({1, n}, config.vocabulary, static_cast<std::uint64_t>(n + 100 * row)));
      of_row.back().back() = -1;  // the column behind the last token
    }
    if (row == 1) std::reverse(of_row.begin(), of_row.end());
    documents.insert(documents.end(), of_row.begin(), of_row.end());
  }

  // Alone: a row for each, filled up with padding that nothing is learnt from.
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const BatchShape alone_shape{static_cast<std::int64_t>(documents.size()), longest};
  std::vector<std::int32_t> alone_rows;
  for (const auto& document : documents) {
    alone_rows.insert(alone_rows.end(), document.begin(), document.end());
    alone_rows.insert(alone_rows.end(), static_cast<std::size_t>(longest + 1) - document.size(), -1);
  }
  ModelRunner alone(config, alone_shape, Dtype::f32);
  alone.initialise(3);
  alone.forward(alone_rows.data());
  const double expected = alone.backward(alone_rows.data(), 1);

  // Packed: what follows a document's last token is the next one's first, which it does not have to predict.
  std::vector<std::int32_t> rows, positions;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto n = static_cast<std::int32_t>(documents[i].size() - 1);
    rows.insert(rows.end(), documents[i].begin(), documents[i].end() - 1);
    for (std::int32_t t = 0; t < n; ++t) positions.push_back(t);
    if (positions.size() % static_cast<std::size_t>(sequence) == 0) rows.push_back(-1);
  }
  ModelRunner packed(config, {2, sequence}, Dtype::f32);
  packed.initialise(3);
  packed.set_positions(positions);
  packed.hide_targets_before_documents();
  packed.forward(rows.data());
  const double loss = packed.backward(rows.data(), 1);
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
  EXPECT_DOUBLE_EQ(packed.loss(rows.data()), loss);
  EXPECT_LE(relative_error(gradients(packed), gradients(alone)), 1e-5);

  // And not because documents did not matter.
  ModelRunner joined(config, {2, sequence}, Dtype::f32);
  joined.initialise(3);
  joined.forward(rows.data());
  EXPECT_GT(std::fabs(joined.backward(rows.data(), 1) - expected), 1e-3 * expected);
}

TEST_P(Documents, are_recomputed_to_the_same_bits) {
  const ModelConfig& config = GetParam();
  const BatchShape shape{2, total()};
  const auto rows = test::some_tokens(shape, config.vocabulary, 8);
  std::vector<std::int32_t> positions;
  for (int row = 0; row < 2; ++row)
    for (const std::int64_t n : lengths)
      for (std::int32_t t = 0; t < n; ++t) positions.push_back(t);
  std::vector<float> kept;
  for (const bool again : {false, true}) {
    ModelRunner run(config, shape, Dtype::bf16);
    run.initialise(3);
    run.set_positions(positions);
    run.forward(rows.data());
    if (again) run.recompute();
    run.backward(rows.data(), 1);
    const auto all = gradients(run);
    if (again) {
      EXPECT_TRUE(all == kept);
    }
    kept = all;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Documents, testing::ValuesIn(test::small_models()),
                         [](const auto& model) { return test::model_name(model); });

}  // namespace
}  // namespace sluice
