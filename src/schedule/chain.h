// The chain of sublayers that a step passes, and what becomes of its activations at least cost.
//
// Between a sublayer's pass forward and its backward pass three things can become of its input, and of what it saves:
// they stay on the device, they are parked elsewhere, or they are made again. Inputs are made again by sweeps
// (UnitChoice::sweep). With a price for a second of each resource the cheapest of all such schedules that keeps a
// budget of device memory is found by a dynamic programme, in the manner of rotor (arXiv 1911.13214), which knows no
// parking: exact up to the rounding of bytes to slots. Resources work side by side, so that a pass takes as long as the
// largest, and the way back follows the way forward: what is parked goes away on the one and comes back on the other.
// For any prices that add up to 1 for each of both the cheapest schedule is a lower bound of their sum (Lagrange), and
// the prices at which the bound is largest are those that the best schedule is looked for with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "offload/plan/simulate.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Of the way forward, and of the way back.
struct ByWay {
  ResourceSeconds forward{}, back{};
};
/// The largest resource of each, one after the other.
double seconds_of(const ByWay& use);

/// A place on the way: what it asks of each resource to go there and to come back. On the device: nothing.
struct ParkingUse {
  Place place = Place::host;
  ResourceSeconds away{}, back{};
  bool operator==(const ParkingUse&) const = default;
};

/// What a sublayer saves, or a part of it, in one of the ways that spare making it again.
struct SavedWay {
  Saved saved = Saved::keep;
  std::optional<Saved> core;  ///< as UnitChoice has it
  std::uint64_t bytes = 0;    ///< on the device from forward to backward
  ResourceSeconds away{};     ///< of parking
  ResourceSeconds back{};     ///< the same, and to make again what of it is not kept
  bool operator==(const SavedWay&) const = default;
};

/// All of it for the micro-batches that pass a unit together.
struct ChainUnit {
  ResourceSeconds forward{};   ///< of one pass forward, with its parameters brought
  ResourceSeconds again{};     ///< to make what it saves once more, from its input
  ResourceSeconds backward{};  ///< with that there
  std::vector<SavedWay> ways;  ///< but making it again
  std::uint64_t input_bytes = 0;
  std::vector<ParkingUse> parking;  ///< of its input, but the device
  /// That must be there in its backward pass beside what waits: with what it saves made again or brought, and with it
  /// kept.
  std::uint64_t backward_bytes = 0, backward_bytes_kept = 0;
  bool operator==(const ChainUnit&) const = default;
};

/// In the order of the pass forward. The first one's input is there all along; the last one's passes forward and back
/// are one, which is its `backward`: a head.
using Chain = std::vector<ChainUnit>;

/// What becomes of one unit's activations.
struct ChainChoice {
  int sweep = 0;
  Place boundary = Place::device;
  Saved saved = Saved::recompute;
  std::optional<Saved> core;
  bool saves() const { return saved != Saved::recompute || core.value_or(saved) != Saved::recompute; }
  bool operator==(const ChainChoice&) const = default;
};
using ChainChoices = std::vector<ChainChoice>;

/// What all of it asks of each resource, and the most bytes on the device: what waits, and what the backward pass at
/// hand needs beside it.
struct ChainCost {
  ByWay use;
  std::uint64_t device_bytes = 0;
};
ChainCost chain_cost(const Chain& chain, const ChainChoices& choices);

/// What a sublayer saves waits only where its input does: no sweep makes that again meanwhile. Schedules that do not do
/// so exist, and are of no use where making it again takes no longer than a pass forward.
bool keeps_inputs_of_saved(const ChainChoices& choices);

/// The programme's answers for all budgets up to one, at given prices, among schedules of keeps_inputs_of_saved.
/// `slots`: into which the budget is cut; sizes are rounded up to them, or, for a bound, down.
class ChainTable {
 public:
  enum class Rounding : std::uint8_t { up, down };
  ChainTable(const Chain& chain, const ByWay& prices, std::uint64_t budget_bytes, int slots,
             Rounding rounding = Rounding::up);

  int slots() const { return slots_; }
  /// Of the cheapest within so many slots; infinite where none fits.
  double cost(int slots) const;
  double cost() const { return cost(slots_); }
  /// None where none fits.
  std::optional<ChainChoices> choices(int slots) const;

 private:
  struct Option {
    int slots = 0;
    float away = 0, away_again = 0;  ///< on the way forward, and in a sweep on the way back
    float back = 0;
    int index = -1;  ///< of the way, or of the parking; -1: on the device
  };
  struct Step {
    int next = -1;  ///< the first unit of what follows; -1: there is one unit
    Option input;   ///< of that one
    std::optional<Option> saved;
  };
  int slots_of(std::uint64_t bytes) const;
  /// Some units, whether the first one's input is parked, and whether they are passed forward for the first time: then
  /// the last one is the chain's.
  struct Range {
    bool parked = false, is_first = false;
    int first = 0, last = 0;
  };
  void lay_out();
  std::size_t at(const Range& range) const;  ///< in rows_
  const float* row(const Range& range) const {
    return table_.data() + rows_[at(range)] * static_cast<std::size_t>(slots_ + 1);
  }
  float forward(const Range& range, int next) const;
  template <class F>
  void each_step(const Range& range, F&& take) const;
  void fill(const Range& range);
  float least(const Range& range, int slots, Step* found) const;
  void assign(const Range& range, int slots, int sweep, ChainChoices& choices) const;

  const Chain& chain_;
  int units_, slots_;
  double slot_bytes_;
  Rounding rounding_;
  std::vector<float> forward_, sweep_, again_, backward_, read_;  ///< priced; the first two of all units before
  std::vector<std::vector<Option>> inputs_, saved_;
  std::vector<int> backward_slots_, kept_slots_;
  std::vector<std::uint32_t> rows_;  ///< of the table, by Range
  std::vector<bool> is_filled_;      ///< by row
  std::vector<float> table_;         ///< by row and slots
};

/// The best schedule within a budget, by seconds_of `rest` and what it asks of each resource.
struct BalancedChain {
  std::optional<ChainChoices> choices;  ///< none: nothing fits
  double seconds = 0;
  ByWay prices;  ///< at which the bound is largest
};
double seconds_of(const ByWay& rest, const ByWay& use, double times);
/// `rest`: what the step asks of each resource but for what chains are counted for, which is `times` the chain.
/// `begin`: prices of a chain that is nearly this one, from which those of this one are found sooner.
BalancedChain balance(const Chain& chain, const ByWay& rest, double times, std::uint64_t budget_bytes, int slots = 256,
                      const ByWay* begin = nullptr);
/// No schedule within the budget takes less. Of any prices that add up to 1, forward and back each.
double chain_bound(const Chain& chain, const ByWay& rest, double times, std::uint64_t budget_bytes, const ByWay& prices,
                   int slots = 256);

/// Choices change places among equal sublayers so that they take turns: where many in a row are parked, the link is
/// late in that stretch and idle in others. What the whole asks of each resource stays the same. Nothing is changed
/// where that takes more than so many bytes of the device.
void take_turns(const Chain& chain, std::uint64_t budget_bytes, ChainChoices& choices);

}  // namespace sluice
