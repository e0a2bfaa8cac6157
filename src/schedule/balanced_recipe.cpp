#include <algorithm>
#include <optional>
#include <vector>

#include "src/schedule/recipe.h"

namespace sluice {

/// Activations in balance, within shares of what there is for them.
class Cook::Balance {
 public:
  Balance(const Cook& cook, const Schedule& schedule)
      : cook_(cook), base_(plain(schedule)), places_(chains_of(cook.work_, base_, *cook.hw_)), prices_(places_.size()) {
    for (PlaceChain& place : places_) count_waits(place);
    put_inputs(Place::host);
  }

  /// None where no shares fit.
  std::optional<Schedule> within_budgets() {
    std::optional<Schedule> found = within_shares();
    if (!host_is_short_) return found;
    // Inputs may be parked in host memory whatever the share, and it may have no room for them, or a better use.
    const double seconds = seconds_;
    inputs_on_host_ = false;
    host_ = drive_ = 1;
    put_inputs(Place::nvme);
    std::optional<Schedule> other = within_shares();
    return other && (!found || seconds_ < seconds) ? other : found;
  }

 private:
  std::optional<Schedule> within_shares() {
    // What goes by the device on its way elsewhere takes room too, more or less of it.
    for (const double device_share : {1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.02}) {
      device_ = device_share;
      if (!settle()) return std::nullopt;
      // What one of them has no room for may be too much for the other.
      for (const Tier tier : {Tier::host, Tier::nvme, Tier::host}) {
        if (keeps(tier)) continue;
        host_is_short_ = host_is_short_ || tier == Tier::host;
        if (!lower(tier)) return std::nullopt;
      }
      if (cook_.fits(takes_)) return std::move(found_);
    }
    return std::nullopt;
  }

  /// Where activations take least of the device: what all else is beside them.
  void put_inputs(Place place) {
    Schedule least = base_;
    for (UnitChoice& c : least.units) c.boundary = place;
    beside_ = cook_.needs(fixed(std::move(least), cook_.wish_));
  }
  Schedule plain(Schedule s) const {
    const bool chosen_later = cook_.may_carry_gradients(s);
    for (UnitChoice& c : s.units) {
      c.saved = Saved::recompute;
      c.core.reset();
      c.sweep = 0;
      if (chosen_later && c.gradient == Place::device) c.gradient = Place::nvme;  // it takes what activations leave
    }
    s.units.back().saved = Saved::keep;  // a head saves nothing
    return s;
  }
  bool keeps(Tier tier) const {
    const std::uint64_t budget = cook_.work_.budget_bytes[static_cast<std::size_t>(tier)];
    return budget == 0 || takes_.of(tier) <= cook_.space_of(tier);
  }

  /// Of a share of the units that is too large: as large as the tier has room for, by a straight line.
  bool lower(Tier tier) {
    double& share = tier == Tier::host ? host_ : drive_;
    constexpr int tries = 4;
    constexpr double full = 0.97;
    const auto space = static_cast<double>(cook_.space_of(tier));
    double low = 0, high = share;
    auto at_low = static_cast<double>(beside_.of(tier)), at_high = static_cast<double>(takes_.of(tier));
    std::optional<Schedule> best;
    TierBytes best_takes;
    double best_seconds = 0;
    for (int i = 0; i < tries && high - low > 1.0 / static_cast<double>(base_.units.size()); ++i) {
      const double part = at_high > at_low ? (space - at_low) / (at_high - at_low) : 0.5;
      share = low + std::clamp(part, 0.02, 0.98) * (high - low);
      if (!settle()) return false;
      (keeps(tier) ? low : high) = share;
      (keeps(tier) ? at_low : at_high) = static_cast<double>(takes_.of(tier));
      if (!keeps(tier)) continue;
      best = found_;
      best_takes = takes_;
      best_seconds = seconds_;
      if (at_low > full * space) break;
    }
    share = low;
    if (!best) return settle() && keeps(tier);
    found_ = std::move(*best);
    takes_ = best_takes;
    seconds_ = best_seconds;
    return true;
  }

  /// With the shares as they are. False where nothing fits the device's.
  bool settle() {
    const std::uint64_t device = cook_.work_.budget_bytes[static_cast<std::size_t>(Tier::device)];
    found_ = base_;
    seconds_ = 0;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      PlaceChain place = places_[i];
      keep_off_host(place, host_);
      if (!inputs_on_host_) keep_inputs_off_host(place);
      keep_off_drive(place, drive_);
      const std::uint64_t all = most_bytes(place);
      const double beside_it = static_cast<double>(device) / cook_.margin_ - static_cast<double>(beside_.device);
      const double room = device_ * std::max(0.0, beside_it) / place.alive + static_cast<double>(place.working);
      const std::uint64_t budget = device == 0 ? all : std::min(all, static_cast<std::uint64_t>(room));
      // Time goes with the slots and the cube of the units; single changes make good what slots leave.
      const int slots = place.chain.size() > 128 ? 48 : place.chain.size() > 64 ? 128 : 256;
      std::optional<ByWay>& begin = prices_[i];
      BalancedChain balanced = balance(place.chain, place.rest, place.times, budget, slots, begin ? &*begin : nullptr);
      if (!balanced.choices) return false;
      begin = balanced.prices;
      seconds_ += balanced.seconds;
      take_turns(place.chain, budget, *balanced.choices);
      choose(*found_, place, *balanced.choices);
    }
    found_ = fixed(*std::move(found_), cook_.wish_);
    takes_ = cook_.needs(*found_);
    return true;
  }

  const Cook& cook_;
  Schedule base_;
  std::vector<PlaceChain> places_;
  std::vector<std::optional<ByWay>> prices_;  ///< of each place, that balanced it last
  TierBytes beside_;                          ///< where activations take least of the device
  double host_ = 1, drive_ = 1, device_ = 1;  ///< the first two of the units, the last one of the room
  bool inputs_on_host_ = true, host_is_short_ = false;
  std::optional<Schedule> found_;
  TierBytes takes_;
  double seconds_ = 0;  ///< of found_, as the chain has them
};

void Cook::balance_activations(Schedule& s) const {
  if (std::optional<Schedule> balanced = Balance(*this, s).within_budgets()) s = *std::move(balanced);
}

}  // namespace sluice
