#include "src/comm/in_process.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/comm/checks.h"

namespace sluice::test {
namespace {

constexpr AxisSet all_ranks = 1;
Topology one_axis(RankId ranks, RankId rank) { return Topology::of({{"dp", ranks}}, rank); }

/// Runs `check` on a thread for each rank.
void on_ranks(World& world, std::vector<std::string> (*check)(World&, RankId)) {
  std::vector<std::vector<std::string>> found(world.ranks());
  std::vector<std::thread> threads;
  for (RankId r = 0; r < world.ranks(); ++r) threads.emplace_back([&, r] { found[r] = check(world, r); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& lines : found)
    for (const std::string& line : lines) ADD_FAILURE() << line;
}

TEST(InProcess, Collectives) {
  for (const RankId ranks : {1, 2, 3, 4, 6}) {
    InProcessWorld world(ranks);
    on_ranks(world, check_collectives);
  }
}

TEST(InProcess, Messages) {
  for (const RankId ranks : {1, 2, 3, 4, 6}) {
    InProcessWorld world(ranks);
    on_ranks(world, check_messages);
  }
}

TEST(InProcess, GroupsAreAlongAxes) {
  InProcessWorld world(6);
  on_ranks(world, check_groups);
}

TEST(InProcess, CancelWakesThoseWhoWait) {
  InProcessWorld world(3);
  on_ranks(world, check_cancelling);
}

TEST(InProcess, DeadlineWakesThoseWhoWait) {
  InProcessWorld world(2, std::chrono::seconds(0));
  for (RankId r = 0; r < 2; ++r) ASSERT_TRUE(world.communicator(r).prepare(one_axis(2, r), std::array{all_ranks}).ok());
  float full[2]{};
  const Status late = world.communicator(1).reduce_scatter(0, full, std::span(full).first(1), {}, RankSums::tree);
  ASSERT_FALSE(late.ok());
  EXPECT_NE(late.error().message.find("rank 1"), std::string::npos) << late.error().message;
}

TEST(InProcess, RefusesATopologyOfOthers) {
  InProcessWorld world(2);
  EXPECT_FALSE(world.communicator(0).prepare(one_axis(3, 0), {}).ok());
  EXPECT_FALSE(world.communicator(0).prepare(one_axis(2, 1), {}).ok());
}

}  // namespace
}  // namespace sluice::test
