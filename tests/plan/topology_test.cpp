#include "sluice/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace sluice {
namespace {

/// Groups and places in them are a matter of the axes, and numbers of the strides alone.
TEST(Topology, NumbersRanksThroughItsAxesInAnyOrder) {
  const std::vector<RankId> sizes{2, 3, 1, 2};
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    std::vector<Axis> axes;
    for (const RankId size : sizes) axes.push_back({"axis" + std::to_string(axes.size()), size});
    RankId stride = 1;
    for (std::size_t i = order.size(); i-- > 0; stride = static_cast<RankId>(stride * sizes[order[i]]))
      axes[order[i]].stride = stride;
    std::set<std::vector<RankId>> places;
    for (RankId r = 0; r < 12; ++r) {
      const Topology t = Topology::of(axes, r);
      EXPECT_EQ(t.rank(), r);
      EXPECT_TRUE(places.insert(t.coordinates).second);
      for (AxisSet set = 0; set <= t.all_axes(); ++set) {
        const std::vector<RankId> members = t.members(set);
        ASSERT_EQ(members.size(), t.size(set));
        EXPECT_EQ(members[t.position(set)], r);
        for (RankId m = 0; m < members.size(); ++m) {
          const Topology other = t.at(members[m]);
          EXPECT_EQ(other.position(set), m);
          EXPECT_EQ(other.position(t.all_axes() & ~set), t.position(t.all_axes() & ~set));
        }
      }
    }
    EXPECT_EQ(places.size(), 12u);
  } while (std::ranges::next_permutation(order).found);
}

TEST(Topology, CountsTheLastAxisFastestWhereNothingElseIsSaid) {
  const Topology t = Topology::of({{"a", 2}, {"b", 3}}, 4);
  EXPECT_EQ(t.coordinates, (std::vector<RankId>{1, 1}));
  EXPECT_EQ(t.members(1), (std::vector<RankId>{1, 4}));
}

}  // namespace
}  // namespace sluice
