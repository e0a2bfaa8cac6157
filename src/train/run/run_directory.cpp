#include "src/train/run/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "io/checksum.h"
#include "io/drives/swap_file.h"
#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "src/train/request/run_config_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* run_format = "sluice-run";

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

bool from_hex(const Json& json, const char* key, std::uint64_t& value) {
  if (!json.contains(key) || !json[key].is_string()) return false;
  const auto text = json[key].get<std::string>();
  char* end = nullptr;
  value = std::strtoull(text.c_str(), &end, 16);
  return text.size() == 16 && end == text.c_str() + 16;
}

Result<Json> read_json(const std::string& path) {
  SLUICE_ASSIGN(const std::string text, read_file(path));
  if (const Status sane = check_json(text); !sane.ok()) return sane.error().in(path);
  return Json::parse(text, nullptr, false);
}

/// Of everything else that is in run.json.
std::string seal_of(Json j) {
  j.erase("seal");
  const std::string text = j.dump();
  return hex(checksum(std::as_bytes(std::span(text))));
}

}  // namespace

Json run_to_json(const RunDescription& run) {
  Json j;
  j["format"] = run_format;
  j["version"] = run.version;
  j["id"] = hex(run.id);
  j["machine"] = run.machine;
  j["config"] = to_json(run.config);
  j["model_hash"] = hex(run.model_hash);
  j["data"] = {{"tokens", run.data_tokens}, {"hash", hex(run.data_hash)}};
  if (run.restored_step > 0) j["restored_step"] = run.restored_step;
  j["plan"] = {{"layout", hex(run.layout)},
               {"block_bytes", run.block_bytes},
               {"stripe_weights", run.stripe_weights},
               {"schedule", to_json(run.schedule)}};
  if (!run.device.empty()) j["plan"]["device"] = run.device;
  if (!run.kernels.empty()) j["plan"]["kernels"] = run.kernels;
  if (!run.changes.empty()) j["changes"] = to_json(run.changes, run.config);
  if (run.place) j["place"] = {{"path", run.place->path}, {"inode", run.place->inode}};
  j["seal"] = seal_of(j);
  return j;
}

namespace {

bool read_place(const Json& j, std::optional<RunPlace>& place) {
  if (!j.contains("place")) return true;
  const Json& from = j["place"];
  if (!from.is_object() || !from.contains("path") || !from["path"].is_string() || !from.contains("inode") ||
      !from["inode"].is_number_unsigned())
    return false;
  place = {from["path"].get<std::string>(), from["inode"].get<std::uint64_t>()};
  return true;
}

}  // namespace

Result<RunDescription> run_from_json(const Json& j) {
  if (!j.is_object() || !j.contains("format") || j["format"] != run_format)
    return bad_request("is not the description of a run");
  if (!j.contains("version") || !j["version"].is_number_integer() || j["version"] < 1 || j["version"] > run_version)
    return bad_request(
        fmt::format("is of a later version of sluice, and this one reads version {}; use that one", run_version));
  const Error damaged = bad_request("is damaged: put it back as it was, or start a new run in another directory");
  if (!j.contains("seal") || j["seal"] != seal_of(j)) return damaged;
  RunDescription run;
  const bool named = from_hex(j, "id", run.id) && from_hex(j, "model_hash", run.model_hash) && j.contains("machine") &&
                     j["machine"].is_string() && j.contains("data") && from_hex(j["data"], "hash", run.data_hash) &&
                     j["data"].contains("tokens") && j["data"]["tokens"].is_number_unsigned() && j.contains("config") &&
                     j.contains("plan") && j["plan"].is_object();
  if (!named) return damaged;
  run.version = j["version"].get<int>();
  run.machine = j["machine"].get<std::string>();
  run.data_tokens = j["data"]["tokens"].get<std::uint64_t>();
  SLUICE_ASSIGN(run.config, run_config_from_json(j["config"]));
  if (j.contains("restored_step") && !j["restored_step"].is_number_unsigned()) return damaged;
  if (j.contains("restored_step")) run.restored_step = j["restored_step"].get<std::uint64_t>();
  const Json& plan = j["plan"];
  const bool planned = from_hex(plan, "layout", run.layout) && plan.contains("block_bytes") &&
                       plan["block_bytes"].is_number_unsigned() && plan.contains("stripe_weights") &&
                       plan["stripe_weights"].is_array() && plan.contains("schedule");
  if (!planned) return damaged;
  run.block_bytes = plan["block_bytes"].get<std::uint32_t>();
  for (const Json& weight : plan["stripe_weights"]) {
    if (!weight.is_number()) return damaged;
    run.stripe_weights.push_back(weight.get<double>());
  }
  SLUICE_ASSIGN(run.schedule, schedule_from_json(plan["schedule"]));
  if (!read_place(j, run.place)) return damaged;
  if (j.contains("changes")) {
    SLUICE_ASSIGN(run.changes, changes_from_json(j["changes"], run.config));
  }
  if (plan.contains("device") && !plan["device"].is_string()) return damaged;
  if (plan.contains("device")) run.device = plan["device"].get<std::string>();
  if (!plan.contains("kernels")) return run;
  if (!plan["kernels"].is_object()) return damaged;
  for (const auto& [problem, chosen] : plan["kernels"].items()) {
    if (!chosen.is_string()) return damaged;
    run.kernels[problem] = chosen.get<std::string>();
  }
  return run;
}

namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Status remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return success();
  return fault(path + ": can not be removed: " + std::strerror(errno));
}

}  // namespace

std::string run_name(std::uint64_t run_id) { return hex(run_id); }
std::string swap_name(std::uint64_t run_id, RankId rank) {
  return "sluice-" + hex(run_id) + (rank == 0 ? "" : "." + std::to_string(rank)) + ".swap";
}

Status remove_swap_files(std::uint64_t run_id, const std::vector<std::string>& directories, RankId from) {
  const std::string prefix = "sluice-" + hex(run_id), suffix = ".swap";
  for (const std::string& directory : directories) {
    SwapOptions swap;
    swap.directories = {directory};
    std::vector<std::string> found;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
      // Nothing of the first rank, and ".<rank>" of others.
      const std::string rank = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
      const bool is_first = rank.empty();
      if (!is_first &&
          (rank.size() < 2 || rank[0] != '.' || rank.find_first_not_of("0123456789", 1) != std::string::npos))
        continue;
      if ((is_first ? 0ul : std::strtoul(rank.c_str() + 1, nullptr, 10)) >= from) found.push_back(name);
    }
    for (const std::string& name : found) {
      swap.name = name;
      SLUICE_TRY(SwapFile::remove(swap));
    }
  }
  return success();
}

RunDirectory::~RunDirectory() {
  if (fd_ >= 0) close(fd_);
}

RunDirectory& RunDirectory::operator=(RunDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(run_, other.run_);
  return *this;
}

Status RunDirectory::open_fd() {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd_ >= 0 ? success() : Status(bad_request(path_ + ": " + std::strerror(errno)));
}

Status RunDirectory::lock() {
  SLUICE_TRY(open_fd());
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return success();
  if (errno == EWOULDBLOCK)
    return bad_request(path_ + " is in use by another process; wait for it or give another directory");
  return bad_request(path_ + " can not be locked: " + std::strerror(errno) +
                     "; give a directory on a file system that has locks");
}

Result<RunDirectory> RunDirectory::open(const std::string& path) {
  RunDirectory directory;
  directory.path_ = path;
  if (!exists(path)) return directory;
  SLUICE_TRY(directory.lock());
  SLUICE_TRY(directory.read_run());
  return directory;
}

Result<RunDirectory> RunDirectory::look(const std::string& path) {
  RunDirectory directory;
  directory.path_ = path;
  if (!exists(path)) return directory;
  SLUICE_TRY(directory.open_fd());
  SLUICE_TRY(directory.read_run());
  return directory;
}

Status RunDirectory::read_run() {
  const std::string file = path_ + "/run.json";
  if (!exists(file)) {
    for (const std::string& part : {commit_path(0), saved_path(), path_ + "/result.json"}) {
      if (!exists(part)) continue;
      return bad_request(
          fmt::format("{} holds half a run: {} without run.json; put it back, or give another directory", path_, part));
    }
    // A run ends with a model of its own.
    for (const char* part : {"/config.json", "/model.safetensors", "/model.safetensors.index.json"})
      if (exists(path_ + part))
        return bad_request(fmt::format("{} holds {}, which is of no run; give another directory", path_, part + 1));
    return success();
  }
  SLUICE_ASSIGN(const Json json, read_json(file));
  Result<RunDescription> run = run_from_json(json);
  if (!run.ok()) return run.error().in(file);
  run_ = *std::move(run);
  if (exists(path_ + "/state.snapshot"))
    return bad_request(path_ +
                       "/state.snapshot was saved by an earlier version of sluice; go on with that one, or remove it"
                       " and start over");
  return success();
}

Status RunDirectory::make() {
  SLUICE_TRY(make_directories(path_));
  if (fd_ < 0) SLUICE_TRY(lock());
  if (exists(path_ + "/run.json"))
    return bad_request(path_ + " was taken by another process meanwhile; give another directory");
  return success();
}

Status RunDirectory::begin(const RunDescription& run) {
  SLUICE_TRY(make());
  run_ = run;
  run_->place = here();
  return publish_file(path_ + "/run.json", run_to_json(*run_).dump(1) + "\n");
}

