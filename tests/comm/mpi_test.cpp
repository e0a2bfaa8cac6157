// The same checks by processes, where this build has MPI.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/comm/mpirun.h"

namespace sluice::testing {
namespace {

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi) GTEST_SKIP() << "this build has no MPI";
  }
  static void expect_right(int processes, const std::string& what) {
    const Ended ended = mpirun(processes, std::string(COMM_PROBE) + " " + what);
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output, "");
  }
};

TEST_F(Mpi, Collectives) {
  for (const int processes : {2, 3, 4}) expect_right(processes, "collectives");
}

TEST_F(Mpi, GroupsAreAlongAxes) { expect_right(6, "groups"); }

TEST_F(Mpi, CancelWakesThoseWhoWait) { expect_right(3, "cancelling"); }

TEST_F(Mpi, BetweenSteps) {
  for (const int processes : {2, 5}) expect_right(processes, "between-steps");
}

TEST_F(Mpi, WhoWaitsTooLongNamesThePeer) {
  const Ended ended = mpirun(2, std::string(COMM_PROBE) + " deadline");
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.output.find("rank 1, sum of 2 ranks: waited 1 s for rank 0"), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace sluice::testing
