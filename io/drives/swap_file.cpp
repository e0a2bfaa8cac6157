#include "io/drives/swap_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "io/files/file_lock.h"
#include "io/files/os_error.h"
#include "io/files/publish.h"
#include "sluice/round.h"

namespace sluice {
namespace {

constexpr std::uint64_t swap_alignment_bytes = 4096;
/// Of stripes that are not tiny, so that the requests at their ends are not either.
constexpr std::uint64_t stripe_unit_bytes = 64u << 10;
constexpr const char* temporary_prefix = "sluice-swap.";

std::string mib(std::uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

/// Where in a turn each directory's stripe ends. Every stripe is a multiple of the alignment and not empty.
std::vector<std::uint64_t> stripe_ends(const SwapOptions& options) {
  const std::size_t count = options.directories.size();
  const double sum = std::accumulate(options.weights.begin(), options.weights.end(), 0.0);
  const std::uint64_t unit = options.stripe_bytes % stripe_unit_bytes == 0 ? stripe_unit_bytes : swap_alignment_bytes;
  const double units = static_cast<double>(count * options.stripe_bytes) / static_cast<double>(unit);
  std::vector<std::uint64_t> ends;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = options.weights.empty() ? 1.0 / static_cast<double>(count) : options.weights[i] / sum;
    const auto stripe = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::lround(units * share)));
    ends.push_back((ends.empty() ? 0 : ends.back()) + stripe * unit);
  }
  return ends;
}

/// Bytes of the file in each directory: whole turns.
std::vector<std::uint64_t> file_bytes(const SwapOptions& options) {
  if (options.directories.size() == 1) return {round_up(options.bytes, swap_alignment_bytes)};
  const std::vector<std::uint64_t> ends = stripe_ends(options);
  const std::uint64_t turns = round_up(options.bytes, ends.back()) / ends.back();
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < ends.size(); ++i) bytes.push_back(turns * (ends[i] - (i == 0 ? 0 : ends[i - 1])));
  return bytes;
}

Status validate(const SwapOptions& options) {
  if (options.directories.empty()) return bad_request("no directory for the swap file");
  if (options.bytes == 0) return bad_request("a swap file of 0 bytes was asked for");
  if (options.stripe_bytes == 0 || options.stripe_bytes % swap_alignment_bytes != 0)
    return bad_request(fmt::format("stripe of {} bytes is not a multiple of 4096", options.stripe_bytes));
  const bool bad_weight = std::any_of(options.weights.begin(), options.weights.end(),
                                      [](double weight) { return !(weight > 0) || !std::isfinite(weight); });
  if (bad_weight || (!options.weights.empty() && options.weights.size() != options.directories.size()))
    return bad_request(fmt::format("{} stripe weights for {} swap directories: give each one that is above 0",
                                   options.weights.size(), options.directories.size()));
  if (options.name.find('/') != std::string::npos || options.name.starts_with(temporary_prefix))
    return bad_request(fmt::format("'{}' can not be the name of a swap file", options.name));
  for (const std::string& directory : options.directories) {
    struct stat st {};
    if (stat(directory.c_str(), &st) != 0) return os_error(fmt::format("swap directory {}", directory), errno);
    if (!S_ISDIR(st.st_mode)) return bad_request(fmt::format("swap directory {} is not a directory", directory));
    if (access(directory.c_str(), W_OK | X_OK) != 0)
      return os_error(fmt::format("swap directory {} can not be written to", directory), errno);
  }
  return success();
}

/// Whether the run that a temporary file's name tells is still there.
bool is_alive(const std::string& file_name) {
  const long pid = std::strtol(file_name.c_str() + std::strlen(temporary_prefix), nullptr, 10);
  return pid > 0 && (kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH);
}

/// Remove temporary swap files that nobody holds locked: their run was killed.
void remove_stale(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string(), name = entry->path().filename().string();
    if (!name.starts_with(temporary_prefix)) continue;
    const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat st {};
    const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (regular && (is_alive(name) ? flock(fd, LOCK_EX | LOCK_NB) == 0 : lock_patiently(fd))) unlink(path.c_str());
    close(fd);
  }
}

