#include "tests/comm/checks.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "sluice/exchange.h"
#include "src/schedule/lots.h"

namespace sluice::testing {
namespace {

constexpr AxisSet all_ranks = 1;

class Findings {
 public:
  explicit Findings(RankId rank) : who_("rank " + std::to_string(rank) + ": ") {}
  void expect(bool truth, const std::string& what) {
    if (!truth) lines_.push_back(who_ + what);
  }
  void expect(const Status& status, const std::string& what) {
    if (!status.ok()) lines_.push_back(who_ + what + ": " + status.error().message);
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::string who_;
  std::vector<std::string> lines_;
};

/// Of which sums in another order have other bits.
float term(std::size_t rank, std::size_t i) {
  const auto r = static_cast<int>(rank);
  return std::ldexp(std::sin(static_cast<float>(i) + 1000.0f * static_cast<float>(r)), static_cast<int>(i % 5) - r % 7);
}

/// The tree of lots.h over ranks, written down once more: pairs while there is an even number, then one by one.
float tree_sum(std::vector<float> terms) {
  while (terms.size() % 2 == 0) {
    for (std::size_t i = 0; i < terms.size() / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
    terms.resize(terms.size() / 2);
  }
  return std::accumulate(terms.begin() + 1, terms.end(), terms.front());
}

Topology one_axis(RankId ranks, RankId rank) { return Topology::of({{"dp", ranks}}, rank); }

}  // namespace

std::vector<std::string> check_collectives(World& world, RankId rank) {
  Findings found(rank);
  Communicator& communicator = world.communicator(rank);
  const RankId ranks = world.ranks();
  found.expect(communicator.prepare(one_axis(ranks, rank), std::array{all_ranks, all_ranks}), "prepare");
  // Nothing, less than a block, blocks with a rest, and enough that MPI does not buffer a message.
  for (const std::size_t part : {std::size_t{0}, std::size_t{3}, std::size_t{3000}, std::size_t{700001}}) {
    const std::string size = " of " + std::to_string(part);
    std::vector<float> full(part * ranks, -1.0f);
    for (std::size_t i = 0; i < part; ++i) full[rank * part + i] = term(rank, i);
    found.expect(communicator.all_gather(0, std::as_writable_bytes(std::span(full))), "all_gather" + size);
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < part; ++i) wrong += full[r * part + i] != term(r, i) ? 1 : 0;
    found.expect(wrong == 0, "all_gather" + size + ": " + std::to_string(wrong) + " elements are wrong");

    for (std::size_t i = 0; i < full.size(); ++i) full[i] = term(rank, i);
    std::vector<std::byte> room(world.shares_memory() ? 0 : exchange_bytes(ranks, part * sizeof(float)));
    // In place: the sum lands in the own part of the source.
    const std::span<float> own = std::span(full).subspan(rank * part, part);
    found.expect(communicator.reduce_scatter(0, full, own, room), "reduce_scatter" + size);
    wrong = 0;
    for (std::size_t i = 0; i < part; ++i) {
      std::vector<float> terms;
      for (std::size_t r = 0; r < ranks; ++r) terms.push_back(term(r, rank * part + i));
      const float expected = tree_sum(terms);
      wrong += std::memcmp(&expected, &own[i], sizeof expected) != 0 ? 1 : 0;
    }
    found.expect(wrong == 0, "reduce_scatter" + size + ": " + std::to_string(wrong) + " sums have other bits");
  }
  std::array<std::int64_t, 3> values{rank, -2 * rank, std::int64_t{1} << 62};
  found.expect(communicator.sum(1, std::span(values).first(2)), "sum");
  const std::int64_t all = ranks * (ranks - 1) / 2;
  found.expect(values == std::array<std::int64_t, 3>{all, -2 * all, std::int64_t{1} << 62}, "sum: wrong");
  return found.take();
}

std::vector<std::string> check_groups(World& world, RankId rank) {
  Findings found(rank);
  Communicator& communicator = world.communicator(rank);
  const RankId half = static_cast<RankId>(world.ranks() / 2);
  const Topology topology = Topology::of({{"node", 2}, {"local", half}}, rank);
  found.expect(communicator.prepare(topology, std::array<AxisSet, 2>{0b01, 0b10}), "prepare");
  std::int64_t along_node = std::int64_t{1} << rank, along_local = along_node, expected = 0;
  found.expect(communicator.sum(1, std::span(&along_local, 1)), "sum along a node");
  found.expect(communicator.sum(0, std::span(&along_node, 1)), "sum over nodes");
  const RankId place = static_cast<RankId>(rank % half), first = static_cast<RankId>(rank / half * half);
  found.expect(along_node == (std::int64_t{1} << place | std::int64_t{1} << (place + half)), "wrong sum over nodes");
  for (RankId r = first; r < first + half; ++r) expected |= std::int64_t{1} << r;
  found.expect(along_local == expected, "wrong sum along a node");

  // Both groups add up at the same time, each on a thread of its own, in place.
  constexpr std::size_t numel = 50000;
  const auto add_up_often = [&](std::int32_t channel, RankId members, RankId position) {
    std::vector<std::byte> room(exchange_bytes(members, numel * sizeof(float)));
    std::vector<float> full(numel * members);
    const std::span<float> own = std::span(full).subspan(position * numel, numel);
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < full.size(); ++i) full[i] = static_cast<float>(i % numel + static_cast<std::size_t>(round));
      if (!communicator.reduce_scatter(channel, full, own, room).ok()) return false;
      for (std::size_t i = 0; i < numel; ++i)
        if (own[i] != static_cast<float>(members) * static_cast<float>(i + static_cast<std::size_t>(round))) return false;
    }
    return true;
  };
  bool over_nodes = false;
  {
    const std::jthread beside([&] { over_nodes = add_up_often(0, 2, static_cast<RankId>(rank / half)); });
    found.expect(add_up_often(1, half, place), "wrong sums along a node beside those over nodes");
  }
  found.expect(over_nodes, "wrong sums over nodes beside those along a node");
  return found.take();
}

