#include "sluice/size.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::uint64_t size_of(const std::string& text) {
  auto size = parse_size(text);
  EXPECT_TRUE(size.ok()) << text;
  return size.ok() ? *size : 0;
}

TEST(Size, Parses) {
  EXPECT_EQ(size_of("0"), 0u);
  EXPECT_EQ(size_of("4096"), 4096u);
  EXPECT_EQ(size_of("4096B"), 4096u);
  EXPECT_EQ(size_of("512MiB"), 512ull << 20);
  EXPECT_EQ(size_of("24GiB"), 24ull << 30);
  EXPECT_EQ(size_of("24gib"), 24ull << 30);
  EXPECT_EQ(size_of("64k"), 64ull << 10);
  EXPECT_EQ(size_of("3T"), 3ull << 40);
  EXPECT_EQ(size_of("1 MiB"), 1ull << 20);
  EXPECT_EQ(size_of("1.5GB"), 1500000000u);
  EXPECT_EQ(size_of("0.5KiB"), 512u);
  EXPECT_EQ(size_of("1.1KB"), 1100u);
  EXPECT_EQ(size_of("9223372036854775807"), 9223372036854775807ull);
  EXPECT_EQ(size_of("7PiB"), 7ull << 50);
}

TEST(Size, RefusesGarbageSignsAndOverflow) {
  for (const char* text : {"",
                           "MiB",
                           "-1",
                           "+1",
                           "1.",
                           ".5GiB",
                           "1.5.5GB",
                           "12XB",
                           "12MiBs",
                           "12 M B",
                           "0x10",
                           "1e9",
                           "1,5GB",
                           "nan",
                           "9223372036854775808",
                           "18446744073709551616",
                           "99999999999999999999999",
                           "9000PiB",
                           "16777216TiB",
                           "1GiB "}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << "'" << text << "' gave " << *size;
    EXPECT_EQ(size.error().code, ErrorCode::bad_request);
    EXPECT_NE(size.error().message.find(text), std::string::npos);
    EXPECT_EQ(size.error().message.find('\n'), std::string::npos);
  }
}

TEST(Size, PrintsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(4096), "4 KiB");
  EXPECT_EQ(format_bytes(96ull << 20), "96 MiB");
  EXPECT_EQ(format_bytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(~0ull), "16 EiB");
  EXPECT_EQ(format_seconds(0.00000125), "1.2 us");
  EXPECT_EQ(format_seconds(0.0125), "12.50 ms");
  EXPECT_EQ(format_seconds(12.5), "12.50 s");
  EXPECT_EQ(format_seconds(185), "3 min 05 s");
  EXPECT_EQ(format_seconds(3723), "1 h 02 min");
  EXPECT_EQ(format_count(123.4e9), "123 G");
  EXPECT_EQ(format_rate(1.5e9), "1.50 GB/s");
}

}  // namespace
}  // namespace sluice
