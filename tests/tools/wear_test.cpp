#include "src/train/request/wear.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr std::uint64_t gb = 1'000'000'000, tb = 1000 * gb;

TEST(Wear, LastsAsLongAsItsRatingOverWhatADayWrites) {
  const Wear wear = drive_wear(20 * gb, 40, 432 * tb);
  EXPECT_EQ(wear.bytes_per_step, 20 * gb);
  EXPECT_DOUBLE_EQ(wear.bytes_per_day, 43.2e12);  // 2160 steps a day
  EXPECT_EQ(wear.tbw_bytes, 432 * tb);
  ASSERT_TRUE(wear.days.has_value());
  EXPECT_DOUBLE_EQ(*wear.days, 10);
}

TEST(Wear, HasNoEndWithoutARatingOrWithoutWrites) {
  EXPECT_FALSE(drive_wear(20 * gb, 40, 0).days.has_value());
  const Wear idle = drive_wear(0, 40, 600 * tb);
  EXPECT_EQ(idle.bytes_per_day, 0);
  EXPECT_FALSE(idle.days.has_value());
  EXPECT_EQ(to_text(idle, "at this rate", 1), "none: a step writes nothing to the drive");
}

TEST(Wear, IsToldInDecimalUnits) {
  EXPECT_EQ(to_text(drive_wear(20 * gb, 40, 0), "at this rate", 1), "20.0 GB a step, 43.2 TB a day at this rate");
  const auto life = [](std::uint64_t tbw, std::size_t drives) {
    const std::string text = to_text(drive_wear(20 * gb, 40, tbw), "at this rate", drives);
    return text.substr(text.find("; ") + 2);
  };
  EXPECT_EQ(life(600 * tb, 1), "a drive rated for 600 TB written lasts 14 days");
  EXPECT_EQ(life(1200 * tb, 2), "2 drives rated for 1.20 PB written together last 28 days");
  EXPECT_EQ(life(43'200 * gb, 1), "a drive rated for 43.2 TB written lasts 24 h 00 min");
  EXPECT_EQ(life(216 * tb, 1), "a drive rated for 216 TB written lasts 5.0 days");
  EXPECT_EQ(life(43'200 * tb, 1), "a drive rated for 43.2 PB written lasts 2.7 years");
}

}  // namespace
}  // namespace sluice