/// None where copies share nothing, and where JSON can not have the name.
std::optional<RunPlace> RunDirectory::here() const {
  std::error_code error;
  const std::string path = std::filesystem::canonical(path_, error).string();
  struct stat st {};
  if (error || run_->config.durable != Durable::on || fstat(fd_, &st) != 0) return std::nullopt;
  const std::string text = Json(path).dump(-1, ' ', false, Json::error_handler_t::ignore);
  if (Json::parse(text) != path) return std::nullopt;
  return RunPlace{path, st.st_ino};
}

bool RunDirectory::is_other_of_this_run(const std::string& path) const {
  struct stat own {
  }, other{};
  if (fstat(fd_, &own) != 0 || stat(path.c_str(), &other) != 0 || !S_ISDIR(other.st_mode)) return false;
  if (own.st_dev == other.st_dev && own.st_ino == other.st_ino) return false;
  const Result<Json> json = read_json(path + "/run.json");
  std::uint64_t id = 0;
  return json.ok() && json->is_object() && from_hex(*json, "id", id) && id == run_->id;
}

Status RunDirectory::check_place() const {
  if (!run_ || !run_->place || run_->config.durable != Durable::on) return success();
  const auto& [before, inode] = *run_->place;
  const auto refuse = [&](const std::string& other) {
    if (exists(other + "/result.json"))
      return bad_request(fmt::format(
          "{} is a copy of the run in {}, which is complete by now, and has used up the swap file that both had: its "
          "model is there; remove {}, or start a new run from that model",
          path_, other, path_));
    return bad_request(fmt::format(
        "{} holds the same run as {}: one is a copy of the other, and both would write to one swap file; go on "
        "in {}, or remove {}/run.json to go on here",
        path_, other, other, other));
  };
  if (is_other_of_this_run(before)) return refuse(before);
  // The directory itself may have been renamed, and a copy put in its place.
  struct stat own {};
  if (fstat(fd_, &own) != 0 || own.st_ino == inode) return success();
  std::error_code error;
  for (std::filesystem::directory_iterator entry(std::filesystem::path(before).parent_path(), error), end;
       !error && entry != end; entry.increment(error)) {
    struct stat st {};
    const std::string beside = entry->path().string();
    if (lstat(beside.c_str(), &st) == 0 && st.st_ino == inode && is_other_of_this_run(beside)) return refuse(beside);
  }
  return success();
}

std::string RunDirectory::moved() const {
  const std::optional<RunPlace> now = here();
  if (!run_->place || !now || *run_->place == *now) return "";
  if (run_->place->path != now->path)
    return now->path + ": the run was in " + run_->place->path + " before, which is gone; it goes on here";
  return now->path + ": the directory of the run was replaced, by a copy from elsewhere; it goes on here";
}

Status RunDirectory::update(const RunConfig& config, std::int64_t done, const std::string& device,
                            const KernelChoices& kernels) {
  const Json before = run_to_json(*run_);
  RunDescription run = *run_;
  run.changes = with_change(run.changes, run.config, config, done);
  run.config = config;
  run.device = device;
  run.kernels = kernels;
  run.place = here();
  if (run_to_json(run) == before) return success();
  run_ = run;
  return publish_file(path_ + "/run.json", run_to_json(run).dump(1) + "\n");
}

Status RunDirectory::lay_out(const RunDescription& laid_out, std::int64_t done) {
  RunDescription run = *run_;
  run.changes = with_change(run.changes, run.config, laid_out.config, done);
  run.config = laid_out.config;
  run.schedule = laid_out.schedule;
  run.block_bytes = laid_out.block_bytes;
  run.stripe_weights = laid_out.stripe_weights;
  run.layout = laid_out.layout;
  run_ = run;
  return publish_file(path_ + "/run.json", run_to_json(run).dump(1) + "\n");
}

namespace {

/// What follows "commit.R" where records have not got their name: ".LAYOUT" or ".new" or both.
bool is_of_a_layout(std::string_view ending) {
  constexpr std::string_view unfinished = ".new";
  if (ending.ends_with(unfinished)) ending.remove_suffix(unfinished.size());
  return ending.empty() || (ending.size() == 17 && ending[0] == '.' &&
                            ending.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos);
}

}  // namespace

/// For good: they would be taken for newer than what is committed from here on.
Status RunDirectory::remove_saved() const {
  if (!exists(saved_path())) return success();
  SLUICE_TRY(prune_checkpoints(saved_path(), 0));
  std::error_code error;
  std::filesystem::remove_all(saved_path(), error);
  if (error) return fault(saved_path() + ": can not be removed: " + error.message());
  return sync_directory(path_);
}

