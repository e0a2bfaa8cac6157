#include "tests/comm/checks.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "sluice/dtype.h"
#include "sluice/exchange.h"
#include "src/schedule/lots.h"

namespace sluice::test {
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

/// How far apart sums of so many terms may be that were made in different orders, or of rounded terms.
bool is_close(float sum, const std::vector<float>& terms, float unit) {
  double exact = 0, magnitude = 0;
  for (const float t : terms) exact += t, magnitude += std::abs(t);
  return std::abs(sum - exact) <= static_cast<double>(unit) * static_cast<double>(terms.size()) * magnitude;
}

Topology one_axis(RankId ranks, RankId rank) { return Topology::of({{"dp", ranks}}, rank); }

/// Sums of bf16, whose bits are the tree's over rounded terms; and the transport's own, in place and apart.
void check_other_sums(World& world, RankId rank, Findings& found) {
  Communicator& communicator = world.communicator(rank);
  const RankId ranks = world.ranks();
  for (const std::size_t part : {std::size_t{0}, std::size_t{3001}, std::size_t{100001}}) {
    const std::string size = " of " + std::to_string(part);
    std::vector<std::byte> room(world.shares_memory() ? 0 : exchange_bytes(ranks, part * sizeof(float)));
    std::vector<float> full(part * ranks), apart(part);
    for (const RankSums sums : {RankSums::bf16, RankSums::native})
      for (const bool in_place : {true, false}) {
        for (std::size_t i = 0; i < full.size(); ++i) full[i] = term(rank, i);
        const std::span<float> out = in_place ? std::span(full).subspan(rank * part, part) : std::span(apart);
        found.expect(communicator.reduce_scatter(0, full, out, room, sums), "reduce_scatter" + size);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < part; ++i) {
          std::vector<float> terms;
          for (std::size_t r = 0; r < ranks; ++r) terms.push_back(term(r, rank * part + i));
          if (sums == RankSums::native) {
            wrong += is_close(out[i], terms, 0x1p-23f) ? 0 : 1;
            continue;
          }
          wrong += is_close(out[i], terms, 0x1p-8f) ? 0 : 1;
          for (float& t : terms) t = to_float(to_bf16(t));
          const float expected = tree_sum(terms);
          wrong += std::memcmp(&expected, &out[i], sizeof expected) != 0 ? 1 : 0;
        }
        found.expect(wrong == 0, std::string(rank_sums_names[static_cast<std::size_t>(sums)]) + " sums" + size + ": " +
                                     std::to_string(wrong) + " are wrong");
      }
  }
}

}  // namespace

std::vector<std::string> check_collectives(World& world, RankId rank) {
  Findings found(rank);
  Communicator& communicator = world.communicator(rank);
  const RankId ranks = world.ranks();
  found.expect(communicator.prepare(one_axis(ranks, rank), std::array{all_ranks, all_ranks}, true), "prepare");
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
    found.expect(communicator.reduce_scatter(0, full, own, room, RankSums::tree), "reduce_scatter" + size);
    wrong = 0;
    for (std::size_t i = 0; i < part; ++i) {
      std::vector<float> terms;
      for (std::size_t r = 0; r < ranks; ++r) terms.push_back(term(r, rank * part + i));
      const float expected = tree_sum(terms);
      wrong += std::memcmp(&expected, &own[i], sizeof expected) != 0 ? 1 : 0;
    }
    found.expect(wrong == 0, "reduce_scatter" + size + ": " + std::to_string(wrong) + " sums have other bits");
  }
  check_other_sums(world, rank, found);
  std::array<std::int64_t, 3> values{rank, -2 * rank, std::int64_t{1} << 62};
  found.expect(communicator.sum(1, std::span(values).first(2)), "sum");
  const std::int64_t all = ranks * (ranks - 1) / 2;
  found.expect(values == std::array<std::int64_t, 3>{all, -2 * all, std::int64_t{1} << 62}, "sum: wrong");
  return found.take();
}

