// sluice bench pack as a person runs it.
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace sluice {
namespace {

using nlohmann::json;

class BenchPack : public CommandTest {
 protected:
  void SetUp() override {
    write("a.csv", "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\nd,9,21,4\ne,0,21,4\n");
    // Three are alive at most, and no packing is that low.
    write("gap.csv",
          "size,id,lower,upper\r\n1,a,4,8\r\n1,b,2,6\r\n2,c,6,9\r\n2,d,8,12\r\n2,e,0,1\r\n1,f,2,7\r\n2,g,0,4\r\n");
  }
  json packed(const std::string& arguments, int status = 0) const {
    const Finished f = sluice("bench pack --json " + arguments);
    EXPECT_EQ(f.status, status) << f.err;
    return json::parse(f.out)["results"];
  }
  /// A table that is refused, with what is said of which line.
  void expect_bad(const std::string& table, const std::string& says) const {
    write("bad.csv", table);
    expect_refused("bench pack bad.csv", "bad.csv" + says);
  }
};

TEST_F(BenchPack, PrintsHeightBoundStateAndTime) {
  const Finished f = sluice("bench pack a.csv gap.csv");
  ASSERT_EQ(f.status, 0) << f.err;
  for (const char* text : {"a.csv", "1.0000", "at bound", "gap.csv", "minimal", "height / bound"})
    EXPECT_NE(f.out.find(text), std::string::npos) << text << "\n" << f.out;
  const json results = packed("a.csv gap.csv");
  EXPECT_EQ(results[0]["buffers"], 5);
  EXPECT_EQ(results[0]["bound_bytes"], 12);
  EXPECT_EQ(results[0]["height_bytes"], 12);
  EXPECT_GT(results[1]["height_bytes"], results[1]["bound_bytes"]);
  EXPECT_EQ(results[1]["state"], "minimal");
  EXPECT_GE(results[1]["seconds"], 0);
}

TEST_F(BenchPack, WritesOffsetsThatItReadsAgain) {
  ASSERT_EQ(sluice("bench pack a.csv --output placed.csv").status, 0);
  const std::string placed = read(path("placed.csv"));
  EXPECT_EQ(placed.rfind("id,lower,upper,size,offset\na,0,3,4,", 0), 0u) << placed;
  EXPECT_EQ(std::count(placed.begin(), placed.end(), '\n'), 6);
  EXPECT_EQ(packed("placed.csv")[0]["height_bytes"], 12);
  expect_refused("bench pack a.csv --output a.csv", "is the file to pack");
  expect_refused("bench pack a.csv gap.csv --output x.csv", "pack one");
  expect_refused("bench pack a.csv --output no/such/x.csv", "no/such");
}

TEST_F(BenchPack, FitsACapacityOrSaysWhyNot) {
  EXPECT_EQ(packed("a.csv --capacity 12B")[0]["state"], "fits");
  const json bound = packed("gap.csv --capacity 16B");
  EXPECT_EQ(bound[0]["state"], "fits");
  const std::uint64_t live = bound[0]["bound_bytes"];
  for (const std::uint64_t capacity : {live, live - 1}) {
    const Finished f = sluice("bench pack gap.csv --output placed.csv --capacity " + std::to_string(capacity) + "B");
    EXPECT_EQ(f.status, 1);
    EXPECT_NE(f.out.find("impossible"), std::string::npos) << f.out;
    EXPECT_NE(f.err.find("was not reached: proven impossible for gap.csv"), std::string::npos) << f.err;
    EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("placed.csv")));
}

TEST_F(BenchPack, RoundsUpToTheAlignment) {
  const json results = packed("a.csv --alignment 4KiB");
  EXPECT_EQ(results[0]["height_bytes"], 3 * 4096);
  expect_refused("bench pack a.csv --alignment 0", "--alignment");
  expect_refused("bench pack a.csv --alignment 2GiB", "--alignment");
  expect_refused("bench pack a.csv --capacity 0", "--capacity");
  expect_refused("bench pack a.csv --time-limit 0", "--time-limit");
  write("text", "somebody's");
  expect_refused("bench pack a.csv --output text", "--output text is there, and is no table of placed buffers");
  EXPECT_EQ(read(path("text")), "somebody's");
}

TEST_F(BenchPack, RefusesTablesWithTheLine) {
  const std::string header = "id,lower,upper,size\n";
  expect_bad("", ": is empty");
  expect_bad(header, ": has no buffers");
  expect_bad("id,lower,size\na,0,1\n", ":1: names no column upper");
  expect_bad("id,lower,upper,size,size\na,0,1,1,1\n", ":1: has a second column for size");
  expect_bad("id,lower,upper,end,size\na,0,1,1,1\n", ":1: has a second column for end");
  expect_bad("id,lower,upper,size,color\n", ":1: names a column 'color'");
  expect_bad(header + "a,0,3\n", ":2: has 3 fields");
  expect_bad(header + "a,0,3,4\n\nb,5,5,4\n", ":4: lower 5 is not below upper 5");
  expect_bad(header + "a,-1,3,4\n", ":2: lower '-1' is no whole number");
  expect_bad(header + "a,0,3,4x\n", ":2: size '4x' is no whole number");
  expect_bad(header + "a,0,3,\n", ":2: size '' is no whole number");
  expect_bad(header + "a,0,3,18446744073709551616\n", ":2: size '18446744073709551616' is too large");
  expect_bad(header + "a,0,3,1152921504606846976\nb,0,1,1\n", ":3: with size 1 all buffers have more than 2^60");
  expect_bad(header + "a,0,3,0\n", ":2: size is 0");
  expect_bad(header + ",0,3,4\n", ":2: has no id");
  expect_bad(header + "a,0,3,4\nb,0,3,4\na,4,5,4\n", ":4: id 'a' is that of line 2 too");
  expect_bad("id,lower,upper,size,alignment\na,0,3,4,8\n", ":2: has an alignment of its own, '8'");
  expect_bad("id,lower,upper,size,gaps\na,0,9,4,3-5\n", ":2: has gaps, '3-5'");
  expect_bad(std::string("\x7f"
                         "ELF\0\1",
                         6),
             ":1: is not text");
  expect_refused("bench pack missing.csv", "missing.csv");
  expect_refused("bench pack", "FILE");
  expect_refused("bench pack .", ".");
}

}  // namespace
}  // namespace sluice
