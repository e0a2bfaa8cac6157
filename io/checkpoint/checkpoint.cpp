#include "io/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "io/checkpoint/state_file.h"
#include "io/checkpoint/sums.h"
#include "io/files/json_guard.h"
#include "io/files/os_error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* latest_name = "LATEST";
constexpr std::string_view name_begin = "step-";
constexpr std::uint64_t manifest_bytes_max = 1u << 30;

/// Whether a checkpoint can have a file of that name.
bool is_ours(const std::string& name) {
  return name == manifest_name || name == master_name || name.starts_with("SIGNED") || name.ends_with(".h5") ||
         name.ends_with(".sums");
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '/')) text.pop_back();
  return text;
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// What other tools leave in a directory.
const char* foreign_tool(const std::string& path) {
  constexpr std::pair<const char*, const char*> marks[] = {
      {".metadata", "PyTorch (torch.distributed.checkpoint)"},
      {"latest_checkpointed_iteration.txt", "Megatron-LM"},
      {"zero_to_fp32.py", "DeepSpeed"},
      {"latest", "DeepSpeed"},
      {"model.safetensors", "Hugging Face (see 'sluice checkpoint import')"},
      {"model.safetensors.index.json", "Hugging Face (see 'sluice checkpoint import')"},
      {"_METADATA", "Orbax"},
      {"run.json", "a run of sluice (see 'sluice checkpoint save')"}};
  for (const auto& [name, tool] : marks)
    if (is_there(path + "/" + name)) return tool;
  return nullptr;
}

Error no_checkpoint(const std::string& path) {
  if (const char* const tool = foreign_tool(path); tool != nullptr)
    return bad_request(path + " is no checkpoint of sluice, but of " + tool);
  return bad_request(path + " holds no checkpoint: neither " + manifest_name + " nor " + latest_name + " nor any " +
                     std::string(name_begin) + "N is in it");
}

/// Which of a directory's checkpoints is meant.
Result<std::string> chosen(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return bad_request("there is no directory " + path);
  if (is_there(path + "/" + manifest_name)) return path;
  if (is_there(path + "/" + latest_name)) {
    SLUICE_ASSIGN(std::string name, read_file(path + "/" + latest_name, 256));
    name = trimmed(name);
    if (!step_of_name(name))
      return bad_request(path + "/" + latest_name + " names no checkpoint: '" + shown(name) +
                         "'; write the name of one into it, or remove it: then the last one is taken");
    if (!is_there(path + "/" + name))
      return bad_request(path + "/" + latest_name + " names " + name + ", which is not there; name one that is");
    return path + "/" + name;
  }
  SLUICE_ASSIGN(const std::vector<ListedCheckpoint> all, list_checkpoints(path));
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const ListedCheckpoint& c) { return c.is_whole; });
  if (last == all.rend()) return no_checkpoint(path);
  return last->path;
}

/// What killed processes have left of checkpoints that were to come, or to go.
void remove_halves(const std::string& parent) {
  remove_abandoned_directories(
      parent, [](const std::string& name) { return step_of_name(name).has_value(); }, is_ours);
  remove_abandoned_files(parent + "/" + latest_name);
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return fmt::format("{}{}", name_begin, step); }

std::optional<std::uint64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(name_begin)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + name_begin.size(), end, step);
  if (error != std::errc() || last != end || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool is_checkpoint(const std::string& path) {
  if (is_there(path + "/" + manifest_name) || is_there(path + "/" + latest_name)) return true;
  const auto all = list_checkpoints(path);
  return all.ok() && !all->empty();
}

Status check_replaceable(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename().string(); !is_ours(name) || !entry->is_regular_file(error))
      return bad_request(path + " holds " + name + ", which is not of a checkpoint; give another directory");
  return error ? Status(os_error("can not read " + path, error.value())) : success();
}

Result<NewCheckpoint> NewCheckpoint::create(const std::string& parent, std::uint64_t step, bool replace) {
  NewCheckpoint made;
  SLUICE_ASSIGN(made.made_, MadeDirectories::make(parent));
  made.parent_ = parent;
  made.step_ = step;
  made.path_ = parent + "/" + checkpoint_name(step);
  made.replaces_ = is_there(made.path_);
  if (made.replaces_ && replace) SLUICE_TRY(check_replaceable(made.path_));
  if (made.replaces_ && !replace)
    return bad_request(made.path_ + " is there already; remove it, or give another directory");
  remove_halves(parent);
  SLUICE_ASSIGN(made.staged_, StagedDirectory::create(made.path_, is_ours));
  return made;
}

