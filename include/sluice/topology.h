// How the ranks of a run are arranged, as one of them sees it.
//
// Ranks are counted through axes like the digits of a number. A group of ranks is a set of axes: those ranks that
// differ in these axes alone. So a rank is in one group of each kind, and its place there follows from its own
// coordinates: of the group's axes the last counts fastest. How ranks are numbered is another matter: an axis's stride
// says how far apart neighbours along it are, and need not be smaller for later axes.
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
  RankId stride = 0;  ///< from a rank to the next one along it; 0: as if the last axis counted fastest
  bool operator==(const Axis&) const = default;
};

struct Topology {
  std::vector<Axis> axes;           ///< none: one rank
  std::vector<RankId> coordinates;  ///< of this rank, one for each axis

  /// The rank with this number among the product of the sizes. Strides are given for all axes, or for none.
  static Topology of(std::vector<Axis> axes, RankId rank) {
    Topology t{std::move(axes), {}};
    std::uint32_t stride = 1;
    for (std::size_t i = t.axes.size(); i-- > 0; stride *= t.axes[i].size)
      if (t.axes[i].stride == 0) t.axes[i].stride = static_cast<RankId>(stride);
    for (const Axis& axis : t.axes) t.coordinates.push_back(static_cast<RankId>(rank / axis.stride % axis.size));
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
  RankId rank() const {
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) number += coordinates[i] * std::uint32_t{axes[i].stride};
    return static_cast<RankId>(number);
  }
  /// Ranks of this rank's group, in the order of their positions.
  std::vector<RankId> members(AxisSet set) const {
    std::uint32_t first = 0;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (!(set >> i & 1)) first += coordinates[i] * std::uint32_t{axes[i].stride};
    std::vector<RankId> list{static_cast<RankId>(first)};
    for (std::size_t i = axes.size(); i-- > 0;) {
      if (!(set >> i & 1)) continue;
      const std::size_t nearer = list.size();
      for (std::uint32_t at = 1; at < axes[i].size; ++at)
        for (std::size_t n = 0; n < nearer; ++n) list.push_back(static_cast<RankId>(list[n] + at * axes[i].stride));
    }
    return list;
  }
  bool operator==(const Topology&) const = default;
};

}  // namespace sluice
