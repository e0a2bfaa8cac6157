// sluice bench copy: what the links between memories carry, held against STREAM in the same memory.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "sluice/size.h"
#include "src/device/efficiency.h"
#include "src/device/link_measure.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t page_bytes = 4096;
constexpr auto copy_examples =
    "  sluice bench copy\n"
    "  sluice bench copy --size 64KiB,1GiB --threads 1,8 --json\n"
    "  sluice bench copy --cold --size 256KiB,2MiB --threads 1\n"
    "  sluice bench copy --node 0,1 --size 4GiB\n\n"
    "Figures are medians over rounds, each of which has all loops in turn. Bytes count as STREAM counts them: per\n"
    "element of 8, copy, scale and in place 16, add and triad 24. All threads share a transfer of the given size.\n"
    "The engine copies tiles that caches do not hold: --cold --size with the bytes of a tile.\n"
    "'engine copy' is the routine of the h2d and d2h lanes, which have one thread each.\n\n"
    "JSON: machine, rounds, cold, numa_nodes, numa_refused (why there is no matrix of nodes) and results, each with\n"
    "  link, name                'host to host' and the loop, or 'checksum'\n"
    "  size_bytes, threads\n"
    "  achieved, unit            median over rounds, in B/s\n"
    "  spread                    (most - least) / median\n"
    "  bound, ratio, bound_is    of the engine's copy and of the checksum\n"
    "  from_node, to_node        of a copy between two NUMA nodes, by threads on from_node";

struct CopyArguments {
  std::vector<std::uint64_t> sizes;  ///< empty: a ladder
  std::vector<int> threads, nodes;   ///< empty: 1 and all cores; all nodes if there are several
  double seconds = 0.25;
  bool cold = false, json = false;

  /// Of each array, for transfers of `size` bytes.
  std::uint64_t array_bytes(std::uint64_t size) const { return cold ? std::max(size, beyond_cache_bytes()) : size; }
};

/// Ascending, each once, and complete: what is measured.
struct CopyRequest {
  std::vector<std::uint64_t> sizes;
  std::vector<int> threads;
  std::vector<NumaNode> nodes;  ///< of the matrix; empty: no matrix
};

struct HostRow {
  std::uint64_t size_bytes = 0;
  int threads = 0;
  HostLink link;
};

struct NumaRow {
  int from = 0, to = 0;
  Bandwidth copy;
};

struct Report {
  bool cold = false;
  std::size_t numa_nodes = 0;
  std::vector<HostRow> host;
  std::vector<NumaRow> numa;
  std::string numa_refused;
  ChecksumRate checksum;
};

template <class T>
std::vector<T> ascending(const std::vector<T>& values) {
  const std::set<T> each(values.begin(), values.end());
  return {each.begin(), each.end()};
}

/// From second-level cache to memory: what is enough for all threads and fits into half of what is free.
std::vector<std::uint64_t> ladder(std::uint64_t least) {
  constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
  std::vector<std::uint64_t> rungs{64 * kib, mib, 16 * mib, 256 * mib, beyond_cache_bytes()};
  const std::uint64_t most = available_host_bytes() / 2 / HostArrays::count;
  std::erase_if(rungs, [least, most](std::uint64_t rung) { return rung < least || rung > most; });
  return rungs;
}

Result<std::vector<NumaNode>> nodes_of(const CopyArguments& o) {
  const std::vector<NumaNode> all = numa_nodes();
  if (o.nodes.empty()) return all.size() > 1 ? all : std::vector<NumaNode>();
  std::vector<NumaNode> chosen;
  for (const int id : ascending(o.nodes)) {
    const auto found = std::find_if(all.begin(), all.end(), [id](const NumaNode& n) { return n.id == id; });
    if (found == all.end())
      return bad_request(fmt::format("--node {}: this machine has {} NUMA node{} with memory, the last is {}", id,
                                     all.size(), all.size() > 1 ? "s" : "", all.back().id));
    chosen.push_back(*found);
  }
  return chosen;
}

Status check_size(std::uint64_t size, std::uint64_t least) {
  if (size < least || size % page_bytes != 0)
    return bad_request(
        fmt::format("--size {}: give a multiple of {} bytes, and at least {}: each thread has whole pages", size,
                    page_bytes, least));
  return success();
}

/// What does not fit is not tried: the kernel would end the process.
Status check_memory(std::uint64_t array_bytes) {
  const std::uint64_t available = available_host_bytes();
  if (array_bytes > available / HostArrays::count)
    return bad_request(
        fmt::format("{} arrays of {} do not fit into the {} of memory that are available; give a smaller "
                    "--size",
                    HostArrays::count, format_bytes(array_bytes), format_bytes(available)));
  return success();
}

