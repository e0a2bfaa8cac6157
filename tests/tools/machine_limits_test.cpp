// Budgets and drives that this machine does not have: refused by what would run, assumed by plans that are asked to.
#include "src/train/request/machine_limits.h"

#include <sys/mount.h>

#include <nlohmann/json.hpp>

#include "run_command.h"

namespace sluice {
namespace {

using nlohmann::json;

class MachineLimits : public RunCommandTest {
 protected:
  void SetUp() override {
    set_up_training();
    ASSERT_EQ(sluice(options() + "--steps 1 " + run("model")).status, 0);
  }
  std::string plan() const { return "plan --model llama-tiny --seq 32 --batch 4 "; }
  /// All that use memory, each with what it needs beside.
  std::vector<std::string> commands() const {
    return {plan(), options(), "eval --seq 32 --batch 4 --model " + path("model") + " --data " + path("text") + " ",
            "generate --model " + path("model") + " --prompt x "};
  }
  static std::string bytes(const std::string& option, std::uint64_t count) {
    return option + " " + std::to_string(count) + " ";
  }
};

TEST_F(MachineLimits, MemoryThatIsNotThereIsRefused) {
  const auto before = everything();
  for (const std::string& command : commands()) {
    expect_refused(command + "--host-memory 512TiB", "--host-memory 512 TiB: this machine has");
    expect_refused(command + "--device-memory 512TiB", "--device-memory 512 TiB: this machine has");
  }
  const std::uint64_t all = machine_memory_bytes(), most = all / 10 * 6;
  ASSERT_GT(all, 1u << 30);
  for (const std::string& command : commands())
    expect_refused(command + bytes("--device-memory", most) + bytes("--host-memory", most), "together");
  for (const std::string& command : {plan(), options()}) {
    expect_refused(command + bytes("--device-memory", most) + "--ranks 2", "x 2 ranks");
    expect_refused(command + "--device-memory 4194304TiB --ranks 4", "this machine has");
  }
  EXPECT_TRUE(before == everything()) << "something was touched";
  const std::string exactly = bytes("--device-memory", all / 2) + "--host-memory ";
  EXPECT_EQ(sluice(plan() + exactly + std::to_string(all - all / 2)).status, 0);
  expect_refused(plan() + exactly + std::to_string(all - all / 2 + 1), "this machine has");
}

TEST_F(MachineLimits, APlanMayAssumeIt) {
  expect_refused(plan() + "--host-memory 512TiB", "or --assume that it is there");
  const Finished f = sluice(plan() + "--host-memory 512TiB --assume");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("assumed: 512 TiB of host memory (this machine has "), std::string::npos) << f.out;
  const Finished j = sluice(plan() + "--host-memory 512TiB --assume --json");
  ASSERT_EQ(j.status, 0) << j.err;
  const json assumed = json::parse(j.out)["assumed"];
  EXPECT_EQ(assumed["memory"]["asked_bytes"], std::uint64_t{512} << 40);
  EXPECT_EQ(assumed["memory"]["there_bytes"], machine_memory_bytes());
  const Finished needless = sluice(plan() + "--assume --json");
  EXPECT_FALSE(json::parse(needless.out).contains("assumed")) << "all of it is there";
  expect_refused(options() + "--assume", "--assume");
}

TEST_F(MachineLimits, ADirectoryThatIsNotThereIsRefused) {
  const std::string profile = read(path("cache/sluice/profile.json")), nowhere = path("nowhere/nvme");
  write("file", "x");
  for (const std::string& command : commands()) {
    expect_refused(command + "--nvme " + nowhere, nowhere);
    expect_refused(command + "--nvme " + path("nvme") + "," + nowhere, nowhere);
    expect_refused(command + "--nvme " + path("file"), "is not a directory");
  }
  const Finished f = sluice(plan() + "--device-memory 8MiB --host-memory 4MiB --assume --nvme " + nowhere);
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("assumed: "), std::string::npos) << f.out;
  EXPECT_NE(f.out.find(" of drive in " + nowhere + " that reads and writes "), std::string::npos) << f.out;
  EXPECT_EQ(f.err.find("measuring"), std::string::npos) << f.err;
  EXPECT_FALSE(std::filesystem::exists(path("nowhere")));
  EXPECT_EQ(json::parse(read(path("cache/sluice/profile.json")))["drives"], json::parse(profile)["drives"]);
}

TEST_F(MachineLimits, DrivesAreNotLargerThanTheirFileSystems) {
  const std::string nvme = "--nvme " + path("nvme") + " ";
  for (const std::string& command : commands())
    expect_refused(command + nvme + "--nvme-space 9999TB", "--nvme-space 8.88 PiB: " + path("nvme") + " has room for");
  const Finished f = sluice(plan() + nvme + "--nvme-space 9999TB --assume");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find(" of drive in " + path("nvme") + " (it has room for "), std::string::npos) << f.out;
}

TEST_F(MachineLimits, DirectoriesOnOneFileSystemShareItsRoom) {
  const std::string small = path("small");
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=64m") != 0) GTEST_SKIP() << "no file system can be mounted here";
  std::filesystem::create_directory(small + "/a");
  std::filesystem::create_directory(small + "/b");
  write_profile(small);
  const std::string both = "--nvme " + small + "/a," + small + "/b --nvme-space ";
  const Finished much = sluice(plan() + both + "100MiB");
  // What the run itself has on the drive is not in its way when it goes on.
  const std::string budgets = "--device-memory 8MiB --host-memory 4MiB --states nvme --nvme " + small + "/a ";
  const Finished stopped =
      signalled(options() + budgets + "--nvme-space 60MiB --steps 40 " + run("run"), "run", "TERM");
  const Finished on = sluice("train --resume " + run("run"));
  EXPECT_EQ(umount(small.c_str()), 0);
  EXPECT_EQ(much.status, 2) << much.err;
  EXPECT_NE(much.err.find("has room for 6"), std::string::npos) << much.err;
  EXPECT_EQ(stopped.status, 1) << stopped.err;
  EXPECT_EQ(on.status, 0) << on.err;
}

}  // namespace
}  // namespace sluice
