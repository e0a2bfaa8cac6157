// Where a run is kept that --run does not name, and what is said of it, first and last.
#include <nlohmann/json.hpp>
#include <regex>

#include "run_command.h"

namespace sluice {
namespace {

class RunHome : public RunCommandTest {
 protected:
  /// The directories below runs/, in the order of their names.
  std::vector<std::string> runs() const {
    std::vector<std::string> names;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(path("runs"), missing))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string first_line(const std::string& text) const { return text.substr(0, text.find('\n')); }
};

TEST_F(RunHome, IsNamedAfterTheModelAndTheTimeAndToldFirstAndLast) {
  const Finished f = sluice(options() + "--steps 1");
  ASSERT_EQ(f.status, 0) << f.err;
  ASSERT_EQ(runs().size(), 1u);
  const std::regex name("llama-tiny-\\d{4}-\\d\\d-\\d\\dT\\d\\d-\\d\\d-\\d\\d");
  EXPECT_TRUE(std::regex_match(runs()[0], name)) << runs()[0];
  const std::string run = real("runs/" + runs()[0]);
  EXPECT_EQ(first_line(f.err), "run: " + run + "; the model will be in model.safetensors there");
  EXPECT_NE(f.out.find("\nmodel    " + run + "/model.safetensors\n"), std::string::npos) << f.out;
  for (const char* file : {"/run.json", "/model.safetensors", "/config.json", "/metrics.jsonl", "/result.json"})
    EXPECT_TRUE(std::filesystem::is_regular_file(run + file)) << file;
}

TEST_F(RunHome, IsNamedAfterADirectoryAndNeverOneThatIsThere) {
  ASSERT_EQ(sluice(options() + "--steps 1 " + run("My-Model")).status, 0);
  for (const char* model : {"My-Model", "./My-Model/", "My-Model/config.json"}) {
    const Finished f =
        sluice("train --steps 1 --seq 32 --batch 4 --eval-batches 1 --json --data text --model " + std::string(model));
    ASSERT_EQ(f.status, 0) << f.err;
    const json done = json::parse(f.out.substr(f.out.rfind('\n', f.out.size() - 2) + 1));
    const std::string kept = done.at("model");
    EXPECT_TRUE(kept.starts_with(real("runs/My-Model-2"))) << kept;
    EXPECT_TRUE(std::filesystem::is_regular_file(kept));
  }
  EXPECT_EQ(runs().size(), 3u);
}

TEST_F(RunHome, RunsThatAreStartedTogetherHaveOneEach) {
  const std::string one = SLUICE_BINARY " " + options() + "--steps 1 >/dev/null & ";
  const std::string script = "cd " + path("") + "; export XDG_CACHE_HOME=" + path("cache") + "; " + one + one + one +
                             "for job in $(jobs -p); do wait $job || exit 1; done";
  EXPECT_EQ(std::system(("bash -c '" + script + "' 2>" + path(".err")).c_str()), 0) << read(path(".err"));
  EXPECT_EQ(runs().size(), 3u);
}

TEST_F(RunHome, NoneKeepsNothingAndSaysSo) {
  ASSERT_EQ(sluice(options() + "--steps 1 --run none").status, 0);  // the profile knows its ops now
  const auto before = everything();
  const Finished f = sluice(options() + "--steps 1 --run none");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(first_line(f.err), "run: nothing is kept, the trained model will be discarded (--run none)");
  EXPECT_TRUE(f.out.ends_with("\nmodel    discarded (--run none)\n")) << f.out;
  EXPECT_TRUE(before == everything());
  EXPECT_TRUE(runs().empty());
  const Finished j = sluice(options() + "--steps 1 --run none --json");
  EXPECT_NE(j.out.find("\"model\":null"), std::string::npos) << j.out;
}

TEST_F(RunHome, PlanPlansTheSameRunAndMakesNone) {
  const std::string of = " --model llama-tiny --seq 32 --batch 4 --json " + drive();
  const Finished plan = sluice("plan" + of), unkept = sluice("plan --run none" + of);
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_TRUE(runs().empty());
  EXPECT_FALSE(std::filesystem::exists(path("runs")));
  EXPECT_EQ(json::parse(plan.out)["durable"]["on"], true);
  EXPECT_EQ(json::parse(unkept.out)["durable"]["on"], false);
  const Finished f = sluice(options() + drive() + "--steps 1");
  ASSERT_EQ(f.status, 0) << f.err;
  const json kept = json::parse(read(path("runs/" + runs().at(0) + "/run.json")));
  EXPECT_EQ(kept["config"]["durable"], 1);
}

TEST_F(RunHome, ARefusalMakesNoneAndAFileInThePlaceIsRefused) {
  expect_refused_untouched(options() + "--steps 0", "--steps");
  EXPECT_FALSE(std::filesystem::exists(path("runs")));
  write("runs", "of something else");
  expect_refused_untouched(options() + "--steps 1", "runs: it is not a directory; give --run DIR, or --run none");
  EXPECT_EQ(sluice(options() + "--steps 1 --run none").status, 0);
}

TEST_F(RunHome, ResumeNamesTheNewestThatIsNotComplete) {
  expect_refused("train --resume", "add --run DIR");
  expect_refused("train --resume --run none", "add --run DIR");
  ASSERT_EQ(sluice(options() + "--steps 1").status, 0);
  expect_refused("train --resume", "add --run DIR");
  std::filesystem::create_directory(path("runs/stopped"));
  std::filesystem::copy_file(path("runs/" + runs()[0] + "/run.json"), path("runs/stopped/run.json"));
  expect_refused("train --resume", "add --run runs/stopped, the newest run here");
}

}  // namespace
}  // namespace sluice
