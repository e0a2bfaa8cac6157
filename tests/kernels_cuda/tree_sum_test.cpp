#include "kernels/cuda/tree_sum.h"

#include "device.h"

namespace sluice::test {
namespace {

/// Of `count` members from `first` on, a power of two: halves, and their sum.
float in_pairs(const std::vector<float>& members, int first, int count) {
  if (count == 1) return members[static_cast<std::size_t>(first)];
  return in_pairs(members, first, count / 2) + in_pairs(members, first + count / 2, count / 2);
}

float in_tree(const std::vector<float>& members) {
  const int count = static_cast<int>(members.size()), pairs = count & -count;
  float sum = in_pairs(members, 0, pairs);
  for (int first = pairs; first < count; first += pairs) sum += in_pairs(members, first, pairs);
  return sum;
}

template <class T>
class TreeSum : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(TreeSum, Storage);

/// Whatever the number of members, and whoever of them adds up.
TYPED_TEST(TreeSum, HasTheBitsOfTheTree) {
  using T = TypeParam;
  const auto as_sent = [](float v) {
    if constexpr (std::is_same_v<T, bf16>) return to_float(to_bf16(v));
    return v;
  };
  for (const int members : {2, 3, 4, 5, 6, 7, 8, 12, 16, 24}) {
    for (const std::int64_t n : {1, 3, 255, 1000}) {
      SCOPED_TRACE(testing::Message() << members << " members, " << n << " elements");
      const std::int64_t stride = n + 5;
      const int own_member = static_cast<int>((n + members) % members);
      std::vector<std::vector<float>> all;
      std::vector<T> arrived(static_cast<std::size_t>(stride * (members - 1)), T{});
      for (int m = 0; m < members; ++m) {
        all.push_back(normal<float>(n, static_cast<std::uint64_t>(m + 1)));
        if (m == own_member) continue;
        T* const to = arrived.data() + stride * (m - (m > own_member ? 1 : 0));
        for (std::int64_t i = 0; i < n; ++i) {
          if constexpr (std::is_same_v<T, bf16>)
            to[i] = to_bf16(all.back()[static_cast<std::size_t>(i)]);
          else
            to[i] = all.back()[static_cast<std::size_t>(i)];
        }
      }
      std::vector<float> want;
      for (std::int64_t i = 0; i < n; ++i) {
        std::vector<float> terms;
        for (const auto& member : all) terms.push_back(as_sent(member[static_cast<std::size_t>(i)]));
        want.push_back(in_tree(terms));
      }
      DeviceArray<float> own(all[static_cast<std::size_t>(own_member)]), apart(n);
      DeviceArray<T> others(arrived);
      cuda::tree_sum(own.data(), others.data(), stride, members, own_member, apart.data(), n, *this->stream);
      EXPECT_EQ(std::memcmp(want.data(), apart.read().data(), want.size() * sizeof(float)), 0);
      cuda::tree_sum(own.data(), others.data(), stride, members, own_member, own.data(), n, *this->stream);
      EXPECT_EQ(std::memcmp(want.data(), own.read().data(), want.size() * sizeof(float)), 0) << "in place";
    }
  }
}

}  // namespace
}  // namespace sluice::test
