// --layout auto: arrangements of ranks are compared, and the quickest is taken.
#include "cut_command.h"

namespace sluice {
namespace {

class LayoutCommand : public CutCommandTest {
 protected:
  std::string options() const {
    return "train --model llama-tiny --seq 32 --warmup 3 --eval-batches 2 --lots 4 --batch 32 --data " + path("text") +
           " ";
  }
  std::string plan(const std::string& more) const { return "plan" + options().substr(5) + "--layout auto " + more; }
  json layouts(const std::string& more) const {
    const Finished f = sluice(plan(more) + " --json");
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out)["layouts"] : json();
  }
};

TEST_F(LayoutCommand, FindsTheQuickestAndSaysWhyOthersAreNot) {
  const json all = layouts("--ranks 4");
  ASSERT_GE(all["found"].size(), 10u);
  double before = 0;
  for (const json& found : all["found"]) {
    EXPECT_EQ(found["pp"].get<int>() * found["dp"].get<int>() * found["cp"].get<int>() * found["tp"].get<int>(), 4);
    EXPECT_EQ(found["keeps_bits"], found["cp"] == 1 && found["tp"] == 1 && found["micro_batch"] == 1);
    if (!found["searched"]) continue;
    EXPECT_LE(before, found["step_seconds"]);
    before = found["step_seconds"];
  }
  EXPECT_GT(all["refused"].size(), 0u) << "zb-h1 with --tp";
  // What is given stays.
  const json given = layouts("--ranks 4 --tp 2 --pipeline gpipe");
  for (const json& found : given["found"]) {
    EXPECT_EQ(found["tp"], 2);
    EXPECT_EQ(found["pipeline"], "gpipe") << found;
  }
  const Finished f = sluice(plan("--ranks 4"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("estimated to be slower, and not searched: "), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("The first of them:"), std::string::npos);
}

/// Of budgets in which one rank's states have no room those arrangements are left that share them.
TEST_F(LayoutCommand, KeepsTheBudgets) {
  const std::string ranks = "--ranks 4 --cp 1 --tp 1 --micro-batch 1 --device-memory 16MiB ";
  const json roomy = layouts(ranks + "--host-memory 1GiB"), tight = layouts(ranks + "--host-memory 20MiB");
  EXPECT_EQ(roomy["without_room"], 0);
  EXPECT_GT(tight["without_room"], 0);
  for (const json& found : tight["found"])
    EXPECT_TRUE(!found["searched"] || 4 * found["bytes_per_rank"]["host"].get<std::uint64_t>() <= 20u << 20) << found;
  const Finished none = sluice(options() + run("none") + ranks + "--host-memory 1MiB --layout auto");
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find(" ranks fits the budgets"), std::string::npos) << none.err;
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

TEST_F(LayoutCommand, ARunIsArrangedSoAndStaysSo) {
  const std::string command = options() + "--steps 40 --hash 40 ";
  ASSERT_EQ(sluice(command + run("one")).status, 0);
  ASSERT_EQ(
      signalled(command + run("run") + "--ranks 4 --cp 1 --tp 1 --micro-batch 1 --layout auto", "run", "TERM").status,
      1);
  EXPECT_NE(read(path(".err")).find("arrangement: pp "), std::string::npos) << read(path(".err"));
  expect_refused("train --resume --layout auto " + run("run"), "--layout auto is for new runs");
  const Finished f = sluice("train --resume " + run("run"));
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("one", "run");
}

TEST_F(LayoutCommand, RefusesWhatItCanNotArrange) {
  const std::string train = options() + run("run");
  expect_refused(train + "--layout auto", "--layout auto arranges ranks, and there is one");
  expect_refused(train + "--layout some", "--layout");
  expect_refused(train + "--ranks 4 --layout auto --zero 2", "leave out --zero");
  expect_refused(train + "--ranks 4 --layout auto --schedule vertical", "leave out --schedule");
  expect_refused(train + "--ranks 4 --layout auto --dp 3", "no arrangement of 4 ranks can be");
  expect_refused(train + "--ranks 8 --layout auto --tp 8", "llama-tiny has 4 attention heads");
  expect_refused(train + "--ranks 4 --layout auto --data " + path("nothing"), "--data");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

}  // namespace
}  // namespace sluice