std::vector<std::string> check_cancelling(World& world, RankId rank) {
  Findings found(rank);
  Communicator& communicator = world.communicator(rank);
  const RankId ranks = world.ranks();
  for (int round = 0; round < 3; ++round) {
    found.expect(communicator.prepare(one_axis(ranks, rank), std::array{all_ranks}), "prepare");
    std::vector<float> full(300000ull * ranks, 1.0f);
    const std::span<float> own = std::span(full).subspan(rank * 300000ull, 300000);
    std::vector<std::byte> room(exchange_bytes(ranks, own.size_bytes()));
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * round));
      communicator.cancel("enough");
    }
    const Status cancelled = communicator.reduce_scatter(0, full, own, room);
    found.expect(!cancelled.ok() && cancelled.error().code == ErrorCode::cancelled &&
                     cancelled.error().message == "enough",
                 "not cancelled: " + (cancelled.ok() ? std::string("ended") : cancelled.error().message));
    // Who prepares anew is not cancelled, and meets nobody's leftovers.
    found.expect(communicator.prepare(one_axis(ranks, rank), std::array{all_ranks}), "prepare");
    std::fill(full.begin(), full.end(), static_cast<float>(rank));
    found.expect(communicator.all_gather(0, std::as_writable_bytes(std::span(full))), "all_gather after that");
    bool right = true;
    for (std::size_t i = 0; i < full.size(); ++i) right = right && full[i] == static_cast<float>(i / 300000);
    found.expect(right, "all_gather after that: wrong");
  }
  return found.take();
}

std::vector<std::string> check_between_steps(World& world) {
  const RankId rank = world.here().first;
  Findings found(rank);
  const auto text_of = [](std::size_t r) { return std::string(r * 1000 % 2500, static_cast<char>('a' + r)); };
  const auto texts = world.exchange(text_of(rank));
  found.expect(texts.ok(), "exchange");
  for (std::size_t r = 0; texts.ok() && r < texts->size(); ++r)
    found.expect((*texts)[r] == text_of(r), "the text of rank " + std::to_string(r));
  const auto value = from_leader(world, rank == 0 ? "decided" : "not asked");
  found.expect(value.ok() && *value == "decided", "from_leader");
  std::array<std::uint64_t, 2> sums{rank, ~std::uint64_t{0}};
  found.expect(add_up(world, sums), "add_up");
  found.expect(sums[0] == world.ranks() * (world.ranks() - 1u) / 2 && sums[1] == -std::uint64_t{world.ranks()},
               "add_up: wrong");

  found.expect(agree(world, success()).ok(), "agree on success");
  // Who is cancelled only tells of another's failure.
  const auto last = static_cast<RankId>(world.ranks() - 1);
  const Status own = rank == last ? Status(bad_request("no room")) : Status(Error{ErrorCode::cancelled, "echo"});
  const Status agreed = agree(world, own);
  found.expect(!agreed.ok() && agreed.error().code == ErrorCode::bad_request &&
                   agreed.error().message == "rank " + std::to_string(last) + ": no room",
               "agree: " + (agreed.ok() ? std::string("success") : agreed.error().message));

  std::vector<float> data(1 << 20);
  if (rank == last) {
    std::iota(data.begin(), data.end(), 1.0f);
    found.expect(world.send(0, std::as_bytes(std::span(data))), "send");
  } else if (rank == 0) {
    found.expect(world.receive(last, std::as_writable_bytes(std::span(data))), "receive");
    for (std::size_t i = 0; i < data.size(); ++i)
      if (data[i] != static_cast<float>(i + 1)) return found.expect(false, "received something else"), found.take();
  }
  return found.take();
}

}  // namespace sluice::testing
