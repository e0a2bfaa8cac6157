// How a stop that was asked for becomes one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "offload/run/rank_team.h"

namespace sluice {

/// Ends what the team runs so many seconds after a stop was asked for, while it lives. All must outlive it.
class Impatience {
 public:
  Impatience(const std::atomic<bool>& stop, RankTeam& team, double seconds)
      : thread_([this, &stop, &team, seconds] {
          std::unique_lock lock(mutex_);
          const auto until_left = [](double wait) { return std::chrono::duration<double>(wait); };
          while (!left_ && !stop.load()) changed_.wait_for(lock, until_left(0.02), [this] { return left_; });
          if (!left_) changed_.wait_for(lock, until_left(seconds), [this] { return left_; });
          // Again and again: between two plans nothing is bound that could be stopped.
          while (!left_) {
            team.stop({ErrorCode::cancelled, "stopped by a signal"});
            changed_.wait_for(lock, until_left(0.02), [this] { return left_; });
          }
        }) {}
  ~Impatience() {
    {
      const std::lock_guard lock(mutex_);
      left_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Impatience(const Impatience&) = delete;
  Impatience& operator=(const Impatience&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool left_ = false;
  std::thread thread_;
};

}  // namespace sluice
