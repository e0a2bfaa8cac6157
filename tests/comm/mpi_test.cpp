// The same checks by processes, where this build has MPI.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/comm/mpirun.h"

namespace sluice::test {
namespace {

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  }
  static void expect_right(int processes, const std::string& what) {
    const Ended ended = mpirun(processes, std::string(COMM_PROBE) + " " + what);
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output, "");
  }
};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Mpi, Collectives) {
  for (const int processes : {2, 3, 4}) expect_right(processes, "collectives");
}

TEST_F(Mpi, Messages) {
  for (const int processes : {2, 3, 5}) expect_right(processes, "messages");
}

TEST_F(Mpi, GroupsAreAlongAxes) { expect_right(6, "groups"); }

TEST_F(Mpi, CancelWakesThoseWhoWait) { expect_right(3, "cancelling"); }

TEST_F(Mpi, BetweenSteps) {
  for (const int processes : {2, 5}) expect_right(processes, "between-steps");
}

TEST_F(Mpi, WhoWaitsTooLongNamesThePeer) {
  const Ended ended = mpirun(2, std::string(COMM_PROBE) + " deadline");
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.output.find("sum of 2 ranks: waited 1 s for rank 0"), std::string::npos) << ended.output;
}

TEST_F(Mpi, WhoIsLeftNamesWhoIsLost) {
  // Without recovery mpirun ends all where one dies, some before they have said anything.
  Ended ended = mpirun(3, std::string(COMM_PROBE) + " killed");
  EXPECT_NE(ended.status, 0);
  ended = mpirun(3, "--enable-recovery " + std::string(COMM_PROBE) + " killed");
  EXPECT_EQ(count(ended.output, "waiting for rank "), 2) << ended.output;
  EXPECT_EQ(count(ended.output, "rank 1 is lost: its process has ended"), 2) << ended.output;
  ended = mpirun(3, "--enable-recovery " + std::string(COMM_PROBE) + " first-killed");
  EXPECT_EQ(count(ended.output, "waiting for rank "), 2) << ended.output;
  EXPECT_EQ(count(ended.output, "rank 0 is lost: its process has ended"), 2) << ended.output;
  ended = mpirun(3, std::string(COMM_PROBE) + " stopped");
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.output.find("rank 1 is lost: it has given no sign of life for 2 s"), std::string::npos)
      << ended.output;
}

/// Who goes without the others, by an error that they have not heard of, does not leave them waiting for ever.
TEST_F(Mpi, WhoGoesAloneIsLost) {
  Ended ended = mpirun(3, "--enable-recovery " + std::string(COMM_PROBE) + " deserted");
  EXPECT_EQ(count(ended.output, "rank 1 is lost: its process has ended"), 2) << ended.output;
  ended = mpirun(3, "--enable-recovery " + std::string(COMM_PROBE) + " left");
  EXPECT_EQ(count(ended.output, "rank 1 is lost: it has ended, and others go on"), 2) << ended.output;
}

}  // namespace
}  // namespace sluice::test
