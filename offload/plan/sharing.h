// How what several ops use at a time is shared out among them (internal to the simulation).
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace sluice::planning {

/// A capacity that is shared max-min fairly: who asks for little gets it, the others get equal parts of the rest.
class SharedResource {
 public:
  /// `users` equal users that each ask for `use` (1: all of a unit).
  void demand(double users, double use) {
    if (use > 0) demands_.push_back({use, users});
  }
  void clear() { demands_.clear(); }
  /// What each user can have at most.
  double level(double capacity) {
    std::sort(demands_.begin(), demands_.end());
    double users = 0;
    for (const auto& [use, count] : demands_) users += count;
    for (const auto& [use, count] : demands_) {
      if (use * users >= capacity) return std::max(capacity, 1e-300) / users;
      capacity -= use * count;
      users -= count;
    }
    return 1;
  }

 private:
  std::vector<std::pair<double, double>> demands_;
};

/// Who works on which core. A team, as compute ops have, holds a core per thread and is as slow as the most crowded of
/// them, since its parts are equal and end together; work of one thread goes to the emptiest core.
class Cores {
 public:
  explicit Cores(int cores) : load_(static_cast<std::size_t>(std::max(1, cores))), level_(load_.size(), 1) {}

  void clear() {
    for (const std::size_t i : in_use_) {
      load_[i].shared.clear();
      load_[i].asked = 0;
      level_[i] = 1;
    }
    in_use_.clear();
    next_ = 0;
  }
  /// Threads that each ask for `use` of a core. Teams come first. Returns a place to ask `level` for.
  std::size_t add(std::size_t threads, double use) {
    if (threads > 1) {
      const std::size_t first = next_;
      for (std::size_t i = 0; i < threads; ++i) put((first + i) % load_.size(), use);
      next_ = (first + threads) % load_.size();
      return first;
    }
    std::size_t best = 0;
    for (std::size_t i = 1; i < load_.size() && load_[best].asked > 0; ++i)
      if (load_[i].asked < load_[best].asked) best = i;
    put(best, use);
    return best;
  }
  void settle() {
    for (const std::size_t i : in_use_) level_[i] = load_[i].shared.level(1);
  }
  /// What each of the threads that were added at this place can have at most.
  double level(std::size_t place, std::size_t threads) const {
    double least = 1;
    for (std::size_t i = 0; i < threads; ++i) least = std::min(least, level_[(place + i) % level_.size()]);
    return least;
  }

 private:
  struct Core {
    SharedResource shared;
    double asked = 0;
  };
  void put(std::size_t core, double use) {
    if (load_[core].asked == 0) in_use_.push_back(core);
    load_[core].shared.demand(1, use);
    load_[core].asked += use;
  }
  std::vector<Core> load_;
  std::vector<double> level_;
  std::vector<std::size_t> in_use_;
  std::size_t next_ = 0;
};

}  // namespace sluice::planning
