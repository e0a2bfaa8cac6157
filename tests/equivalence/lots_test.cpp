// For one set of lots the bits of a run do not depend on the number of ranks, and it may change that while it goes on.
#include <filesystem>
#include <fstream>

#include "resume.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/stored_weights.h"

namespace sluice::test {
namespace {

void flip_bit(const std::string& path, std::uint64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1));
}

class Lots : public Resume {
 protected:
  RunConfig config(int ranks, int lots, bool durable, bool ahead = true) const {
    RunConfig c = Resume::config(durable);
    c.batch = 8;
    c.ranks = ranks;
    c.lots = lots;
    if (!ahead) c.optimizer.clip_norm = 0;
    return c;
  }
  Schedule schedule(int group, bool ahead = true, Place home = Place::nvme, Place accumulator = Place::host) const {
    Schedule s = Resume::schedule(ahead, home);
    s.group = group;
    s.gradients_ahead = group < 4;
    for (UnitChoice& unit : s.units) unit.accumulator = accumulator;
    return s;
  }
  Finished whole(const RunConfig& c, const Schedule& s) {
    const std::string path = fresh_directory();
    return finished(path, attempt(c, path, s));
  }
};

TEST_F(Lots, DecideTheBitsAndRanksDoNot) {
  for (const bool ahead : {true, false})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      SCOPED_TRACE(std::string(ahead ? "ahead " : "backward ") + dtype_name(dtype));
      const auto run_of = [&](int ranks, int lots, const Schedule& s) {
        RunConfig c = config(ranks, lots, false, ahead);
        c.dtype = dtype;
        return whole(c, s);
      };
      const Finished expected = run_of(4, 4, schedule(2, ahead));
      ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
      // Two lots a rank, and all of them on one; vertical, horizontal and between; accumulators in every place.
      expect_same(run_of(2, 4, schedule(4, ahead)), expected);
      expect_same(run_of(1, 4, schedule(8, ahead)), expected);
      expect_same(run_of(1, 4, schedule(1, ahead, Place::host, Place::nvme)), expected);
      expect_same(run_of(2, 4, schedule(3, ahead, Place::nvme, Place::device)), expected);
      expect_same(run_of(1, 4, schedule(3, ahead)), expected);
      // Another tree has other bits.
      EXPECT_NE(run_of(1, 1, schedule(8, ahead)).state_hash, expected.state_hash);
    }
}

TEST_F(Lots, OfAnOddNumberAddUpOnAllOfTheRanksOrOnOne) {
  RunConfig c = config(3, 3, false);
  c.batch = 6;
  const Finished expected = whole(c, schedule(2));
  c.ranks = 1;
  expect_same(whole(c, schedule(6)), expected);
  c.ranks = 3;
  c.lots = 6;
  const Finished six = whole(c, schedule(1));
  c.ranks = 6;
  expect_same(whole(c, schedule(1)), six);
  EXPECT_NE(six.state_hash, expected.state_hash);
}

TEST_F(Lots, MayBeCarriedByOtherRanksFromAnyStepOn) {
  for (const bool durable : {true, false}) {
    SCOPED_TRACE(durable ? "durable" : "not durable");
    const Finished expected = whole(config(4, 4, durable), schedule(2));
    const std::string path = fresh_directory();
    const Attempt first = attempt(config(4, 4, durable), path, schedule(2), 2);
    ASSERT_FALSE(first.error) << first.error->message;
    const Attempt second = attempt(config(1, 4, durable), path, schedule(8, true, Place::host), 3);
    ASSERT_FALSE(second.error) << second.error->message;
    EXPECT_NE(second.notes.find("from step 3 on with --ranks 1 (4 before)"), std::string::npos) << second.notes;
    const Attempt third = attempt(config(2, 4, durable), path, schedule(2), 5);
    ASSERT_FALSE(third.error) << third.error->message;
    expect_same(finished(path, attempt(config(2, 4, durable), path, schedule(2))), expected);
  }
}