Status NewCheckpoint::publish(const Manifest& manifest) {
  SLUICE_TRY(create_master(directory(), manifest));
  SLUICE_TRY(publish_file(directory() + "/" + manifest_name, manifest_text(manifest)));
  SLUICE_TRY(staged_.publish(replaces_));
  made_.keep();
  return name_latest(parent_, step_);
}

Status name_latest(const std::string& parent, std::uint64_t step) {
  return publish_file(parent + "/" + latest_name, checkpoint_name(step) + "\n");
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  Checkpoint opened;
  SLUICE_ASSIGN(opened.path_, chosen(trimmed(path)));
  opened.directory_ = ::open(opened.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened.directory_ < 0) return os_error("can not open " + opened.path_, errno);
  const std::string name = opened.path_ + "/" + manifest_name;
  if (!is_there(name)) return no_checkpoint(opened.path_);
  SLUICE_ASSIGN(const int fd, opened.open_beneath(manifest_name, O_RDONLY));
  ::close(fd);
  SLUICE_ASSIGN(const std::string text, read_file(name, manifest_bytes_max));
  Result<Manifest> manifest = parse_manifest(text);
  if (!manifest.ok()) return Error{manifest.error().code, name + " " + manifest.error().message};
  opened.manifest_ = std::move(*manifest);
  const auto named = step_of_name(fs::path(opened.path_).filename().string());
  if (named && *named != opened.manifest_.step)
    return bad_request(fmt::format("{} is the manifest of step {}; rename its directory back to {}", name,
                                   opened.manifest_.step, checkpoint_name(opened.manifest_.step)));
  opened.files_.resize(opened.manifest_.files.size());
  return opened;
}

Checkpoint::~Checkpoint() {
  for (const auto& file : files_)
    if (file != nullptr) ::close(file->fd);
  if (directory_ >= 0) ::close(directory_);
}

Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(directory_, other.directory_);
  std::swap(manifest_, other.manifest_);
  std::swap(files_, other.files_);
  return *this;
}

