// A device that works later and beside the host, made of threads: what a GPU's streams are to the executor.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "offload/run/device_queue.h"

namespace sluice::test {

/// Work runs on the queue's own thread, in order, after random pauses where a seed is given.
class ThreadQueue final : public DeviceQueue {
 public:
  explicit ThreadQueue(std::uint64_t delay_seed) : random_(delay_seed), delays_(delay_seed != 0) {
    thread_ = std::thread([this] { work(); });
  }
  ~ThreadQueue() override {
    put([this] {
      done_ = true;
      return success();
    });
    thread_.join();
  }

  void put(std::function<Status()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) override {
    put([=] {
      std::memcpy(dst, src, bytes);
      return success();
    });
    return success();
  }
  Status mark(std::uint64_t mark) override {
    const std::lock_guard lock(mutex_);
    Event& event = events_[mark % marks_in_flight];
    SLUICE_CHECK(event.set == event.reached, "mark %llu is set before it was reached",
                 static_cast<unsigned long long>(mark));
    const std::uint64_t set = ++event.set;
    tasks_.push_back([this, mark, set] {
      const std::lock_guard inner(mutex_);
      Event& own = events_[mark % marks_in_flight];
      own.reached = set;
      own.result = failed_;
      changed_.notify_all();
      return success();
    });
    changed_.notify_all();
    return success();
  }
  Status wait_for(const DeviceQueue& other, std::uint64_t mark) override {
    auto& queue = const_cast<ThreadQueue&>(static_cast<const ThreadQueue&>(other));
    std::uint64_t set = 0;
    {
      const std::lock_guard lock(queue.mutex_);
      set = queue.events_[mark % marks_in_flight].set;
    }
    put([&queue, mark, set] {
      std::unique_lock lock(queue.mutex_);
      queue.changed_.wait(lock, [&] { return queue.events_[mark % marks_in_flight].reached >= set; });
      return success();
    });
    return success();
  }
  Result<Ran> await(std::uint64_t mark) override {
    std::unique_lock lock(mutex_);
    Event& event = events_[mark % marks_in_flight];
    changed_.wait(lock, [&] { return event.reached == event.set; });
    if (!event.result.ok()) return event.result.error();
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    const Ran ran{std::max(last_end_, now - 1e-9), now};
    last_end_ = now;
    return ran;
  }

 private:
  struct Event {
    std::uint64_t set = 0, reached = 0;
    Status result;
  };
  void work() {
    while (!done_) {
      std::function<Status()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (delays_ && random_() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      const Status status = task();
      const std::lock_guard lock(mutex_);
      if (failed_.ok() && !status.ok()) failed_ = status;
    }
  }

  std::mt19937_64 random_;
  bool delays_, done_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> tasks_;
  std::array<Event, marks_in_flight> events_;
  Status failed_;
  double last_end_ = 0;
  std::thread thread_;
};

}  // namespace sluice::test
