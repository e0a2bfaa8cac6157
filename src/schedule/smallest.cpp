#include "src/schedule/smallest.h"

#include <algorithm>
#include <functional>
#include <set>

namespace sluice {
namespace {

/// Steps along a chain from where live bytes say that a budget is kept to where the packed arena keeps it.
constexpr std::size_t packing_steps_max = 16;

/// Things that leave the drive, least traffic first.
constexpr std::array<Place UnitChoice::*, 5> leaving{&UnitChoice::boundary, &UnitChoice::accumulator,
                                                     &UnitChoice::gradient, &UnitChoice::state_home,
                                                     &UnitChoice::parameter_home};

/// The first of [0, count] for which `holds`, which then holds for all behind it; count + 1 if it never does. With a
/// guess, what is next to that is asked, then what is further and further away, until the border lies between two.
std::size_t first_of(std::size_t count, const std::function<bool(std::size_t)>& holds,
                     std::optional<std::size_t> guess = {}) {
  std::size_t low = 0, high = count + 1;
  bool is_above = !guess, is_below = !guess;  // what is known of the border: above low - 1, not above high
  std::size_t at = guess ? std::min(*guess, count) : high / 2;
  for (std::size_t stride = 1; low < high; stride *= 2) {
    if (holds(at)) {
      high = at;
      is_below = true;
    } else {
      low = at + 1;
      is_above = true;
    }
    if (is_above && is_below)
      at = (low + high) / 2;
    else
      at = is_above ? std::min(low + stride, high) - 1 : high - std::min(stride, high - low);
  }
  return low;
}

std::optional<std::uint64_t> lesser(const std::optional<std::uint64_t>& a, const std::optional<std::uint64_t>& b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

}  // namespace

FrugalFamily::FrugalFamily(const Workload& workload, const ScheduleWish& wish)
    : work_(workload),
      wish_(wish),
      leaving_(leaving.begin(), leaving.end()),
      to_device_{&UnitChoice::boundary, &UnitChoice::accumulator} {
  if (workload.shape.slices > 1) {
    leaving_.insert(leaving_.begin() + 1, &UnitChoice::blocks);
    to_device_.push_back(&UnitChoice::blocks);
  }
  std::set<std::tuple<bool, int, std::uint64_t>> kinds;
  const std::vector<int> groups = open_groups(workload, wish);
  for (const int group : {groups.back(), groups.front()})
    for (const bool ahead : open_updates(workload, wish))
      for (const std::uint64_t tile : {tile_for(workload, 1u << 18, 4096), tile_for(workload, 1u << 16, 4096),
                                       tile_for(workload, 1u << 12, 4096)}) {
        if (!kinds.emplace(ahead, group, tile).second) continue;
        Schedule s = frugal_schedule(workload, wish.pipeline);
        s.group = group;
        s.update_ahead = ahead;
        s.tile_numel = tile;
        bases_.push_back(fixed(std::move(s), wish));
      }
}

Schedule FrugalFamily::schedule(const Member& m) const {
  Schedule s = bases_[m.base];
  const std::size_t units = s.units.size();
  for (std::size_t kind = 0; kind < to_device_.size(); ++kind)
    for (std::size_t u = 0; u < units && kind * units + u < m.on_device; ++u)
      s.units[u].*to_device_[kind] = Place::device;
  for (std::size_t kind = 0; kind < leaving_.size(); ++kind)
    for (std::size_t u = 0; u < units && kind * units + u < m.to_host; ++u)
      if (Place& place = s.units[u].*leaving_[kind]; place == Place::nvme) place = Place::host;
  return fixed(std::move(s), wish_);
}

const TierBytes& FrugalFamily::packed(const Member& m) const {
  const auto at = packed_.find(m);
  return at != packed_.end() ? at->second : packed_[m] = run_needs(work_, schedule(m));
}

const TierBytes& FrugalFamily::live(const Member& m) const {
  const auto at = live_.find(m);
  return at != live_.end() ? at->second : live_[m] = live_needs(work_, schedule(m), Plans::main);
}

/// As little as possible moved to host memory so that the drive keeps its budget.
std::optional<FrugalFamily::Member> FrugalFamily::relieved(Member m, std::uint64_t nvme, std::uint64_t most_host,
                                                           Spot* near) const {
  const std::size_t moves = leaving_.size() * bases_[m.base].units.size();
  const auto keeps = [&](std::size_t k) { return live({m.base, m.on_device, k}).nvme <= nvme; };
  m.to_host = near != nullptr ? first_of(moves, keeps, near->to_host) : first_of(moves, keeps);
  if (near != nullptr) near->to_host = m.to_host;
  // An empty drive packs into its budget, and the host's arena is no smaller than what is alive in it.
  if (m.to_host <= moves && live(m).nvme == 0 && live(m).host > most_host) return std::nullopt;
  for (std::size_t step = 0; step <= packing_steps_max && m.to_host <= moves; ++step, ++m.to_host)
    if (packed(m).nvme <= nvme) return m;
  return std::nullopt;
}

std::size_t FrugalFamily::most_on_device(std::size_t base, std::uint64_t device, Spot* near) const {
  const std::size_t all = to_device_.size() * bases_[base].units.size();
  const auto is_too_much = [&](std::size_t j) { return live({base, j, 0}).device > device; };
  std::size_t most = near != nullptr ? first_of(all, is_too_much, near->on_device) : first_of(all, is_too_much);
  if (near != nullptr) near->on_device = most;
  most = most > 0 ? most - 1 : 0;
  for (std::size_t step = 0; step < packing_steps_max && most > 0 && packed({base, most, 0}).device > device; ++step)
    --most;
  return most;
}

std::optional<FrugalFamily::Member> FrugalFamily::with_least_host(std::size_t base, std::uint64_t device,
                                                                  std::uint64_t nvme, std::uint64_t most_host,
                                                                  Spot* near) const {
  Member m{base};
  if (live(m).device > device || packed(m).device > device) return std::nullopt;
  if (packed(m).nvme <= nvme) return m;
  m.on_device = most_on_device(base, device, near);
  for (std::size_t step = 0; step <= packing_steps_max; ++step) {
    const std::optional<Member> found = relieved(m, nvme, most_host, near);
    if (!found || packed(*found).device <= device) return found;
    if (m.on_device-- == 0) break;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FrugalFamily::device_of(std::size_t base, std::uint64_t host, std::uint64_t nvme) const {
  Member m{base};
  if (packed(m).nvme <= nvme) return packed(m).host <= host ? std::optional(packed(m).device) : std::nullopt;
  const std::size_t all = to_device_.size() * bases_[base].units.size();
  const auto keeps = [&](std::size_t j) {
    const std::optional<Member> found = relieved({base, j}, nvme);
    return found && packed(*found).host <= host;
  };
  m.on_device = first_of(all, keeps);
  if (m.on_device > all) return std::nullopt;
  return packed(*relieved(m, nvme)).device;
}

std::optional<std::uint64_t> FrugalFamily::nvme_of(std::size_t base, std::uint64_t device, std::uint64_t host,
                                                   std::uint64_t below) const {
  const Member start{base};
  Member m = start;
  m.on_device = most_on_device(base, device);
  const std::size_t moves = leaving_.size() * bases_[base].units.size();
  std::size_t most = first_of(moves, [&](std::size_t k) { return live({base, m.on_device, k}).host > host; });
  m.to_host = most > 0 ? most - 1 : 0;
  // Arenas are no smaller than what is alive in them.
  const bool is_promising = live(start).nvme < below || (most > 0 && live(m).nvme < below);
  if (!is_promising || packed(start).device > device) return std::nullopt;
  std::optional<std::uint64_t> least;
  if (most > 0 && live(m).nvme < below) {
    for (std::size_t step = 0; step < packing_steps_max && m.to_host > 0 && packed(m).host > host; ++step) --m.to_host;
    const TierBytes& n = packed(m);
    if (n.host <= host && n.device <= device) least = n.nvme;
  }
  const bool is_less = live(start).nvme < std::min(below, least.value_or(below));
  return is_less && packed(start).host <= host ? lesser(least, packed(start).nvme) : least;
}

std::optional<Schedule> FrugalFamily::fit(const TierBytes& budgets) const {
  for (std::size_t base = 0; base < bases_.size(); ++base)
    if (const std::optional<Member> m = with_least_host(base, budgets.device, budgets.nvme, budgets.host);
        m && packed(*m).host <= budgets.host)
      return schedule(*m);
  return std::nullopt;
}

bool FrugalFamily::fits(std::size_t base, const TierBytes& budgets, Spot& near) const {
  const std::optional<Member> m = with_least_host(base, budgets.device, budgets.nvme, budgets.host, &near);
  return m && packed(*m).host <= budgets.host;
}

// Packing is what takes time: a base whose live bytes are more than what another one packs into is not packed. What
// moves to the device adds to what the start of the chain has there.

std::optional<std::uint64_t> FrugalFamily::least_device(std::uint64_t host, std::uint64_t nvme) const {
  std::optional<std::uint64_t> least;
  for (std::size_t base = 0; base < bases_.size(); ++base)
    if (!least || live({base}).device < *least) least = lesser(least, device_of(base, host, nvme));
  return least;
}

std::optional<std::uint64_t> FrugalFamily::least_host(std::uint64_t device, std::uint64_t nvme) const {
  std::optional<std::uint64_t> least;
  for (std::size_t base = 0; base < bases_.size(); ++base) {
    const TierBytes& start = live({base});
    const bool is_roomy = start.nvme <= nvme - nvme / 8;  // nothing moves to host memory, however it packs
    if (least && is_roomy && start.host >= *least) continue;
    if (const auto m = with_least_host(base, device, nvme)) least = lesser(least, packed(*m).host);
  }
  return least;
}

std::optional<std::uint64_t> FrugalFamily::least_nvme(std::uint64_t device, std::uint64_t host) const {
  std::optional<std::uint64_t> least;
  for (std::size_t base = 0; base < bases_.size(); ++base)
    if (live({base}).device <= device) least = lesser(least, nvme_of(base, device, host, least.value_or(unlimited)));
  return least;
}

LeastBytes FrugalFamily::least(const TierBytes& budgets) const {
  return {least_device(budgets.host, budgets.nvme), least_host(budgets.device, budgets.nvme),
          least_nvme(budgets.device, budgets.host)};
}

TierBytes FrugalFamily::corner(std::uint64_t nvme_limit) const {
  TierBytes c;
  c.device = least_device(unlimited, nvme_limit).value_or(0);
  c.host = least_host(c.device, nvme_limit).value_or(0);
  c.nvme = nvme_limit == 0 ? 0 : least_nvme(c.device, c.host).value_or(0);
  return c;
}

}  // namespace sluice
