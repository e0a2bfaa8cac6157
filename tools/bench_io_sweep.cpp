// Many settings of the stream, and the choice among them.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "src/device/statistics.h"
#include "tools/bench_io.h"
#include "tools/heat_map.h"

namespace sluice::tools {
namespace {

constexpr double study_seconds = 0.4;
constexpr std::uint64_t memory_bytes_max = 1ull << 30;
/// A setting that was slower than this share of the best in the first round is not tried again.
constexpr double hopeful = 0.9;
constexpr std::size_t finalists_max = 12;
constexpr int tune_rounds = 7;
/// "Within 1% of the best."
constexpr double good_enough = 0.99;

struct Cell {
  StreamSetting setting;
  std::string backend;
  std::vector<double> rates, costs;  ///< bytes per second; CPU seconds per GiB
  double rate() const { return rates.empty() ? 0 : median(rates); }
  double cost() const { return costs.empty() ? 0 : median(costs); }
};

std::vector<IoBackendKind> backends_of(const BenchIoOptions& o) {
  if (o.setting.backend != IoBackendKind::automatic || o.setting.sqpoll || o.setting.iopoll) return {o.setting.backend};
  return {IoBackendKind::io_uring, IoBackendKind::libaio, IoBackendKind::threads};
}

struct Grid {
  std::vector<Cell> cells;
  std::size_t too_large = 0;          ///< settings left out, whose requests are more than the file
  std::uint64_t in_flight_bytes = 0;  ///< of the largest of them

  std::string note(const DriveBench& bench) const {
    return fmt::format(
        "{} of {} settings are left out: their requests (block x depth x threads x paths, of reads and of writes) are "
        "more than the file of {}; --size {}MiB has room for all",
        too_large, too_large + cells.size(), format_bytes(bench.file().bytes()), (in_flight_bytes + 0xfffff) >> 20);
  }
};

/// Every combination that the files, their alignment and a bounded amount of memory allow. Requests that are more than
/// the file would go to the same blocks at once, which no run does.
Grid grid(const BenchIoOptions& o, const DriveBench& bench, std::span<const std::uint64_t> blocks,
          std::span<const std::size_t> depths) {
  Grid grid;
  for (const IoBackendKind backend : backends_of(o)) {
    for (const std::uint64_t block : blocks) {
      for (const std::size_t depth : depths) {
        Cell cell{o.setting, {}, {}, {}};
        cell.setting.backend = backend;
        cell.setting.block_bytes = block;
        cell.setting.depth = depth;
        if (2 * block * depth * o.setting.threads * o.paths.size() > memory_bytes_max) continue;
        const std::uint64_t in_flight = in_flight_bytes(cell.setting, o.paths.size());
        if (in_flight > bench.file().bytes()) {
          ++grid.too_large;
          grid.in_flight_bytes = std::max(grid.in_flight_bytes, in_flight);
        } else {
          grid.cells.push_back(std::move(cell));
        }
      }
    }
  }
  return grid;
}

Status none_fits(const BenchIoOptions& o, const Grid& grid, const DriveBench& bench) {
  return grid.cells.empty()
             ? Status(bad_request(fmt::format("--size {}: {}", format_bytes(o.file_bytes), grid.note(bench))))
             : success();
}

/// One measurement of each cell, in an order of its own, so that a drive that becomes slower does not favour any.
/// Cells whose backend is not available here are dropped.
Status measure(DriveBench& bench, std::vector<Cell>& cells, double seconds, std::uint64_t seed, const std::string& what,
               ProgressLine& line) {
  std::vector<std::size_t> order(cells.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  std::vector<bool> dropped(cells.size(), false);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Cell& cell = cells[order[i]];
    const double left = static_cast<double>(order.size() - i) * (seconds + 0.1);
    line.update(fmt::format("{} {} of {}, {} left", what, i + 1, order.size(), format_seconds(left)),
                static_cast<double>(i) / static_cast<double>(order.size()));
    const auto result = bench.run(cell.setting, seconds);
    if (!result.ok() && result.error().code == ErrorCode::bad_request && cells.size() > 1) {
      dropped[order[i]] = true;
      cell.backend = result.error().message;
      continue;
    }
    if (!result.ok()) return result.error();
    cell.backend = backend_name(*result);
    cell.rates.push_back(result->bytes_per_second());
    cell.costs.push_back(result->cpu_seconds_per_gib());
  }
  std::string reason;
  std::vector<Cell> kept;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (dropped[i]) {
      if (reason != cells[i].backend) line.note("left out: " + (reason = cells[i].backend));
    } else {
      kept.push_back(std::move(cells[i]));
    }
  }
  cells = std::move(kept);
  if (cells.empty()) return bad_request("none of the settings can run here: " + reason);
  return success();
}

std::string gb(double bytes_per_second) { return fmt::format("{:.2f}", bytes_per_second / 1e9); }

nlohmann::ordered_json cell_json(const Cell& c) {
  return {{"backend", c.backend},
          {"mode", stream_mode_names[static_cast<std::size_t>(c.setting.mode)]},
          {"block_bytes", c.setting.block_bytes},
          {"depth", c.setting.depth},
          {"bytes_per_second", c.rate()},
          {"iops", c.rate() / static_cast<double>(c.setting.block_bytes)},
          {"cpu_seconds_per_gib", c.cost()}};
}

HeatMap picture(const std::vector<Cell>& cells, const std::string& title, std::span<const std::uint64_t> blocks,
                std::span<const std::size_t> depths) {
  HeatMap map{title, "requests in flight", "block", "GB/s (10^9 bytes a second)", {}, {}, {}};
  for (const std::size_t depth : depths) map.x.push_back(std::to_string(depth));
  for (const std::uint64_t block : blocks) map.y.push_back(format_bytes(block));
  for (const Cell& c : cells) {
    if (map.panels.empty() || map.panels.back().name != c.backend)
      map.panels.push_back({c.backend, std::vector<double>(blocks.size() * depths.size(), 0)});
    const auto row = std::find(blocks.begin(), blocks.end(), c.setting.block_bytes) - blocks.begin();
    const auto column = std::find(depths.begin(), depths.end(), c.setting.depth) - depths.begin();
    map.panels.back().values[static_cast<std::size_t>(row) * depths.size() + static_cast<std::size_t>(column)] =
        c.rate() / 1e9;
  }
  return map;
}

void print_table(const HeatMap& map) {
  for (const HeatMap::Panel& panel : map.panels) {
    std::vector<std::string> header{panel.name + ", GB/s"};
    for (const std::string& depth : map.x) header.push_back("x " + depth);
    Table table(header);
    for (std::size_t r = 0; r < map.y.size(); ++r) {
      std::vector<std::string> row{map.y[r]};
      for (std::size_t c = 0; c < map.x.size(); ++c) {
        const double value = panel.values[r * map.x.size() + c];
        row.push_back(value > 0 ? fmt::format("{:.2f}", value) : "-");
      }
      table.add(row);
    }
    fmt::print("{}\n", table.text());
  }
}

std::string free_name(const std::string& stem, const std::string& extension) {
  std::string name = stem + extension;
  for (int i = 2; std::filesystem::exists(name); ++i) name = fmt::format("{}-{}{}", stem, i, extension);
  return name;
}

const Cell& best_of(const std::vector<Cell>& cells) {
  return *std::max_element(cells.begin(), cells.end(),
                           [](const Cell& a, const Cell& b) { return a.rate() < b.rate(); });
}

void keep_finalists(std::vector<Cell>& cells) {
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.rate() > b.rate(); });
  const double least = hopeful * cells.front().rate();
  std::erase_if(cells, [least](const Cell& c) { return c.rate() < least; });
  cells.resize(std::min(cells.size(), finalists_max));
  for (Cell& c : cells) c.rates.clear(), c.costs.clear();
}