std::vector<std::string> check_messages(World& world, RankId rank) {
  Findings found(rank);
  Communicator& communicator = world.communicator(rank);
  const std::size_t ranks = world.ranks();
  found.expect(communicator.prepare(one_axis(world.ranks(), rank), std::array{all_ranks}), "prepare");
  // Nothing, a word, pages with a rest, and enough that MPI does not buffer a message.
  for (const std::size_t numel : {std::size_t{0}, std::size_t{1}, std::size_t{30001}, std::size_t{100001}}) {
    const std::string size = " of " + std::to_string(numel);
    std::vector<float> from(numel * ranks), to(numel * ranks, -1.0f);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = term(rank, i);
    found.expect(communicator.all_to_all(0, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to))),
                 "all_to_all" + size);
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < numel; ++i) wrong += to[r * numel + i] != term(r, rank * numel + i) ? 1 : 0;
    found.expect(wrong == 0, "all_to_all" + size + ": " + std::to_string(wrong) + " elements are wrong");
    // In pieces: [piece, member, part].
    const std::size_t pieces = numel % 2 == 0 ? 2 : 1, part = numel / pieces;
    std::ranges::fill(to, -1.0f);
    found.expect(
        communicator.all_to_all(0, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)), pieces),
        "all_to_all in pieces" + size);
    wrong = 0;
    for (std::size_t p = 0; p < pieces; ++p)
      for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t i = 0; i < part; ++i)
          wrong += to[(p * ranks + r) * part + i] != term(r, (p * ranks + rank) * part + i) ? 1 : 0;
    found.expect(wrong == 0, "all_to_all in pieces" + size + ": " + std::to_string(wrong) + " elements are wrong");

    found.expect(communicator.ring_shift(0, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to))),
                 "ring_shift" + size);
    wrong = 0;
    for (std::size_t i = 0; i < to.size(); ++i) wrong += to[i] != term((rank + ranks - 1) % ranks, i) ? 1 : 0;
    found.expect(wrong == 0, "ring_shift" + size + ": " + std::to_string(wrong) + " elements are wrong");

    // Whole pages for each member, and a rest.
    std::vector<std::byte> paged(numel == 1 ? ranks * 32768 + 1 : 0, std::byte{static_cast<unsigned char>(rank)});
    found.expect(communicator.broadcast(0, ranks - 1, paged), "broadcast of pages and a rest");
    for (const std::byte b : paged)
      if (b != std::byte{static_cast<unsigned char>(ranks - 1)}) {
        found.expect(false, "broadcast of pages and a rest: wrong");
        break;
      }
    for (std::size_t root = 0; root < ranks; ++root) {
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = term(rank, i);
      found.expect(communicator.broadcast(0, root, std::as_writable_bytes(std::span(from))), "broadcast" + size);
      wrong = 0;
      for (std::size_t i = 0; i < from.size(); ++i) wrong += from[i] != term(root, i) ? 1 : 0;
      found.expect(wrong == 0, "broadcast" + size + " by " + std::to_string(root) + ": " + std::to_string(wrong) +
                                   " elements are wrong");
    }

    for (std::size_t i = 0; i < from.size(); ++i) from[i] = term(rank, i);
    std::vector<std::byte> room(exchange_bytes(ranks, numel * sizeof(float)));
    found.expect(communicator.all_reduce(0, from, room, RankSums::tree), "all_reduce" + size);
    wrong = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::vector<float> terms;
      for (std::size_t r = 0; r < ranks; ++r) terms.push_back(term(r, i));
      wrong += from[i] != tree_sum(terms) ? 1 : 0;
    }
    found.expect(wrong == 0, "all_reduce" + size + ": " + std::to_string(wrong) + " sums are wrong");

    // Round the ring, two messages each that must not overtake one another, and a collective behind them.
    const std::size_t next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    std::vector<float> first(numel), second(numel, static_cast<float>(rank)), got(numel), got_then(numel);
    for (std::size_t i = 0; i < numel; ++i) first[i] = term(rank, i);
    const auto bytes = [](std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); };
    if (ranks > 1) {
      found.expect(communicator.exchange(0, std::array{Outgoing{next, bytes(first)}, Outgoing{next, bytes(second)}},
                                         std::array{Incoming{before, bytes(got)}, Incoming{before, bytes(got_then)}}),
                   "exchange" + size);
      wrong = 0;
      for (std::size_t i = 0; i < numel; ++i)
        wrong += got[i] != term(before, i) || got_then[i] != static_cast<float>(before) ? 1 : 0;
      found.expect(wrong == 0, "exchange" + size + ": " + std::to_string(wrong) + " elements are wrong");
    }
    // Down the line, as activations go through stages.
    if (rank > 0) found.expect(communicator.receive(0, before, bytes(got)), "receive" + size);
    if (rank > 0)
      for (std::size_t i = 0; i < numel; ++i) first[i] = got[i] + 1.0f;
    if (next > 0) found.expect(communicator.send(0, next, bytes(first)), "send" + size);
    std::int64_t sum = rank;
    found.expect(communicator.sum(0, std::span(&sum, 1)), "sum behind messages");
    found.expect(sum == static_cast<std::int64_t>(ranks * (ranks - 1) / 2), "sum behind messages: wrong");
    wrong = 0;
    for (std::size_t i = 0; rank > 0 && i < numel; ++i) {
      float expected = term(0, i);
      for (RankId r = 1; r < rank; ++r) expected += 1.0f;
      wrong += got[i] != expected ? 1 : 0;
    }
    found.expect(wrong == 0, "receive" + size + ": " + std::to_string(wrong) + " elements are wrong");
  }
  // Round the ring on one channel, a thread sending while another receives, as the stages of a pipeline do.
  if (ranks > 1) {
    constexpr int rounds = 50;
    const std::size_t next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    std::vector<float> out(20001), in(out.size());
    Status sent, received;
    std::thread sender([&] {
      for (int round = 0; round < rounds && sent.ok(); ++round) {
        std::ranges::fill(out, static_cast<float>(rank * 100 + static_cast<std::size_t>(round)));
        sent = communicator.send(0, next, std::as_bytes(std::span(out)));
      }
    });
    std::size_t wrong = 0;
    for (int round = 0; round < rounds && received.ok(); ++round) {
      received = communicator.receive(0, before, std::as_writable_bytes(std::span(in)));
      for (const float f : in) wrong += f != static_cast<float>(before * 100 + static_cast<std::size_t>(round)) ? 1 : 0;
    }
    sender.join();
    found.expect(sent, "send beside receive");
    found.expect(received, "receive beside send");
    found.expect(wrong == 0, "receive beside send: " + std::to_string(wrong) + " elements are wrong");
    std::int64_t all_are_through = 1;
    found.expect(communicator.sum(0, std::span(&all_are_through, 1)), "sum behind messages on two threads");
  }
  // Who expects another size says so; the sender ends with it.
  std::array<float, 6> data{};
  const std::span<std::byte> all = std::as_writable_bytes(std::span(data));
  // That ends all, also who still waits for a message of the sum: first rank 1 hears that the others have it.
  if (rank > 1) {
    const Status sent = communicator.send(0, 1, all.first(4));
    found.expect(sent.ok() || sent.error().code == ErrorCode::cancelled, "send behind the sum");
  } else if (rank == 1) {
    for (std::size_t other = 2; other < ranks; ++other)
      found.expect(communicator.receive(0, other, all.first(4)), "receive behind the sum");
  }
  if (ranks > 1 && rank == 0) {
    const Status sent = communicator.send(0, 1, all.first(20));
    found.expect(sent.ok() || sent.error().code == ErrorCode::cancelled, "the sender did not end");
  } else if (rank == 1) {
    const Status received = communicator.receive(0, 0, all);
    found.expect(!received.ok() && received.error().message.find("20") != std::string::npos, "20 bytes taken for 24");
    communicator.cancel("sizes");
  }
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
      for (std::size_t i = 0; i < full.size(); ++i)
        full[i] = static_cast<float>(i % numel + static_cast<std::size_t>(round));
      if (!communicator.reduce_scatter(channel, full, own, room, RankSums::tree).ok()) return false;
      for (std::size_t i = 0; i < numel; ++i)
        if (own[i] != static_cast<float>(members) * static_cast<float>(i + static_cast<std::size_t>(round)))
          return false;
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
    const Status cancelled = communicator.reduce_scatter(0, full, own, room, RankSums::tree);
    found.expect(
        !cancelled.ok() && cancelled.error().code == ErrorCode::cancelled && cancelled.error().message == "enough",
        "not cancelled: " + (cancelled.ok() ? std::string("ended") : cancelled.error().message));
    const Status waits = communicator.still_waits(std::chrono::seconds(0));
    found.expect(!waits.ok() && waits.error().message == "enough", "a wait by other means goes on");
    // Who prepares anew is not cancelled, and meets nobody's leftovers.
    found.expect(communicator.prepare(one_axis(ranks, rank), std::array{all_ranks}), "prepare");
    found.expect(communicator.still_waits(std::chrono::seconds(0)), "a wait in a session that goes on");
    found.expect(!communicator.still_waits(std::chrono::hours(10000)).ok(), "a wait beyond the deadline goes on");
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

}  // namespace sluice::test
