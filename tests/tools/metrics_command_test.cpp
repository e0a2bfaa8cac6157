// Whose the lines of a metrics file are, as a person meets it: a run appends to its own, and nothing else is replaced.
#include "run_command.h"

namespace sluice {
namespace {

class MetricsCommand : public RunCommandTest {
 protected:
  std::string metrics(const std::string& name) const { return "--metrics " + path(name) + " "; }
  /// The values of "run" in a file, those that follow each other once; "-" where a line has none.
  std::vector<std::string> owners(const std::string& name) const {
    std::vector<std::string> all;
    std::stringstream text(read(path(name)));
    for (std::string line; std::getline(text, line);) {
      const std::string owner = json::parse(line).value("run", "-");
      if (all.empty() || all.back() != owner) all.push_back(owner);
    }
    return all;
  }
  std::string id(const std::string& name) const { return json::parse(read(path(name) + "/run.json"))["id"]; }
  std::size_t count_lines(const std::string& name) const {
    const std::string text = read(path(name));
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(MetricsCommand, OfAnotherRunAreRefusedAndKept) {
  ASSERT_EQ(sluice(options() + "--steps 2 " + run("a") + metrics("m.jsonl")).status, 0);
  EXPECT_EQ(owners("m.jsonl"), std::vector{id("a")});
  const std::string another = options() + "--steps 2 " + metrics("m.jsonl");
  expect_refused_untouched(another + run("b"), "give another file, or remove it");
  expect_refused_untouched(another + "--run none", "give another file, or remove it");
  EXPECT_FALSE(std::filesystem::exists(path("b")));
  write("notes", "what is not of a run");
  expect_refused_untouched(options() + "--steps 2 " + run("b") + metrics("notes"), "is not empty");
  write("empty", "");
  EXPECT_EQ(sluice(options() + "--steps 2 " + run("b") + metrics("empty")).status, 0);
  EXPECT_EQ(owners("empty"), std::vector{id("b")});
}

TEST_F(MetricsCommand, OfTheRunAreAppendedTo) {
  for (const std::string& where : {drive(), std::string()}) {
    ASSERT_EQ(signalled(options() + where + run("run") + "--steps 40", "run", "TERM").status, 1);
    const std::size_t before = count_lines("run/metrics.jsonl");
    const std::string text = read(path("run/metrics.jsonl"));
    ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
    EXPECT_LT(before, 40u);
    EXPECT_EQ(count_lines("run/metrics.jsonl"), 40u);
    EXPECT_TRUE(read(path("run/metrics.jsonl")).starts_with(text));
    EXPECT_EQ(owners("run/metrics.jsonl"), std::vector{id("run")});
    std::filesystem::remove_all(path("run"));
  }
}

// Without slots a run that is killed starts over, and its lines with it.
TEST_F(MetricsCommand, ARunThatStartsOverReplacesItsOwn) {
  const std::string command = options() + run("run") + "--steps 40";
  ASSERT_NE(signalled(command, "run", "KILL").status, 0);
  const std::string mine = id("run"), killed = read(path("run/metrics.jsonl"));
  ASSERT_GT(count_lines("run/metrics.jsonl"), 0u);
  // The file of another run in its place is not replaced.
  write("run/metrics.jsonl", "{\"step\":1,\"run\":\"0123456789abcdef\",\"loss\":1}\n");
  expect_refused_untouched(command, "lines of another run (0123456789abcdef)");
  write("run/metrics.jsonl", killed);
  const Finished f = sluice(command);
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("starting over"), std::string::npos) << f.err;
  EXPECT_EQ(count_lines("run/metrics.jsonl"), 40u);
  EXPECT_EQ(owners("run/metrics.jsonl"), std::vector{mine});
}

TEST_F(MetricsCommand, ARunOfAnEarlyVersionGoesOnWithItsLines) {
  stop_a_run();
  std::stringstream lines(read(path("run/metrics.jsonl")));
  std::string early;
  for (std::string line; std::getline(lines, line);) {
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(line);
    j.erase("run");
    early += j.dump() + "\n";
  }
  write("run/metrics.jsonl", early);
  ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
  EXPECT_EQ(count_lines("run/metrics.jsonl"), 40u);
  EXPECT_EQ(owners("run/metrics.jsonl"), (std::vector<std::string>{"-", id("run")}));
}

}  // namespace
}  // namespace sluice