/// Whether there is room for so many bytes in each directory. Directories on one file system share its space.
Status check_space(const SwapOptions& options, const std::vector<std::uint64_t>& bytes) {
  struct Need {
    std::string directory;
    std::uint64_t needed = 0, free = 0;
  };
  std::map<dev_t, Need> needs;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::string& directory = options.directories[i];
    struct stat st {};
    struct statvfs space {};
    if (stat(directory.c_str(), &st) != 0 || statvfs(directory.c_str(), &space) != 0)
      return os_error(fmt::format("swap directory {}", directory), errno);
    Need& need = needs[st.st_dev];
    if (need.directory.empty()) need.directory = directory;
    need.needed += bytes[i];
    need.free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  }
  for (const auto& [device, need] : needs) {
    if (need.needed > need.free)
      return bad_request(fmt::format("swap directory {}: {} bytes ({}) needed, {} bytes ({}) free: choose another",
                                     need.directory, need.needed, mib(need.needed), need.free, mib(need.free)));
  }
  return success();
}

std::string new_temporary_path(const std::string& directory) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}/{}{}.{}", directory, temporary_prefix, getpid(), counter++);
}

/// A new file without a name, gone however the program ends. Where the file system has no such files, a named one that
/// loses its name at once.
Result<IoFile> create_anonymous_file(const std::string& directory) {
  IoFile file;
  file.path = new_temporary_path(directory);
  file.fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  // Kernels without O_TMPFILE see a directory opened for writing.
  if (file.fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    file.fd = open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file.fd >= 0) unlink(file.path.c_str());
  }
  if (file.fd < 0) return os_error(fmt::format("can not create swap file {}", file.path), errno);
  return file;
}

/// A new locked file. A temporary that another run's clean-up took before the lock was there is made anew.
Result<IoFile> create_file(const SwapOptions& options, const std::string& directory) {
  if (options.anonymous) return create_anonymous_file(directory);
  for (;;) {
    IoFile file;
    file.path = options.name.empty() ? new_temporary_path(directory) : directory + "/" + options.name;
    file.fd = open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file.fd < 0 && errno == EEXIST && options.name.empty()) continue;
    if (file.fd < 0) return os_error(fmt::format("can not create swap file {}", file.path), errno);
    struct stat st {};
    if (flock(file.fd, LOCK_EX | LOCK_NB) == 0 && fstat(file.fd, &st) == 0 && st.st_nlink > 0) return file;
    close(file.fd);
    if (!options.name.empty()) return bad_request(fmt::format("swap file {} is used by another run", file.path));
  }
}

Result<IoFile> open_file(const SwapOptions& options, const std::string& directory, std::uint64_t bytes) {
  IoFile file;
  file.path = directory + "/" + options.name;
  file.fd = open(file.path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file.fd < 0) return os_error(fmt::format("can not open swap file {}", file.path), errno);
  struct stat st {};
  const bool is_file = fstat(file.fd, &st) == 0 && S_ISREG(st.st_mode);
  const auto size = static_cast<std::uint64_t>(st.st_size);
  std::string wrong;
  if (!is_file) {
    wrong = "is not a regular file";
  } else if (size < bytes) {
    wrong = fmt::format("has {} bytes, {} expected: it belongs to another plan or is damaged", size, bytes);
  } else if (!lock_patiently(file.fd)) {
    wrong = "is used by another run";
  }
  if (wrong.empty()) return file;
  close(file.fd);
  return bad_request(fmt::format("swap file {} {}", file.path, wrong));
}

