#include "io/checkpoint/state_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/checkpoint/state_file.h"
#include "io/checkpoint/sums.h"
#include "io/checksum.h"
#include "io/files/os_error.h"

namespace sluice {
namespace {

/// File systems share blocks of their own size, which is this or more: those with larger ones say no.
constexpr std::uint64_t shared_unit_bytes = 4096;

bool clone_range(const FileRange& from, int to, std::uint64_t offset) {
  const file_clone_range range{from.fd, from.offset, from.bytes, offset};
  return ioctl(to, FICLONERANGE, &range) == 0;
}

class NamelessFile {
 public:
  explicit NamelessFile(const std::string& directory)
      : fd_(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {}
  ~NamelessFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

bool directories_share_blocks(const std::string& from, const std::string& to) {
  const NamelessFile source(from), target(to);
  if (source.fd() < 0 || target.fd() < 0) return false;
  const std::vector<std::byte> block(shared_unit_bytes);
  return pwrite(source.fd(), block.data(), block.size(), 0) == static_cast<ssize_t>(block.size()) &&
         clone_range({source.fd(), 0, shared_unit_bytes}, target.fd(), 0);
}

Result<std::unique_ptr<StateWriter>> StateWriter::create(const std::string& directory, const Manifest& manifest,
                                                         StoredFile file, QueueOptions queue) {
  std::unique_ptr<StateWriter> writer(new StateWriter);
  SLUICE_TRY(create_state_file(directory, manifest, file));
  std::uint64_t sums = 0;
  for (StoredUnit& unit : file.units)
    for (StoredState& s : unit.states) {
      s.first_sum = sums;
      sums += s.blocks();
    }
  writer->sums_.assign(sums, 0);
  writer->path_ = directory + "/" + file.name;
  writer->sums_path_ = directory + "/" + file.sums_name();
  writer->file_ = std::move(file);
  SLUICE_ASSIGN(IoFile opened, open_direct(writer->path_, O_RDWR));
  writer->fd_ = opened.fd;
  queue.files = {opened};
  queue.buffers.clear();
  SLUICE_ASSIGN(writer->queue_, make_queue(queue));
  return writer;
}

StateWriter::~StateWriter() {
  queue_.reset();
  if (fd_ >= 0) ::close(fd_);
}

void StateWriter::set_sums(const StoredState& s, std::uint64_t offset_bytes, std::span<const std::byte> data) {
  const std::uint64_t block = s.block_bytes;
  SLUICE_CHECK(offset_bytes % block == 0 && offset_bytes + data.size() <= s.bytes &&
                   (data.size() % block == 0 || offset_bytes + data.size() == s.bytes),
               "(%llu bytes at %llu of %llu in blocks of %llu)", static_cast<unsigned long long>(data.size()),
               static_cast<unsigned long long>(offset_bytes), static_cast<unsigned long long>(s.bytes),
               static_cast<unsigned long long>(block));
  for (std::uint64_t at = 0; at < data.size(); at += block) {
    std::uint64_t& sum = sums_[s.first_sum + (offset_bytes + at) / block];
    SLUICE_CHECK(sum == 0, "%s: a block is written twice", path_.c_str());
    sum = block_sum(data.subspan(at, std::min<std::uint64_t>(block, data.size() - at)));
  }
}

Result<bool> StateWriter::share(std::size_t unit, std::size_t state, std::uint64_t offset_bytes,
                                std::span<const std::byte> data, std::span<const FileRange> from) {
  const StoredState& s = file_.units[unit].states[state];
  // Behind a state that ends within a block comes what HDF5 has written.
  if (!may_share_ || !can_be_shared(data.size())) return false;
  std::uint64_t to = s.offset + offset_bytes;
  for (const FileRange& range : from) {
    if (!clone_range(range, fd_, to)) {
      const bool is_answer = errno == EOPNOTSUPP || errno == EXDEV || errno == EINVAL || errno == ENOTTY ||
                             errno == ENOSYS || errno == EPERM || errno == ETXTBSY;
      if (!is_answer) return fault(path_ + ": blocks can not be shared: " + std::strerror(errno));
      may_share_ = false;
      return false;
    }
    to += range.bytes;
  }
  set_sums(s, offset_bytes, data);
  return true;
}

bool StateWriter::can_be_shared(std::uint64_t bytes) { return bytes % shared_unit_bytes == 0; }

bool StateWriter::shares_with(int fd) const {
  for (const StoredUnit& unit : file_.units)
    for (const StoredState& s : unit.states)
      if (s.bytes >= shared_unit_bytes) return clone_range({fd, 0, shared_unit_bytes}, fd_, s.offset);
  return false;
}

Status StateWriter::share_rest(std::size_t unit, std::size_t state, std::span<const std::uint64_t> sums,
                               const Places& places) {
  const StoredState& s = file_.units[unit].states[state];
  const std::span<std::uint64_t> own = std::span(sums_).subspan(s.first_sum, s.blocks());
  SLUICE_CHECK(sums.size() == own.size(), "(%zu checksums of %zu blocks)", sums.size(), own.size());
  for (std::size_t block = 0; block < own.size();) {
    if (own[block] != 0) {
      ++block;
      continue;
    }
    std::size_t end = block;
    for (; end < own.size() && own[end] == 0; ++end) own[end] = sums[end];
    const std::uint64_t begin_bytes = block * s.block_bytes,
                        bytes = std::min<std::uint64_t>(s.bytes, end * s.block_bytes) - begin_bytes;
    std::uint64_t to = s.offset + begin_bytes;
    for (const FileRange& range : places(begin_bytes, bytes)) {
      if (!clone_range(range, fd_, to)) return fault(path_ + ": blocks can not be shared: " + std::strerror(errno));
      to += range.bytes;
    }
    block = end;
  }
  return success();
}

Status StateWriter::start(std::size_t unit, std::size_t state, std::uint64_t offset_bytes,
                          std::span<const std::byte> data, StateTransfer& transfer) {
  SLUICE_CHECK(!transfer.open_, "%s: the transfer is in use", path_.c_str());
  const StoredState& s = file_.units[unit].states[state];
  set_sums(s, offset_bytes, data);
  transfer.request_ = {};
  transfer.request_.op = IoOp::write;
  transfer.request_.offset = s.offset + offset_bytes;
  transfer.request_.bytes = data.size();
  transfer.request_.data = const_cast<std::byte*>(data.data());  // only read, by an operation that writes
  transfer.request_.user = &transfer;
  transfer.done_ = false;
  while (!queue_->submit(&transfer.request_)) SLUICE_TRY(reap());
  transfer.open_ = true;
  queue_->flush();
  return success();
}

Status StateWriter::reap() {
  std::array<IoRequest*, 16> done{};
  SLUICE_ASSIGN(const std::size_t n, queue_->wait(1, done));
  for (std::size_t i = 0; i < n; ++i) static_cast<StateTransfer*>(done[i]->user)->done_ = true;
  return success();
}

Status StateWriter::finish(StateTransfer& transfer) {
  if (!transfer.open_) return success();
  while (!transfer.done_) SLUICE_TRY(reap());
  transfer.open_ = false;
  return queue_->status(transfer.request_);
}

Result<StoredFile> StateWriter::close() {
  SLUICE_TRY(queue_->drain());
  SLUICE_CHECK(std::find(sums_.begin(), sums_.end(), 0u) == sums_.end(), "%s: a block was not written", path_.c_str());
  if (fsync(fd_) != 0) return fault(path_ + ": sync failed: " + std::strerror(errno));
  queue_.reset();
  if (::close(std::exchange(fd_, -1)) != 0) return fault(path_ + ": close failed: " + std::strerror(errno));
  SLUICE_ASSIGN(file_.sums, write_sums(sums_path_, sums_));
  return file_;
}

}  // namespace sluice
