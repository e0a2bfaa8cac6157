// The command line tool on the model of a device.
#include "tests/tools/command.h"

namespace sluice {
namespace {

using CommandOnModel = CommandTest;

TEST_F(CommandOnModel, Runs) {
  const Finished version = sluice("--version"), help = sluice("--help");
  EXPECT_EQ(version.status, 0) << version.err;
  EXPECT_EQ(version.out.rfind("sluice ", 0), 0u) << version.out;
  EXPECT_EQ(help.status, 0) << help.err;
}

}  // namespace
}  // namespace sluice
