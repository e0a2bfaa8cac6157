// sluice bench collective: what collectives between ranks carry, held against the transport's own.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "io/aligned_memory.h"
#include "sluice/exchange.h"
#include "sluice/size.h"
#include "src/comm/in_process.h"
#include "src/comm/mpi.h"
#include "src/device/link_measure.h"
#include "src/device/profile.h"
#include "src/device/statistics.h"
#include "tools/commands.h"
#include "tools/launch.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto collective_examples =
    "  mpirun -n 2 sluice bench collective\n"
    "  mpirun -n 4 --host a:2,b:2 sluice bench collective --size 4KiB,64MiB --json\n"
    "  sluice bench collective --ranks 4     # threads of one process\n\n"
    "A rate is bytes that arrive at a rank a second. Rounds have ours and the library's in turn; figures are medians.\n"
    "Between processes the library is MPI's (MPI_Allgather, MPI_Reduce_scatter_block, ...), whose sums have an order "
    "of\n"
    "their own, and whose ranks keep a core busy while they wait. In one process it is a copy of as many bytes.\n\n"
    "JSON: machine, ranks, transport and results, each with collective, size_bytes (of all parts), seconds,\n"
    "achieved and bound (B/s), ratio. Between processes the profile of this machine keeps the rates of the last size.";

struct CollectiveArguments {
  std::vector<std::uint64_t> sizes;
  int ranks = 2;
  double seconds = 0.3;
  bool json = false;
};

struct CollectiveRow {
  Collective collective = Collective::all_gather;
  std::uint64_t size_bytes = 0, received_bytes = 0;
  double seconds = 0, native_seconds = 0;
};

/// One rank's side of the measurement.
class Side {
 public:
  Side(World& world, RankId rank, const CollectiveArguments& options) : world_(world), rank_(rank), options_(options) {}

  Status run(std::vector<CollectiveRow>& rows) {
    const Topology topology = Topology::of({{"dp", world_.ranks()}}, rank_);
    SLUICE_TRY(world_.communicator(rank_).prepare(topology, std::array{topology.all_axes()}));
    for (const std::uint64_t size : options_.sizes)
      for (std::size_t i = 0; i < collective_names.size(); ++i) {
        SLUICE_ASSIGN(const CollectiveRow row, measure(static_cast<Collective>(i), size));
        if (rank_ == 0) rows.push_back(row);
      }
    return success();
  }

 private:
  Result<CollectiveRow> measure(Collective collective, std::uint64_t size) {
    const std::size_t part = size / world_.ranks() / sizeof(float);
    const AlignedMemory memory(part * world_.ranks() * sizeof(float)), second(memory.bytes()),
        memory_for_sums(exchange_bytes(world_.ranks(), part * sizeof(float)));
    for (const AlignedMemory* m : {&memory, &second, &memory_for_sums})
      std::fill_n(m->data(), m->bytes(), std::byte{0});
    const std::span full(reinterpret_cast<float*>(memory.data()), part * world_.ranks()),
        other(reinterpret_cast<float*>(second.data()), full.size());
    const std::span<std::byte> bytes = std::as_writable_bytes(full), other_bytes = std::as_writable_bytes(other),
                               room = memory_for_sums.span();
    Communicator& ranks = world_.communicator(rank_);
    const auto next = static_cast<RankId>((rank_ + 1) % world_.ranks()),
               before = static_cast<RankId>((rank_ + world_.ranks() - 1) % world_.ranks());
    const auto ours = [&]() -> Status {
      switch (collective) {
        case Collective::all_gather: return ranks.all_gather(0, bytes);
        case Collective::reduce_scatter: return ranks.reduce_scatter(0, full, other.first(part), room, RankSums::tree);
        case Collective::all_reduce: return ranks.all_reduce(0, full, room, RankSums::tree);
        case Collective::all_to_all: return ranks.all_to_all(0, bytes, other_bytes);
        case Collective::broadcast: return ranks.broadcast(0, 0, bytes);
        case Collective::exchange:
          return ranks.exchange(0, std::array{Outgoing{next, bytes}}, std::array{Incoming{before, other_bytes}});
      }
      return success();
    };
    const auto native = [&] { return world_.native(collective, rank_, full, other); };
    SLUICE_ASSIGN(const double once, timed(ours, 2));
    SLUICE_TRY(timed(native, 2));
    // As many as fit the time, by rank 0's clock.
    constexpr int rounds = 9;
    std::int64_t repeats =
        rank_ == 0 ? std::clamp<std::int64_t>(static_cast<std::int64_t>(options_.seconds / rounds / once), 1, 1000) : 0;
    SLUICE_TRY(world_.communicator(rank_).sum(0, std::span(&repeats, 1)));
    std::vector<double> seconds, native_seconds;
    for (int round = 0; round < rounds; ++round) {
      SLUICE_ASSIGN(const double mine, timed(ours, repeats));
      SLUICE_ASSIGN(const double theirs, timed(native, repeats));
      seconds.push_back(mine);
      native_seconds.push_back(theirs);
    }
    return CollectiveRow{collective, size, arriving_bytes(collective, part * sizeof(float)), median(seconds),
                         median(native_seconds)};
  }

