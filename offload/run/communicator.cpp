#include "offload/run/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice {
namespace {

/// Up to here the root of a broadcast sends everything to everyone itself: fewer turns are quicker than fewer bytes.
constexpr std::size_t small_broadcast_bytes = 64u << 10;

/// Part `index` of `count` parts that are as equal as whole pages allow.
template <class T>
std::span<T> part_of(std::span<T> data, std::size_t index, std::size_t count) {
  constexpr std::size_t page = 4096;
  const std::size_t part = ((data.size() + count - 1) / count + page - 1) / page * page;
  const std::size_t begin = std::min(index * part, data.size());
  return data.subspan(begin, std::min(part, data.size() - begin));
}

}  // namespace

Status Communicator::all_to_all(std::int32_t channel, std::span<const std::byte> from, std::span<std::byte> to,
                                std::size_t pieces) {
  const std::size_t count = members(channel), own = position(channel), part = from.size() / count / pieces;
  SLUICE_CHECK(from.size() == to.size() && part * count * pieces == from.size(),
               "(%zu bytes, %zu, %zu pieces, %zu members)", from.size(), to.size(), pieces, count);
  const auto place = [&](std::size_t piece, std::size_t member) { return (piece * count + member) * part; };
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (std::size_t step = 1; step < count; ++step) {
    const std::size_t to_member = (own + step) % count, from_member = (own + count - step) % count;
    for (std::size_t p = 0; p < pieces; ++p) {
      out.push_back({to_member, from.subspan(place(p, to_member), part)});
      in.push_back({from_member, to.subspan(place(p, from_member), part)});
    }
  }
  for (std::size_t p = 0; p < pieces && part > 0; ++p)
    std::memcpy(to.data() + place(p, own), from.data() + place(p, own), part);
  return exchange(channel, out, in);
}

Status Communicator::ring_shift(std::int32_t channel, std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t count = members(channel), own = position(channel);
  return exchange(channel, std::array{Outgoing{(own + 1) % count, from}},
                  std::array{Incoming{(own + count - 1) % count, to}});
}

Status Communicator::broadcast(std::int32_t channel, std::size_t root, std::span<std::byte> data) {
  const std::size_t count = members(channel), own = position(channel);
  SLUICE_CHECK(root < count, "(%zu of %zu)", root, count);
  const bool whole = data.size() <= small_broadcast_bytes || count == 2;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  // What member m passes on to the others: the root sends it nothing else.
  const auto share = [&](std::size_t member) { return whole ? data : part_of(data, member, count); };
  if (own == root) {
    for (std::size_t step = 1; step < count; ++step) {
      const std::size_t member = (root + step) % count;
      out.push_back({member, share(member)});
    }
  } else {
    in.push_back({root, share(own)});
  }
  SLUICE_TRY(exchange(channel, out, in));
  if (whole) return success();
  out.clear();
  in.clear();
  for (std::size_t step = 1; step < count; ++step) {
    const std::size_t to = (own + step) % count, from = (own + count - step) % count;
    if (to != root) out.push_back({to, share(own)});
    if (own != root) in.push_back({from, share(from)});
  }
  return exchange(channel, out, in);
}

Status Communicator::all_reduce(std::int32_t channel, std::span<float> full, std::span<std::byte> room, RankSums sums) {
  const std::size_t part = full.size() / members(channel);
  SLUICE_TRY(reduce_scatter(channel, full, full.subspan(position(channel) * part, part), room, sums));
  return all_gather(channel, std::as_writable_bytes(full));
}

Status Communicator::send(std::int32_t channel, std::size_t to, std::span<const std::byte> data) {
  return exchange(channel, std::array{Outgoing{to, data}}, {});
}

Status Communicator::receive(std::int32_t channel, std::size_t from, std::span<std::byte> data) {
  return exchange(channel, {}, std::array{Incoming{from, data}});
}

}  // namespace sluice
