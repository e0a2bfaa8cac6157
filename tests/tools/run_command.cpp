#include "run_command.h"

#include <chrono>
#include <future>

namespace sluice {

Finished RunCommandTest::signalled(const std::string& arguments, const std::string& name, const std::string& signal,
                                   int lines_min, const std::string& launcher) const {
  using namespace std::chrono_literals;
  const std::string command = launcher + SLUICE_BINARY " " + arguments + " >" + path(".out") + " 2>" + path(".err");
  std::filesystem::remove(path(".pid"));
  std::future<int> ended =
      std::async(std::launch::async,
                 [script = "export XDG_CACHE_HOME=" + path("cache") + "; " + command + " & pid=$!; echo $pid >" +
                           path(".pid") + "; wait $pid"] { return std::system(script.c_str()); });
  for (; ended.wait_for(1ms) != std::future_status::ready;) {
    const std::string metrics = read(path(name) + "/metrics.jsonl");
    if (std::count(metrics.begin(), metrics.end(), '\n') < lines_min) continue;
    EXPECT_EQ(std::system(("pid=$(cat " + path(".pid") + "); kill -" + signal + " $pid").c_str()), 0)
        << "the run was over before its signal";
    break;
  }
  const int status = ended.get();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
}

std::vector<RunCommandTest::json> RunCommandTest::lines(const std::string& name) const {
  std::vector<json> result;
  std::stringstream text(read(path(name) + "/metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const json j = json::parse(line);
    json kept;
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "eval_loss"})
      if (j.contains(key)) kept[key] = j[key];
    result.push_back(kept);
  }
  return result;
}

RunCommandTest::json RunCommandTest::result(const std::string& name) const {
  json j = json::parse(read(path(name) + "/result.json"));
  j.erase("run");  // the run's own number
  return j;
}

std::map<std::string, std::string> RunCommandTest::everything() const {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
    if (entry.is_regular_file() && entry.path().filename().string().front() != '.' &&
        entry.path().parent_path().filename() != "tokens" && entry.path().filename() != "profile.json")
      files[entry.path()] = read(entry.path());
  return files;
}

void RunCommandTest::expect_refused_untouched(const std::string& arguments, const std::string& what) const {
  SCOPED_TRACE(arguments);
  const auto before = everything();
  const Finished f = sluice(arguments);
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_NE(f.err.find(what), std::string::npos) << f.err;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  EXPECT_TRUE(before == everything()) << "something was touched";
}

std::string RunCommandTest::swap() const {
  for (const auto& entry : std::filesystem::directory_iterator(path("nvme"))) return entry.path();
  return "";
}

void RunCommandTest::stop_a_run() const {
  const Finished f = signalled(options() + drive() + run("run") + "--steps 40", "run", "TERM");
  ASSERT_EQ(f.status, 1) << f.err;
  ASSERT_NE(f.err.find("sluice train --run " + path("run") + " --resume"), std::string::npos) << f.err;
}

}  // namespace sluice
