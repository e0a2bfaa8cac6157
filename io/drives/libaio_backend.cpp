#include <fcntl.h>
#include <fmt/format.h>
#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/drives/backend.h"

namespace sluice {
namespace {

class LibaioBackend final : public IoBackend {
 public:
  explicit LibaioBackend(const BackendOptions& options)
      : blocks_(options.capacity + 1), batch_(blocks_.size()), events_(blocks_.size()) {
    for (const IoFile& file : options.files) fds_.push_back(file.fd);
    for (iocb& block : blocks_) free_.push_back(&block);
  }
  ~LibaioBackend() override {
    if (context_ != nullptr) io_destroy(context_);
    if (wake_fd_ >= 0) close(wake_fd_);
  }
  LibaioBackend(const LibaioBackend&) = delete;
  LibaioBackend& operator=(const LibaioBackend&) = delete;

  Status open() {
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return fault(fmt::format("eventfd: {}", std::strerror(errno)));
    int rc = io_setup(static_cast<int>(blocks_.size()), &context_);
    if (rc == -EAGAIN)
      return fault(fmt::format("libaio has no room for {} requests: raise fs.aio-max-nr", blocks_.size()));
    if (rc < 0) return fault(fmt::format("libaio is not available: {}", std::strerror(-rc)));
    arm_wake();
    iocb* armed = batch_[0];
    rc = io_submit(context_, 1, &armed);
    if (rc != 1) return fault(fmt::format("libaio can not wait for a wake-up: {}", std::strerror(-rc)));
    batched_ = 0;
    return success();
  }

  bool start(IoTransfer* t) override {
    if (free_.empty()) return false;
    iocb* block = free_.back();
    free_.pop_back();
    const auto offset = static_cast<long long>(t->offset);
    switch (t->op) {
      case IoOp::read: io_prep_pread(block, fds_[t->file], t->data, t->bytes, offset); break;
      case IoOp::write: io_prep_pwrite(block, fds_[t->file], t->data, t->bytes, offset); break;
      case IoOp::sync: io_prep_fdsync(block, fds_[t->file]); break;
    }
    block->data = t;
    batch_[batched_++] = block;
    ++running_;
    return true;
  }

  void flush() override {
    std::size_t done = 0;
    while (done < batched_) {
      const int rc = io_submit(context_, static_cast<long>(batched_ - done), batch_.data() + done);
      if (rc > 0) {
        done += static_cast<std::size_t>(rc);
      } else if (rc == -EAGAIN || rc == -EINTR || rc == 0) {
        break;  // offered again by reap
      } else {
        refuse(batch_[done++], rc);
      }
    }
    std::copy(batch_.begin() + static_cast<std::ptrdiff_t>(done),
              batch_.begin() + static_cast<std::ptrdiff_t>(batched_), batch_.begin());
    batched_ -= done;
  }

  Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) override {
    if (!wake_armed_) arm_wake();
    flush();
    Reaped reaped;
    while (reaped.count < out.size() && !refused_.empty()) out[reaped.count++] = refused_.pop();
    running_ -= reaped.count;
    const std::size_t missing = min_completions - std::min(min_completions, reaped.count);
    const std::size_t wanted = std::min(missing, std::max<std::size_t>(1, running_));
    timespec left{};
    if (deadline != no_deadline) left = until(deadline);
    const bool forever = wanted > 0 && deadline == no_deadline;
    const auto room = static_cast<long>(std::min(out.size() - reaped.count + 1, events_.size()));
    const int rc = io_getevents(context_, static_cast<long>(wanted), room, events_.data(), forever ? nullptr : &left);
    if (rc < 0 && rc != -EINTR) return fault(fmt::format("waiting for libaio failed: {}", std::strerror(-rc)));
    for (int i = 0; i < rc; ++i) collect(events_[static_cast<std::size_t>(i)], out, reaped);
    return reaped;
  }

  void cancel() override {}  // the kernel takes no request back from a drive

  void wake() override {
    const std::uint64_t one = 1;
    while (write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  void arm_wake() {
    io_prep_poll(&wake_block_, wake_fd_, POLLIN);
    wake_block_.data = nullptr;
    batch_[batched_++] = &wake_block_;
    wake_armed_ = true;
  }

  static timespec until(Deadline deadline) {
    const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    return {ns / 1000000000, ns % 1000000000};
  }

  /// A request that the kernel did not take: the first of a batch, and it says why.
  void refuse(iocb* block, int error) {
    if (block == &wake_block_) {
      wake_armed_ = false;
      return;
    }
    auto* transfer = static_cast<IoTransfer*>(block->data);
    transfer->result = error;
    // Kernels before 4.18 sync only in the caller's time.
    if (transfer->op == IoOp::sync && error == -EINVAL)
      transfer->result = fdatasync(fds_[transfer->file]) == 0 ? 0 : -errno;
    free_.push_back(block);
    refused_.push(transfer);
  }

  void collect(const io_event& event, std::span<IoTransfer*> out, Reaped& reaped) {
    if (event.data == nullptr) {
      wake_armed_ = false;
      std::uint64_t value = 0;
      reaped.woken = read(wake_fd_, &value, sizeof value) > 0;
      return;
    }
    auto* transfer = static_cast<IoTransfer*>(event.data);
    transfer->result = static_cast<std::int64_t>(event.res);
    free_.push_back(event.obj);
    --running_;
    if (reaped.count < out.size()) {
      out[reaped.count++] = transfer;
    } else {
      refused_.push(transfer);  // one more than there is room for, where the wake-up was expected
      ++running_;
    }
  }

  io_context_t context_ = nullptr;
  int wake_fd_ = -1;
  bool wake_armed_ = false;
  std::vector<int> fds_;
  std::vector<iocb> blocks_;
  iocb wake_block_{};
  std::vector<iocb*> free_, batch_;
  std::size_t batched_ = 0;
  std::size_t running_ = 0;  ///< started and not reaped
  std::vector<io_event> events_;
  IoTransferList refused_;  ///< finished without an event, or reaped too many
};

}  // namespace

Result<MadeBackend> make_libaio_backend(const BackendOptions& options) {
  auto backend = std::make_unique<LibaioBackend>(options);
  SLUICE_TRY(backend->open());
  return MadeBackend{std::move(backend), "libaio"};
}

}  // namespace sluice
