// sluice bench pack: buffers with known lives packed into one range of addresses, held against the most bytes alive.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/files/buffers_csv.h"
#include "io/files/publish.h"
#include "offload/plan/pack_complete.h"
#include "offload/plan/pack_fit.h"
#include "sluice/size.h"
#include "tools/commands.h"
#include "tools/json_text.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

using namespace planning;
using Clock = std::chrono::steady_clock;

constexpr auto pack_examples =
    "  sluice bench pack buffers.csv\n"
    "  sluice bench pack buffers.csv --capacity 1MiB --output placed.csv\n"
    "  sluice bench pack a.csv b.csv --alignment 4KiB --json\n\n"
    "A file is a table as MiniMalloc has them: its first line is id,lower,upper,size (in any order), then a line for\n"
    "each buffer, alive from lower to before upper, size in bytes. The bound is the most bytes alive. As a state is "
    "said\n"
    "'at bound', 'minimal' (proven: there is no lower packing), 'limit reached' (there may be one), and with "
    "--capacity "
    "'fits'\n"
    "or 'impossible' (proven). Without --time-limit the search ends after a fixed number of steps, of at most about "
    "ten seconds:\n"
    "the same file is packed alike on every machine. Exit status 1: --capacity was not reached.\n\n"
    "JSON: results, each with file, buffers, bound_bytes, height_bytes, ratio, state, seconds.";

constexpr std::uint64_t usual_work = 1'500'000'000;

struct PackArguments {
  std::vector<std::string> files;
  std::uint64_t capacity_bytes = 0, alignment_bytes = 1;  ///< capacity 0: as low as can be
  std::string output;
  double time_limit_seconds = 0;  ///< 0: as much work as is usual
  bool json = false;
};

struct Packed {
  std::string file, state;
  Placement placement;
  std::uint64_t bound_bytes = 0;
  double seconds = 0;
  bool fits = true;
};

