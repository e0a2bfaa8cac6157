#include "io/checkpoint/copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/checkpoint/verify.h"
#include "io/files/os_error.h"
#include "io/weights/read_ahead.h"

namespace sluice {
namespace {

constexpr std::size_t copied_at_once = 64u << 20;

/// Within the kernel, or through memory where it does not do that: between file systems of two kinds.
Status copy_bytes(int from, int to, const std::string& path, std::uint64_t bytes,
                  const std::function<Status(std::uint64_t)>& watch) {
  std::vector<std::byte> memory;
  off_t in = 0, out = 0;
  while (static_cast<std::uint64_t>(in) < bytes) {
    const std::uint64_t left = bytes - static_cast<std::uint64_t>(in);
    ssize_t n = -1;
    if (memory.empty()) {
      n = copy_file_range(from, &in, to, &out, std::min<std::uint64_t>(copied_at_once, left), 0);
      if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
        memory.resize(4u << 20);
        continue;
      }
    } else {
      memory.resize(std::min<std::uint64_t>(memory.size(), left));
      SLUICE_TRY(read_exactly(from, path, static_cast<std::uint64_t>(in), memory));
      n = pwrite(to, memory.data(), memory.size(), out);
      if (n > 0) in += n, out += n;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fault(path + ": copying failed: " + std::strerror(errno));
    if (n == 0) return fault(path + ": what is copied has become shorter");
    SLUICE_TRY(watch(static_cast<std::uint64_t>(n)));
  }
  return success();
}

/// Whether the blocks are shared.
Result<bool> copy_file(const std::string& from, const std::string& to, std::uint64_t bytes,
                       const std::function<Status(std::uint64_t)>& watch) {
  const int in = open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (in < 0) return os_error("can not open " + from, errno);
  const int out = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (out < 0) {
    const int error = errno;
    close(in);
    return os_error("can not create " + to, error);
  }
  const bool shared = ioctl(out, FICLONE, in) == 0;
  Status copied = shared ? watch(bytes) : copy_bytes(in, out, to, bytes, watch);
  if (copied.ok() && fsync(out) != 0) copied = fault(to + ": sync failed: " + std::strerror(errno));
  if (close(out) != 0 && copied.ok()) copied = fault(to + ": close failed: " + std::strerror(errno));
  close(in);
  if (!copied.ok()) return copied.error();
  return shared;
}

}  // namespace

Result<CheckpointCopy> copy_checkpoint(Checkpoint& from, const std::string& parent, const QueueOptions& queue,
                                       const std::function<Status(std::uint64_t)>& watch) {
  const Manifest& manifest = from.manifest();
  SLUICE_ASSIGN(NewCheckpoint made, NewCheckpoint::create(parent, manifest.step));
  SLUICE_TRY(verify_checkpoint(from, queue, watch));
  CheckpointCopy copy{made.path(), true};
  const auto quiet = [](std::uint64_t) { return success(); };
  for (const StoredFile& file : manifest.files) {
    SLUICE_ASSIGN(const bool shared,
                  copy_file(from.path() + "/" + file.name, made.directory() + "/" + file.name, file.bytes, watch));
    copy.shares_blocks = copy.shares_blocks && shared;
    SLUICE_TRY(copy_file(from.path() + "/" + file.sums_name(), made.directory() + "/" + file.sums_name(),
                         24 + file.sum_count() * 8, quiet));
  }
  SLUICE_TRY(made.publish(manifest));
  return copy;
}

}  // namespace sluice
