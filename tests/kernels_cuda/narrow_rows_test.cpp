#include "kernels/cuda/narrow_rows.h"

#include "device.h"

namespace sluice::test {
namespace {

using NarrowRowsTest = DeviceTest;

TEST_F(NarrowRowsTest, RoundsRowsAndNothingBetweenThem) {
  for (const std::int64_t rows : {1, 5, 70})
    for (const std::int64_t width : {1, 4, 31, 260})
      for (const std::int64_t gap : {0, 3, 8}) {
        const std::int64_t from_ld = width + gap, to_ld = width + 2 * gap;
        const auto x = normal<float>(rows * from_ld, 1);
        DeviceArray<float> from(x);
        DeviceArray<bf16> to(rows * to_ld);
        cuda::narrow_rows(from.data(), from_ld, to.data(), to_ld, rows, width, *stream);
        const auto got = to.read();
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < to_ld; ++c)
            ASSERT_EQ(got[static_cast<std::size_t>(r * to_ld + c)].bits,
                      c < width ? to_bf16(x[static_cast<std::size_t>(r * from_ld + c)]).bits : 0xffff)
                << r << ", " << c;
      }
}

}  // namespace
}  // namespace sluice::test
