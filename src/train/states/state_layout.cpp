#include "src/train/states/state_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "src/model/shard_map.h"
#include "src/model/split.h"
#include "src/train/states/state_pieces.h"

namespace sluice {
namespace {

constexpr std::uint64_t sum_block_bytes = 1u << 20;

/// Of a window whole blocks; those of 8-bit moments are whole windows, since a block has whole groups.
std::uint32_t block_bytes_of(const StoredFormats& formats, StateKind kind) {
  const std::uint64_t window = stored_bytes(formats, kind, state_window_numel);
  const bool is_int8 =
      formats.moments == MomentFormat::int8 && (kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq);
  return static_cast<std::uint32_t>(is_int8 ? window : std::min(window, sum_block_bytes));
}

}  // namespace

Status check_degrees(const ModelSpec& model, const LayoutDegrees& d) {
  constexpr std::uint64_t ranks_max = std::numeric_limits<RankId>::max();
  std::uint64_t ranks = 1;
  const std::pair<const char*, std::uint32_t> all[] = {
      {"--pp", d.stages}, {"--dp", d.data}, {"--tp", d.tensor}, {"--cp", d.context}};
  for (const auto& [option, degree] : all) {
    if (degree == 0) return bad_request(fmt::format("{} 0 has no ranks; give at least 1", option));
    ranks *= degree;
    if (ranks > ranks_max)
      return bad_request(fmt::format("{} {}: that is more than {} ranks in all", option, degree, ranks_max));
  }
  if (d.stages > model.units.size())
    return bad_request(fmt::format("--pp {}: {} has {} units, and each stage has at least one; give at most as many",
                                   d.stages, model.config.name, model.units.size()));
  return d.tensor > 1 ? check_split(model.config, static_cast<RankId>(d.tensor)) : success();
}

std::vector<std::size_t> cut_into_stages(const ModelSpec& model, std::uint32_t stages) {
  const std::size_t n = model.units.size();
  std::vector<std::uint64_t> before(n + 1, 0);  // elements of the first so many units
  for (std::size_t u = 0; u < n; ++u) before[u + 1] = before[u] + model.units[u].numel;
  /// Of the first so many units in so many stages: the largest stage, then how uneven all are.
  struct Cut {
    std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
    double squares = 0;
    std::size_t last_begins = 0;
  };
  std::vector<std::vector<Cut>> best(stages + 1, std::vector<Cut>(n + 1));
  best[0][0] = {0, 0, 0};
  for (std::size_t s = 1; s <= stages; ++s)
    for (std::size_t end = s; end <= n; ++end)
      for (std::size_t begin = s - 1; begin < end; ++begin) {
        const Cut& rest = best[s - 1][begin];
        if (rest.largest == std::numeric_limits<std::uint64_t>::max()) continue;
        const std::uint64_t own = before[end] - before[begin];
        const Cut cut{std::max(rest.largest, own), rest.squares + static_cast<double>(own) * static_cast<double>(own),
                      begin};
        Cut& known = best[s][end];
        if (std::pair(cut.largest, cut.squares) < std::pair(known.largest, known.squares)) known = cut;
      }
  std::vector<std::size_t> first(stages + 1, n);
  for (std::size_t s = stages; s-- > 0;) first[s] = best[s + 1][first[s + 1]].last_begins;
  return first;
}

std::vector<StateKind> state_kinds(const StoredFormats& formats, bool with_remainders, bool with_moments) {
  std::vector<StateKind> kinds{StateKind::parameter};
  if (with_remainders && formats.parameters == Dtype::bf16) kinds.push_back(StateKind::remainder);
  if (with_moments) kinds.insert(kinds.end(), {StateKind::exp_avg, StateKind::exp_avg_sq});
  return kinds;
}

std::vector<StoredFile> files_of_layout(const ModelSpec& model, const LayoutDegrees& degrees,
                                        const StoredFormats& formats, std::span<const StateKind> kinds) {
  const auto shards = static_cast<RankId>(degrees.shards()), parts = static_cast<RankId>(degrees.tensor);
  std::optional<SplitModel> split;
  if (parts > 1) split.emplace(model, parts);
  const ShardMap map(split ? split->part() : model, RankDigits(shards, parts), RankDigits(parts));
  const std::vector<std::size_t> first = cut_into_stages(model, degrees.stages);
  std::vector<StoredFile> files(degrees.ranks());
  for (std::size_t r = 0; r < files.size(); ++r) {
    files[r].name = fmt::format("rank-{:05}.h5", r);
    const std::size_t of_stage = std::size_t{shards} * parts, stage = r / of_stage;
    const RankId shard = map.shard_of(static_cast<RankId>(r % of_stage));
    for (std::size_t u = first[stage]; u < first[stage + 1]; ++u) {
      const auto id = static_cast<UnitId>(u);
      if (map.content_numel(id, shard) == 0) continue;  // padding alone
      StoredUnit& unit = files[r].units.emplace_back();
      unit.name = model.units[u].name;
      if (split) unit.name += fmt::format(".part{}", map.part_of(shard));
      unit.numel = map.shard_numel(id);
      unit.pieces = shard_pieces(model, split ? &*split : nullptr, map, id, shard);
      for (const StateKind kind : kinds)
        unit.states.push_back({kind, 0, stored_bytes(formats, kind, unit.numel), block_bytes_of(formats, kind), 0});
    }
  }
  return files;
}

}  // namespace sluice
