#include "kernels/cpu/stream.h"

#include "support.h"

namespace sluice::test {
namespace {

TEST(Stream, TouchesEveryElementOnceAndComesBack) {
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      const auto x = normal<float>(n, 1);
      auto y = x;
      kernels::stream_update(y);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], -x[i]);
      kernels::stream_update(y);
      ASSERT_TRUE(same_bytes(x, y));
    }
  });
}

}  // namespace
}  // namespace sluice::test
