#include "io/weights/stream_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/aligned_memory.h"
#include "io/files/os_error.h"
#include "sluice/round.h"

namespace sluice {
namespace {

/// Room now, so that a full drive says so before anything is written; and writes beside each other need the file to be
/// as long as they reach.
Status reserve(int fd, const std::string& path, std::uint64_t bytes) {
  if (bytes == 0) return success();
  int rc = -1;
  do rc = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  while (rc != 0 && errno == EINTR);
  if (rc != 0 && errno == EOPNOTSUPP) rc = ftruncate(fd, static_cast<off_t>(bytes));
  return rc == 0 ? success() : Status(os_fault(path, "taking the room for it"));
}

}  // namespace

Result<std::unique_ptr<StreamWriter>> StreamWriter::create(int fd, const std::string& path, std::uint64_t bytes,
                                                           const Options& options) {
  std::unique_ptr<StreamWriter> writer(new StreamWriter(fd, path, bytes));
  SLUICE_TRY(writer->open(options));
  return writer;
}

Status StreamWriter::open(const Options& options) {
  flags_ = fcntl(fd_, F_GETFL);
  if (flags_ < 0) return os_fault(path_, "fcntl");
  if (options.direct && fcntl(fd_, F_SETFL, flags_ | O_DIRECT) == 0) unit_ = direct_alignment_bytes;
  const std::uint64_t whole = round_up(bytes_, unit_);
  SLUICE_TRY(reserve(fd_, path_, whole));
  chunk_bytes_ = options.chunk_bytes;
  requests_.resize(std::clamp<std::uint64_t>((whole + chunk_bytes_ - 1) / chunk_bytes_, 1, options.in_flight));
  memory_ = AlignedMemory(chunk_bytes_ * requests_.size());
  QueueOptions queue = options.queue;
  queue.depth = requests_.size();
  queue.files = {{fd_, path_, static_cast<std::uint32_t>(unit_)}};
  queue.buffers = {memory_.span()};
  SLUICE_ASSIGN(queue_, make_queue(queue));
  return success();
}

StreamWriter::~StreamWriter() {
  queue_.reset();
  if (flags_ >= 0) static_cast<void>(fcntl(fd_, F_SETFL, flags_));
}

Status StreamWriter::wait_for(const IoRequest& request) {
  std::array<IoRequest*, 16> done;
  while (request.user != nullptr) {
    SLUICE_ASSIGN(const std::size_t count, queue_->wait(1, done));
    for (IoRequest* each : std::span(done).first(count)) {
      each->user = nullptr;
      SLUICE_TRY(queue_->status(*each));
    }
  }
  return success();
}

/// Starts the write of the current chunk, to the next multiple of the unit: the file is cut to its size at the end.
void StreamWriter::write_chunk() {
  IoRequest& request = requests_[current_];
  std::byte* const data = memory_.data() + current_ * chunk_bytes_;
  const std::uint64_t bytes = round_up(filled_, unit_);
  std::fill(data + filled_, data + bytes, std::byte{0});
  request = IoRequest{};
  request.op = IoOp::write;
  request.offset = end_ - filled_;
  request.bytes = bytes;
  request.data = data;
  request.user = this;
  SLUICE_CHECK(queue_->submit(&request), "a window of %zu refused", requests_.size());
  queue_->flush();
  filled_ = 0;
  current_ = (current_ + 1) % requests_.size();
}

Status StreamWriter::append(std::span<const std::byte> data) {
  SLUICE_CHECK(data.size() <= bytes_ - end_, "%s: %zu bytes at %llu of %llu", path_.c_str(), data.size(),
               static_cast<unsigned long long>(end_), static_cast<unsigned long long>(bytes_));
  while (!data.empty()) {
    if (filled_ == 0) SLUICE_TRY(wait_for(requests_[current_]));
    const std::uint64_t n = std::min<std::uint64_t>(data.size(), chunk_bytes_ - filled_);
    std::memcpy(memory_.data() + current_ * chunk_bytes_ + filled_, data.data(), n);
    filled_ += n;
    end_ += n;
    data = data.subspan(n);
    if (filled_ == chunk_bytes_) write_chunk();
  }
  return success();
}

Status StreamWriter::finish() {
  SLUICE_CHECK(end_ == bytes_, "%s: %llu of %llu bytes", path_.c_str(), static_cast<unsigned long long>(end_),
               static_cast<unsigned long long>(bytes_));
  if (filled_ > 0) write_chunk();
  for (const IoRequest& request : requests_) SLUICE_TRY(wait_for(request));
  if (fcntl(fd_, F_SETFL, flags_) != 0) return os_fault(path_, "fcntl");
  if (bytes_ % unit_ != 0 && ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) return os_fault(path_, "ftruncate");
  return success();
}

}  // namespace sluice
