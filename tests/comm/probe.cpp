// One process of a world, started by mpirun for a test: makes the checks, prints what was wrong.
#include <csignal>
#include <cstdio>
#include <cstring>

#include "src/comm/mpi.h"
#include "tests/comm/checks.h"

int main(int argc, char** argv) {
  using namespace sluice;
  using namespace sluice::test;
  const std::string what = argc > 1 ? argv[1] : "";
  MpiOptions options;
  if (what == "deadline") options.deadline = std::chrono::seconds(1);
  if (what == "stopped" || what == "left") options.patience = std::chrono::milliseconds(2500);
  auto world = connect_by_mpi(options);
  if (!world.ok()) {
    std::printf("%s\n", world.error().message.c_str());
    return 2;
  }
  const RankId rank = (*world)->here().first;
  std::vector<std::string> found;
  if (what == "collectives") found = check_collectives(**world, rank);
  if (what == "messages") found = check_messages(**world, rank);
  if (what == "groups") found = check_groups(**world, rank);
  if (what == "cancelling") found = check_cancelling(**world, rank);
  if (what == "between-steps") found = check_between_steps(**world);
  if (what == "killed" && rank == 1) raise(SIGKILL);
  if (what == "stopped" && rank == 1) raise(SIGSTOP);
  // An error of its own, of which the others have not heard; or it takes itself for done.
  if (what == "deserted" && rank == 1) return 3;
  if (what == "left" && rank == 1) {
    (*world)->end();
    return 0;
  }
  const bool is_odd = what == "deserted" || what == "left";
  const bool waits = is_odd ||
                     ((what == "deadline" || what == "killed" || what == "stopped" || what == "first-killed") && rank != 0);
  if (what == "first-killed" && rank == 0) raise(SIGKILL);
  if (waits || (rank == 0 && (what == "killed" || what == "stopped"))) {
    // One does not come.
    Communicator& communicator = (*world)->communicator(rank);
    const Topology topology = Topology::of({{"dp", (*world)->ranks()}}, rank);
    std::int64_t value = 1;
    const AxisSet all = 1;
    const Status prepared = communicator.prepare(topology, std::span(&all, 1));
    const Status late = prepared.ok() ? communicator.sum(0, std::span(&value, 1)) : prepared;
    found.push_back(late.ok() ? "ended" : late.error().message);
  }
  for (const std::string& line : found) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  if ((*world)->has_lost_a_process()) return 1;
  // Whoever found something still ends with the others.
  const Status agreed = agree(**world, success());
  (*world)->end();
  return agreed.ok() && found.empty() ? 0 : 1;
}