Status preallocate(const IoFile& file, std::uint64_t bytes) {
  int error = 0;
  do {
    // posix_fallocate also works, by writing, where the file system has no fallocate.
    error = posix_fallocate(file.fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return success();
  return bad_request(fmt::format("swap file {}: can not reserve {} bytes ({}): {}", file.path, bytes, mib(bytes),
                                 std::strerror(error)));
}

Result<std::uint64_t> size_of(const IoFile& file) {
  struct stat st {};
  if (fstat(file.fd, &st) != 0) return os_error(fmt::format("swap file {}", file.path), errno);
  return static_cast<std::uint64_t>(st.st_size);
}

/// To this size, if it is larger.
Status cut(const IoFile& file, std::uint64_t bytes) {
  SLUICE_ASSIGN(const std::uint64_t size, size_of(file));
  if (size <= bytes || ftruncate(file.fd, static_cast<off_t>(bytes)) == 0) return success();
  return os_error(fmt::format("swap file {} can not be made smaller", file.path), errno);
}

/// "O_DIRECT", or why not. Set after opening: with O_CREAT a refusal would leave the file behind.
std::string set_direct(IoFile& file, bool wanted) {
  if (!wanted) return "buffered as asked";
  const int flags = fcntl(file.fd, F_GETFL);
  if (flags < 0 || fcntl(file.fd, F_SETFL, flags | O_DIRECT) != 0)
    return fmt::format("buffered (no O_DIRECT here: {})", std::strerror(errno));
  file.alignment_bytes = swap_alignment_bytes;
  return "O_DIRECT";
}

}  // namespace

Result<SwapFile> SwapFile::open_files(const SwapOptions& options, bool create) {
  SwapFile swap;
  swap.bytes_ = round_up(options.bytes, swap_alignment_bytes);
  swap.stripe_ends_ = stripe_ends(options);
  swap.file_bytes_ = file_bytes(options);
  const std::vector<std::uint64_t>& bytes = swap.file_bytes_;
  swap.remove_on_close_ = create && !options.anonymous;  // also when a later directory fails
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::string& directory = options.directories[i];
    SLUICE_ASSIGN(IoFile file, create ? create_file(options, directory) : open_file(options, directory, bytes[i]));
    swap.files_.push_back(std::move(file));
    if (create) SLUICE_TRY(preallocate(swap.files_.back(), bytes[i]));
    const std::string how = set_direct(swap.files_.back(), options.direct);
    swap.description_ +=
        fmt::format("{}{}: {} {}", swap.description_.empty() ? "" : ", ", directory, mib(bytes[i]), how);
  }
  if (create && !options.name.empty())
    for (const std::string& directory : options.directories) SLUICE_TRY(sync_directory(directory));
  swap.remove_on_close_ = create && options.name.empty() && !options.anonymous;
  return swap;
}

Result<SwapFile> SwapFile::create(const SwapOptions& options) {
  SLUICE_TRY(validate(options));
  for (const std::string& directory : options.directories) remove_stale(directory);
  SLUICE_TRY(check_space(options, file_bytes(options)));
  return open_files(options, true);
}

Result<SwapFile> SwapFile::open_existing(const SwapOptions& options) {
  SLUICE_CHECK(!options.name.empty(), "a temporary swap file can not be opened again");
  SLUICE_TRY(validate(options));
  return open_files(options, false);
}

Status SwapFile::grow(const SwapOptions& options) {
  SLUICE_CHECK(!options.name.empty(), "a temporary swap file can not be opened again");
  SLUICE_TRY(validate(options));
  SwapFile swap;
  std::vector<std::uint64_t> had, missing;
  const std::vector<std::uint64_t> bytes = file_bytes(options);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    SLUICE_ASSIGN(IoFile file, open_file(options, options.directories[i], 0));
    swap.files_.push_back(std::move(file));
    SLUICE_ASSIGN(const std::uint64_t size, size_of(swap.files_.back()));
    had.push_back(size);
    missing.push_back(bytes[i] - std::min(size, bytes[i]));
  }
  SLUICE_TRY(check_space(options, missing));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (missing[i] == 0) continue;
    Status done = preallocate(swap.files_[i], bytes[i]);
    if (done.ok() && fsync(swap.files_[i].fd) != 0) done = os_error(swap.files_[i].path + " can not be synced", errno);
    if (done.ok()) continue;
    for (std::size_t k = 0; k <= i; ++k) static_cast<void>(cut(swap.files_[k], had[k]));
    return done;
  }
  return success();
}