  /// At a rank; of a broadcast at one that is not the root.
  std::uint64_t arriving_bytes(Collective collective, std::uint64_t part_bytes) const {
    const std::uint64_t others = world_.ranks() - 1u;
    switch (collective) {
      case Collective::broadcast:
      case Collective::exchange: return part_bytes * world_.ranks();
      case Collective::all_reduce: return 2 * part_bytes * others;
      default: return part_bytes * others;
    }
  }

  template <class F>
  Result<double> timed(F call, std::int64_t repeats) {
    std::int64_t together = 0;
    SLUICE_TRY(world_.communicator(rank_).sum(0, std::span(&together, 1)));
    const Clock::time_point began = Clock::now();
    for (std::int64_t i = 0; i < repeats; ++i) SLUICE_TRY(call());
    return std::chrono::duration<double>(Clock::now() - began).count() / static_cast<double>(repeats);
  }

  World& world_;
  RankId rank_;
  const CollectiveArguments& options_;
};

const char* name(const CollectiveRow& row) { return collective_names[static_cast<std::size_t>(row.collective)]; }

void print(const CollectiveArguments& o, const World& world, const std::vector<CollectiveRow>& rows) {
  const bool apart = !world.is_alone();
  const auto rate = [](const CollectiveRow& row, double seconds) {
    return static_cast<double>(row.received_bytes) / seconds;
  };
  if (o.json) {
    Json j{{"machine", machine_id()}, {"ranks", world.ranks()}, {"transport", apart ? "mpi" : "in-process"}};
    for (const CollectiveRow& row : rows)
      j["results"].push_back({{"collective", name(row)},
                              {"size_bytes", row.size_bytes},
                              {"seconds", row.seconds},
                              {"achieved", rate(row, row.seconds)},
                              {"bound", rate(row, row.native_seconds)},
                              {"ratio", row.native_seconds / row.seconds}});
    std::printf("%s\n", j.dump(2).c_str());
    return;
  }
  std::printf("%s, %d ranks %s\n", machine_id().c_str(), static_cast<int>(world.ranks()),
              apart ? "that are processes" : "of one process");
  std::printf("%-16s %10s %12s %14s %14s %7s\n", "collective", "size", "time", "rate", apart ? "MPI's own" : "a copy",
              "ratio");
  for (const CollectiveRow& row : rows)
    std::printf("%-16s %10s %12s %14s %14s %7.2f\n", name(row), format_bytes(row.size_bytes).c_str(),
                format_seconds(row.seconds).c_str(), format_rate(rate(row, row.seconds)).c_str(),
                format_rate(rate(row, row.native_seconds)).c_str(), row.native_seconds / row.seconds);
}

