#include <algorithm>
#include <functional>
#include <numeric>

#include "offload/plan/pack_fit.h"

namespace sluice::planning {
namespace {

using Order = std::vector<std::uint32_t>;

constexpr std::uint64_t work_limit = 400'000'000;  // about a second
constexpr int search_rounds = 400;

/// Pieces by falling key; equal keys by start of life, then index.
Order order_by(std::span<const Piece> pieces, const std::function<std::pair<double, double>(const Piece&)>& key) {
  std::vector<std::pair<double, double>> keys;
  for (const Piece& p : pieces) keys.push_back(key(p));
  Order order(pieces.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    if (pieces[a].first != pieces[b].first) return pieces[a].first < pieces[b].first;
    return a < b;
  });
  return order;
}

std::vector<Order> greedy_orders(std::span<const Piece> pieces) {
  const auto bytes = [](const Piece& p) { return static_cast<double>(p.bytes); };
  const auto life = [](const Piece& p) { return static_cast<double>(p.last - p.first + 1); };
  const auto start = [](const Piece& p) { return -static_cast<double>(p.first); };
  return {
      order_by(pieces, [&](const Piece& p) { return std::pair(p.lasting ? 1.0 : 0.0, bytes(p)); }),
      order_by(pieces, [&](const Piece& p) { return std::pair(bytes(p), life(p)); }),
      order_by(pieces, [&](const Piece& p) { return std::pair(life(p), bytes(p)); }),
      order_by(pieces, [&](const Piece& p) { return std::pair(bytes(p) * life(p), bytes(p)); }),
      order_by(pieces, [&](const Piece& p) { return std::pair(start(p), bytes(p)); }),
      order_by(pieces, [&](const Piece& p) { return std::pair(static_cast<double>(p.last), bytes(p)); }),
  };
}

/// Moves the pieces that reach the top to a random earlier turn: they are what the next round has to place better.
void favour_top(std::span<const Piece> pieces, const Placement& placement, std::uint64_t& seed, Order& order) {
  const auto random = [&seed](std::size_t below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return static_cast<std::ptrdiff_t>(seed % below);
  };
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint32_t piece = order[i];
    if (placement.offsets[piece] + pieces[piece].bytes != placement.height) continue;
    const auto at = order.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(order.begin() + random(i), at, at + 1);
  }
}

}  // namespace

Placement place_pieces(std::span<const Piece> pieces) {
  const std::uint64_t bound = max_live_bytes(pieces);
  const auto good = [bound](const Placement& p) { return p.height * 50 <= bound * 51; };
  BestFit fit(pieces);
  Placement best;
  Order best_order;
  for (const Order& order : greedy_orders(pieces)) {
    Placement placement = fit.place(order);
    if (best_order.empty() || placement.height < best.height) {
      best = std::move(placement);
      best_order = order;
    }
    if (good(best) || fit.work() > work_limit) return best;
  }
  std::uint64_t seed = 0x9E3779B97F4A7C15ull;
  Order order = best_order;
  Placement current = best;
  for (int round = 0; round < search_rounds && !good(best) && fit.work() < work_limit; ++round) {
    favour_top(pieces, current, seed, order);
    current = fit.place(order);
    if (current.height <= best.height) {
      best = current;
      best_order = order;
    } else if (round % 8 == 7) {
      order = best_order;
      current = best;
    }
  }
  return best;
}

}  // namespace sluice::planning
