#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/files/os_error.h"
#include "io/files/publish.h"

namespace sluice {
namespace {

/// The end of the last complete line, looked for from the end of the file.
Result<std::uint64_t> end_of_lines(int fd, const std::string& path) {
  const off_t size = lseek(fd, 0, SEEK_END);
  if (size < 0) return bad_request(fmt::format("{} can not be appended to: {}", path, std::strerror(errno)));
  char chunk[4096];
  for (auto end = static_cast<std::uint64_t>(size); end > 0;) {
    const std::uint64_t start = end > sizeof chunk ? end - sizeof chunk : 0;
    const ssize_t n = pread(fd, chunk, end - start, static_cast<off_t>(start));
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(end - start)) return bad_request(fmt::format("can not read {}", path));
    if (const void* newline = memrchr(chunk, '\n', end - start))
      return start + static_cast<std::uint64_t>(static_cast<const char*>(newline) - chunk) + 1;
    end = start;
  }
  return std::uint64_t{0};
}

}  // namespace

Result<LineWriter> LineWriter::open(const std::string& path, bool append) {
  LineWriter writer;
  writer.path_ = path;
  writer.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (append ? 0 : O_TRUNC), 0644);
  if (writer.fd_ < 0) return os_error("can not open " + path, errno);
  struct stat st {};
  if (fstat(writer.fd_, &st) == 0 && S_ISREG(st.st_mode)) {
    writer.regular_ = true;
    SLUICE_ASSIGN(writer.end_, end_of_lines(writer.fd_, path));
    if (ftruncate(writer.fd_, static_cast<off_t>(writer.end_)) != 0 ||
        lseek(writer.fd_, static_cast<off_t>(writer.end_), SEEK_SET) < 0)
      return bad_request(fmt::format("{} can not be appended to: {}", path, std::strerror(errno)));
  }
  return writer;
}

LineWriter::~LineWriter() {
  if (fd_ >= 0) close(fd_);
}

LineWriter::LineWriter(LineWriter&& other) noexcept { *this = std::move(other); }

LineWriter& LineWriter::operator=(LineWriter&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  path_ = std::move(other.path_);
  scratch_ = std::move(other.scratch_);
  fd_ = std::exchange(other.fd_, -1);
  end_ = other.end_;
  regular_ = other.regular_;
  return *this;
}

Status LineWriter::write_line(std::string_view line) {
  SLUICE_CHECK(fd_ >= 0, "no file is open");
  scratch_.assign(line);
  scratch_.push_back('\n');
  ssize_t n = 0;
  do {
    n = write(fd_, scratch_.data(), scratch_.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(scratch_.size())) {
    end_ += scratch_.size();
    return success();
  }
  // A write that stops short tells the reason only when the rest is tried.
  int error = errno;
  if (n >= 0) {
    const ssize_t rest = write(fd_, scratch_.data() + n, scratch_.size() - static_cast<std::size_t>(n));
    if (rest == static_cast<ssize_t>(scratch_.size()) - n) {
      end_ += scratch_.size();
      return success();
    }
    error = rest < 0 ? errno : ENOSPC;
  }
  if (regular_ && (ftruncate(fd_, static_cast<off_t>(end_)) != 0 || lseek(fd_, static_cast<off_t>(end_), SEEK_SET) < 0))
    return fault(fmt::format("{}: the last line is incomplete: {}", path_, std::strerror(error)));
  return fault(fmt::format("{}: a line could not be written: {}", path_, std::strerror(error)));
}

Status LineWriter::sync() {
  if (!regular_ || fdatasync(fd_) == 0) return success();
  return fault(fmt::format("{}: sync failed: {}", path_, std::strerror(errno)));
}

}  // namespace sluice
