// How the moments of a shard lie in its buffers, in memory and on the drive.
//
// fp32 and bf16: element after element. int8: in groups of `group_numel` elements, each its codes and then its scales,
// one per 256 elements, padded to a page: so that tiles of whole groups are whole pages. A shard's last group may be
// shorter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sluice/moments.h"
#include "sluice/plan.h"

namespace sluice {

constexpr std::uint64_t moment_page_numel = 4096;  ///< elements whose codes fill a page

struct MomentLayout {
  MomentFormat format = MomentFormat::f32;
  std::uint64_t group_numel = 1;  ///< int8: a multiple of 4096 that divides tiles

  /// Tiles of `tile_numel` elements (a power of two, at least 4096) are whole groups.
  static MomentLayout of(MomentFormat format, std::uint64_t tile_numel) {
    constexpr std::uint64_t most = 1u << 18;  // codes and scales fill whole pages: nothing is padded
    return {format, format == MomentFormat::int8 ? std::min(tile_numel, most) : 1};
  }

  /// Bytes of the first `numel` elements (int8: a multiple of 4096) of a shard.
  constexpr std::uint64_t bytes(std::uint64_t numel) const {
    if (format != MomentFormat::int8) return numel * moment_bytes(format);
    return numel / group_numel * group_bytes(group_numel) + group_bytes(numel % group_numel);
  }
  /// Of a request to the drive: whole groups, about as many bytes as other states have in one.
  constexpr std::uint32_t block_bytes(std::uint64_t wanted_bytes, std::uint64_t tile_numel) const {
    if (format != MomentFormat::int8)
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_bytes, bytes(tile_numel)));
    constexpr std::uint64_t most_numel = 1u << 19;  // transfers outside steps move whole blocks of this size
    std::uint64_t groups = 1;
    while (2 * groups * group_numel <= std::min({tile_numel, wanted_bytes, most_numel})) groups *= 2;
    return static_cast<std::uint32_t>(groups * group_bytes(group_numel));
  }

  /// Where the codes of element `at` of a part of `numel` elements lie, and its scale. The part begins with a group.
  struct Place {
    std::uint64_t codes = 0, scales = 0;  ///< bytes from the part's start; scales only where there are some
  };
  constexpr Place place(std::uint64_t at, std::uint64_t numel) const {
    if (format != MomentFormat::int8) return {at * moment_bytes(format), 0};
    const std::uint64_t group = at / group_numel * group_numel, within = at - group;
    const std::uint64_t begin = group / group_numel * group_bytes(group_numel);
    return {begin + within, begin + std::min(group_numel, numel - group) + within / moment_block_numel * sizeof(float)};
  }

  /// int8: of a group of `numel` elements.
  static constexpr std::uint64_t group_bytes(std::uint64_t numel) {
    return numel + padded_bytes(numel / moment_block_numel * sizeof(float));
  }

  /// The same for any layout: page by page, codes then scales. `part` begins with a group and has `part_numel`
  /// elements, of which the first `numel` (multiples of 4096) are meant. int8 only.
  void to_stream(const std::byte* part, std::uint64_t part_numel, std::uint64_t numel, std::byte* stream) const;
  void from_stream(const std::byte* stream, std::uint64_t numel, std::byte* part, std::uint64_t part_numel) const;
  static constexpr std::uint64_t stream_page_bytes =
      moment_page_numel + moment_page_numel / moment_block_numel * sizeof(float);
};

}  // namespace sluice
