#include "io/checkpoint/sums.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "io/checksum.h"
#include "io/files/os_error.h"
#include "io/weights/read_ahead.h"

namespace sluice {
namespace {

struct Header {
  std::array<char, 8> magic{'S', 'L', 'U', 'I', 'C', 'S', 'U', 'M'};
  std::uint32_t version = 1, zero = 0;
  std::uint64_t count = 0;
};
static_assert(sizeof(Header) == 24);

std::uint64_t sum_of(const Header& header, std::span<const std::uint64_t> sums) {
  StreamingChecksum whole;
  whole.add(std::as_bytes(std::span(&header, 1)));
  whole.add(std::as_bytes(sums));
  return whole.value();
}

Status write_all(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fault(std::string("write failed: ") + std::strerror(errno));
    data = data.subspan(static_cast<std::size_t>(n));
  }
  return success();
}

}  // namespace

std::uint64_t block_sum(std::span<const std::byte> data) {
  const std::uint64_t sum = checksum(data);
  return sum != 0 ? sum : 1;
}

Result<std::uint64_t> write_sums(const std::string& path, std::span<const std::uint64_t> sums) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return os_error("can not create " + path, errno);
  Header header;
  header.count = sums.size();
  Status written = write_all(fd, std::as_bytes(std::span(&header, 1)));
  if (written.ok()) written = write_all(fd, std::as_bytes(sums));
  if (written.ok() && fsync(fd) != 0) written = fault(std::string("sync failed: ") + std::strerror(errno));
  if (close(fd) != 0 && written.ok()) written = fault(std::string("close failed: ") + std::strerror(errno));
  if (!written.ok()) return written.error().in(path);
  return sum_of(header, sums);
}

Result<std::vector<std::uint64_t>> read_sums(int fd, const std::string& path, std::uint64_t file_sum,
                                             std::uint64_t count) {
  struct stat there {};
  if (fstat(fd, &there) != 0) return fault(path + ": stat failed: " + std::strerror(errno));
  if (!S_ISREG(there.st_mode) || static_cast<std::uint64_t>(there.st_size) != sizeof(Header) + count * 8)
    return bad_request(path + " does not have the size that the manifest implies: it is damaged");
  Header header;
  std::vector<std::uint64_t> sums(count);
  SLUICE_TRY(read_exactly(fd, path, 0, std::as_writable_bytes(std::span(&header, 1))));
  SLUICE_TRY(read_exactly(fd, path, sizeof header, std::as_writable_bytes(std::span(sums))));
  if (sum_of(header, sums) != file_sum)
    return bad_request(path + " does not have the checksum that the manifest says: it is damaged");
  const Header expected;
  if (header.magic != expected.magic || header.version != expected.version || header.count != count)
    return bad_request(path + " holds no checksums of this version");
  return sums;
}

Result<IoFile> open_direct(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0) return IoFile{fd, path, 4096};
  if (errno != EINVAL) return os_error("can not open " + path, errno);
  const int buffered = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
  if (buffered < 0) return os_error("can not open " + path, errno);
  return IoFile{buffered, path, 1};
}

}  // namespace sluice
