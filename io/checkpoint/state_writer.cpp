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

}  // namespace

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
  if (!may_share_ || data.size() % shared_unit_bytes != 0) return false;
  std::uint64_t to = s.offset + offset_bytes;
  for (const FileRange& range : from) {
    const file_clone_range clone{range.fd, range.offset, range.bytes, to};
    if (ioctl(fd_, FICLONERANGE, &clone) != 0) {
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