/// Least CPU time among those that are good enough; of equals the one with fewer bytes in flight.
const Cell& cheapest_of(const std::vector<Cell>& cells) {
  const double least = good_enough * best_of(cells).rate();
  const Cell* chosen = nullptr;
  for (const Cell& c : cells) {
    if (c.rate() < least) continue;
    const auto in_flight = [](const Cell& x) { return x.setting.block_bytes * x.setting.depth; };
    if (chosen == nullptr || c.cost() < chosen->cost() ||
        (c.cost() == chosen->cost() && in_flight(c) < in_flight(*chosen)))
      chosen = &c;
  }
  return *chosen;
}

/// The profile with this drive's entry measured anew with the setting. Where there is no profile yet, one of
/// everything.
Status write_profile(const std::string& path, const BenchIoOptions& o, const StreamSetting& setting,
                     ProgressLine& line) {
  HardwareProfile profile;
  bool found = std::filesystem::exists(path);
  if (found) {
    auto loaded = load_profile(path);
    if (!loaded.ok() && !o.profile.empty()) return loaded.error();
    found = loaded.ok() && profile_is_of_this_machine(*loaded);
    if (found) profile = *std::move(loaded);
  }
  if (!found) {
    MeasureOptions options;
    options.progress = [&line](const std::string& what) { line.update("measuring: " + what); };
    SLUICE_ASSIGN(profile, measure_profile(options));
  }
  line.update("measuring: drive with the setting found");
  DriveOptions drive;
  drive.directories = o.paths;
  drive.file_bytes = o.file_bytes;
  drive.setting = setting;
  if (o.seconds_given) drive.seconds = o.seconds;
  SLUICE_ASSIGN(profile.drives[drive_key(o.paths)], measure_drive(drive));
  return save_profile(path, profile);
}

}  // namespace