/// Plans of ranks that are processes are predicted with these.
Status keep(const World& world, const std::vector<CollectiveRow>& rows) {
  const bool one_machine = world.ranks_of_node() == world.ranks();
  if (!one_machine && world.ranks_of_node() > 1) return success();  // both kinds of link at once
  SLUICE_ASSIGN(const std::string path, default_profile_path());
  auto profile = load_profile(path);
  if (!profile.ok()) return success();  // the machine has not been measured
  MessageRates rates;
  rates.latency_seconds = rows.front().seconds;
  for (const CollectiveRow& row : rows) {
    const double rate = static_cast<double>(row.received_bytes) / row.seconds;
    if (row.collective == Collective::all_gather) rates.gather_bytes_per_second = rate;
    if (row.collective == Collective::reduce_scatter) rates.reduce_bytes_per_second = rate;
    if (row.collective == Collective::all_gather || row.collective == Collective::reduce_scatter)
      rates.latency_seconds = std::min(rates.latency_seconds, row.seconds);
  }
  (one_machine ? profile->messages_inside : profile->messages_between) = rates;
  return save_profile(path, *profile);
}

Status measure_in(World& world, const CollectiveArguments& o) {
  const RankRange here = world.here();
  std::vector<CollectiveRow> rows;
  std::vector<Status> ended(here.count);
  std::vector<std::thread> threads;
  for (RankId r = here.first; r < here.end(); ++r)
    threads.emplace_back([&, r] { ended[static_cast<std::size_t>(r - here.first)] = Side(world, r, o).run(rows); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended) SLUICE_TRY(status);
  if (world.leads()) print(o, world, rows);
  return world.leads() && !world.is_alone() ? keep(world, rows) : success();
}

Status bench_collective(CollectiveArguments o, bool ranks_given) {
  std::unique_ptr<World> world;
  if (launched().processes > 1) {
    if (ranks_given) return bad_request("--ranks is of one process; each that mpirun has started is a rank");
    SLUICE_ASSIGN(world, connect_by_mpi());
  } else {
    world = std::make_unique<InProcessWorld>(static_cast<RankId>(o.ranks));
  }
  for (std::uint64_t& size : o.sizes) {
    const std::uint64_t grain = world->ranks() * sizeof(float);
    if (size < grain) {
      world->end();
      return bad_request(
          fmt::format("--size {}: {} ranks have no part of it; give at least {}", size, world->ranks(), grain));
    }
    size = size / grain * grain;
    // Each rank has it twice, and room for sums.
    const std::uint64_t ranks = world->ranks(),
                        all = world->here().count * (2 * size + exchange_bytes(ranks, size / ranks));
    if (world->is_alone() && (size > available_host_bytes() || all > available_host_bytes())) {
      world->end();
      return bad_request(fmt::format("--size {}: {} of memory are needed, and {} are available; give less",
                                     format_bytes(size), format_bytes(all), format_bytes(available_host_bytes())));
    }
  }
  const Status measured = agree(*world, measure_in(*world, o));
  world->end();
  return measured;
}

}  // namespace

void add_bench_collective(Command& bench, Outcome& outcome) {
  auto options = std::make_shared<CollectiveArguments>();
  Command* command = add_command(bench, "collective", "collectives between ranks, against MPI's own (half a minute)",
                                 collective_examples);
  command
      ->add_option_function(
          "--size",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const auto size = parse_size(text);
              if (!size.ok()) refuse_value("--size", size.error().message);
              options->sizes.push_back(*size);
            }
          },
          "bytes of all parts together (default: 4KiB, 64KiB, 1MiB, 16MiB, 256MiB)")
      ->delimiter(',')
      ->type_name("SIZE[,SIZE]");
  Option* const ranks = command->add_option("--ranks", options->ranks, "threads of this process")
                            ->check(range(2, 64))
                            ->capture_default_str();
  command->add_option("--seconds", options->seconds, "per collective and size")
      ->check(range(0.01, 600.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, ranks, &outcome] {
    constexpr std::uint64_t kib = 1024;
    if (options->sizes.empty()) options->sizes = {4 * kib, 64 * kib, kib * kib, 16 * kib * kib, 256 * kib * kib};
    outcome.finish("bench collective", bench_collective(*options, ranks->count() > 0));
  });
}

}  // namespace sluice::tools
