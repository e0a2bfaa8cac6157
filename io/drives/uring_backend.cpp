#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "io/drives/backend.h"

namespace sluice {
namespace {

constexpr std::size_t ring_entries_max = 4096;
/// How long the submitting kernel thread stays awake without work.
constexpr unsigned sqpoll_idle_ms = 20;
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
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return fault(fmt::format("eventfd: {}", std::strerror(errno)));
    if (options.iopoll) SLUICE_TRY(require_poll_queues(options.files));
    polls_ = options.iopoll;
    SLUICE_TRY(make_ring(options));
    register_files(options.files);
    register_buffers(options.buffers);
    return success();
  }

  std::string description() const {
    return fmt::format("io_uring{}{}, {} files, {}", sqpoll_ ? ", sqpoll" : "", polls_ ? ", iopoll" : "",
                       fixed_files_ ? "fixed" : "plain", buffers_text_);
  }

  bool start(IoTransfer* t) override {
    if (polls_ && t->op == IoOp::sync) return sync_here(t);
    io_uring_sqe* sqe = next_entry();
    if (sqe == nullptr) return false;
    const int fd = fixed_files_ ? static_cast<int>(t->file) : fds_[t->file];
    prepare(sqe, fd, *t);
    if (fixed_files_) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, t);
    ++running_;
    return true;
  }

  void flush() override {
    // What the kernel does not take now (EAGAIN, EBUSY) stays in the ring and is offered again by reap.
    if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
  }

  Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) override {
    if (!polls_) arm_wake();
    Reaped reaped = collect(out);
    if (reaped.count >= min_completions || reaped.woken) {
      SLUICE_TRY(submitted(io_uring_sq_ready(&ring_) > 0 ? io_uring_submit(&ring_) : 0));
      return reaped;
    }
    if (!polls_) arm_wake();  // what was collected may have been the end of an earlier thread's wake poll
    SLUICE_TRY(polls_ && running_ == 0 ? sleep_until_woken(deadline)
                                       : submit_and_wait(min_completions - reaped.count, deadline));
    const Reaped more = collect(out.subspan(reaped.count));
    return Reaped{reaped.count + more.count, more.woken || (polls_ && take_wake())};
  }

  void cancel() override {
    io_uring_sqe* sqe = next_entry();
    if (sqe == nullptr) return;
    // The poll for wake-ups is cancelled as well, and armed anew when that arrives.
    io_uring_prep_cancel(sqe, nullptr, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data(sqe, &cancel_tag_);
    flush();
  }

  void wake() override {
    const std::uint64_t one = 1;
    while (write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  Status make_ring(const BackendOptions& options) {
    // One entry more than there are transfers for the poll on the eventfd; a full ring is submitted early.
    const auto entries = static_cast<unsigned>(std::min<std::size_t>(options.capacity + 1, ring_entries_max));
    int rc = 0;
    // The second attempt is for kernels that lack what the first one asks for (before 5.19).
    for (const unsigned spare : {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0u}) {
      io_uring_params params{};
      params.flags = options.sqpoll ? IORING_SETUP_SQPOLL : spare;
      if (options.iopoll) params.flags |= IORING_SETUP_IOPOLL;
      params.sq_thread_idle = sqpoll_idle_ms;
      rc = io_uring_queue_init_params(entries, &ring_, &params);
      if (rc != -EINVAL) break;
    }
    if (rc < 0) return fault(fmt::format("io_uring is not available: {}", std::strerror(-rc)));
    ring_made_ = true;
    sqpoll_ = options.sqpoll;
    return success();
  }

  static Status require_poll_queues(std::span<const IoFile> files) {
    for (const IoFile& file : files) {
      struct stat st {};
      if (fstat(file.fd, &st) != 0) continue;
      const std::string device = fmt::format("/sys/dev/block/{}:{}", major(st.st_dev), minor(st.st_dev));
      bool polls = false;
      for (const char* queue : {"/queue/io_poll", "/../queue/io_poll"}) {  // a disk's, or that of a partition's disk
        std::ifstream in(device + queue);
        int value = 0;
        polls = polls || (in >> value && value == 1);
      }
      if (!polls || file.alignment_bytes == 1)
        return fault(fmt::format("{}: its drive has no queues for polled I/O (for NVMe: nvme.poll_queues)", file.path));
    }
    return success();
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe != nullptr) return sqe;
    io_uring_submit(&ring_);
    return io_uring_get_sqe(&ring_);
  }

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

  void arm_wake() {
    // By the thread that waits, which may differ from the one that made the ring.
    if (wake_armed_) return;
    io_uring_sqe* sqe = next_entry();
    if (sqe == nullptr) return;
    io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
    io_uring_sqe_set_data(sqe, nullptr);
    wake_armed_ = true;
  }

  static Status submitted(int rc) {
    if (rc >= 0 || rc == -ETIME || rc == -EAGAIN || rc == -EBUSY || rc == -EINTR) return success();
    return fault(fmt::format("io_uring failed: {}", std::strerror(-rc)));
  }

  Status submit_and_wait(std::size_t wanted, Deadline deadline) {
    const auto count = static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, running_)));
    if (deadline == no_deadline) return submitted(io_uring_submit_and_wait(&ring_, count));
    const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    __kernel_timespec ts{ns / 1000000000, ns % 1000000000};
    io_uring_cqe* cqe = nullptr;
    return submitted(io_uring_submit_and_wait_timeout(&ring_, &cqe, count, &ts, nullptr));
  }

  // A ring that polls drives can not poll an eventfd.
  Status sleep_until_woken(Deadline deadline) {
    int milliseconds = -1;
    if (deadline != no_deadline) {
      const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
      milliseconds =
          static_cast<int>(std::min<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 1 << 30));
    }
    pollfd wake{wake_fd_, POLLIN, 0};
    if (poll(&wake, 1, milliseconds) < 0 && errno != EINTR)
      return fault(fmt::format("waiting for a wake-up failed: {}", std::strerror(errno)));
    return success();
  }

  bool sync_here(IoTransfer* t) {
    t->result = fdatasync(fds_[t->file]) == 0 ? 0 : -errno;
    finished_here_.push(t);
    return true;
  }

  Reaped collect(std::span<IoTransfer*> out) {
    Reaped reaped;
    while (reaped.count < out.size() && !finished_here_.empty()) out[reaped.count++] = finished_here_.pop();
    io_uring_cqe* cqe = nullptr;
    while (reaped.count < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      void* const data = io_uring_cqe_get_data(cqe);
      if (data == nullptr) {
        // The poll is cancelled when the thread that armed it exits: then it is only armed anew.
        wake_armed_ = false;
        if (cqe->res > 0) reaped.woken = take_wake();
      } else if (data != &cancel_tag_) {
        auto* transfer = static_cast<IoTransfer*>(data);
        transfer->result = cqe->res;
        out[reaped.count++] = transfer;
        --running_;
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
  bool ring_made_ = false, fixed_files_ = false, wake_armed_ = false, sqpoll_ = false, polls_ = false;
  int wake_fd_ = -1;
  char cancel_tag_ = 0;
  std::size_t running_ = 0;  ///< started and not collected
  IoTransferList finished_here_;
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