Status bench_io_sweep(const BenchIoOptions& o) {
  constexpr std::uint64_t blocks[] = {sweep_block_bytes_min, 16u << 10, 64u << 10, 128u << 10, 256u << 10, 512u << 10,
                                      1024u << 10,           2u << 20,  4u << 20};
  constexpr std::size_t depths[] = {1, 2, 4, 8, 16, 32, 64};
  const std::string picture_path = o.svg.empty() ? free_name("io-sweep", ".svg") : o.svg;
  SLUICE_TRY(check_stream_path(picture_path));
  SLUICE_TRY(check_replaces_own("--svg", picture_path, "<svg ", "picture"));
  ProgressLine line(10, !o.json);
  SLUICE_ASSIGN(DriveBench bench, open_drive_bench(o, line));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::size_t left_out = 0;
  std::vector<HeatMap> maps;
  for (const StreamMode mode : o.modes) {
    BenchIoOptions of_mode = o;
    of_mode.setting.mode = mode;
    const char* const name = stream_mode_names[static_cast<std::size_t>(mode)];
    Grid settings = grid(of_mode, bench, blocks, depths);
    SLUICE_TRY(none_fits(o, settings, bench));
    if (settings.too_large > 0) line.note(fmt::format("{}: {}", name, settings.note(bench)));
    left_out += settings.too_large;
    std::vector<Cell>& cells = settings.cells;
    SLUICE_TRY(measure(bench, cells, o.seconds_given ? o.seconds : study_seconds, 1, fmt::format("{}:", name), line));
    for (const Cell& c : cells) results.push_back(cell_json(c));
    maps.push_back(picture(cells, fmt::format("{}, {}{}", drive_key(o.paths), name, o.setting.random ? ", random" : ""),
                           blocks, depths));
    line.finish();
    if (o.json) continue;
    const Cell& best = best_of(cells);
    fmt::print("{}\n", name);
    print_table(maps.back());
    fmt::print("best {} GB/s: {}, {} x {}\n\n", gb(best.rate()), best.backend, best.setting.depth,
               format_bytes(best.setting.block_bytes));
  }
  SLUICE_TRY(publish_file(picture_path, to_svg(maps)));
  if (o.json)
    fmt::print("{}\n",
               nlohmann::ordered_json{{"results", results}, {"left_out", left_out}, {"picture", picture_path}}.dump());
  else
    fmt::print("drawn in {}\n", picture_path);
  return success();
}

Status bench_io_tune(const BenchIoOptions& given) {
  constexpr std::uint64_t blocks[] = {tune_block_bytes_min, 128u << 10, 256u << 10, 512u << 10, drive_block_bytes_max};
  constexpr std::size_t depths[] = {4, 8, 16, 32, 64};
  BenchIoOptions o = given;
  o.setting.mode = o.modes.size() == 1 ? o.modes[0] : StreamMode::mixed;
  if (o.setting.threads > 1 || o.setting.sqpoll || o.setting.iopoll)
    return bad_request(
        "--tune is for runs, which drive a drive by one thread without polling: leave those options out");
  std::string path = o.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  // What can not be read or written is said before minutes of measuring.
  if (!o.profile.empty() && std::filesystem::exists(path)) {
    SLUICE_ASSIGN([[maybe_unused]] const HardwareProfile readable, load_profile(path));
  }
  const double seconds = o.seconds_given ? o.seconds : study_seconds;
  ProgressLine line(10, !o.json);
  std::vector<Cell> cells;
  {
    SLUICE_ASSIGN(DriveBench bench, open_drive_bench(o, line));
    Grid settings = grid(o, bench, blocks, depths);
    SLUICE_TRY(none_fits(o, settings, bench));
    if (settings.too_large > 0) line.note(settings.note(bench));
    cells = std::move(settings.cells);
    SLUICE_TRY(measure(bench, cells, seconds, 1, "trying setting", line));
    keep_finalists(cells);
    for (int round = 0; round < tune_rounds; ++round)
      SLUICE_TRY(measure(bench, cells, seconds, 2u + static_cast<unsigned>(round),
                         fmt::format("round {} of {}, setting", round + 1, tune_rounds), line));
  }
  const Cell chosen = cheapest_of(cells), best = best_of(cells);
  SLUICE_TRY(write_profile(path, o, chosen.setting, line));
  line.finish();
  if (o.json) {
    nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
    for (const Cell& c : cells) candidates.push_back(cell_json(c));
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"chosen", cell_json(chosen)}, {"candidates", candidates}, {"profile", path}}.dump());
    return success();
  }
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.rate() > b.rate(); });
  Table table({"setting", "rate", "of the best", "CPU s/GiB", ""});
  for (const Cell& c : cells)
    table.add({fmt::format("{}, {} x {}", c.backend, c.setting.depth, format_bytes(c.setting.block_bytes)),
               format_rate(c.rate()), fmt::format("{:.3f}", c.rate() / best.rate()), fmt::format("{:.4f}", c.cost()),
               c.setting.block_bytes == chosen.setting.block_bytes && c.setting.depth == chosen.setting.depth &&
                       c.backend == chosen.backend
                   ? "<- chosen"
                   : ""});
  fmt::print("{}, {}: medians of {} rounds\n{}written to {}: train and plan use it for {}\n",
             stream_mode_names[static_cast<std::size_t>(o.setting.mode)], drive_key(o.paths), tune_rounds, table.text(),
             path, drive_key(o.paths));
  return success();
}

}  // namespace sluice::tools