/// A regular file of the directory itself.
Result<int> Checkpoint::open_beneath(const std::string& name, int flags) const {
  const int fd = openat(directory_, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  const std::string where = path_ + "/" + name;
  if (fd < 0 && errno == ELOOP) return bad_request(where + " is a link, and links are not followed");
  if (fd < 0 && errno == ENOENT) return bad_request(where + " is missing: the checkpoint is not whole");
  if (fd < 0) return os_error("can not open " + where, errno);
  struct stat there {};
  if (fstat(fd, &there) == 0 && S_ISREG(there.st_mode)) return fd;
  ::close(fd);
  return bad_request(where + " is no regular file");
}

Result<int> Checkpoint::open_states(const StoredFile& stored) const {
  const std::string where = path_ + "/" + stored.name;
  SLUICE_ASSIGN(const int fd, open_beneath(stored.name, O_RDONLY));
  struct stat there {};
  const bool is_known = fstat(fd, &there) == 0;
  if (is_known && static_cast<std::uint64_t>(there.st_size) == stored.bytes) return fd;
  const Error error = is_known ? bad_request(fmt::format("{} has {} bytes, and the manifest says {}: it is damaged",
                                                         where, there.st_size, stored.bytes))
                               : fault(where + ": stat failed: " + std::strerror(errno));
  ::close(fd);
  return error;
}

Status Checkpoint::check_present() const {
  for (const StoredFile& stored : manifest_.files) {
    SLUICE_ASSIGN(const int states, open_states(stored));
    ::close(states);
    SLUICE_ASSIGN(const int sums, open_beneath(stored.sums_name(), O_RDONLY));
    ::close(sums);
  }
  return success();
}

Result<const Checkpoint::OpenFile*> Checkpoint::file(std::uint32_t index) {
  if (files_[index] != nullptr) return files_[index].get();
  const StoredFile& stored = manifest_.files[index];
  const std::string where = path_ + "/" + stored.name;
  auto opened = std::make_unique<OpenFile>();
  opened->path = where;
  SLUICE_ASSIGN(const int plain, open_states(stored));
  const auto look = [&]() -> Status {
    SLUICE_ASSIGN(const std::uint64_t structure, structure_sum(plain, where, stored));
    if (structure != stored.structure)
      return bad_request(where + ": its structure does not have the checksum that the manifest says: it is damaged");
    SLUICE_ASSIGN(const int sums, open_beneath(stored.sums_name(), O_RDONLY));
    Result<std::vector<std::uint64_t>> read =
        read_sums(sums, path_ + "/" + stored.sums_name(), stored.sums, stored.sum_count());
    ::close(sums);
    if (!read.ok()) return read.error();
    opened->sums = std::move(*read);
    return check_state_file(where, manifest_, stored);
  };
  const Status sound = look();
  ::close(plain);
  if (!sound.ok()) return sound.error();
  SLUICE_ASSIGN(const IoFile direct, open_direct(where, O_RDONLY));
  opened->fd = direct.fd;
  opened->alignment_bytes = direct.alignment_bytes;
  files_[index] = std::move(opened);
  return files_[index].get();
}

std::string Checkpoint::block_name(std::uint32_t file, std::uint32_t unit, std::uint32_t state,
                                   std::uint64_t block) const {
  const StoredFile& stored = manifest_.files[file];
  const StoredUnit& u = stored.units[unit];
  const StoredState& s = u.states[state];
  // Elements lie evenly but for scales of 8-bit moments, which make little difference.
  const auto element = [&](std::uint64_t bytes) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) / static_cast<double>(s.bytes) *
                                      static_cast<double>(u.numel));
  };
  const std::uint64_t first = element(block * s.block_bytes);
  const std::uint64_t last = element(std::min(s.bytes, (block + 1) * s.block_bytes));
  std::string tensors;
  for (const TensorPiece& p : u.pieces)
    if (p.at < last && p.end() > first) {
      const std::string& name = manifest_.tensors[p.tensor].name;
      if (tensors.ends_with(name)) continue;
      if (tensors.size() > 200) {
        tensors += ", ...";
        break;
      }
      tensors += (tensors.empty() ? "" : ", ") + name;
    }
  return fmt::format("{}/{}: block {} of {} ({})", path_, stored.name, block, StoredFile::dataset(u, s),
                     tensors.empty() ? "padding" : tensors);
}

Result<std::string> checkpoint_model(const std::string& path) {
  SLUICE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  return checkpoint.manifest().model;
}

Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& parent) {
  std::vector<ListedCheckpoint> all;
  std::string latest;
  if (const auto text = read_file(parent + "/" + latest_name, 256); text.ok()) latest = trimmed(*text);
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    const bool is_own = entry->symlink_status(ignored).type() == fs::file_type::directory;  // and no link to one
    if (const auto step = step_of_name(name); step && is_own) {
      const std::string path = parent + "/" + name;
      all.push_back({path, *step, name == latest, is_there(path + "/" + manifest_name)});
    }
  }
  if (error) return os_error("can not read " + parent, error.value());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return all;
}

Result<std::vector<std::string>> prune_checkpoints(const std::string& parent, std::size_t keep) {
  remove_halves(parent);
  SLUICE_ASSIGN(const std::vector<ListedCheckpoint> all, list_checkpoints(parent));
  std::vector<std::string> gone;
  std::size_t whole = 0;
  for (const ListedCheckpoint& c : all) whole += c.is_whole ? 1 : 0;
  for (std::size_t i = 0; i < all.size() && whole > keep; ++i) {
    if (!all[i].is_whole) continue;  // whatever it is
    --whole;
    if (all[i].latest && keep > 0) continue;
    std::error_code error;
    // None has the name by half: it goes under one of what is not complete.
    const std::string going = all[i].path + ".tmp-pruned";
    fs::rename(all[i].path, going, error);
    if (!error) fs::remove_all(going, error);
    if (error) return os_error("can not remove " + all[i].path, error.value());
    gone.push_back(all[i].path);
  }
  if (!gone.empty()) SLUICE_TRY(sync_directory(parent));
  return gone;
}

}  // namespace sluice
