// Metrics of a run that goes on: what of a file stays, whatever has become of it.
#include "src/train/run/metrics_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/scratch_dir.h"

namespace sluice {
namespace {

class MetricsFile : public testing::Test {
 protected:
  static std::string line(std::int64_t step) { return "{\"step\":" + std::to_string(step) + ",\"loss\":1.5}\n"; }
  static std::string lines(std::initializer_list<std::int64_t> steps) {
    std::string text;
    for (const std::int64_t step : steps) text += line(step);
    return text;
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string read() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  /// The notes, one a line.
  std::string continued(std::int64_t step, std::int64_t known_from, std::int64_t last_step) const {
    const auto rebuilt = [&](std::int64_t s) -> std::optional<std::string> {
      if (s < known_from) return std::nullopt;
      const std::string text = line(s);
      return text.substr(0, text.size() - 1);
    };
    const auto metrics = continue_metrics(path_, step, rebuilt);
    EXPECT_TRUE(metrics.ok()) << metrics.error().message;
    if (!metrics.ok()) return "";
    EXPECT_EQ(metrics->last_step, last_step);
    std::string notes;
    for (const std::string& note : metrics->notes) notes += note.substr(path_.size()) + "\n";
    return notes;
  }

  const ScratchDir scratch_;
  const std::string path_ = scratch_.path() + "/metrics.jsonl";
};

TEST_F(MetricsFile, EndsWithTheStepThatTheRunGoesOnFrom) {
  write(lines({1, 2, 3, 4, 5}) + "{\"step\":6,\"lo");
  EXPECT_EQ(continued(5, 99, 5), "");
  EXPECT_EQ(read(), lines({1, 2, 3, 4, 5}));
  EXPECT_EQ(continued(3, 99, 3), "");
  EXPECT_EQ(read(), lines({1, 2, 3}));
  EXPECT_EQ(continued(7, 99, 3), "") << "what is missing at the end is for the caller";
}

TEST_F(MetricsFile, DamagedLinesAreDroppedAndMadeAgainWhereTheyAreKnown) {
  const std::string bad = "{\"step\":3,\"lo\001s\":1.5}\n", half = "{\"step\":5,\"loss\":1\n", zeros(40, '\0');
  write(lines({1, 2}) + bad + line(4) + half + "\n" + lines({6, 7}) + zeros + "\n");
  EXPECT_EQ(continued(7, 5, 7),
            ": line 3 is not of a step, and dropped\n: line 5 is not of a step, and dropped\n"
            ": line 6 is not of a step, and dropped\n: line 9 is not of a step, and dropped\n"
            ": the lines of 1 steps are lost\n");
  EXPECT_EQ(read(), lines({1, 2, 4, 5, 6, 7}));
}

TEST_F(MetricsFile, LinesOutOfOrderAreDroppedAndNotThoseAroundThem) {
  write(lines({1, 2, 9, 4, 5, 1, 6, 6, 7, 8}));
  EXPECT_EQ(continued(7, 1, 7),
            ": line 3 is out of order, and dropped\n: line 6 is out of order, and dropped\n"
            ": line 7 is out of order, and dropped\n");
  EXPECT_EQ(read(), lines({1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(MetricsFile, OfMuchDamageNotAllIsTold) {
  std::string text = line(1);
  for (int i = 0; i < 20; ++i) text += "x\n";
  write(text + line(2));
  const std::string notes = continued(2, 99, 2);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 9) << notes;
  EXPECT_NE(notes.find("12 more lines"), std::string::npos) << notes;
  EXPECT_EQ(read(), lines({1, 2}));
}

TEST_F(MetricsFile, AFileOfSomethingElseIsRefused) {
  const MetricsOwner old{"00000000000000a1", true};
  EXPECT_TRUE(check_metrics(path_, old).ok()) << "there is none";
  write("");
  EXPECT_TRUE(check_metrics(path_, old).ok());
  write("{\"step\":1,");
  EXPECT_TRUE(check_metrics(path_, old).ok()) << "cut off";
  write(std::string(100, '\0'));
  EXPECT_TRUE(check_metrics(path_, old).ok()) << "as a power cut may leave it";
  write("x\n" + line(2));
  EXPECT_TRUE(check_metrics(path_, old).ok());
  for (const char* other : {"dear diary\n{\"day\":1}\n", "dear diary", "{\"day\":1}"}) {
    write(other);
    EXPECT_EQ(check_metrics(path_, old).error().code, ErrorCode::bad_request) << other;
    EXPECT_EQ(read(), other);
  }
}

TEST_F(MetricsFile, LinesOfAnotherRunAreRefused) {
  const auto named = [](std::int64_t step, const std::string& run) {
    return "{\"step\":" + std::to_string(step) + ",\"run\":\"" + run + "\",\"loss\":1.5}\n";
  };
  const std::string mine = "00000000000000a1", another = "00000000000000b2";
  const MetricsOwner owner{mine, false}, old{mine, true};
  const auto refused = [&](const std::optional<MetricsOwner>& who) {
    const Status status = check_metrics(path_, who);
    return !status.ok() && status.error().code == ErrorCode::bad_request;
  };
  EXPECT_FALSE(refused(std::nullopt)) << "there is none";
  write("");
  EXPECT_FALSE(refused(std::nullopt));
  write(named(1, mine) + named(2, mine));
  EXPECT_FALSE(refused(owner));
  EXPECT_TRUE(refused(std::nullopt)) << "a new run has none";
  write(named(1, mine) + named(2, another));
  EXPECT_TRUE(refused(owner));
  EXPECT_TRUE(refused(old));
  EXPECT_NE(check_metrics(path_, owner).error().message.find("another run (" + another + ")"), std::string::npos);
  write(line(1) + named(2, mine));
  EXPECT_FALSE(refused(old)) << "a run of an early version goes on";
  EXPECT_TRUE(refused(owner));
  write("x");
  EXPECT_TRUE(refused(std::nullopt));
}

}  // namespace
}  // namespace sluice
