#include "offload/plan/happens_before.h"

#include <algorithm>

namespace sluice::planning {

void join(std::span<std::uint32_t> clock, Clock other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

HappensBefore::HappensBefore(const Program& program)
    : program_(program),
      lanes_(program.lanes()),
      starts_(std::size_t{program.nodes()} * lanes_),
      finishes_(std::size_t{program.nodes()} * lanes_),
      finish_order_(program.nodes()),
      started_(lanes_),
      finished_(lanes_),
      blocked_on_(lanes_, no_node) {
  for (std::size_t l = lanes_; l-- > 0;) ready_.push_back(static_cast<LaneId>(l));
  while (!ready_.empty()) {
    const LaneId lane = ready_.back();
    ready_.pop_back();
    advance(lane);
  }
  for (LaneId l = 0; l < static_cast<LaneId>(lanes_); ++l)
    if (finished_[l] < program.lane_nodes(l)) {
      const bool running = finished_[l] < started_[l];
      stuck_.push_back({program.at(l, finished_[l] + 1), running ? no_node : blocked_on_[l]});
    }
}

void HappensBefore::advance(LaneId lane) {
  while (try_finish(lane) || try_start(lane)) {
  }
}

bool HappensBefore::try_start(LaneId lane) {
  if (started_[lane] == program_.lane_nodes(lane)) return false;
  const bool windowed = program_.plan().lanes[lane].windowed;
  if (!windowed && started_[lane] != finished_[lane]) return false;
  const NodeId n = program_.at(lane, started_[lane] + 1);
  for (const Wait& w : program_.plan().ops[program_.op(n)].waits) {
    const NodeId target = program_.target(n, w);
    if (target == no_node || finished_[program_.lane(target)] >= program_.stamp(target)) continue;
    blocked_on_[lane] = target;
    return false;
  }
  blocked_on_[lane] = no_node;
  set_start(lane, n);
  ++started_[lane];
  return true;
}

bool HappensBefore::try_finish(LaneId lane) {
  if (finished_[lane] == started_[lane]) return false;
  const NodeId n = program_.at(lane, finished_[lane] + 1);
  set_finish(lane, n);
  finish_order_[n] = order_++;
  ++finished_[lane];
  for (LaneId l = 0; l < static_cast<LaneId>(lanes_); ++l)
    if (blocked_on_[l] == n) ready_.push_back(l);
  return true;
}

void HappensBefore::set_start(LaneId lane, NodeId n) {
  const std::span<std::uint32_t> clock{&starts_[std::size_t{n} * lanes_], lanes_};
  if (started_[lane] > 0) {
    const NodeId previous = program_.at(lane, started_[lane]);
    join(clock, program_.plan().lanes[lane].windowed ? start(previous) : finish(previous));
  }
  for (const Wait& w : program_.plan().ops[program_.op(n)].waits)
    if (const NodeId target = program_.target(n, w); target != no_node) join(clock, finish(target));
}

void HappensBefore::set_finish(LaneId lane, NodeId n) {
  const std::span<std::uint32_t> clock{&finishes_[std::size_t{n} * lanes_], lanes_};
  join(clock, start(n));
  if (finished_[lane] > 0) join(clock, finish(program_.at(lane, finished_[lane])));
  clock[lane] = std::max(clock[lane], program_.stamp(n));
}

std::vector<std::uint32_t> HappensBefore::lane_clock(NodeId n) const {
  const LaneId lane = program_.lane(n);
  const std::uint32_t stamp = program_.stamp(n);
  if (stamp == 1) return std::vector<std::uint32_t>(lanes_, 0);
  const NodeId previous = program_.at(lane, stamp - 1);
  const Clock clock = program_.plan().lanes[lane].windowed ? start(previous) : finish(previous);
  return {clock.begin(), clock.end()};
}

}  // namespace sluice::planning
