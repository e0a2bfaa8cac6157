#include "io/files/publish.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "io/files/os_error.h"

namespace sluice {
namespace {

constexpr std::string_view staging_mark = ".tmp-";  // six characters follow

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool is_staging_name(const std::string& name, const std::string& begin) {
  return name.size() == begin.size() + 6 && name.starts_with(begin);
}

/// The file or directory of that name, locked for this process; -1 where it is not there, or somebody works on it.
int lock_if_idle(const std::string& path, int flags) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

/// Locks what this process has just made. False when another one took it for abandoned before.
bool hold(int fd) {
  // File systems that have no such locks never let it be taken for abandoned either.
  const bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat there {};
  return !taken && fstat(fd, &there) == 0 && there.st_nlink > 0;
}

/// The directory that a file is to be put into.
Status check_directory_of(const std::string& path) {
  const std::string directory = directory_of(path);
  struct stat there {};
  if (stat(directory.c_str(), &there) != 0) return os_error("can not create " + path + ": " + directory, errno);
  if (!S_ISDIR(there.st_mode)) return os_error("can not create " + path + ": " + directory, ENOTDIR);
  if (access(directory.c_str(), W_OK | X_OK) != 0) return os_error("can not create " + path, errno);
  return success();
}

bool is_stream(const std::string& path) {
  struct stat there {};
  return stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode);
}

Status write_stream(const std::string& path, std::string_view content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return os_error("can not open " + path, errno);
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  const int error = errno;
  close(fd);
  errno = error;
  return content.empty() ? success() : Status(os_fault(path, "write"));
}

}  // namespace

void remove_abandoned_directories(const std::string& parent, const std::function<bool(const std::string&)>& is_meant,
                                  const StagedDirectory::IsOurs& is_ours) {
  const auto original = [](std::string name) {  // of what is not complete
    const std::size_t at = name.rfind(staging_mark);
    if (at != std::string::npos && at + staging_mark.size() + 6 == name.size()) name.resize(at);
    return name;
  };
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string(), meant = original(name);
    if (meant == name || !is_meant(meant)) continue;
    const int lock = lock_if_idle(entry->path().string(), O_DIRECTORY);
    if (lock < 0) continue;
    std::error_code unreadable;
    bool ours = true;
    for (std::filesystem::directory_iterator file(entry->path(), unreadable); !unreadable && file != end;
         file.increment(unreadable))
      ours = ours && file->is_regular_file(unreadable) && is_ours(original(file->path().filename().string()));
    if (ours && !unreadable) std::filesystem::remove_all(entry->path(), unreadable);
    close(lock);
  }
}

void remove_abandoned_files(const std::string& path) {
  const std::string begin = std::filesystem::path(path).filename().string() + std::string(staging_mark);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory_of(path), error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (!is_staging_name(entry->path().filename().string(), begin) || !entry->is_regular_file(gone)) continue;
    const int lock = lock_if_idle(entry->path().string(), 0);
    if (lock < 0) continue;
    unlink(entry->path().c_str());
    close(lock);
  }
}

Result<std::string> output_path(const std::string& path) {
  struct stat there {};
  if (path.empty()) return bad_request("the name of a file to write is empty");
  if (lstat(path.c_str(), &there) != 0) {
    if (errno != ENOENT) return os_error("can not create " + path, errno);
    SLUICE_TRY(check_directory_of(path));
    return path;
  }
  if (stat(path.c_str(), &there) != 0) return os_error(path + " is a link that leads nowhere", errno);
  if (S_ISDIR(there.st_mode)) return bad_request(path + " is a directory; give the name of a file");
  if (!S_ISREG(there.st_mode))
    return bad_request(path + " is not a regular file, and would have to be replaced; give another name");
  std::error_code error;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) return os_error("can not create " + path, error.value());
  SLUICE_TRY(check_directory_of(target));
  return target;
}

Status check_stream_path(const std::string& path) {
  if (is_stream(path)) return access(path.c_str(), W_OK) == 0 ? success() : Status(os_error(path, errno));
  const Result<std::string> target = output_path(path);
  return target.ok() ? success() : Status(target.error());
}

