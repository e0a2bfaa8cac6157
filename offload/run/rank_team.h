// The executors of the ranks of one process, as one: each has its own plan, memory, store and threads, and they meet in
// their communicators. What a controlling thread drives, with the rules of Executor.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/run/executor.h"

namespace sluice {

class RankTeam {
 public:
  /// Does something on behalf of the rank of that index: threads that it starts work where the rank is to work.
  using Place = std::function<Status(std::size_t index, const std::function<Status()>& work)>;
  /// By rank.
  explicit RankTeam(std::vector<std::unique_ptr<Executor>> ranks, Place place = anywhere)
      : ranks_(std::move(ranks)), place_(std::move(place)) {}

  /// One plan for each rank, of one kind; they outlive end().
  Status begin(std::span<const StepPlan* const> plans);
  Status release(const StepParams& params);
  /// Errors: of the rank that failed first, not those that its partners end with.
  Status wait(std::uint64_t iteration);
  Status end();
  void stop(const Error& reason);  ///< any thread

  MovedBytes moved() const;  ///< of all ranks, as is
  MovedBytes moved(std::uint64_t iteration) const;
  std::uint64_t errors() const;
  std::uint64_t peak_bytes(Tier tier, RankId rank) const { return ranks_[rank]->peak_bytes(tier); }
  Timeline timeline(RankId rank = 0) const { return ranks_[rank]->timeline(); }
  Executor& rank(RankId rank) { return *ranks_[rank]; }

 private:
  static Status anywhere(std::size_t, const std::function<Status()>& work) { return work(); }
  template <class F>
  Status each(F f);
  std::vector<std::unique_ptr<Executor>> ranks_;
  Place place_;
};

}  // namespace sluice
