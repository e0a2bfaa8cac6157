// kill -9 at random moments, from a seed that is printed: every resume goes on at the last committed step, and the run
// ends as one that was never killed. tools/crash-test runs it longer.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "command.h"
#include "src/device/profile.h"
#include "tests/comm/mpirun.h"

extern char** environ;

namespace sluice {
namespace {

using nlohmann::json;

std::string from_environment(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

class Crash : public CommandTest {
 protected:
  void SetUp() override {
    std::string text;
    std::mt19937 random(1);
    while (text.size() < 60000) text += static_cast<char>('a' + random() % 20), text += random() % 5 == 0 ? " " : "";
    write("text", text);
    std::filesystem::create_directory(path("nvme"));
    write_profile(path("nvme"));
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  }

  std::vector<std::string> command(const std::string& run, const std::string& optimizer) const {
    std::vector<std::string> words{SLUICE_BINARY,    "train",      "--model",         model_,
                                   "--data",         path("text"), "--steps",         steps_,
                                   lengths_[0],      lengths_[1],  "--batch",         "4",
                                   "--warmup",       "3",          "--nvme",          path("nvme"),
                                   "--states",       "nvme",       "--device-memory", device_memory_,
                                   "--durable",      "on",         "--eval-every",    "5",
                                   "--eval-batches", "1",          "--optimizer",     optimizer,
                                   "--run",          path(run)};
    words.insert(words.end(), more_.begin(), more_.end());
    return words;
  }

  /// The process, with its outputs in files.
  pid_t start(const std::string& run, const std::string& optimizer = "cpu") const {
    return spawn(command(run, optimizer));
  }
  /// Ranks of it, in processes of mpirun.
  pid_t start_ranks(const std::string& run, int ranks, bool recovers) const {
    std::vector<std::string> words{"/usr/bin/env"}, all = command(run, "cpu");
    std::stringstream environment(test::mpi_environment);
    for (std::string word; environment >> word;) words.push_back(word);
    for (const std::string& word : {std::string("mpirun"), std::string("-n"), std::to_string(ranks)})
      words.push_back(word);
    if (recovers) words.emplace_back("--enable-recovery");
    words.insert(words.end(), all.begin(), all.end());
    std::stringstream mesh(from_environment("SLUICE_CRASH_MESH", ""));
    for (std::string word; mesh >> word;) words.push_back(word);
    return spawn(words);
  }
  pid_t spawn(std::vector<std::string> words) const {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, arguments.front(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }

  /// Until the run is described, which is before its first states, or the process has ended.
  void await_directory(const std::string& run, pid_t pid) const {
    while (!std::filesystem::exists(path(run + "/run.json")) && !has_ended(pid))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  /// Until one of its ranks has spoken: MPI_Init waits for two minutes for a rank that is lost before it has joined.
  void await_first_words(const std::string& run, pid_t pid) const {
    await_directory(run, pid);
    while (read(path("err")).empty() && kill(pid, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  static bool has_ended(pid_t pid) {
    siginfo_t ended{};
    return waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != 0;
  }
  static constexpr double for_ever = 1e9;
  std::int64_t steps_said(const std::string& run) const {
    const std::string lines = read(path(run + "/metrics.jsonl"));
    return std::ranges::count(lines, '\n');
  }
  /// Until the run has said so many steps, but no longer than so many seconds or until the process has ended.
  void await_steps(const std::string& run, pid_t pid, std::int64_t steps, double seconds) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (steps_said(run) < steps && std::chrono::steady_clock::now() < until && !has_ended(pid))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  /// In any step from the next to `last`, so many seconds of it gone at most. A time alone is no moment: what one run
  /// took says little of another's where the drive is now quick and now slow.
  void await_moment(const std::string& run, pid_t pid, std::int64_t last, double seconds,
                    std::mt19937_64& random) const {
    std::uniform_real_distribution<double> part(0, 1);
    const std::int64_t said = steps_said(run), left = std::max<std::int64_t>(1, last - said);
    const std::int64_t step = said + static_cast<std::int64_t>(part(random) * static_cast<double>(left));
    await_steps(run, pid, step, for_ever);
    await_steps(run, pid, step + 2, part(random) * seconds);
  }

  /// Exit status, or -1 after a kill.
  static int finish(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  struct Ended {
    json result;
    std::vector<json> lines;
  };
  Ended ended(const std::string& run) const {
    Ended e;
    e.result = json::parse(read(path(run + "/result.json")));
    e.result.erase("run");  // the run's own number
    std::stringstream text(read(path(run + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) {
      const json j = json::parse(line);
      json kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "eval_loss"})
        if (j.contains(key)) kept[key] = j[key];
      e.lines.push_back(kept);
    }
    return e;
  }

  /// The step after which the process that just ran began, from what it said; -1 when it did not get so far.
  std::int64_t began_after() const {
    const std::string said = read(path("err")), words = "continuing after step ";
    const std::size_t at = said.find(words);
    if (at != std::string::npos) return std::atoll(said.c_str() + at + words.size());
    return said.find("initialising random weights") != std::string::npos ? 0 : -1;
  }

  /// Killed so often in all, runs end as one does that is not.
  void kill_runs(int kills_wanted);
  /// Unless it is said otherwise. At 8 MiB a search for a tight packing takes most of each start of these runs.
  void use_device_memory(const std::string& bytes) {
    device_memory_ = from_environment("SLUICE_CRASH_DEVICE_MEMORY", bytes);
  }

  std::vector<std::string> more_;  ///< options
  std::array<std::string, 2> lengths_{"--seq", "64"};
  const std::string model_ = from_environment("SLUICE_CRASH_MODEL", "llama-tiny");
  const std::string steps_ = from_environment("SLUICE_CRASH_STEPS", "20");
  std::string device_memory_ = from_environment("SLUICE_CRASH_DEVICE_MEMORY", "8MiB");
};

/// Its children, in the order in which they were started.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  FILE* const pipe = popen(("pgrep -P " + std::to_string(parent)).c_str(), "r");
  for (int child = 0; pipe != nullptr && std::fscanf(pipe, "%d", &child) == 1;) children.push_back(child);
  if (pipe != nullptr) pclose(pipe);
  return children;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Crash, WhenARankIsLostTheOthersSaySoAndTheRunGoesOn) {
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  constexpr int ranks = 4;
  const int kills = std::atoi(from_environment("SLUICE_CRASH_RANK_KILLS", "4").c_str());
  const int stops = std::atoi(from_environment("SLUICE_CRASH_RANK_STOPS", "1").c_str());
  const std::uint64_t seed = std::strtoull(from_environment("SLUICE_CRASH_SEED", "20261123").c_str(), nullptr, 10);
  std::printf("%d kills and %d stops of single ranks of %d from seed %llu\n", kills, stops, ranks,
              static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  using Clock = std::chrono::steady_clock;
  ASSERT_EQ(finish(start_ranks("first", ranks, false)), 0) << read(path("err"));  // measures what later runs know
  const pid_t whole = start_ranks("whole", ranks, false);
  await_first_words("whole", whole);
  const Clock::time_point begin = Clock::now();
  ASSERT_EQ(finish(whole), 0) << read(path("err"));
  const std::int64_t steps = std::stoll(steps_);
  const double step_seconds = std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(steps);
  const Ended expected = ended("whole");

  int done = 0, said = 0;
  double longest = 0;
  for (int runs = 0; done < kills + stops; ++runs) {
    const std::string run = "run" + std::to_string(runs);
    std::int64_t least = 0;
    for (int here = 0;; ++here) {
      const bool disturbs = done < kills + stops && here < 6;
      const bool stopped = done >= kills, recovers = !stopped && done % 2 == 0;
      const pid_t pid = start_ranks(run, ranks, recovers);
      Clock::time_point signalled = Clock::now();
      pid_t victim = -1;
      if (disturbs) {
        await_first_words(run, pid);
        // Later ones would mostly find a complete run.
        await_moment(run, pid, steps - 2, 2 * step_seconds, random);
        const std::vector<pid_t> processes = children_of(pid);
        signalled = Clock::now();
        if (processes.size() == ranks) victim = processes[random() % ranks];
        if (victim > 0) kill(victim, stopped ? SIGSTOP : SIGKILL);
      }
      // Of a run that was complete when one of its processes was stopped nobody is left but that one, and mpirun waits.
      for (siginfo_t over{}; stopped && victim > 0;) {
        if (waitid(P_PID, static_cast<id_t>(pid), &over, WEXITED | WNOHANG | WNOWAIT) != 0 || over.si_pid != 0) break;
        if (std::filesystem::exists(path(run + "/result.json"))) kill(victim, SIGCONT);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      const int status = finish(pid);
      const double seconds = std::chrono::duration<double>(Clock::now() - signalled).count();
      const std::string err = read(path("err"));
      if (const std::int64_t began = began_after(); began >= 0) {
        EXPECT_GE(began, least) << "a committed step is lost";
        least = began;
      }
      if (std::filesystem::exists(path(run + "/result.json"))) {
        // Who was lost behind that has left its swap file, which the same command removes.
        if (status != 0) {
          EXPECT_EQ(finish(start_ranks(run, ranks, false)), 0) << read(path("err"));
        }
        break;
      }
      ASSERT_TRUE(disturbs && victim > 0) << status << "\n" << err;
      ++done;
      longest = std::max(longest, seconds);
      EXPECT_LT(seconds, 30) << err;
      // Plain mpirun may end the others before they have said anything.
      const int lines = count(err, " is lost: ");
      said += lines;
      if (recovers) {
        EXPECT_EQ(lines, ranks - 1) << err;
      } else {
        EXPECT_NE(status, 0) << err;
      }
      if (stopped) {
        EXPECT_GE(lines, ranks - 1) << err;
      }
    }
    EXPECT_EQ(ended(run).result, expected.result);
    EXPECT_EQ(ended(run).lines, expected.lines);
    std::filesystem::remove_all(path(run));
    if (HasFailure()) return;
    std::printf("%d ranks lost, %d times said by others, all ended within %.1f s, all runs the same\n", done, said,
                longest);
    std::fflush(stdout);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme"))) << "a complete run leaves no swap file";
}

void Crash::kill_runs(int kills_wanted) {
  const std::uint64_t seed = std::strtoull(from_environment("SLUICE_CRASH_SEED", "20261122").c_str(), nullptr, 10);
  std::printf("%d kills of %s from seed %llu\n", kills_wanted, model_.c_str(), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);

  using Clock = std::chrono::steady_clock;
  ASSERT_EQ(finish(start("first")), 0) << read(path("err"));  // also measures what later runs know
  const Clock::time_point begin = Clock::now();
  const pid_t whole = start("whole");
  await_steps("whole", whole, 1, for_ever);
  const Clock::time_point spoke = Clock::now();
  ASSERT_EQ(finish(whole), 0) << read(path("err"));
  const std::int64_t steps = std::stoll(steps_);
  const double first_seconds = std::chrono::duration<double>(spoke - begin).count(),
               step_seconds =
                   std::chrono::duration<double>(Clock::now() - spoke).count() / static_cast<double>(steps - 1);
  const Ended expected = ended("whole");
  ASSERT_EQ(std::ssize(expected.lines), steps);
  ASSERT_EQ(expected.lines, ended("first").lines);

  // A run is killed a few times and then left to end: on a busy machine kills at moments that a quiet one gave would
  // otherwise come before the next step for as long as it stays busy.
  const int kills_a_run = std::max(3, std::min(8, kills_wanted / 2));
  int kills = 0, resumed = 0;
  for (int runs = 0; kills < kills_wanted; ++runs) {
    const std::string run = "run" + std::to_string(runs);
    int kills_here = 0;
    for (std::int64_t least = 0;;) {
      const bool on_device = runs % 2 == 0;
      const pid_t pid = start(run, on_device ? "device" : "cpu");
      if (kills_here < kills_a_run && kills < kills_wanted) {
        if (on_device) await_directory(run, pid);  // finding its schedule may take longer than the run
        if (kills % 4 == 0) {
          await_moment(run, pid, 0, first_seconds, random);  // before its first step, or in it
        } else {
          await_moment(run, pid, steps, 2 * step_seconds, random);
        }
        kill(pid, SIGKILL);
      }
      const int status = finish(pid);
      const std::int64_t began = began_after();
      if (began >= 0) {
        EXPECT_GE(began, least) << "a committed step is lost";
        resumed += began > 0 ? 1 : 0;
        least = began;
      }
      if (status == 0) break;
      ASSERT_EQ(status, -1) << read(path("err"));
      ++kills, ++kills_here;
    }
    const Ended got = ended(run);
    EXPECT_EQ(got.result, expected.result);
    EXPECT_EQ(got.lines, expected.lines);
    std::filesystem::remove_all(path(run));
    if (HasFailure()) return;
    std::printf("%d kills, %d resumes after a step, all runs the same\n", kills, resumed);
    std::fflush(stdout);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme"))) << "a complete run leaves no swap file";
}

TEST_F(Crash, BetweenLengthsOfSequencesToo) {
  lengths_ = {"--seq-schedule", "32:3,64:3,16:4,64:*"};
  use_device_memory("5MiB");
  kill_runs(std::atoi(from_environment("SLUICE_CRASH_LENGTH_KILLS", "8").c_str()));
}

TEST_F(Crash, KilledAtAnyMomentARunEndsAsIfItHadNotBeen) {
  use_device_memory("11MiB");
  kill_runs(std::atoi(from_environment("SLUICE_CRASH_KILLS", "24").c_str()));
}

/// What waits for the norm is in no commit: it is made, and rounded, again.
TEST_F(Crash, GradientsInBf16AreRoundedAgainAsTheyWere) {
  more_ = {"--gradient-dtype", "bf16", "--moments", "int8", "--update", "ahead"};
  kill_runs(std::atoi(from_environment("SLUICE_CRASH_KILLS", "24").c_str()) / 3);
}

/// Between a step's speculative updates and its norm, while it goes back, and while it is made again.
TEST_F(Crash, StepsThatWereToBeMadeAgainAre) {
  more_ = {"--moments", "int8", "--update", "speculative", "--clip", "1.5"};
  kill_runs(std::atoi(from_environment("SLUICE_CRASH_KILLS", "24").c_str()) / 3);
}

/// The same of two ranks, of which one may have gone back when the other has not.
TEST_F(Crash, StepsThatWereToBeMadeAgainAreByRanksToo) {
  more_ = {"--ranks", "2", "--update", "speculative", "--clip", "1.5"};
  kill_runs(std::atoi(from_environment("SLUICE_CRASH_KILLS", "24").c_str()) / 4);
}

}  // namespace
}  // namespace sluice
