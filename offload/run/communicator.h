// Collectives as the executor sees them. Implementations: threads of one process (src/comm/in_process.h); MPI and NCCL
// come later.
//
// Every call is blocking, has a deadline and is woken by cancel(). On each channel the ranks meet in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// Who meets: `members` in rank order, `rank` is the caller's own. Meetings on different channels do not disturb each
/// other; a channel is an index of StepPlan::groups, or control_channel.
struct Meeting {
  std::int32_t channel = 0;
  std::span<const RankId> members;
  RankId rank = 0;
};
constexpr std::int32_t control_channel = -1;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankId ranks() const = 0;

  /// Call once before the threads of a plan start, when no collective is under way: forgets an earlier cancel() and
  /// makes channels 0 .. groups-1 and the control channel.
  virtual Status prepare(const std::vector<std::vector<RankId>>& groups) = 0;

  /// `full` is members x part bytes; the caller's own part lies at its position and is filled; the others' arrive.
  virtual Status all_gather(const Meeting& meeting, std::span<std::byte> full) = 0;

  /// part[i] = sum over members in rank order of full_m[position * part.size() + i]; full has members x part elements.
  /// `part` may be the caller's own part of `full`.
  virtual Status reduce_scatter(const Meeting& meeting, std::span<const float> full, std::span<float> part) = 0;

  /// Small and on the control channel: all = every member's `mine` in rank order.
  virtual Status exchange(const Meeting& meeting, std::span<const double> mine, std::span<double> all) = 0;

  /// Wakes everyone who waits; calls fail with `reason` until prepare(). From any thread.
  virtual void cancel(const std::string& reason) = 0;
};

}  // namespace sluice
