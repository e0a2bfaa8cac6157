// The host memory in which ranks that do not share memory add up: what arrives of the others, a block of each at a
// time, and the next blocks meanwhile. Plans have it as a buffer, transports use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {

/// Blocks of a reduction under way.
constexpr std::uint64_t exchange_blocks = 2;

/// What one member sends another at a time of a part of so many bytes: large enough for the full speed of a link, and
/// of many members small enough for a few MiB in all.
constexpr std::uint64_t exchange_block_bytes(std::size_t members, std::uint64_t part_bytes) {
  constexpr std::uint64_t wanted = 8u << 20, least = 64u << 10, most = 1u << 20;
  const std::uint64_t others = std::max<std::uint64_t>(members, 2) - 1;
  return std::min(part_bytes, std::clamp(wanted / exchange_blocks / others / 4096 * 4096, least, most));
}

/// Of a reduce_scatter whose members keep parts of so many bytes.
constexpr std::uint64_t exchange_bytes(std::size_t members, std::uint64_t part_bytes) {
  return exchange_blocks * (members - 1) * exchange_block_bytes(members, part_bytes);
}

/// Device memory that a reduce_scatter in device memory takes for what arrives of the others: as many equal blocks, large
/// enough that a device is not held up by starting, and together no burden.
constexpr std::uint64_t device_exchange_bytes(std::size_t members, std::uint64_t part_bytes) {
  constexpr std::uint64_t wanted = 64u << 20, least = 1u << 20;
  const std::uint64_t others = std::max<std::uint64_t>(members, 2) - 1;
  return others * std::min(part_bytes, std::max(wanted / others / 4096 * 4096, least));
}

}  // namespace sluice
