// sluice bench adamw: the optimizer's update in every format, held against memory read and written in place.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/size.h"
#include "sluice/suggest.h"
#include "src/device/efficiency.h"
#include "src/device/link_measure.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "tools/bench_adamw.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

constexpr auto adamw_examples =
    "  sluice bench adamw\n"
    "  sluice bench adamw --formats bf16/f32/bf16,bf16/int8/bf16 --threads 1,2 --where memory --json\n"
    "  sluice bench adamw --formats f32/f32/f32 --numel 100000000\n\n"
    "A format is the parameter's dtype, the moments' format and the gradient's dtype: bf16 or f32, then f32, bf16 or\n"
    "int8, then bf16 or f32. A bf16 parameter has a 16-bit remainder with it, which makes it an fp32 master. Bytes "
    "per\n"
    "parameter count everything once that is read and once that is written: 26 of bf16/f32/bf16.\n"
    "Figures are medians over rounds, each of which has the update and several streams that read and write as many\n"
    "bytes in place; the bound is the best of them.\n\n"
    "JSON: machine and results, each with\n"
    "  format, where             'cache' or 'memory'\n"
    "  threads, numel\n"
    "  parameters_per_second, spread (most less fewest over the median), bytes_per_parameter, bytes_per_second\n"
    "  stream_bytes_per_second, stream, ratio    the best stream, which it was, and bytes over its";

/// Parameters of a thread whose state the second-level caches hold.
constexpr std::uint64_t cached_numel = 8192;

struct AdamwArguments {
  std::vector<std::string> formats;  ///< empty: all
  std::vector<int> threads;          ///< empty: 1 and all cores
  std::string where = "both";
  std::uint64_t numel = 0;  ///< out of cache; 0: enough
  double seconds = 0.5;
  bool json = false;
};

struct AdamwRow {
  AdamwFormat format;
  const char* where;
  AdamwBenchOptions measured;
  AdamwRate rate;
  double bytes_per_second() const { return rate.parameters_per_second * format.bytes_per_parameter(); }
  double ratio() const { return bytes_per_second() / rate.stream_bytes_per_second; }
};

Result<std::vector<AdamwFormat>> chosen(const std::vector<std::string>& names) {
  const auto all = adamw_formats();
  if (names.empty()) return std::vector<AdamwFormat>(all.begin(), all.end());
  std::vector<std::string> known;
  for (const AdamwFormat& f : all) known.push_back(f.name());
  std::vector<AdamwFormat> some;
  for (const std::string& name : names) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const AdamwFormat& f) { return f.name() == name; });
    if (found == all.end())
      return bad_request(fmt::format("--formats {}: give parameter/moments/gradient, such as bf16/int8/f32{}", name,
                                     did_you_mean(name, known)));
    some.push_back(*found);
  }
  return some;
}

/// Enough that caches hold little of it, in half of the memory that is free at most.
std::uint64_t memory_numel(const AdamwFormat& format) {
  const auto bytes = std::min(beyond_cache_bytes(), available_host_bytes() / 2);
  return static_cast<std::uint64_t>(static_cast<double>(bytes) / (format.bytes_per_parameter() / 2));
}

Status check_numel(const AdamwArguments& o, const std::vector<AdamwFormat>& formats) {
  if (o.numel > 0 && o.where == "cache")
    return bad_request("--numel is of parameters out of cache, and --where cache measures none; leave one of them out");
  for (const AdamwFormat& f : formats) {
    const double bytes = static_cast<double>(o.numel) * (f.bytes_per_parameter() + 4);
    if (bytes > static_cast<double>(available_host_bytes()))
      return bad_request(fmt::format("--numel {}: {} take {} of {} that are available; give fewer", o.numel, f.name(),
                                     format_bytes(static_cast<std::uint64_t>(bytes)),
                                     format_bytes(available_host_bytes())));
  }
  return success();
}

