#include "src/model/split.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace sluice {
namespace {

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Queries go with their keys and values: a rank has some groups of them whole, or neighbours share one. What does not
/// divide is filled up with heads, columns and words of zeros, which stay zero: nothing comes of them, and no gradient.
ModelConfig part_of(ModelConfig c, RankId ranks) {
  const std::int64_t n = ranks, queries = c.heads / c.kv_heads, copies = key_value_copies(c, ranks);
  // Matrices that are multiplied as one lie behind each other without gaps.
  const std::int64_t columns = tensor_alignment_numel / std::gcd(c.hidden, tensor_alignment_numel);
  c.split = n;
  c.kv_heads = copies > 1 ? 1 : divide_up(c.kv_heads, n);
  c.heads = copies > 1 ? divide_up(queries, copies) : c.kv_heads * queries;
  c.ffn = divide_up(c.ffn, n * columns) * columns;
  c.vocabulary = divide_up(c.vocabulary, n);
  return c;
}

}  // namespace

RankId key_value_copies(const ModelConfig& c, RankId ranks) {
  const std::int64_t n = ranks, copies = n / c.kv_heads, queries = c.heads / c.kv_heads;
  const bool shares = n > c.kv_heads && n % c.kv_heads == 0 && (c.kv_heads == 1 || queries % copies == 0);
  return static_cast<RankId>(shares ? copies : 1);
}

Status check_split(const ModelConfig& c, RankId ranks) {
  const std::string given = "--tp " + std::to_string(ranks);
  if (static_cast<std::int64_t>(ranks) > c.heads)
    return bad_request(given + ": " + c.name + " has " + std::to_string(c.heads) +
                       " attention heads, fewer than ranks; give at most as many");
  // Who has the same keys and values adds up their gradients, an equal part each.
  if (const RankId copies = key_value_copies(c, ranks); c.head_dim % copies != 0)
    return bad_request(given + ": " + std::to_string(copies) + " ranks would have the same keys and values of " +
                       c.name + ", whose heads are " + std::to_string(c.head_dim) + " wide; give what divides that");
  return success();
}

Status check_context(const ModelSpec& model, RankId ranks) {
  const ModelConfig& c = model.config;
  const auto n = static_cast<std::int64_t>(ranks);
  if (c.heads % n == 0 && (c.kv_heads % n == 0 || n % c.kv_heads == 0)) return success();
  return bad_request("--cp " + std::to_string(ranks) + ": " + c.name + " has " + std::to_string(c.heads) +
                     " attention heads and " + std::to_string(c.kv_heads) + " of keys and values" +
                     (c.split > 1 ? " a rank of --tp" : "") +
                     ", and each rank has as many of them for whole sequences; give what divides the first, and "
                     "divides the second or is a multiple of it, or --cp-attention ring");
}

SplitModel::SplitModel(const ModelSpec& whole, RankId ranks)
    : whole_(&whole), ranks_(ranks), part_(build_model(part_of(whole.config, ranks))) {
  const Status fits = check_split(whole.config, ranks);
  SLUICE_CHECK(fits.ok(), "%s", fits.error().message.c_str());
  for (std::size_t u = 0; u < whole.units.size(); ++u) {
    std::vector<TensorCut>& cuts = cuts_.emplace_back();
    for (std::size_t i = 0; i < whole.units[u].tensors.size(); ++i) {
      const TensorSpec &all = whole.units[u].tensors[i], &own = part_.units[u].tensors[i];
      TensorCut cut;
      for (std::size_t a = 0; a < all.shape.size(); ++a)
        if (all.shape[a] != own.shape[a]) {
          cut.axis = static_cast<int>(a);
          cut.parts = static_cast<RankId>((all.shape[a] + own.shape[a] - 1) / own.shape[a]);
        }
      const bool is_fused = all.name.ends_with("c_attn.weight") || all.name.ends_with("c_attn.bias");
      if (is_fused) cut.groups = 3;
      cuts.push_back(cut);
    }
  }
}

std::vector<SplitModel::Copied> SplitModel::copied(UnitId u) const {
  const UnitSpec& unit = part_.units[static_cast<std::size_t>(u)];
  std::vector<Copied> list;
  for (std::size_t i = 0, next = 0; i < unit.tensors.size(); i = next) {
    const RankId same = copies(u, i);
    for (next = i + 1; next < unit.tensors.size() && copies(u, next) == same;) ++next;
    if (same == 1) continue;
    // Tensors that all ranks have begin where an equal part of what is ahead of them ends.
    const TensorSpec& last = unit.tensors[next - 1];
    const std::uint64_t up_to = next < unit.tensors.size() ? unit.tensors[next].offset : unit.numel;
    const std::uint64_t first = unit.tensors[i].offset, end = same < ranks_ ? last.offset + last.numel : up_to;
    list.push_back({first, end - first, same});
  }
  return list;
}

std::int64_t SplitModel::words(RankId rank) const {
  return std::clamp<std::int64_t>(whole_->config.vocabulary - first_word(rank), 0, part_.config.vocabulary);
}

void SplitModel::each_run(UnitId unit, std::size_t tensor, RankId rank,
                          const std::function<void(const Run&)>& visit) const {
  const TensorSpec &all = whole_->units[static_cast<std::size_t>(unit)].tensors[tensor],
                   &own = part_.units[static_cast<std::size_t>(unit)].tensors[tensor];
  const TensorCut& c = cut(unit, tensor);
  if (c.axis < 0) {
    visit({0, 0, own.numel});
    return;
  }
  const auto axis = static_cast<std::size_t>(c.axis);
  const std::int64_t of_group = all.shape[axis] / c.groups, extent = own.shape[axis] / c.groups,
                     first = static_cast<std::int64_t>(rank / copies(unit, tensor)) * extent,
                     there = std::clamp<std::int64_t>(of_group - first, 0, extent);
  // Rows of a cut matrix lie behind one another; columns are a run in each row.
  const bool is_inner = axis + 1 < all.shape.size();
  const std::int64_t inner = is_inner ? all.shape.back() : 1, outer = !is_inner && axis > 0 ? all.shape.front() : 1;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t g = 0; g < c.groups; ++g)
      if (there > 0)
        visit({static_cast<std::uint64_t>((o * own.shape[axis] + g * extent) * inner),
               static_cast<std::uint64_t>((o * all.shape[axis] + g * of_group + first) * inner),
               static_cast<std::uint64_t>(there * inner)});
}

}  // namespace sluice