Result<CopyRequest> request_of(const CopyArguments& o) {
  CopyRequest r;
  r.threads = ascending(o.threads.empty() ? std::vector<int>{1, usable_cores()} : o.threads);
  const std::uint64_t least = page_bytes * static_cast<std::uint64_t>(r.threads.back());
  r.sizes = ascending(o.sizes.empty() ? ladder(least) : o.sizes);
  if (r.sizes.empty()) return bad_request("too little memory is free for any of the default sizes; give --size");
  SLUICE_ASSIGN(r.nodes, nodes_of(o));
  for (const std::uint64_t size : r.sizes) SLUICE_TRY(check_size(size, least));
  SLUICE_TRY(check_memory(o.array_bytes(r.sizes.back())));
  return r;
}

std::string count_of_threads(int threads) { return fmt::format("{} thread{}", threads, threads > 1 ? "s" : ""); }

Status measure_host_to_host(const CopyArguments& o, const CopyRequest& r, ProgressLine& progress, Report& report) {
  progress.update("reserving memory");
  SLUICE_ASSIGN(const HostArrays arrays, HostArrays::make(o.array_bytes(r.sizes.back())));
  for (const std::uint64_t size : r.sizes)
    for (const int threads : r.threads) {
      progress.update(fmt::format("measuring: host to host, {}, {}", format_bytes(size), count_of_threads(threads)));
      report.host.push_back({size, threads, measure_host_link(arrays, {size, threads, o.seconds, o.cold})});
    }
  return success();
}

Status measure_between_nodes(const CopyRequest& r, double seconds, ProgressLine& progress, Report& report) {
  for (const NumaNode& from : r.nodes)
    for (const NumaNode& to : r.nodes) {
      progress.update(fmt::format("measuring: node {} to node {}", from.id, to.id));
      SLUICE_ASSIGN(const Bandwidth copy, measure_numa_copy(from, to, r.sizes.back(), r.threads.back(), seconds));
      report.numa.push_back({from.id, to.id, copy});
    }
  return success();
}

Result<Report> measure(const CopyArguments& o, const CopyRequest& r, ProgressLine& progress) {
  Report report;
  report.cold = o.cold;
  report.numa_nodes = numa_nodes().size();
  if (const Status between = measure_between_nodes(r, o.seconds, progress, report); !between.ok()) {
    if (!o.nodes.empty()) return between.error();
    report.numa.clear();
    report.numa_refused = between.error().message;
  }
  SLUICE_TRY(measure_host_to_host(o, r, progress, report));
  progress.update("measuring: checksum");
  SLUICE_ASSIGN(report.checksum, measure_checksum_rate(r.sizes.back(), o.seconds));
  return report;
}

Json row_json(const char* name, std::uint64_t size_bytes, int threads, const Bandwidth& b) {
  Json row;
  row["link"] = "host to host";
  row["name"] = name;
  row["size_bytes"] = size_bytes;
  row["threads"] = threads;
  row["achieved"] = b.bytes_per_second;
  row["unit"] = "B/s";
  row["spread"] = b.spread;
  return row;
}

void add_bound(Json& row, double bound, const char* bound_is) {
  row["bound"] = bound;
  row["ratio"] = row["achieved"].get<double>() / bound;
  row["bound_is"] = bound_is;
  if (beats_bound(row["ratio"])) row["bound_beaten"] = true;
}

void print_json(const Report& report, const CopyRequest& r) {
  Json results = Json::array();
  for (const HostRow& row : report.host)
    for (std::size_t l = 0; l < host_loop_names.size(); ++l) {
      results.push_back(row_json(host_loop_names[l], row.size_bytes, row.threads, row.link.loops[l]));
      if (static_cast<HostLoop>(l) == HostLoop::engine_copy)
        add_bound(results.back(), row.link.best_stream_copy(), "best STREAM copy");
    }
  for (const NumaRow& row : report.numa) {
    results.push_back(row_json("engine copy", r.sizes.back(), r.threads.back(), row.copy));
    results.back()["from_node"] = row.from;
    results.back()["to_node"] = row.to;
  }
  results.push_back(row_json("checksum", r.sizes.back(), 1, report.checksum.checksum));
  add_bound(results.back(), report.checksum.in_place.bytes_per_second, "memory read and written in place");
  Json j{
      {"machine", machine_id()}, {"rounds", in_turn_rounds}, {"cold", report.cold}, {"numa_nodes", report.numa_nodes}};
  if (!report.numa_refused.empty()) j["numa_refused"] = report.numa_refused;
  j["results"] = results;
  fmt::print("{}\n", j.dump());
}

std::string gigabytes(const Bandwidth& b) { return fmt::format("{:.1f}", b.bytes_per_second / 1e9); }