Result<std::vector<AdamwRow>> measure(const AdamwArguments& o, const std::vector<AdamwFormat>& formats,
                                      ProgressLine& progress) {
  std::vector<AdamwRow> rows;
  std::vector<int> threads = o.threads;
  if (threads.empty()) threads.push_back(1);
  if (o.threads.empty() && usable_cores() > 1) threads.push_back(usable_cores());
  for (const char* where : {"cache", "memory"}) {
    if (o.where != "both" && o.where != where) continue;
    const bool cached = std::string(where) == "cache";
    for (const AdamwFormat& format : formats)
      for (const int n : threads) {
        progress.update(fmt::format("measuring: {}, {}, {} threads", format.name(), where, n));
        AdamwBenchOptions options{n, 0, o.seconds};
        const auto each = static_cast<std::uint64_t>(n);
        const std::uint64_t wanted = cached ? cached_numel * each : (o.numel > 0 ? o.numel : memory_numel(format));
        options.numel = std::max<std::uint64_t>(1, wanted / each) * each;  // in equal parts
        SLUICE_ASSIGN(const AdamwRate rate, measure_adamw(format, options));
        rows.push_back({format, where, options, rate});
      }
  }
  return rows;
}

void print_json(const std::vector<AdamwRow>& rows) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const AdamwRow& r : rows) {
    results.push_back({{"format", r.format.name()},
                       {"where", r.where},
                       {"threads", r.measured.threads},
                       {"numel", r.measured.numel},
                       {"spread", r.rate.spread},
                       {"parameters_per_second", r.rate.parameters_per_second},
                       {"bytes_per_parameter", r.format.bytes_per_parameter()},
                       {"bytes_per_second", r.bytes_per_second()},
                       {"stream_bytes_per_second", r.rate.stream_bytes_per_second},
                       {"stream", r.rate.stream},
                       {"ratio", r.ratio()}});
    if (beats_bound(r.ratio())) results.back()["bound_beaten"] = true;
  }
  fmt::print("{}\n", nlohmann::ordered_json{{"machine", machine_id()}, {"results", results}}.dump());
}

void print_table(const std::vector<AdamwRow>& rows) {
  Table table({"parameter/moments/gradient", "where", "threads", "parameters", "Mparam/s", "B/param", "GB/s",
               "stream GB/s", "ratio", "the stream is"});
  for (const AdamwRow& r : rows)
    table.add({r.format.name(), r.where, std::to_string(r.measured.threads), format_count(double(r.measured.numel)),
               fmt::format("{:.0f}", r.rate.parameters_per_second / 1e6),
               fmt::format("{:.2f}", r.format.bytes_per_parameter()), fmt::format("{:.1f}", r.bytes_per_second() / 1e9),
               fmt::format("{:.1f}", r.rate.stream_bytes_per_second / 1e9), format_efficiency(r.ratio(), "stream"),
               r.rate.stream});
  fmt::print("{}", table.text());
}

Status bench_adamw(const AdamwArguments& o) {
  SLUICE_ASSIGN(const std::vector<AdamwFormat> formats, chosen(o.formats));
  SLUICE_TRY(check_numel(o, formats));
  ProgressLine progress(0, !o.json && stderr_is_terminal());
  SLUICE_ASSIGN(const std::vector<AdamwRow> rows, measure(o, formats, progress));
  progress.finish();
  if (o.json)
    print_json(rows);
  else
    print_table(rows);
  return success();
}

}  // namespace

void add_bench_adamw(Command& bench, Outcome& outcome) {
  auto options = std::make_shared<AdamwArguments>();
  Command* command =
      add_command(bench, "adamw", "AdamW against the memory's bandwidth (a minute or two)", adamw_examples);
  command->add_option("--formats", options->formats, "which ones (default: all)")->delimiter(',')->type_name("F[,F]");
  command
      ->add_option("--threads", options->threads,
                   "threads that share the parameters, measured one after the other (default: 1, and then all cores)")
      ->delimiter(',')
      ->check(range(1, 1024))
      ->type_name("N[,N]");
  command
      ->add_option("--numel", options->numel,
                   "parameters out of cache (default: four times the last-level cache, 64 MiB at least)")
      ->check(range(std::uint64_t{1}, std::uint64_t{1} << 40));
  command->add_option("--where", options->where, "cache, memory or both")
      ->check(one_of({"cache", "memory", "both"}))
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "of the update and of each stream, per format, place and number of threads")
      ->check(between(0.01, 600.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &outcome] { outcome.finish("bench adamw", bench_adamw(*options)); });
}

}  // namespace sluice::tools
