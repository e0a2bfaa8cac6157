// The smallest budgets that a run can do with.
//
// There is a family of schedules that take little memory: one for each order of updates, for all micro-batches in one
// group and for one by one, for two sizes of tiles; and of each of these a chain that begins with everything on the
// drive. Where the drive is too small, activations and accumulators move to the device as far as that has room, and
// then, kind by kind and unit by unit, things move to host memory until the rest fits the drive. So a device and a
// drive decide how much host memory the family needs, and a run is possible where there is as much. The smallest
// budgets are the borders of that, and hold to the page: at them a run fits, with a page less of any it is refused.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "src/schedule/needs.h"
#include "src/schedule/wish.h"

namespace sluice {

/// Of a tier's least bytes: none where the other two are too small for any amount.
struct LeastBytes {
  std::optional<std::uint64_t> device, host, nvme;
};

class FrugalFamily {
 public:
  /// Both outlive it. The budgets of the workload are not looked at. A budget here is bytes; `unlimited` for none.
  static constexpr std::uint64_t unlimited = ~0ull;
  FrugalFamily(const Workload& workload, const ScheduleWish& wish);

  /// A member that keeps the budgets; none: no run does.
  std::optional<Schedule> fit(const TierBytes& budgets) const;
  std::size_t bases() const { return bases_.size(); }
  /// Where on the chain of a base a member was found. It is near there for workloads that are alike, too.
  struct Spot {
    std::size_t on_device = 0, to_host = 0;
  };
  /// Whether there is one on the chain of this base. Looked for about `near` first, which is then where it was.
  bool fits(std::size_t base, const TierBytes& budgets, Spot& near) const;
  /// What each tier needs at least with the other two as given.
  LeastBytes least(const TierBytes& budgets) const;
  /// The least device with as much of the others as one likes, then the least host memory, then the least drive. With
  /// a limit on the drive (0: none), that is kept.
  TierBytes corner(std::uint64_t nvme_limit = unlimited) const;

 private:
  /// A base, and where on its chain: units whose activations or accumulators are on the device, moves to host memory.
  struct Member {
    std::size_t base;
    std::size_t on_device = 0, to_host = 0;
    bool operator<(const Member& o) const {
      return std::tie(base, on_device, to_host) < std::tie(o.base, o.on_device, o.to_host);
    }
  };
  Schedule schedule(const Member& m) const;
  const TierBytes& packed(const Member& m) const;
  const TierBytes& live(const Member& m) const;
  // of one base
  /// Not looked for where it takes more than `most_host`.
  std::optional<Member> with_least_host(std::size_t base, std::uint64_t device, std::uint64_t nvme,
                                        std::uint64_t most_host = unlimited, Spot* near = nullptr) const;
  std::optional<Member> relieved(Member m, std::uint64_t nvme, std::uint64_t most_host = unlimited,
                                 Spot* near = nullptr) const;
  std::size_t most_on_device(std::size_t base, std::uint64_t device, Spot* near = nullptr) const;
  std::optional<std::uint64_t> device_of(std::size_t base, std::uint64_t host, std::uint64_t nvme) const;
  /// Not looked for where it is no less than `below`.
  std::optional<std::uint64_t> nvme_of(std::size_t base, std::uint64_t device, std::uint64_t host,
                                       std::uint64_t below) const;
  // of all
  std::optional<std::uint64_t> least_device(std::uint64_t host, std::uint64_t nvme) const;
  std::optional<std::uint64_t> least_host(std::uint64_t device, std::uint64_t nvme) const;
  std::optional<std::uint64_t> least_nvme(std::uint64_t device, std::uint64_t host) const;

  const Workload& work_;
  const ScheduleWish& wish_;
  std::vector<Place UnitChoice::*> leaving_,
      to_device_;  ///< things that leave the drive, or go to the device, in this order
  std::vector<Schedule> bases_;
  mutable std::map<Member, TierBytes> packed_, live_;
};

}  // namespace sluice