Status SwapFile::trim() {
  for (std::size_t i = 0; i < files_.size(); ++i) SLUICE_TRY(cut(files_[i], file_bytes_[i]));
  return success();
}

Status SwapFile::remove(const SwapOptions& options) {
  SLUICE_CHECK(!options.name.empty(), "a temporary swap file removes itself");
  for (const std::string& directory : options.directories) {
    const std::string path = directory + "/" + options.name;
    const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0) return os_error(fmt::format("can not open swap file {}", path), errno);
    const bool locked = lock_patiently(fd);
    const bool removed = locked && unlink(path.c_str()) == 0;
    const int error = errno;
    ::close(fd);
    if (!locked) return bad_request(fmt::format("swap file {} is used by another run", path));
    if (!removed) return fault(fmt::format("can not remove swap file {}: {}", path, std::strerror(error)));
  }
  return success();
}

SwapFile::~SwapFile() { close(); }

SwapFile::SwapFile(SwapFile&& other) noexcept { *this = std::move(other); }

SwapFile& SwapFile::operator=(SwapFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  files_ = std::exchange(other.files_, {});
  file_bytes_ = std::move(other.file_bytes_);
  bytes_ = std::exchange(other.bytes_, 0);
  stripe_ends_ = std::move(other.stripe_ends_);
  remove_on_close_ = other.remove_on_close_;
  description_ = std::move(other.description_);
  return *this;
}

void SwapFile::close() {
  for (const IoFile& file : files_) {
    if (remove_on_close_) unlink(file.path.c_str());
    flock(file.fd, LOCK_UN);  // a ring may hold the file a little longer, the lock should not
    ::close(file.fd);
  }
  files_.clear();
}

SwapPiece SwapFile::piece(std::uint64_t offset, std::uint64_t bytes) const {
  SLUICE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset, "[%llu, +%llu) of %llu", (unsigned long long)offset,
               (unsigned long long)bytes, (unsigned long long)bytes_);
  if (files_.size() == 1) return {0, offset, bytes};
  const std::uint64_t turn = offset / stripe_ends_.back(), within = offset % stripe_ends_.back();
  const auto end = std::upper_bound(stripe_ends_.begin(), stripe_ends_.end(), within);
  const std::uint64_t begin = end == stripe_ends_.begin() ? 0 : *(end - 1);
  return {static_cast<std::uint32_t>(end - stripe_ends_.begin()), turn * (*end - begin) + within - begin,
          std::min(bytes, *end - within)};
}

Status SwapFile::zero(const SwapPiece& piece) {
  const IoFile& file = files_[piece.file];
  if (fallocate(file.fd, FALLOC_FL_ZERO_RANGE, static_cast<off_t>(piece.offset), static_cast<off_t>(piece.bytes)) == 0)
    return success();
  const std::uint64_t chunk = std::min<std::uint64_t>(piece.bytes, 1u << 20);
  const std::unique_ptr<std::byte, decltype(&std::free)> zeros(
      static_cast<std::byte*>(std::aligned_alloc(swap_alignment_bytes, round_up(chunk, swap_alignment_bytes))),
      &std::free);
  std::memset(zeros.get(), 0, chunk);
  for (std::uint64_t done = 0; done < piece.bytes;) {
    const ssize_t n =
        pwrite(file.fd, zeros.get(), std::min(chunk, piece.bytes - done), static_cast<off_t>(piece.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fault(fmt::format("{}: write failed: {}", file.path, std::strerror(errno)));
    done += static_cast<std::uint64_t>(n);
  }
  return success();
}

Status SwapFile::sync() {
  for (const IoFile& file : files_) {
    if (fdatasync(file.fd) != 0)
      return fault(fmt::format("{}: sync failed: {}; what was written since the last one may be lost", file.path,
                               std::strerror(errno)));
  }
  return success();
}

}  // namespace sluice
