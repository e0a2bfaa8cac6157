// The tree in which gradients add up, whoever has which part of it.
#include "src/schedule/lots.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::test {
namespace {

/// A rank's lots as it adds them up, written down: "((0+1)+(2+3))".
std::string sum_of(int first, int lots) {
  const LotSums sums(lots, 1);
  std::vector<std::string> stack;
  for (int lot = 0; lot < lots; ++lot) {
    stack.push_back(std::to_string(first + lot));
    for (int left = sums.additions_after(lot); left > 0; --left) {
      const std::string top = stack.back();
      stack.pop_back();
      stack.back() = "(" + stack.back() + "+" + top + ")";
    }
    EXPECT_EQ(static_cast<int>(stack.size()), sums.depth_after(lot + 1)) << lots << " lots, behind " << lot;
  }
  EXPECT_EQ(stack.size(), 1u);
  return stack.front();
}

/// By the definition.
std::string tree_of(std::vector<std::string> terms) {
  while (terms.size() % 2 == 0) {
    for (std::size_t i = 0; i < terms.size() / 2; ++i) terms[i] = "(" + terms[2 * i] + "+" + terms[2 * i + 1] + ")";
    terms.resize(terms.size() / 2);
  }
  std::string sum = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) sum = "(" + sum + "+" + terms[i] + ")";
  return sum;
}

TEST(Lots, AddUpInOneTreeOnAnyNumberOfRanks) {
  EXPECT_EQ(sum_of(0, 4), "((0+1)+(2+3))");
  EXPECT_EQ(sum_of(0, 6), "(((0+1)+(2+3))+(4+5))");
  for (int lots = 1; lots <= 64; ++lots) {
    std::vector<std::string> all;
    for (int lot = 0; lot < lots; ++lot) all.push_back(std::to_string(lot));
    const std::string tree = tree_of(all);
    EXPECT_EQ(sum_of(0, lots), tree);
    for (int share = 1; lots % share == 0; share *= 2) {
      std::vector<std::string> ranks;
      for (int first = 0; first < lots; first += share) ranks.push_back(sum_of(first, share));
      EXPECT_EQ(tree_of(ranks), tree) << lots << " lots on " << lots / share << " ranks";
    }
  }
}

TEST(Lots, AStackHoldsFewSums) {
  for (int lots = 1; lots <= 256; lots *= 2) {
    const LotSums sums(lots, 3);
    int deepest = 0;
    for (int m = 1; m <= 3 * lots; ++m) deepest = std::max(deepest, sums.depth_after(m));
    EXPECT_LE(deepest, std::bit_width(static_cast<unsigned>(lots))) << lots;
    EXPECT_EQ(sums.depth_after(3 * lots), 1);
  }
}

}  // namespace
}  // namespace sluice::test
