// Commit records: what is found after damage and power cuts, and which place the next one takes.
#include "offload/state/commit_log.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "io/drives/power_cut.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

class CommitLogTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t sums_count = 2000;  // records of several pages: they can tear

  std::string path() const { return folder_ / "commit.0"; }
  CommitLog::Identity identity(std::uint64_t run_id = 7) const {
    CommitLog::Identity i;
    i.run_id = run_id;
    i.layout = 9;
    i.sums = sums_count;
    return i;
  }
  std::unique_ptr<CommitLog> make(bool create, std::shared_ptr<PowerCut> cut = nullptr) const {
    QueueOptions queue;
    if (cut) queue.faults.emplace().power_cut = std::move(cut);
    auto log = CommitLog::open(path(), identity(), queue, create);
    EXPECT_TRUE(log.ok()) << log.error().message;
    return log.ok() ? std::move(*log) : nullptr;
  }

  /// A record of a step whose checksums are the step's own.
  static Status write(CommitLog& log, std::uint64_t step) {
    std::vector<std::uint64_t> sums(sums_count);
    std::iota(sums.begin(), sums.end(), step * 1000);
    const std::span<const std::uint64_t> all(sums);
    const std::vector<std::span<const std::uint64_t>> tables{all.first(500), all.subspan(500)};
    const StepResult result{step, 0.5 * static_cast<double>(step), 1, 2, 0};
    return log.write(step, static_cast<std::uint8_t>(step & 1), std::span(&result, 1), tables);
  }
  static void expect_whole(const CommitRecord& r) {
    EXPECT_EQ(r.parity, r.step & 1);
    ASSERT_EQ(r.sums.size(), sums_count);
    for (std::uint64_t i = 0; i < sums_count; ++i) ASSERT_EQ(r.sums[i], r.step * 1000 + i);
    ASSERT_EQ(r.results.size(), 1u);
    EXPECT_EQ(r.results[0].loss, 0.5 * static_cast<double>(r.step));
  }
  void begin() const {
    const auto log = make(true);
    ASSERT_FALSE(std::filesystem::exists(path())) << "no name before there is a record";
    ASSERT_TRUE(write(*log, 0).ok());
    ASSERT_TRUE(log->publish().ok());
  }

  const ScratchDir folder_{ScratchDir::disk()};
};

/// Of ranks one may have committed a step alone. Where the run goes on from the one before, with other options perhaps,
/// that step is made again, and what is left of the first time must not be taken for it.
TEST_F(CommitLogTest, WhatIsNewerThanWhereARunGoesOnIsForgotten) {
  begin();
  {
    const auto log = make(false);
    for (std::uint64_t step = 1; step < 4; ++step) ASSERT_TRUE(write(*log, step).ok());
  }
  {
    const auto log = make(false);
    ASSERT_EQ(log->records().size(), 2u);
    ASSERT_TRUE(log->forget_newer().ok());
    EXPECT_EQ(log->records().size(), 2u) << "it goes on from the newest";
    const CommitRecord older = log->records()[1];
    log->continue_from(older);
    ASSERT_TRUE(log->forget_newer().ok());
  }
  const auto log = make(false);
  ASSERT_EQ(log->records().size(), 1u);
  EXPECT_EQ(log->records()[0].step, 2u);
  EXPECT_TRUE(log->damage().empty());
  ASSERT_TRUE(write(*log, 3).ok());
}

TEST_F(CommitLogTest, TheLastTwoAreFoundNewestFirst) {
  begin();
  for (std::uint64_t step = 1; step < 6; ++step) {
    const auto log = make(false);
    ASSERT_EQ(log->records().size(), step == 1 ? 1u : 2u);
    EXPECT_EQ(log->records()[0].step, step - 1);
    for (const CommitRecord& r : log->records()) expect_whole(r);
    EXPECT_TRUE(log->damage().empty());
    ASSERT_TRUE(write(*log, step).ok());
  }
}

TEST_F(CommitLogTest, AnyDamageIsNoticedAndLeavesTheOther) {
  begin();
  ASSERT_TRUE(write(*make(false), 1).ok());
  const std::uint64_t bytes = std::filesystem::file_size(path());
  for (std::uint64_t at = 3; at < bytes; at += 331) {
    const std::uint64_t in_place = at % (bytes / 2);
    if (in_place >= 72 + 64 * 40 + sums_count * 8) continue;  // beyond the record
    const auto flip = [&] {
      std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 4));
    };
    flip();
    const auto log = make(false);
    ASSERT_EQ(log->records().size(), 1u) << at;
    EXPECT_EQ(log->damage().size(), 1u) << at;
    expect_whole(log->records()[0]);
    flip();
  }
}

TEST_F(CommitLogTest, GoingOnFromTheOlderOneOverwritesTheNewer) {
  begin();
  ASSERT_TRUE(write(*make(false), 1).ok());
  {
    const auto log = make(false);
    ASSERT_EQ(log->records()[1].step, 0u);
    log->continue_from(log->records()[1]);
    ASSERT_TRUE(write(*log, 5).ok());
  }
  {
    const auto log = make(false);
    ASSERT_EQ(log->records().size(), 2u);
    EXPECT_EQ(log->records()[0].step, 5u);
    EXPECT_EQ(log->records()[1].step, 0u);
    ASSERT_TRUE(write(*log, 6).ok());
    log->step_back();
    ASSERT_TRUE(write(*log, 7).ok());
  }
  const auto again = make(false);
  EXPECT_EQ(again->records()[0].step, 7u);
  EXPECT_EQ(again->records()[1].step, 5u);
}

TEST_F(CommitLogTest, WhateverAPowerCutLeavesTheLastOneThatWasReportedIsThere) {
  int torn = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    begin();
    std::uint64_t reported = 0;
    {
      const auto log = make(false, std::make_shared<PowerCut>(seed, 1 + seed % 12));
      for (std::uint64_t step = 1; step < 20 && write(*log, step).ok(); ++step) reported = step;
    }
    const auto log = make(false);
    ASSERT_FALSE(log->records().empty()) << seed;
    EXPECT_GE(log->records()[0].step, reported) << seed;
    EXPECT_LE(log->records()[0].step, reported + 1) << seed;
    for (const CommitRecord& r : log->records()) expect_whole(r);
    torn += static_cast<int>(log->damage().size());
    std::filesystem::remove(path());
  }
  EXPECT_GT(torn, 3) << "cuts that tear nothing test nothing";
}

TEST_F(CommitLogTest, OfAnotherRunOrSizeIsRefusedOrNotFound) {
  begin();
  auto other = CommitLog::open(path(), identity(8), {}, false);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->records().empty());
  EXPECT_EQ((*other)->damage().size(), 1u);
  other->reset();
  CommitLog::Identity larger = identity();
  larger.sums = 9000;
  EXPECT_FALSE(CommitLog::open(path(), larger, {}, false).ok());
  EXPECT_FALSE(CommitLog::open(folder_ / "none", identity(), {}, false).ok());
  const auto held = make(false);
  const auto busy = CommitLog::open(path(), identity(), {}, false);
  ASSERT_FALSE(busy.ok());
  EXPECT_NE(busy.error().message.find("used by another run"), std::string::npos);
}

}  // namespace
}  // namespace sluice
