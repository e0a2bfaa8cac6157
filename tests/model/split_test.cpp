// A model cut over ranks: where every element is, and what can not be cut.
#include "src/model/split.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <tuple>

#include "models.h"
#include "src/device/cpu_bench.h"
#include "src/model/init.h"
#include "src/model/kernel_sizes.h"
#include "src/model/sublayer.h"
#include "src/train/states/joined_parts.h"

namespace sluice {
namespace {

class Split : public testing::TestWithParam<ModelConfig> {
 protected:
  std::vector<RankId> degrees() const {
    std::vector<RankId> list;
    for (const RankId ranks : {2, 3, 4, 8})
      if (check_split(GetParam(), ranks).ok()) list.push_back(ranks);
    return list;
  }
};

TEST_P(Split, HasEveryElementOnce) {
  const ModelSpec whole = build_model(GetParam());
  for (const RankId ranks : degrees()) {
    SCOPED_TRACE(ranks);
    const SplitModel split(whole, ranks);
    for (UnitId u = 0; u < static_cast<UnitId>(whole.units.size()); ++u)
      for (std::size_t i = 0; i < whole.units[static_cast<std::size_t>(u)].tensors.size(); ++i) {
        const TensorSpec& tensor = whole.units[static_cast<std::size_t>(u)].tensors[i];
        std::vector<int> counted(tensor.numel), had(tensor.numel);
        for (RankId r = 0; r < ranks; ++r) {
          std::uint64_t end = 0;
          split.each_run(u, i, r, [&](const SplitModel::Run& run) {
            EXPECT_GE(run.of_part, end) << "in the part's order";
            end = run.of_part + run.numel;
            for (std::uint64_t e = run.of_whole; e < run.of_whole + run.numel; ++e) {
              ++had[e];
              counted[e] += split.counts(u, i, r) ? 1 : 0;
            }
          });
          EXPECT_LE(end, split.part().units[static_cast<std::size_t>(u)].tensors[i].numel);
        }
        const int copies = split.copies(u, i);
        EXPECT_TRUE(std::ranges::all_of(had, [&](int n) { return n == copies; })) << tensor.name;
        EXPECT_TRUE(std::ranges::all_of(counted, [](int n) { return n == 1; })) << tensor.name;
      }
  }
}

/// Ranks that have the same of a unit add up equal parts of its gradient, and so touch nothing else.
TEST_P(Split, WhatRanksHaveAlikeIsApart) {
  const ModelSpec whole = build_model(GetParam());
  for (const RankId ranks : degrees()) {
    const SplitModel split(whole, ranks);
    for (UnitId u = 0; u < static_cast<UnitId>(whole.units.size()); ++u) {
      const std::vector<TensorSpec>& tensors = split.part().units[static_cast<std::size_t>(u)].tensors;
      std::vector<RankId> copies(split.part().units[static_cast<std::size_t>(u)].numel, 1);
      for (const SplitModel::Copied& c : split.copied(u)) {
        EXPECT_EQ(c.numel % c.copies, 0u);
        std::fill_n(copies.begin() + static_cast<std::ptrdiff_t>(c.first), c.numel, c.copies);
      }
      for (std::size_t i = 0; i < tensors.size(); ++i)
        for (std::uint64_t e = tensors[i].offset; e < tensors[i].offset + tensors[i].numel; ++e)
          ASSERT_EQ(copies[e], split.copies(u, i)) << tensors[i].name << " element " << e - tensors[i].offset;
    }
  }
}

/// Initial weights of the parts are those of the whole, and join to it, from pieces of any size.
TEST_P(Split, JoinsToTheWhole) {
  const ModelSpec whole = build_model(GetParam());
  for (const RankId ranks : degrees()) {
    const SplitModel split(whole, ranks);
    UnitId seen = 0;
    JoinedParts joined(split, whole, sizeof(float), [&](UnitId u, std::span<const std::byte> data) {
      EXPECT_EQ(u, seen++);
      std::vector<float> expected(whole.units[static_cast<std::size_t>(u)].numel);
      initial_weights(whole.units[static_cast<std::size_t>(u)], 7, 0, expected);
      EXPECT_EQ(data.size(), expected.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(data.data(), expected.data(), data.size()), 0)
          << whole.units[static_cast<std::size_t>(u)].name;
      return success();
    });
    constexpr std::uint64_t piece = 1000;
    for (UnitId u = 0; u < static_cast<UnitId>(whole.units.size()); ++u)
      for (RankId r = 0; r < ranks; ++r)
        for (std::uint64_t at = 0, numel = split.part().units[static_cast<std::size_t>(u)].numel; at < numel;
             at += piece) {
          std::vector<float> values(std::min(piece, numel - at));
          initial_weights(split, r, u, 7, at, values);
          ASSERT_TRUE(joined.add(u, r, at, std::as_bytes(std::span(values))).ok());
        }
    EXPECT_EQ(seen, static_cast<UnitId>(whole.units.size()));
  }
}

TEST_P(Split, SharesOutTheVocabulary) {
  const ModelSpec whole = build_model(GetParam());
  for (const RankId ranks : degrees()) {
    const SplitModel split(whole, ranks);
    std::int64_t words = 0;
    for (RankId r = 0; r < ranks; ++r) {
      EXPECT_EQ(split.first_word(r) < whole.config.vocabulary ? split.first_word(r) : words, words);
      words += split.words(r);
    }
    EXPECT_EQ(words, whole.config.vocabulary);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Split, testing::ValuesIn(test::small_models()),
                         [](const auto& model) { return test::model_name(model); });

TEST(SplitRefusals, NameWhatIsTooFew) {
  ModelConfig c;
  c.name = "m";
  c.heads = 4;
  c.kv_heads = 1;
  c.head_dim = 30;
  EXPECT_TRUE(check_split(c, 3).ok());
  EXPECT_NE(check_split(c, 5).error().message.find("--tp 5: m has 4 attention heads, fewer than ranks"),
            std::string::npos);
  EXPECT_NE(check_split(c, 4).error().message.find("whose heads are 30 wide"), std::string::npos);
}

/// Queries stay with their keys and values.
TEST(SplitHeads, AreWholeGroupsOrShareOne) {
  const auto heads = [](std::int64_t all, std::int64_t key_values, RankId ranks) {
    ModelConfig c;
    c.heads = all;
    c.kv_heads = key_values;
    c.head_dim = 48;
    const ModelSpec whole = build_model(c);
    const ModelConfig part = SplitModel(whole, ranks).part().config;
    return std::tuple(part.heads, part.kv_heads, key_value_copies(c, ranks));
  };
  EXPECT_EQ(heads(8, 4, 2), std::tuple(4, 2, 1));
  EXPECT_EQ(heads(8, 4, 8), std::tuple(1, 1, 2));
  EXPECT_EQ(heads(9, 3, 2), std::tuple(6, 2, 1)) << "the last has one group, and one of zeros";
  EXPECT_EQ(heads(9, 3, 4), std::tuple(3, 1, 1)) << "the last has none";
  EXPECT_EQ(heads(8, 1, 3), std::tuple(3, 1, 3));
  EXPECT_EQ(heads(12, 12, 8), std::tuple(2, 2, 1));
}

/// What is measured ahead of a page that nobody may touch: a slice of the input is all there is.
TEST(SplitBench, ReadsNoMoreOfItsInputThanThereIs) {
  constexpr std::uint64_t page = 4096;
  ModelConfig c;
  c.hidden = 1024;
  const ModelSpec whole = build_model(c);
  const SplitModel split(whole, 4);
  const BatchShape shape{1, 64};
  const UnitSpec& unit = split.part().units[1];
  const SublayerCost cost = sublayer_cost(split.part(), unit, shape, Dtype::f32, cpu_kernel_sizes);
  const std::uint64_t pages = (cost.boundary_bytes + page - 1) / page * page;
  void* const memory = mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<std::byte*>(memory) + pages, page, PROT_NONE), 0);
  std::vector<float> parameters(unit.numel, 1), normed(static_cast<std::size_t>(shape.tokens() * c.hidden));
  std::vector<std::byte> workspace(cost.slice_workspace_bytes);
  SublayerArgs a;
  a.model = &split.part();
  a.unit = &unit;
  a.shape = shape;
  a.parameters = reinterpret_cast<const std::byte*>(parameters.data());
  a.x_in = static_cast<std::byte*>(memory) + pages - cost.boundary_bytes;
  a.normed = reinterpret_cast<std::byte*>(normed.data());
  a.workspace = workspace;
  const auto bench = CpuBench::create(1);
  ASSERT_TRUE(bench.ok());
  EXPECT_TRUE((*bench)->op_seconds(OpKind::enter, a).ok());
  munmap(memory, pages + page);
}

}  // namespace
}  // namespace sluice