/// Killed behind any of the writes with which it is laid out anew, the run is there as it was.
TEST_F(Lots, ALayoutThatWasCutShortIsMadeAgain) {
  const Finished expected = whole(config(2, 4, true), schedule(2));
  const auto stopped = [&] {
    const std::string path = fresh_directory();
    const Attempt first = attempt(config(2, 4, true), path, schedule(2), 3);
    EXPECT_FALSE(first.error) << first.error->message;
    return path;
  };
  const auto copy_of = [](const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  // The checkpoint is there, and run.json is still of two ranks: who goes on may have any number.
  for (const int ranks : {2, 1, 4}) {
    SCOPED_TRACE(ranks);
    const std::string path = stopped(), other = path + ".other";
    const std::string before = copy_of(path + "/run.json");
    {
      auto directory = RunDirectory::open(path);
      ASSERT_TRUE(directory.ok());
      const RestoreListener quiet{[](const std::string&) {}, [](const std::string&) { return States::Watch{}; }};
      const auto saved = save_for_other_layout(*directory, directory->run()->config, quiet);
      ASSERT_TRUE(saved.ok()) << saved.error().message;
      EXPECT_EQ(*saved, 3u);
      EXPECT_TRUE(directory->has_saved() && directory->has_commits());
    }
    EXPECT_EQ(copy_of(path + "/run.json"), before);
    const Attempt last = attempt(config(ranks, 4, true), path, schedule(2));
    expect_same(finished(path, last), expected);
    EXPECT_FALSE(std::filesystem::exists(path + "/commit.0")) << "it is complete";
  }
}

/// What is refused changes nothing, and neither do states that came back damaged.
TEST_F(Lots, NothingIsTakenAwayBeforeTheStatesAreWholeElsewhere) {
  const Finished expected = whole(config(2, 4, true), schedule(2));
  const std::string path = fresh_directory();
  const Attempt first = attempt(config(2, 4, true), path, schedule(2), 4);
  ASSERT_FALSE(first.error) << first.error->message;
  RunConfig fewer = config(1, 4, true);
  fewer.steps = 3;
  const Attempt refused = attempt(fewer, path, schedule(2));
  ASSERT_TRUE(refused.error);
  EXPECT_NE(refused.error->message.find("stands at step 4, beyond --steps 3"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path + "/saved/step-4"));
  // Records that are missing are not made up for.
  std::filesystem::rename(path + "/commit.0", path + "/elsewhere");
  const Attempt half = attempt(config(1, 4, true), path, schedule(2));
  ASSERT_TRUE(half.error);
  EXPECT_NE(half.error->message.find("half a run"), std::string::npos) << half.error->message;
  std::filesystem::rename(path + "/elsewhere", path + "/commit.0");
  {
    auto directory = RunDirectory::open(path);
    ASSERT_TRUE(directory.ok());
    const RestoreListener quiet{[](const std::string&) {}, [](const std::string&) { return States::Watch{}; }};
    ASSERT_TRUE(save_for_other_layout(*directory, directory->run()->config, quiet).ok());
    EXPECT_TRUE(StoredWeights::open(*directory, quiet).ok());
  }
  // Of who was killed while it was laid out: the checkpoint may be all that there is.
  ASSERT_TRUE(attempt(fewer, path, schedule(2)).error);
  const std::string states = path + "/saved/step-4/rank-00001.h5";
  ASSERT_TRUE(std::filesystem::exists(states));
  flip_bit(states, std::filesystem::file_size(states) / 2);
  for (const int ranks : {1, 2}) {
    const Attempt damaged = attempt(config(ranks, 4, true), path, schedule(2));
    ASSERT_TRUE(damaged.error);
    EXPECT_NE(damaged.error->message.find("is damaged"), std::string::npos) << damaged.error->message;
  }
  std::filesystem::rename(path + "/saved/step-4", path + "/saved/step-4.tmp-a1B2c3");
  expect_same(finished(path, attempt(config(2, 4, true), path, schedule(2))), expected);
  EXPECT_FALSE(std::filesystem::exists(path + "/saved")) << "of who was killed";
}

TEST_F(Lots, ThatDoNotFitAreRefused) {
  const auto refused = [&](int ranks, int lots, int batch) {
    RunConfig c = config(ranks, lots, false);
    c.batch = batch;
    const auto prepared = prepare_with(c, Purpose::train, schedule(1));
    EXPECT_FALSE(prepared.ok());
    if (prepared.ok()) return std::string();
    EXPECT_EQ(prepared.error().code, ErrorCode::bad_request);
    return prepared.error().message;
  };
  EXPECT_NE(refused(2, 3, 12).find("--lots 3 on 2 ranks"), std::string::npos);
  EXPECT_NE(refused(2, 6, 12).find("2 times a power of two"), std::string::npos);
  EXPECT_NE(refused(1, 16, 8).find("a batch has 8 micro-batches"), std::string::npos);
  EXPECT_NE(refused(1, -1, 8).find("--lots"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