Status check_replaces_own(const std::string& option, const std::string& path, std::string_view begin,
                          const std::string& kind) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || std::filesystem::file_size(path, ignored) == 0)
    return success();
  std::string there(begin.size(), '\0');
  std::ifstream(path, std::ios::binary).read(there.data(), static_cast<std::streamsize>(there.size()));
  if (there == begin) return success();
  return bad_request(option + " " + path + " is there, and is no " + kind + "; give another file, or remove it");
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error) && !error) return true;
  const auto whole = [&](const std::string& path) {
    const std::filesystem::path canonical =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
    return error ? std::filesystem::path(path) : canonical;
  };
  return whole(a) == whole(b);
}

std::string nearest_directory(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::absolute(directory, ignored).lexically_normal();
  // A link to nothing is there, and no directory can take its name.
  while (!std::filesystem::exists(std::filesystem::symlink_status(at, ignored)) && at != at.parent_path())
    at = at.parent_path();
  return at.string();
}

Status make_directories(const std::string& directory) {
  const std::filesystem::path above = nearest_directory(directory);
  const std::filesystem::path all = std::filesystem::absolute(directory).lexically_normal();
  std::error_code error;
  std::filesystem::create_directories(all, error);
  if (error) return os_error("can not create " + directory, error.value());
  for (std::filesystem::path made = all; made != above && made != made.parent_path(); made = made.parent_path())
    if (made.has_filename()) SLUICE_TRY(sync_directory(made.parent_path()));
  return success();
}

Result<MadeDirectories> MadeDirectories::make(const std::string& directory) {
  MadeDirectories made;
  const std::filesystem::path above = nearest_directory(directory);
  const std::filesystem::path all = std::filesystem::absolute(directory).lexically_normal();
  for (std::filesystem::path at = all; at != above && at != at.parent_path(); at = at.parent_path())
    if (at.has_filename()) made.made_.push_back(at.string());
  SLUICE_TRY(make_directories(directory));
  return made;
}

MadeDirectories::~MadeDirectories() {
  for (const std::string& directory : made_)
    if (rmdir(directory.c_str()) != 0 && errno != ENOENT) return;  // one that could not be made is not there
}

MadeDirectories& MadeDirectories::operator=(MadeDirectories&& other) noexcept {
  std::swap(made_, other.made_);
  return *this;
}

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t mode) {
  SLUICE_ASSIGN(const std::string target, output_path(path));
  remove_abandoned_files(target);
  return make(path, mode);
}

Result<AtomicFile> AtomicFile::make(const std::string& path, mode_t mode) {
  AtomicFile file;
  file.path_ = path;
  SLUICE_ASSIGN(file.target_, output_path(path));
  for (bool held = false; !held;) {
    file.discard();
    std::string temporary = file.target_ + std::string(staging_mark) + "XXXXXX";
    file.fd_ = mkostemp(temporary.data(), O_CLOEXEC);
    if (file.fd_ < 0) return os_error("can not create " + path, errno);
    file.temporary_ = std::move(temporary);
    held = hold(file.fd_);
  }
  if (fchmod(file.fd_, mode) != 0) return os_fault(path, "fchmod");
  return file;
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  path_ = std::move(other.path_);
  target_ = std::move(other.target_);
  temporary_ = std::exchange(other.temporary_, {});
  fd_ = std::exchange(other.fd_, -1);
  end_ = other.end_;
  return *this;
}

void AtomicFile::discard() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
}

Status AtomicFile::append(std::span<const std::byte> data) {
  SLUICE_TRY(write_at(end_, data));
  end_ += data.size();
  return success();
}

