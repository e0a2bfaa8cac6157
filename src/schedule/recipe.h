// From a few decisions to a whole schedule that uses the budgets: what the search chooses between.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/profile.h"
#include "src/schedule/chain_costs.h"
#include "src/schedule/needs.h"
#include "src/schedule/wish.h"

namespace sluice {

struct Recipe {
  int group = 1;
  bool update_ahead = true;
  bool activations_first = true;     ///< room on the device goes to saved activations, then to parameters; or in turn
  Saved spilled = Saved::recompute;  ///< what becomes of saved activations that the device has no room for
  bool balanced = false;             ///< else: what becomes of all activations by src/schedule/chain.h
};

/// Follows recipes within the budgets of the workload: streamed schedules from a ladder, each rung with less memory
/// than the one before, and on the first rung that fits what saves most time or traffic per byte, for as many units as
/// there is room.
class Cook {
 public:
  /// Both outlive it. Live bytes times `margin` are to keep the budgets, since arenas are a little larger; with one the
  /// plans beside the main one are looked at too. Rungs that move more than `transfers_max` tiles are not looked at.
  /// With a profile recipes that balance activations are there too.
  Cook(const Workload& workload, const ScheduleWish& wish, const HardwareProfile* hw, double margin = 1,
       double transfers_max = no_limit)
      : work_(workload), wish_(wish), hw_(hw), margin_(margin), transfers_max_(transfers_max) {}
  static constexpr double no_limit = 1e300;

  /// The schedules of all recipes with this group and order of updates: none where nothing fits. On any thread.
  struct Dish {
    Recipe recipe;
    Schedule schedule;
  };
  std::vector<Dish> dishes(int group, bool update_ahead) const;
  std::optional<Schedule> follow(const Recipe& recipe) const;
  /// What all recipes with this group and order of updates begin with; none where nothing fits.
  std::optional<Schedule> base(int group, bool update_ahead) const;
  Schedule follow(const Recipe& recipe, Schedule base) const;
  /// Whether a rung is not looked at because it moves too many tiles.
  bool leaves_out(const Recipe& recipe) const;

  bool fits(const Schedule& s) const { return fits(needs(s)); }
  /// The saved activations of a share of the sublayers that recompute go to `place` instead. False, and nothing
  /// changed, where there are none or no room.
  bool spill(Schedule& s, Saved place, double share) const;
  /// Saved activations and parameters that stay on the device are chosen again, as the recipe says.
  void fill_device_anew(Schedule& s, const Recipe& recipe) const;
  /// The first half of that, and the second.
  void empty_device(Schedule& s) const;
  void fill_device(Schedule& s, const Recipe& recipe) const;
  /// What becomes of activations, anew, by prices at which resources are in balance, in as much memory as there is.
  void balance_activations(Schedule& s) const;
  /// Where updates come ahead of the forward pass and anything lies on the drive, gradients of the first units wait on
  /// the device, as many as there is room for: they come when activations go, so that both have much of the same
  /// memory. Host memory that they leave is for other gradients, and then for states.
  void fill_gradients(Schedule& s) const;

 private:
  using Turn = std::function<void(UnitChoice&)>;
  TierBytes needs(const Schedule& s) const;
  bool is_soon_built(const Schedule& s) const;
  bool fits(const TierBytes& needs) const { return within(needs, work_.budget_bytes, margin_); }
  std::vector<Schedule> ladder(int group, bool update_ahead) const;
  Schedule relieved(Schedule s, Tier tier, std::uint64_t takes, std::uint64_t space,
                    const std::vector<Turn>& moves) const;
  std::uint64_t space_of(Tier tier) const;
  Schedule relieve_drive(Schedule s) const;
  Schedule relieve_host(Schedule s, std::uint64_t takes) const;
  std::optional<Schedule> streamed(int group, bool update_ahead) const;
  /// Units in the order in which they are turned: in each stage as many, since each has its own memory.
  std::vector<std::size_t> turning(const Schedule& s) const;
  enum class From : std::uint8_t { first, last };
  bool may_carry_gradients(const Schedule& s) const;
  void turn(Schedule& s, const Turn& change, From from = From::first) const;
  void fill_blocks(Schedule& s) const;
  void fill_homes(Schedule& s) const;
  void keep_most_inputs(Schedule& s) const;
  class Balance;

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile* hw_;
  double margin_, transfers_max_;
  /// Recipes come by the same schedules again and again.
  mutable std::mutex known_mutex_;
  mutable std::vector<std::pair<Schedule, TierBytes>> known_needs_;
};

}  // namespace sluice
