// Runs of models that are cut into stages or over ranks, compared with those that are not.
#pragma once

#include "run_command.h"
#include "tests/comm/mpirun.h"

namespace sluice {

class CutCommandTest : public RunCommandTest {
 protected:
  std::string options() const {
    return "train --model llama-tiny --seq 32 --warmup 3 --eval-batches 2 --lots 2 --batch 16 --data " + path("text") +
           " ";
  }
  json planned(const std::string& more) const {
    std::string arguments = options() + more + " --json";
    arguments.replace(0, 5, "plan");
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(lines(a), lines(b));
    EXPECT_EQ(result(a), result(b));
    EXPECT_EQ(read(path(a) + "/model.safetensors"), read(path(b) + "/model.safetensors"));
  }
  /// In four processes; the exit status.
  int launched(const std::string& arguments) const {
    const std::string command = "cd " + path("") + " && export XDG_CACHE_HOME=" + path("cache") + "; " +
                                test::mpi_environment + "mpirun -n 4 " SLUICE_BINARY " " + arguments + " >" +
                                path(".out") + " 2>" + path(".err") + " </dev/null";
    return std::system(command.c_str());
  }
};

}  // namespace sluice