/// Moments are numbered: their order says what meets.
std::vector<Piece> pieces_of(const std::vector<BufferRow>& rows, std::uint64_t alignment_bytes) {
  std::vector<std::uint64_t> moments;
  for (const BufferRow& row : rows) moments.insert(moments.end(), {row.lower, row.upper});
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  const auto number_of = [&](std::uint64_t moment) {
    return static_cast<std::uint32_t>(std::lower_bound(moments.begin(), moments.end(), moment) - moments.begin());
  };
  std::vector<Piece> pieces;
  for (const BufferRow& row : rows)
    pieces.push_back({number_of(row.lower), number_of(row.upper) - 1,
                      (row.bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes, false,
                      row.upper - row.lower});
  return pieces;
}

/// A placement at the capacity or below it, if there is one; the best of the greedy orders where none was found.
void pack_into_capacity(const std::vector<Piece>& pieces, std::uint64_t capacity, const SearchLimit& limit,
                        Packed& into) {
  into.placement = place_greedily(pieces, capacity, false);
  SearchEnd end{SearchEnd::Kind::found, {}, 0};
  if (into.bound_bytes > capacity)
    end.kind = SearchEnd::Kind::impossible;
  else if (into.placement.height > capacity)
    end = search_pieces(pieces, capacity, limit);
  if (!end.offsets.empty()) {
    into.placement.height = height_of(pieces, end.offsets);
    into.placement.offsets = std::move(end.offsets);
  }
  into.fits = end.kind == SearchEnd::Kind::found;
  into.state = into.fits                                 ? "fits"
               : end.kind == SearchEnd::Kind::impossible ? "impossible"
                                                         : pack_state_names[static_cast<int>(PackState::limited)];
}

Packed pack_file(const std::string& file, const std::vector<BufferRow>& rows, const PackArguments& o) {
  const Clock::time_point begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  SearchLimit limit{usual_work, nullptr};
  if (o.time_limit_seconds > 0) limit = {~0ull, [&] { return seconds() > o.time_limit_seconds; }};
  const std::vector<Piece> pieces = pieces_of(rows, o.alignment_bytes);
  Packed p;
  p.file = file;
  p.bound_bytes = max_live_bytes(pieces);
  if (o.capacity_bytes > 0) {
    pack_into_capacity(pieces, o.capacity_bytes, limit, p);
  } else {
    p.placement = search_lower(pieces, p.bound_bytes, limit, place_greedily(pieces, p.bound_bytes, false));
    p.state = pack_state_names[static_cast<std::size_t>(p.placement.state)];
  }
  p.seconds = seconds();
  return p;
}

double ratio(const Packed& p) { return static_cast<double>(p.placement.height) / static_cast<double>(p.bound_bytes); }

void print(const std::vector<Packed>& all, bool json) {
  if (json) {
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (const Packed& p : all)
      results.push_back({{"file", p.file},
                         {"buffers", p.placement.offsets.size()},
                         {"bound_bytes", p.bound_bytes},
                         {"height_bytes", p.placement.height},
                         {"ratio", ratio(p)},
                         {"state", p.state},
                         {"seconds", p.seconds}});
    fmt::print("{}\n", json_text({{"results", results}}));
    return;
  }
  Table table({"", "buffers", "bound, bytes", "height, bytes", "height / bound", "state", "time"});
  for (const Packed& p : all)
    table.add({p.file, std::to_string(p.placement.offsets.size()), std::to_string(p.bound_bytes),
               std::to_string(p.placement.height), fmt::format("{:.4f}", ratio(p)), p.state,
               fmt::format("{:.3f} s", p.seconds)});
  fmt::print("{}", table.text());
}

/// One line for all files whose buffers do not lie below the capacity.
Status unless_too_large(const std::vector<Packed>& all, const PackArguments& o) {
  std::string impossible, open;
  for (const Packed& p : all)
    if (!p.fits) {
      std::string& names = p.state == "impossible" ? impossible : open;
      names += (names.empty() ? "" : ", ") + p.file;
    }
  if (impossible.empty() && open.empty()) return success();
  std::string text = "--capacity " + std::to_string(o.capacity_bytes) + " was not reached: ";
  if (!impossible.empty()) text += "proven impossible for " + impossible;
  if (!open.empty())
    text += (impossible.empty() ? "" : "; ") + std::string("the limit ended the search for ") + open +
            ", which a longer --time-limit may reach";
  return fault(text + "; give a larger one");
}

Status bench_pack(const PackArguments& o) {
  if (!o.output.empty() && o.files.size() > 1)
    return bad_request("--output is one file, and there are " + std::to_string(o.files.size()) + " to pack; pack one");
  std::vector<std::vector<BufferRow>> tables;
  for (const std::string& file : o.files) {
    SLUICE_ASSIGN(const std::string text, read_file(file));
    SLUICE_ASSIGN(tables.emplace_back(), parse_buffers_csv(text, file));
  }
  if (!o.output.empty()) {
    if (is_same_file(o.output, o.files.front()))
      return bad_request("--output " + o.output + " is the file to pack; give another name");
    SLUICE_TRY(check_stream_path(o.output));
    SLUICE_TRY(check_replaces_own("--output", o.output, placed_csv_begin, "table of placed buffers"));
  }
  std::vector<Packed> all;
  for (std::size_t i = 0; i < o.files.size(); ++i) all.push_back(pack_file(o.files[i], tables[i], o));
  print(all, o.json);
  SLUICE_TRY(unless_too_large(all, o));
  if (o.output.empty()) return success();
  return publish_file(o.output, to_buffers_csv(tables.front(), all.front().placement.offsets));
}

}  // namespace

void add_bench_pack(Command& bench, Outcome& outcome) {
  auto o = std::make_shared<PackArguments>();
  Command* pack = add_command(bench, "pack", "pack buffers of a table (MiniMalloc's csv) against the most bytes alive",
                              pack_examples);
  pack->add_option("FILE", o->files, "tables of buffers: id,lower,upper,size")->required();
  add_size(pack, "--capacity", &o->capacity_bytes,
           "stop at a packing that is not higher (default: go as low as can be)");
  add_size(pack, "--alignment", &o->alignment_bytes, "of all offsets; sizes are rounded up to it (default: 1)");
  pack->add_option("--time-limit", o->time_limit_seconds,
                   "seconds for each file's search; what is found then depends on the machine")
      ->check(between(0.01, 86400.0));
  pack->add_option("--output", o->output, "file for the table with a column offset, written whole or not at all");
  pack->add_flag("--json", o->json, "print one JSON object");
  pack->callback([o, &outcome] {
    const Status result = o->alignment_bytes > std::uint64_t{1} << 30
                              ? bad_request("--alignment is 1 to 1GiB; give such a one")
                              : bench_pack(*o);
    outcome.finish("bench pack", result);
  });
}

}  // namespace sluice::tools
