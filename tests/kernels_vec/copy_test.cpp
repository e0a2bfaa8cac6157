#include "kernels/cpu/copy.h"

#include <vector>

#include "support.h"

namespace sluice::test {
namespace {

TEST(Copy, PastCachesIsOfAnyAlignmentAndLength) {
  constexpr std::uint64_t room = 2048;
  constexpr std::uint8_t untouched = 0xa5;
  std::vector<std::uint8_t> source(room), all(room);
  for (std::size_t i = 0; i < room; ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  with_targets([&] {
    for (const std::uint64_t bytes : {0, 1, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, 1500})
      for (const std::uint64_t from : {0, 1, 17, 32})
        for (const std::uint64_t to : {0, 1, 31, 33, 63, 64}) {
          all.assign(room, untouched);
          kernels::copy_past_caches(all.data() + to, source.data() + from, bytes);
          for (std::uint64_t i = 0; i < room; ++i) {
            const bool copied = i >= to && i < to + bytes;
            ASSERT_EQ(all[i], copied ? source[from + i - to] : untouched)
                << "byte " << i << " of " << bytes << " from " << from << " to " << to;
          }
        }
  });
}

}  // namespace
}  // namespace sluice::test
