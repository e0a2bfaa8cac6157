// What fails while a device works beside the host. A device that fails for good ends the run with one line that names
// an op, and a durable run goes on from its last commit, in a new process, to the bits of one that nothing befell.
#include "tests/equivalence/resume.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

class DeviceFailures : public Resume {
 protected:
  ~DeviceFailures() override { put_in({}); }
  /// The device is measured before anything is counted or fails.
  void SetUp() override {
    put_in({});
    ASSERT_TRUE(prepared_with(config(false), schedule(true, Place::nvme)));
    put_in({});
  }
  RunConfig config(bool durable) const {
    RunConfig c = Resume::config(durable);
    c.device = "cuda";
    return c;
  }
};

TEST_F(DeviceFailures, NameTheOpAndLeaveTheLastCommit) {
  const std::string whole = fresh_directory();
  const Schedule plan = schedule(true, Place::nvme);
  const Finished expected = finished(whole, attempt(config(true), whole, plan));
  const std::uint64_t all = simt::work_done();
  ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
  for (const std::uint64_t part : {2, 4, 7}) {
    SCOPED_TRACE("at " + std::to_string(part) + " tenths");
    const std::string path = fresh_directory();
    put_in({.fails_at = all * part / 10});
    const Attempt failed = attempt(config(true), path, plan);
    ASSERT_TRUE(failed.error);
    const std::string& message = failed.error->message;
    EXPECT_EQ(failed.error->code, ErrorCode::fault) << message;
    EXPECT_NE(message.find("uncorrectable ECC error"), std::string::npos) << message;
    EXPECT_EQ(message.find('#'), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    put_in({});
    const Attempt again = attempt(config(true), path, plan);
    EXPECT_NE(again.notes.find("continuing after step"), std::string::npos) << again.notes;
    expect_same(finished(path, again), expected);
  }
}

TEST_F(DeviceFailures, BeforeTheFirstStepLeaveNothingOnTheDrive) {
  RunConfig c = config(true);
  c.steps = 1;
  const std::string path = fresh_directory();
  put_in({.allocations = 0});
  const Attempt refused = attempt(c, path, schedule(true, Place::nvme));
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code, ErrorCode::bad_request) << refused.error->message;
  EXPECT_TRUE(std::filesystem::is_empty(bench_.path("drive"))) << refused.error->message;
  put_in({});
  EXPECT_FALSE(attempt(c, path, schedule(true, Place::nvme)).error);
}

TEST_F(DeviceFailures, AtAnyWorkEndTheRun) {
  RunConfig c = config(false);
  c.steps = 1;
  c.optimizer.clip_norm = 0;  // its updates do not wait for the norm
  const Schedule plan = schedule(false, Place::host);
  ASSERT_FALSE(attempt(c, fresh_directory(), plan).error);
  const std::uint64_t all = simt::work_done();
  for (std::uint64_t at = 1; at <= all; at += 1 + all / 20) {
    SCOPED_TRACE("at " + std::to_string(at) + " of " + std::to_string(all));
    put_in({.fails_at = at});
    const Attempt failed = attempt(c, fresh_directory(), plan);
    ASSERT_TRUE(failed.error);
    EXPECT_EQ(failed.error->code, ErrorCode::fault) << failed.error->message;
    EXPECT_NE(failed.error->message.find("ECC"), std::string::npos) << failed.error->message;
    EXPECT_EQ(failed.error->message.find('\n'), std::string::npos) << failed.error->message;
  }
}

TEST_F(DeviceFailures, OfTheDriveFindTheDeviceAtWork) {
  put_in({.delay_seed = 1});
  RunConfig c = config(false);
  c.steps = 2;
  c.batch = 2;
  const Schedule plan = schedule(true, Place::nvme);
  std::uint64_t n = 1;
  for (;; n += 23) {
    SCOPED_TRACE("request " + std::to_string(n));
    c.faults = FaultOptions{};
    c.faults->fail_target = FaultOptions::Target::read;
    c.faults->fail_nth = n;
    c.faults->fail_persistent = true;
    const Attempt ended = attempt(c, fresh_directory(), plan);
    if (!ended.error) break;
    EXPECT_NE(ended.error->message.find("sluice-swap"), std::string::npos) << ended.error->message;
  }
  EXPECT_GT(n, 100u);
}

TEST_F(DeviceFailures, OfNumbersAreSkippedAndStopsGoOn) {
  put_in({.delay_seed = 2});
  RunConfig c = config(true);
  c.poison_steps = {2, 5};
  const Schedule plan = schedule(true, Place::nvme);
  const std::string whole = fresh_directory(), path = fresh_directory();
  const Finished expected = finished(whole, attempt(c, whole, plan));
  ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
  EXPECT_TRUE(expected.lines[1].contains("skipped") && expected.lines[4].contains("skipped"));
  EXPECT_EQ(attempt(c, path, plan, 3).result.steps, 3);
  expect_same(finished(path, attempt(c, path, plan)), expected);
}

}  // namespace
}  // namespace sluice::test
