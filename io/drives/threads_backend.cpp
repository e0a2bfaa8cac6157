#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/drives/backend.h"

namespace sluice {
namespace {

/// Each has one transfer in flight.
constexpr std::size_t threads_usual = 16;

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
    lines_.resize(files.size() * 2);
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
      lines_[t->file * 2 + (t->op == IoOp::read ? 0 : 1)].push(t);
      ++waiting_;
      ++running_;
    }
    work_there_.notify_one();
    return true;
  }

  void flush() override {}

  Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const std::size_t wanted = std::min(min_completions, std::max<std::size_t>(1, running_));
    const auto enough = [this, wanted] { return done_count_ >= wanted || woken_; };
    wanted_ = wanted;
    if (deadline == no_deadline) {
      result_there_.wait(lock, enough);
    } else {
      result_there_.wait_until(lock, deadline, enough);
    }
    Reaped reaped;
    while (reaped.count < out.size() && !done_.empty()) out[reaped.count++] = done_.pop();
    done_count_ -= reaped.count;
    running_ -= reaped.count;
    reaped.woken = std::exchange(woken_, false);
    return reaped;
  }

  void cancel() override {
    const std::lock_guard lock(mutex_);
    while (waiting_ > 0) {
      IoTransfer* t = next();
      t->result = -ECANCELED;
      finish(t);
    }
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
      work_there_.wait(lock, [this] { return stop_ || waiting_ > 0; });
      if (waiting_ == 0) return;
      IoTransfer* t = next();
      lock.unlock();
      t->result = perform(fds_[t->file], *t);
      lock.lock();
      finish(t);
      if (done_count_ >= wanted_) result_there_.notify_one();
    }
  }

  /// From the lines in turn, so that many writes do not keep a read waiting, nor one drive another.
  IoTransfer* next() {
    while (lines_[turn_].empty()) turn_ = (turn_ + 1) % lines_.size();
    IoTransfer* t = lines_[turn_].pop();
    turn_ = (turn_ + 1) % lines_.size();
    --waiting_;
    return t;
  }

  void finish(IoTransfer* t) {
    done_.push(t);
    ++done_count_;
  }

  std::vector<int> fds_;
  std::mutex mutex_;
  std::condition_variable work_there_, result_there_;
  std::vector<IoTransferList> lines_;  ///< [file * 2 + direction]
  IoTransferList done_;
  std::size_t turn_ = 0, waiting_ = 0, done_count_ = 0, running_ = 0;
  std::size_t wanted_ = 1;  ///< completions that whoever reaps waits for
  bool stop_ = false, woken_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<MadeBackend> make_threads_backend(const BackendOptions& options) {
  const std::size_t wanted = options.threads > 0 ? options.threads : threads_usual;
  const std::size_t threads = std::clamp<std::size_t>(wanted, 1, options.capacity);
  auto backend = std::make_unique<ThreadsBackend>(options.files);
  SLUICE_TRY(backend->open(threads));
  return MadeBackend{std::move(backend), fmt::format("threads, {} workers", threads)};
}

}  // namespace sluice
