#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/backend.h"

namespace sluice {
namespace {

/// First in, first out, through IoTransfer::next.
class TransferList {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(IoTransfer* t) {
    t->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = t;
    last_ = t;
  }
  IoTransfer* pop() {
    IoTransfer* t = first_;
    first_ = t->next;
    return t;
  }

 private:
  IoTransfer* first_ = nullptr;
  IoTransfer* last_ = nullptr;
};

std::int64_t perform(int fd, const IoTransfer& t) {
  const auto offset = static_cast<off_t>(t.offset);
  ssize_t result = -1;
  switch (t.op) {
    case IoOp::read: result = pread(fd, t.data, t.bytes, offset); break;
    case IoOp::write: result = pwrite(fd, t.data, t.bytes, offset); break;
    case IoOp::sync: result = fdatasync(fd); break;
  }
  return result < 0 ? -errno : result;
}

class ThreadsBackend final : public IoBackend {
 public:
  explicit ThreadsBackend(std::span<const IoFile> files) {
    for (const IoFile& file : files) fds_.push_back(file.fd);
  }
  ~ThreadsBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_there_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  ThreadsBackend(const ThreadsBackend&) = delete;
  ThreadsBackend& operator=(const ThreadsBackend&) = delete;

  Status open(std::size_t threads) {
    try {
      for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      return fault(fmt::format("can not start I/O threads: {}", e.what()));
    }
    return success();
  }

  bool start(IoTransfer* t) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push(t);
    }
    work_there_.notify_one();
    return true;
  }

  Result<Reaped> reap(std::span<IoTransfer*> out, bool block, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto something = [this] { return !done_.empty() || woken_; };
    if (block && deadline == no_deadline) result_there_.wait(lock, something);
    if (block && deadline != no_deadline) result_there_.wait_until(lock, deadline, something);
    Reaped reaped;
    while (reaped.count < out.size() && !done_.empty()) out[reaped.count++] = done_.pop();
    reaped.woken = std::exchange(woken_, false);
    return reaped;
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    result_there_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      IoTransfer* t = waiting_.pop();
      lock.unlock();
      t->result = perform(fds_[t->file], *t);
      lock.lock();
      done_.push(t);
      result_there_.notify_one();
    }
  }

  std::vector<int> fds_;
  std::mutex mutex_;
  std::condition_variable work_there_, result_there_;
  TransferList waiting_, done_;
  bool stop_ = false, woken_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<MadeBackend> make_threads_backend(const BackendOptions& options) {
  const std::size_t threads = std::clamp<std::size_t>(options.threads, 1, options.depth);
  auto backend = std::make_unique<ThreadsBackend>(options.files);
  SLUICE_TRY(backend->open(threads));
  return MadeBackend{std::move(backend), fmt::format("{} threads", threads)};
}

}  // namespace sluice
