#include "offload/run/rank_team.h"

namespace sluice {

/// Asks every rank, whatever the others say. Who was cancelled tells of another's failure: that one's own words count.
template <class F>
Status RankTeam::each(F f) {
  Status worst;
  for (const auto& rank : ranks_) {
    Status s = f(*rank);
    if (s.ok()) continue;
    if (worst.ok() || (worst.error().code == ErrorCode::cancelled && s.error().code != ErrorCode::cancelled))
      worst = std::move(s);
  }
  return worst;
}

Status RankTeam::begin(std::span<const StepPlan* const> plans) {
  SLUICE_CHECK(plans.size() == ranks_.size(), "(%zu plans, %zu ranks)", plans.size(), ranks_.size());
  // All of them, also behind one that fails: those that meet have prepared as often as each other.
  std::size_t next = 0;
  std::vector<Executor*> bound;
  Status begun = each([&](Executor& e) {
    const std::size_t rank = next++;
    Status one = place_(rank, [&] { return e.begin(*plans[rank]); });
    if (one.ok()) bound.push_back(&e);
    return one;
  });
  if (begun.ok()) return begun;
  for (Executor* rank : bound) static_cast<void>(rank->end());
  return begun;
}

Status RankTeam::release(const StepParams& params) {
  return each([&](Executor& e) { return e.release(params); });
}

Status RankTeam::wait(std::uint64_t iteration) {
  return each([&](Executor& e) { return e.wait(iteration); });
}

Status RankTeam::end() {
  return each([](Executor& e) { return e.end(); });
}

void RankTeam::stop(const Error& reason) {
  for (const auto& rank : ranks_) rank->stop(reason);
}

MovedBytes RankTeam::moved() const {
  MovedBytes sum;
  for (const auto& rank : ranks_) sum += rank->moved();
  return sum;
}

MovedBytes RankTeam::moved(std::uint64_t iteration) const {
  MovedBytes sum;
  for (const auto& rank : ranks_) sum += rank->moved(iteration);
  return sum;
}

std::uint64_t RankTeam::errors() const {
  std::uint64_t sum = 0;
  for (const auto& rank : ranks_) sum += rank->errors();
  return sum;
}

}  // namespace sluice
