// How the ranks of a run are arranged, as one of them sees it.
//
// Ranks are counted through axes like the digits of a number: the last axis counts fastest. A group of ranks is a set
// of axes: those ranks that differ in these axes alone. So a rank is in one group of each kind, and its place there
// follows from its own coordinates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

using RankId = std::uint16_t;
/// Bit i stands for axis i.
using AxisSet = std::uint32_t;

/// Neighbouring ranks.
struct RankRange {
  RankId first = 0, count = 1;
  bool contains(RankId rank) const { return rank >= first && rank < first + count; }
  RankId end() const { return static_cast<RankId>(first + count); }
  bool operator==(const RankRange&) const = default;
};

struct Axis {
  std::string name;  ///< "dp"
  RankId size = 1;
  bool operator==(const Axis&) const = default;
};

struct Topology {
  std::vector<Axis> axes;           ///< none: one rank
  std::vector<RankId> coordinates;  ///< of this rank, one for each axis

  /// The rank with this number among the product of the sizes.
  static Topology of(std::vector<Axis> axes, RankId rank) {
    Topology t{std::move(axes), {}};
    t.coordinates.resize(t.axes.size());
    for (std::size_t i = t.axes.size(); i-- > 0; rank = static_cast<RankId>(rank / t.axes[i].size))
      t.coordinates[i] = static_cast<RankId>(rank % t.axes[i].size);
    return t;
  }
  Topology at(RankId other_rank) const { return of(axes, other_rank); }

  AxisSet all_axes() const { return static_cast<AxisSet>((std::uint64_t{1} << axes.size()) - 1); }
  /// Ranks of this rank's group along these axes.
  RankId size(AxisSet set) const {
    std::uint32_t product = 1;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (set >> i & 1) product *= axes[i].size;
    return static_cast<RankId>(product);
  }
  /// Of this rank among them.
  RankId position(AxisSet set) const {
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (set >> i & 1) at = at * axes[i].size + coordinates[i];
    return static_cast<RankId>(at);
  }
  RankId ranks() const { return size(all_axes()); }
  RankId rank() const { return position(all_axes()); }
  /// Ranks of this rank's group, in the order of their positions.
  std::vector<RankId> members(AxisSet set) const {
    std::vector<RankId> list;
    for (RankId r = 0; r < ranks(); ++r) {
      const Topology other = at(r);
      bool is_member = true;
      for (std::size_t i = 0; i < axes.size(); ++i)
        is_member = is_member && ((set >> i & 1) || other.coordinates[i] == coordinates[i]);
      if (is_member) list.push_back(r);
    }
    return list;
  }
  bool operator==(const Topology&) const = default;
};

}  // namespace sluice