Status AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> data) {
  SLUICE_CHECK(fd_ >= 0, "%s is not open", path_.c_str());
  while (!data.empty()) {
    const ssize_t n = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_fault(path_, "write");
    data = data.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return success();
}

Status AtomicFile::sync() {
  SLUICE_CHECK(fd_ >= 0, "%s is not open", path_.c_str());
  return fsync(fd_) == 0 ? success() : Status(os_fault(path_, "sync"));
}

Status AtomicFile::remove_old() {
  return unlink(target_.c_str()) == 0 || errno == ENOENT ? success() : Status(os_fault(path_, "unlink"));
}

Status AtomicFile::publish() {
  SLUICE_TRY(sync());
  // It is locked until it has its name.
  if (rename(temporary_.c_str(), target_.c_str()) != 0) return os_fault(path_, "rename");
  temporary_.clear();
  if (close(std::exchange(fd_, -1)) != 0) return os_fault(path_, "close");
  return sync_directory(directory_of(target_));
}

Status sync_directory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return os_fault(directory, "open");
  const int rc = fsync(fd);
  const int error = errno;
  close(fd);
  errno = error;
  // Some file systems have nothing to sync for a directory and say EINVAL.
  if (rc != 0 && error != EINVAL) return os_fault(directory, "sync");
  return success();
}

Result<StagedDirectory> StagedDirectory::create(const std::string& path, const IsOurs& is_ours) {
  const std::string own = std::filesystem::path(path).filename().string();
  remove_abandoned_directories(
      directory_of(path), [&](const std::string& name) { return name == own; }, is_ours);
  StagedDirectory directory;
  directory.path_ = path;
  for (bool made = false; !made;) {
    SLUICE_ASSIGN(made, directory.make());
  }
  return directory;
}

/// False when another process took the new one for abandoned before it was locked.
Result<bool> StagedDirectory::make() {
  std::string staging = path_ + std::string(staging_mark) + "XXXXXX";
  if (mkdtemp(staging.data()) == nullptr) return os_error("can not create " + path_, errno);
  const int fd = open(staging.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return false;
  if (fd < 0) return os_fault(staging, "open");
  lock_ = fd;
  staging_ = std::move(staging);
  if (!hold(fd)) {
    staging_.clear();
    close(std::exchange(lock_, -1));
    return false;
  }
  if (fchmod(fd, 0755) != 0) return os_fault(path_, "chmod");
  return true;
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!staging_.empty()) std::filesystem::remove_all(staging_, ignored);
  if (lock_ >= 0) close(lock_);
}

StagedDirectory& StagedDirectory::operator=(StagedDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(staging_, other.staging_);
  std::swap(lock_, other.lock_);
  return *this;
}

Status StagedDirectory::publish(bool replace) {
  SLUICE_TRY(sync_directory(staging_));
  if (!replace) {
    if (rename(staging_.c_str(), path_.c_str()) != 0) return os_fault(path_, "rename");
    staging_.clear();
    return sync_directory(directory_of(path_));
  }
  if (renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0)
    return fault(fmt::format("{}: this file system can not replace a directory at once ({}); remove it first", path_,
                             std::strerror(errno)));
  SLUICE_TRY(sync_directory(directory_of(path_)));
  std::error_code error;  // what was there before goes now
  std::filesystem::remove_all(staging_, error);
  if (error) return fault(staging_ + ": the earlier files can not be removed: " + error.message());
  staging_.clear();
  return success();
}

Status publish_file(const std::string& path, std::string_view content, mode_t mode) {
  if (is_stream(path)) return write_stream(path, content);
  SLUICE_ASSIGN(AtomicFile file, AtomicFile::make(path, mode));
  SLUICE_TRY(file.append(std::as_bytes(std::span(content))));
  return file.publish();
}

Result<std::string> read_file(const std::string& path, std::uint64_t limit_bytes) {
  // A pipe that nobody writes to would be waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return os_error("can not open " + path, errno);
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return bad_request(path + " is not a regular file");
  }
  const auto too_large = [&] { return bad_request(fmt::format("{} is larger than {} bytes", path, limit_bytes)); };
  if (static_cast<std::uint64_t>(st.st_size) > limit_bytes) {
    close(fd);
    return too_large();
  }
  std::string text;
  char chunk[1 << 16];
  ssize_t n = 0;
  while ((n = read(fd, chunk, sizeof chunk)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    text.append(chunk, static_cast<std::size_t>(n));
    if (text.size() > limit_bytes) break;
  }
  const int error = errno;
  close(fd);
  if (n < 0) return os_error("can not read " + path, error);
  if (text.size() > limit_bytes) return too_large();
  return text;
}

}  // namespace sluice
