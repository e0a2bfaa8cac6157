#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/backend.h"

namespace sluice {
namespace {

/// The kernel registers buffers of at most 1 GiB; longer ones are registered in parts.
constexpr std::uint64_t fixed_buffer_bytes_max = 1u << 30;

class UringBackend final : public IoBackend {
 public:
  UringBackend() = default;
  ~UringBackend() override {
    // The kernel takes a ring apart in the background; files and memory should be free when this returns.
    if (fixed_files_) io_uring_unregister_files(&ring_);
    if (!fixed_.empty()) io_uring_unregister_buffers(&ring_);
    if (ring_made_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) close(wake_fd_);
  }
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;

  Status open(const BackendOptions& options) {
    wake_fd_ = eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return fault(fmt::format("eventfd: {}", std::strerror(errno)));
    // One entry more than the depth for the poll on the eventfd.
    const int rc = io_uring_queue_init(static_cast<unsigned>(options.depth) + 1, &ring_, 0);
    if (rc < 0) return fault(fmt::format("io_uring is not available: {}", std::strerror(-rc)));
    ring_made_ = true;
    register_files(options.files);
    register_buffers(options.buffers);
    return success();
  }

  std::string description() const {
    return fmt::format("io_uring, {} files, {}", fixed_files_ ? "fixed" : "plain", buffers_text_);
  }

  bool start(IoTransfer* t) override {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    const int fd = fixed_files_ ? static_cast<int>(t->file) : fds_[t->file];
    prepare(sqe, fd, *t);
    if (fixed_files_) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, t);
    // What the kernel does not take now (EAGAIN, EBUSY) stays in the ring and is offered again by reap.
    io_uring_submit(&ring_);
    return true;
  }

  Result<Reaped> reap(std::span<IoTransfer*> out, bool block, Deadline deadline) override {
    SLUICE_TRY(offer_again());
    Reaped reaped = collect(out);
    if (reaped.count > 0 || reaped.woken || !block) return reaped;
    SLUICE_TRY(offer_again());  // what was collected may have been the end of an earlier thread's wake poll
    io_uring_cqe* cqe = nullptr;
    int rc = 0;
    if (deadline == no_deadline) {
      rc = io_uring_wait_cqe(&ring_, &cqe);
    } else {
      const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
      __kernel_timespec ts{ns / 1000000000, ns % 1000000000};
      rc = io_uring_wait_cqe_timeout(&ring_, &cqe, &ts);
    }
    if (rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EAGAIN)
      return fault(fmt::format("waiting for io_uring failed: {}", std::strerror(-rc)));
    return collect(out);
  }

  void wake() override {
    const std::uint64_t one = 1;
    while (write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  void prepare(io_uring_sqe* sqe, int fd, const IoTransfer& t) const {
    if (t.op == IoOp::sync) {
      io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
      return;
    }
    const auto bytes = static_cast<unsigned>(t.bytes);
    const int buffer = fixed_buffer(t.data, t.bytes);
    if (t.op == IoOp::read && buffer >= 0) io_uring_prep_read_fixed(sqe, fd, t.data, bytes, t.offset, buffer);
    if (t.op == IoOp::read && buffer < 0) io_uring_prep_read(sqe, fd, t.data, bytes, t.offset);
    if (t.op == IoOp::write && buffer >= 0) io_uring_prep_write_fixed(sqe, fd, t.data, bytes, t.offset, buffer);
    if (t.op == IoOp::write && buffer < 0) io_uring_prep_write(sqe, fd, t.data, bytes, t.offset);
  }

  void register_files(std::span<const IoFile> files) {
    for (const IoFile& file : files) fds_.push_back(file.fd);
    fixed_files_ =
        !fds_.empty() && io_uring_register_files(&ring_, fds_.data(), static_cast<unsigned>(fds_.size())) == 0;
  }

  void register_buffers(std::span<const std::span<std::byte>> buffers) {
    for (std::span<std::byte> rest : buffers) {
      while (!rest.empty()) {
        const auto part = rest.first(std::min<std::uint64_t>(rest.size(), fixed_buffer_bytes_max));
        fixed_.push_back({part.data(), part.size()});
        rest = rest.subspan(part.size());
      }
    }
    if (fixed_.empty()) {
      buffers_text_ = "plain buffers";
      return;
    }
    std::sort(fixed_.begin(), fixed_.end(), [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
    const int rc = io_uring_register_buffers(&ring_, fixed_.data(), static_cast<unsigned>(fixed_.size()));
    if (rc < 0) {
      fixed_.clear();
      buffers_text_ = fmt::format("plain buffers (registering: {})", std::strerror(-rc));
      return;
    }
    buffers_text_ = fmt::format("{} fixed buffers", fixed_.size());
  }

  /// Index of the registered buffer that holds all of the range, or -1.
  int fixed_buffer(const std::byte* data, std::uint64_t bytes) const {
    const auto after = std::upper_bound(fixed_.begin(), fixed_.end(), data, [](const std::byte* p, const iovec& v) {
      return p < static_cast<const std::byte*>(v.iov_base);
    });
    if (after == fixed_.begin()) return -1;
    const auto it = after - 1;
    const std::uint64_t start = static_cast<std::uint64_t>(data - static_cast<const std::byte*>(it->iov_base));
    return start + bytes <= it->iov_len ? static_cast<int>(it - fixed_.begin()) : -1;
  }

  Status offer_again() {
    if (!wake_armed_) {
      // Armed by the thread that waits, so that it may differ from the one that made the ring.
      if (io_uring_sqe* sqe = io_uring_get_sqe(&ring_); sqe != nullptr) {
        io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
        io_uring_sqe_set_data(sqe, nullptr);
        wake_armed_ = true;
      }
    }
    if (io_uring_sq_ready(&ring_) == 0) return success();
    const int rc = io_uring_submit(&ring_);
    if (rc < 0 && rc != -EAGAIN && rc != -EBUSY && rc != -EINTR)
      return fault(fmt::format("submitting to io_uring failed: {}", std::strerror(-rc)));
    return success();
  }

  Reaped collect(std::span<IoTransfer*> out) {
    Reaped reaped;
    io_uring_cqe* cqe = nullptr;
    while (reaped.count < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* transfer = static_cast<IoTransfer*>(io_uring_cqe_get_data(cqe));
      if (transfer == nullptr) {
        // The poll is cancelled when the thread that armed it exits: then it is only armed anew.
        wake_armed_ = false;
        if (cqe->res > 0) reaped.woken = take_wake();
      } else {
        transfer->result = cqe->res;
        out[reaped.count++] = transfer;
      }
      io_uring_cqe_seen(&ring_, cqe);
    }
    return reaped;
  }

  bool take_wake() {
    std::uint64_t value = 0;
    while (read(wake_fd_, &value, sizeof value) < 0 && errno == EINTR) {
    }
    return value > 0;
  }

  io_uring ring_{};
  bool ring_made_ = false, fixed_files_ = false, wake_armed_ = false;
  int wake_fd_ = -1;
  std::vector<int> fds_;
  std::vector<iovec> fixed_;  ///< by address; the index is the kernel's
  std::string buffers_text_;
};

}  // namespace

Result<MadeBackend> make_uring_backend(const BackendOptions& options) {
  auto backend = std::make_unique<UringBackend>();
  SLUICE_TRY(backend->open(options));
  std::string description = backend->description();
  return MadeBackend{std::move(backend), std::move(description)};
}

}  // namespace sluice