Status RunDirectory::remove_commits(RankId from) const {
  constexpr std::string_view prefix = "commit.";
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    char* rest = nullptr;
    const unsigned long rank = std::strtoul(name.c_str() + prefix.size(), &rest, 10);
    const bool is_log = rest != name.c_str() + prefix.size() && (*rest == 0 || is_of_a_layout(rest));
    if (is_log && rank >= from) found.push_back(path_ + "/" + name);
  }
  // That of rank 0 says whether there are any.
  std::sort(found.rbegin(), found.rend());
  for (const std::string& log : found) SLUICE_TRY(remove_file(log));
  return success();
}

Status RunDirectory::check_swap_files(const std::vector<std::string>& directories, int ranks_here) const {
  if (!run_ || run_->config.durable != Durable::on || !has_commits() || has_saved()) return success();
  for (int rank = 0; rank < std::min(run_->config.ranks, ranks_here); ++rank)
    for (const std::string& directory : directories)
      if (const std::string name = swap_name(run_->id, static_cast<RankId>(rank)); !exists(directory + "/" + name))
        return bad_request(
            fmt::format("--run {}: its states are in {}, which is not in {}; put it back, or say with --nvme DIR where "
                        "it was moved to",
                        path_, name, directory));
  return success();
}

Status RunDirectory::forget() {
  SLUICE_TRY(remove_state());
  std::error_code error;
  std::filesystem::remove_all(companions(), error);
  if (error) return fault(companions() + ": can not be removed: " + error.message());
  run_.reset();
  return remove_file(path_ + "/run.json");
}

Result<std::optional<Json>> RunDirectory::result() const {
  const std::string file = path_ + "/result.json";
  if (!exists(file)) return std::optional<Json>();
  SLUICE_ASSIGN(Json json, read_json(file));
  const bool whole = json.is_object() && json.contains("run") && run_ && json["run"] == hex(run_->id) &&
                     json.contains("steps") && json["steps"].is_number_integer() && json.contains("eval_loss");
  if (!whole) return bad_request(file + " is damaged or another run's; remove it to go on with the run");
  json.erase("run");
  return std::optional<Json>(std::move(json));
}

Status RunDirectory::publish_result(const Json& result) const {
  Json j{{"run", hex(run_->id)}};
  j.update(result);
  return publish_file(path_ + "/result.json", j.dump(1) + "\n");
}

std::string RunDirectory::next_commit_path(RankId rank, std::uint64_t layout) const {
  return path_ + "/commit." + std::to_string(rank) + "." + hex(layout);
}

std::string RunDirectory::commit_path(RankId rank) const {
  if (run_)
    if (std::string next = next_commit_path(rank, run_->layout); exists(next)) return next;
  return path_ + "/commit." + std::to_string(rank);
}

Status RunDirectory::settle_commits(RankId rank, std::uint64_t layout) const {
  const std::string path = path_ + "/commit." + std::to_string(rank), next = next_commit_path(rank, layout);
  if (exists(next)) {
    if (rename(next.c_str(), path.c_str()) != 0) return fault(next + ": rename failed: " + std::strerror(errno));
    SLUICE_TRY(sync_directory(path_));
  }
  const std::string prefix = std::filesystem::path(path).filename().string() + ".";
  std::vector<std::string> left;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename().string();
        name.starts_with(prefix) && is_of_a_layout(name.substr(prefix.size() - 1)))
      left.push_back(entry->path().string());
  for (const std::string& file : left) SLUICE_TRY(remove_file(file));
  return success();
}

bool RunDirectory::has_commits() const { return exists(commit_path(0)); }
std::string RunDirectory::newest_saved() const {
  std::vector<std::string> parents{saved_path()};
  // Commits of a durable run are newer.
  if (run_ && run_->config.durable != Durable::on)
    parents.push_back(run_->config.checkpoints.empty() ? path_ + "/checkpoints" : run_->config.checkpoints);
  std::optional<ListedCheckpoint> newest;
  for (const std::string& parent : parents) {
    const auto all = list_checkpoints(parent);
    for (std::size_t i = 0; all.ok() && i < all->size(); ++i)
      if ((*all)[i].is_whole && (!newest || (*all)[i].step > newest->step)) newest = (*all)[i];
  }
  return newest ? newest->path : "";
}

std::uint64_t RunDirectory::saved_bytes() const {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator file(saved_path(), error), end; !error && file != end;
       file.increment(error))
    if (file->is_regular_file(error)) bytes += file->file_size(error);
  return bytes;
}

Status RunDirectory::remove_state() const {
  SLUICE_TRY(remove_saved());
  return remove_commits(0);
}

}  // namespace sluice
