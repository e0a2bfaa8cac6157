#include "io/publish.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace sluice {
namespace {

Error os_fault(const std::string& path, const char* what) {
  return fault(fmt::format("{}: {} failed: {}", path, what, std::strerror(errno)));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t mode) {
  AtomicFile file;
  file.path_ = path;
  file.temporary_ = path + ".tmp-XXXXXX";
  file.fd_ = mkostemp(file.temporary_.data(), O_CLOEXEC);
  if (file.fd_ < 0) {
    file.temporary_.clear();
    return bad_request(fmt::format("can not create {}: {}", path, std::strerror(errno)));
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

Status AtomicFile::publish() {
  SLUICE_CHECK(fd_ >= 0, "%s is not open", path_.c_str());
  if (fsync(fd_) != 0) return os_fault(path_, "sync");
  if (close(std::exchange(fd_, -1)) != 0) return os_fault(path_, "close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return os_fault(path_, "rename");
  temporary_.clear();
  return sync_directory(directory_of(path_));
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

Result<StagedDirectory> StagedDirectory::create(const std::string& path) {
  StagedDirectory directory;
  directory.path_ = path;
  std::string staging = path + ".tmp-XXXXXX";
  if (mkdtemp(staging.data()) == nullptr)
    return bad_request(fmt::format("can not create {}: {}", path, std::strerror(errno)));
  directory.staging_ = std::move(staging);
  if (chmod(directory.staging_.c_str(), 0755) != 0) return os_fault(path, "chmod");
  return directory;
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!staging_.empty()) std::filesystem::remove_all(staging_, ignored);
}

StagedDirectory& StagedDirectory::operator=(StagedDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(staging_, other.staging_);
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
  SLUICE_ASSIGN(AtomicFile file, AtomicFile::create(path, mode));
  SLUICE_TRY(file.append(std::as_bytes(std::span(content))));
  return file.publish();
}

Result<std::string> read_file(const std::string& path, std::uint64_t limit_bytes) {
  // A pipe that nobody writes to would be waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return bad_request(fmt::format("can not open {}: {}", path, std::strerror(errno)));
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return bad_request(path + " is not a regular file");
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
  if (n < 0) return bad_request(fmt::format("can not read {}: {}", path, std::strerror(error)));
  if (text.size() > limit_bytes) return bad_request(fmt::format("{} is larger than {} bytes", path, limit_bytes));
  return text;
}

}  // namespace sluice
