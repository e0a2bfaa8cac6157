// The `sluice` command. Exit status: 0 done, 1 the work failed, 2 the request was wrong.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>

#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/values.h"

namespace {

/// Compute threads that have nothing to do sleep instead of spinning on cores that the optimizer and the drive lanes
/// need. The OpenMP runtime reads this when the program is loaded, so the program loads itself again; where that is
/// not possible it goes on, only slower.
void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code failed;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failed).string();
  if (failed || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv(self.c_str(), argv);
}

/// mpirun ends all processes when one has failed: the first one says why.
int refused(int status) {
  if (!sluice::tools::is_first_process()) std::this_thread::sleep_for(std::chrono::seconds(1));
  return status;
}

int run(int argc, char** argv) {
  sluice::tools::Command app{"sluice trains transformer models that do not fit in the memory of the machine.",
                             "sluice"};
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "'sluice COMMAND --help' lists a command's options with examples.\n"
      "Exit status: 0 done, 1 the work failed, 2 the request was wrong.");
  sluice::tools::Outcome outcome;
  sluice::tools::add_train(app, outcome);
  sluice::tools::add_plan(app, outcome);
  sluice::tools::add_generate(app, outcome);
  sluice::tools::add_eval(app, outcome);
  sluice::tools::add_report(app, outcome);
  sluice::tools::add_data(app, outcome);
  sluice::tools::add_checkpoint(app, outcome);
  sluice::tools::add_bench(app, outcome);
  sluice::tools::refuse_impossible_values(app);
  // Ranks are processes of training alone.
  const std::string command = argc > 1 ? argv[1] : "";
  const bool is_of_ranks = command == "train" || command == "eval" ||
                           (command == "bench" && argc > 2 && std::string(argv[2]) == "collective");
  if (!is_of_ranks && !command.starts_with('-')) outcome.finish(command, sluice::tools::check_alone(command));
  if (outcome.status() != 0) return refused(outcome.status());
  using sluice::tools::Parsed;
  const Parsed parsed = app.parse(argc, argv);
  if (parsed.end == Parsed::End::callback_ran) return outcome.status();
  const bool is_refused = parsed.end == Parsed::End::refused;
  if (sluice::tools::is_first_process()) std::fputs(parsed.text.c_str(), is_refused ? stderr : stdout);
  return is_refused ? refused(2) : 0;
}

/// Where a standard stream is closed, the next file to be opened would take its place, and be written to as if it were
/// a terminal.
void fill_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

/// A checkpoint of many ranks has as many files, and all are read at once. The usual soft limit is for old programs
/// that use select().
void allow_many_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &files));
}

/// Token files and weights are mapped: where one is cut off meanwhile, or its drive fails, reading it raises this.
void end_on_bad_mapping(int) {
  constexpr char text[] =
      "sluice: a file that is being read was cut off, or its drive failed; put it back, and start again\n";
  static_cast<void>(!write(STDERR_FILENO, text, sizeof text - 1));
  _exit(1);
}

/// What was printed has been written. Who reads a pipe may stop when it has enough, like `head`.
int finish_output(int status) {
  const bool had_failed = std::ferror(stdout) != 0;
  errno = 0;
  if (had_failed) {  // a long output fails before its end: one more byte fails for the same reason, and tells it
    std::clearerr(stdout);
    std::fputc('\n', stdout);
  }
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && !had_failed;
  if (written) return status;
  if (errno == EPIPE) {
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  std::fprintf(stderr, "sluice: can not write to standard output%s\n", reason.c_str());
  return status == 0 ? 1 : status;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  allow_many_files();
  // Writes fail with a reason instead: a run that has states to keep does not end because nobody reads what it says.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGBUS, end_on_bad_mapping);
  try {
    wait_passively(argv);
    return finish_output(run(argc, argv));
  } catch (const std::exception& error) {  // out of memory and the like: nothing of ours throws
    std::fprintf(stderr, "sluice: %s\n", error.what());
    return 1;
  }
}
