// What is measured of a device, in an order that nothing prescribes.
#include <gtest/gtest.h>

#include "src/device/device.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

using DeviceBenches = CardTest;

// What evicts caches lies where copies of more bytes do: whoever comes first, no copy names memory that was given back.
TEST_F(DeviceBenches, CopiesMayBeSmallerThanCachesAndComeFirst) {
  const auto device = Device::open("cuda");
  ASSERT_TRUE(device.ok());
  for (const auto way : {DeviceBench::Way::up, DeviceBench::Way::both, DeviceBench::Way::within}) {
    const auto bench = (*device)->make_bench(1, {});
    ASSERT_TRUE(bench.ok()) << bench.error().message;
    const Result<double> seconds = (*bench)->copy_seconds(way, 4096, 2);
    ASSERT_TRUE(seconds.ok()) << seconds.error().message;
    EXPECT_GE(*seconds, 0);
  }
}

}  // namespace
}  // namespace sluice::test
