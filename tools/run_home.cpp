#include "tools/run_home.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "io/checksum.h"
#include "src/train/run/run_directory.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* runs_folder = "runs";

/// Of a preset its name, of a directory or the config.json in one the directory's, of another file its own.
std::string model_name(const std::string& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored)) return fs::path(model).filename().string();
  fs::path path(absolute_path(model));
  if (path.filename() == "config.json") path = path.parent_path();
  const std::string name = fs::is_directory(path, ignored) ? path.filename().string() : path.stem().string();
  return name.empty() ? "model" : name;
}

/// What nobody else has until this process ends, also when it is killed: a socket's name in the kernel's own space.
/// None where another process has it; -1 where there are no such sockets.
std::optional<int> claim(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const std::string name = fmt::format("sluice-run-{:016x}", checksum(std::as_bytes(std::span(path))));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a zero before it: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  const bool taken = errno == EADDRINUSE;
  close(fd);
  return taken ? std::nullopt : std::optional(-1);
}

/// The first runs make runs/ too.
Status check_runs_folder() {
  std::error_code ignored;
  const bool is_there = fs::exists(fs::symlink_status(runs_folder, ignored));
  const std::string place = is_there ? runs_folder : ".";
  const char* why = is_there && !fs::is_directory(runs_folder, ignored) ? "it is not a directory" : nullptr;
  if (why == nullptr && access(place.c_str(), W_OK | X_OK) != 0) why = std::strerror(errno);
  if (why == nullptr) return success();
  return bad_request(
      fmt::format("no --run is given, and the run can not be kept in {}: {}; give --run DIR, or --run {}",
                  absolute_path(runs_folder), why, keep_nothing));
}

}  // namespace

NewRunHome::~NewRunHome() {
  if (claim_ >= 0) close(claim_);
}

NewRunHome& NewRunHome::operator=(NewRunHome&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(claim_, other.claim_);
  return *this;
}

std::string run_home_to_come(const std::string& model) {
  return absolute_path(
      fmt::format("{}/{}-{:%Y-%m-%dT%H-%M-%S}", runs_folder, model_name(model), fmt::localtime(std::time(nullptr))));
}

Result<NewRunHome> NewRunHome::find(const std::string& model) {
  SLUICE_TRY(check_runs_folder());
  const std::string wanted = run_home_to_come(model);
  for (int number = 1;; ++number) {
    NewRunHome home;
    home.path_ = number == 1 ? wanted : wanted + "-" + std::to_string(number);
    const std::optional<int> claimed = claim(home.path_);
    if (!claimed) continue;
    home.claim_ = *claimed;
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(home.path_, ignored))) return home;
  }
}

std::string newest_unfinished_run() {
  std::error_code error, ignored;
  fs::path newest;
  fs::file_time_type newest_time;
  for (fs::directory_iterator entry(runs_folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& run = entry->path();
    if (fs::exists(run / "result.json", ignored) || !fs::is_regular_file(run / "run.json", ignored)) continue;
    const fs::file_time_type time = fs::last_write_time(run / "run.json", ignored);
    if (newest.empty() || time > newest_time) newest = run, newest_time = time;
  }
  return newest.string();
}

Result<std::string> checkpoints_of(const std::string& path) {
  const std::string whole = absolute_path(path);
  std::error_code ignored;
  if (!fs::exists(whole, ignored))
    return bad_request("there is no " + whole + "; give a checkpoint, a directory of checkpoints or that of a run");
  if (!fs::exists(whole + "/run.json", ignored)) return whole;
  // Checkpoints are of use where the run's record is of none.
  const Result<RunDirectory> directory = RunDirectory::look(whole);
  const bool elsewhere = directory.ok() && directory->run() && !directory->run()->config.checkpoints.empty();
  const std::string parent = elsewhere ? directory->run()->config.checkpoints : whole + "/checkpoints";
  if (fs::is_directory(parent, ignored)) return parent;
  return bad_request(whole +
                     " has no checkpoints: 'train --save-every N' makes them as it goes, and 'sluice checkpoint "
                     "save' one of a run that has stopped");
}

std::string told_at_start(const std::string& run) {
  if (run.empty())
    return fmt::format("run: nothing is kept, the trained model will be discarded (--run {})", keep_nothing);
  return fmt::format("run: {}; the model will be in model.safetensors there", run);
}

}  // namespace sluice::tools