void print_host_to_host(const Report& report) {
  Table table({report.cold ? "host to host, cold, GB/s" : "host to host, GB/s", "threads", "engine copy", "STREAM copy",
               "non-temporal", "scale", "add", "triad", "in place", "ratio", "spread"});
  for (const HostRow& row : report.host) {
    std::vector<std::string> cells{format_bytes(row.size_bytes), std::to_string(row.threads)};
    double spread = 0;
    for (const Bandwidth& b : row.link.loops) {
      cells.push_back(gigabytes(b));
      spread = std::max(spread, b.spread);
    }
    const double ratio = row.link.of(HostLoop::engine_copy).bytes_per_second / row.link.best_stream_copy();
    cells.push_back(format_efficiency(ratio, "STREAM"));
    cells.push_back(fmt::format("{:.0f}%", 100 * spread));
    table.add(std::move(cells));
  }
  fmt::print("{}", table.text());
}

void print_matrix(const Report& report, const CopyRequest& r) {
  std::vector<std::string> header{"engine copy, GB/s: from \\ to"};
  for (const NumaNode& to : r.nodes) header.push_back(fmt::format("node {}", to.id));
  Table table(std::move(header));
  auto cell = report.numa.begin();
  for (const NumaNode& from : r.nodes) {
    std::vector<std::string> cells{fmt::format("node {}", from.id)};
    for (std::size_t to = 0; to < r.nodes.size(); ++to) cells.push_back(gigabytes((cell++)->copy));
    table.add(std::move(cells));
  }
  fmt::print("\n{}{} of {}, on the source's node\n", table.text(), count_of_threads(r.threads.back()),
             format_bytes(r.sizes.back()));
}

void print_for_people(const Report& report, const CopyRequest& r) {
  fmt::print("{}, {} NUMA node{}\n\n", machine_id(), report.numa_nodes, report.numa_nodes > 1 ? "s" : "");
  print_host_to_host(report);
  fmt::print(
      "median of {} rounds, read plus written; ratio: engine copy over the best STREAM copy; spread: the largest "
      "(most - least) / median of the row\n",
      in_turn_rounds);
  if (!report.numa.empty()) print_matrix(report, r);
  if (!report.numa_refused.empty()) fmt::print("\nno matrix of NUMA nodes: {}\n", report.numa_refused);
  const ChecksumRate& c = report.checksum;
  fmt::print("\nchecksum, 1 thread, {}: {} GB/s, {:.2f} of memory read and written in place ({} GB/s)\n",
             format_bytes(r.sizes.back()), gigabytes(c.checksum),
             c.checksum.bytes_per_second / c.in_place.bytes_per_second, gigabytes(c.in_place));
}

Status bench_copy(const CopyArguments& o) {
  SLUICE_ASSIGN(const CopyRequest request, request_of(o));
  ProgressLine progress(0, !o.json && stderr_is_terminal());
  SLUICE_ASSIGN(const Report report, measure(o, request, progress));
  progress.finish();
  if (o.json)
    print_json(report, request);
  else
    print_for_people(report, request);
  return success();
}

void add_sizes(Command* command, std::vector<std::uint64_t>* sizes) {
  command
      ->add_option_function(
          "--size",
          [sizes](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const auto size = parse_size(text);
              if (!size.ok()) refuse_value("--size", size.error().message);
              sizes->push_back(*size);
            }
          },
          "bytes of a transfer (default: 64KiB, 1MiB, 16MiB, 256MiB, and four times the last-level cache)")
      ->delimiter(',')
      ->type_name("SIZE[,SIZE]");
}

}  // namespace

void add_bench_copy(Command& bench, Outcome& outcome) {
  auto options = std::make_shared<CopyArguments>();
  Command* command = add_command(
      bench, "copy", "copies between memories, and checksums, against STREAM (about a minute)", copy_examples);
  add_sizes(command, &options->sizes);
  command->add_option("--threads", options->threads, "threads that copy together (default: 1, and all cores)")
      ->delimiter(',')
      ->check(range(1, 1024))
      ->type_name("N[,N]");
  command
      ->add_option(
          "--node", options->nodes,
          "NUMA nodes to copy between, at the largest size and most threads (default: all if there are several)")
      ->delimiter(',')
      ->check(range(0, 1023))
      ->type_name("N[,N]");
  command->add_option("--seconds", options->seconds, "per loop, size and number of threads")
      ->check(between(0.01, 600.0))
      ->capture_default_str();
  command->add_flag("--cold", options->cold,
                    "walk through memory four times as large as the last-level cache, so that transfers of any size "
                    "find nothing in caches");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &outcome] { outcome.finish("bench copy", bench_copy(*options)); });
}

}  // namespace sluice::tools
