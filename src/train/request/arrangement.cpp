#include "src/train/request/arrangement.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

namespace sluice {

int lots_of(const RunConfig& c) {
  if (c.lots > 0) return c.lots;
  const int micro_batches = c.batch / (c.micro_batch * batch_ranks(c));
  return batch_ranks(c) * (c.reduction == Reduction::pass ? micro_batches & -micro_batches : 1);
}

namespace {

/// Each has groups of messages of its own.
constexpr int chunks_max = 16;

/// In words.
std::string ranks_of_stage(const RunConfig& c) {
  return std::to_string(batch_ranks(c)) + " ranks" + (c.stages > 1 ? " of a stage" : "") +
         (c.tensor > 1 ? " with a part of the batch" : "");
}

/// Of a batch that divides among the ranks.
Status check_lots(const RunConfig& c) {
  const std::string given = "--lots " + std::to_string(lots_of(c));
  const int batches = c.batch / c.micro_batch;
  if (c.lots < 0 || batches % lots_of(c) != 0)
    return bad_request(given + ": a batch has " + std::to_string(batches) +
                       " micro-batches, and lots of it are of equal size; give what divides that");
  const int ranks = batch_ranks(c), share = lots_of(c) / ranks;
  const auto is_power = [](int count) { return std::has_single_bit(static_cast<unsigned>(count)); };
  const bool is_node = lots_of(c) % ranks == 0 && (ranks == 1 || is_power(share));
  if (is_node && c.reduction == Reduction::pass && share > 1 && !is_power(ranks))
    return bad_request("--reduction pass on " + ranks_of_stage(c) +
                       ": a lot of each of them is no part of the lots' tree; give 1, 2, 4, 8, ... ranks, or "
                       "--reduction last");
  if (is_node) return success();
  return bad_request(given + " on " + ranks_of_stage(c) +
                     ": each rank has 1, 2, 4, 8, ... of them, so that its part is one of their tree's; give " +
                     std::to_string(ranks) + " times a power of two");
}

/// Sums over a shard group are parts of the tree over all ranks.
Status check_shard_group(const RunConfig& c) {
  if (shares_states(c) || (c.shard_group == batch_ranks(c) && c.context == 1)) return success();
  const std::string given = "--shard-group " + std::to_string(c.shard_group);
  if (c.shard_group < 0 || batch_ranks(c) % c.shard_group != 0)
    return bad_request(given + ": groups of as many make up all ranks" + (c.stages > 1 ? " of a stage" : "") +
                       (c.context > 1 ? " with the same slices" : "") + "; give what divides " +
                       (c.stages > 1 ? "" : "--ranks ") + std::to_string(batch_ranks(c)) +
                       (c.context > 1 ? ", or all " + std::to_string(data_ranks(c)) : ""));
  if (std::has_single_bit(static_cast<unsigned>(c.shard_group))) return success();
  return bad_request(given + ": gradients add up in pairs of ranks; give 1, 2, 4, 8, ..., or all " + ranks_of_stage(c));
}

Status check_second_copy(const RunConfig& c) {
  const int shards = shard_group_of(c);
  if (c.second_copy == 0) return success();
  const std::string given = "--second-copy " + std::to_string(c.second_copy);
  if (c.second_copy > 0 && shards == 1)
    return bad_request(given + " is of ranks that share the states, and there is one; leave it out, or give --dp N");
  if (c.second_copy < 0 || c.second_copy >= shards || shards % c.second_copy != 0)
    return bad_request(given + ": the " + std::to_string(shards) +
                       " ranks that share the states are a whole number, and more than one, of such groups; give what "
                       "divides " +
                       std::to_string(shards) + " and is less");
  if (c.wish.resident == true || c.wish.held == true)
    return bad_request(given +
                       " is of parameters that are gathered for every pass, and --residency keeps them on the "
                       "device; leave one of them out");
  return success();
}

/// What is exchanged in few bits.
Status check_few_bits(const RunConfig& c) {
  const bool shares = shard_group_of(c) > 1 || (shares_states(c) && c.context > 1);
  const bool in_bits = c.sums == RankSums::int4;
  if (!in_bits && c.gathers == RankGathers::exact) return success();
  const std::string given = c.gathers == RankGathers::exact ? "--reduce int4" : "--gather int8";
  if (!shares)
    return bad_request(given +
                       " is of what ranks share, and each has all of it; give more --dp and no --zero 0 or "
                       "--shard-group 1, or --gather exact --reduce tree");
  if (c.gathers == RankGathers::int8 && c.wish.resident == true)
    return bad_request(
        "--gather int8 is of parameters that a step gathers, and those of --zero 1 and 2 and of "
        "--residency all stay on the device; give --zero 3");
  return success();
}

Status check_activation_dtype(const RunConfig& c) {
  const bool saves_stay = c.wish.recompute && *c.wish.recompute != Recompute::optimal;
  const bool parks = c.wish.activations != Place::device || !saves_stay;
  if (c.activation_dtype == ActivationDtype::exact || parks) return success();
  return bad_request(std::string("--activation-dtype ") +
                     activation_dtype_names[static_cast<std::size_t>(c.activation_dtype)] +
                     " is of activations that leave the device, and with --activations device and --recompute " +
                     recompute_names[static_cast<std::size_t>(*c.wish.recompute)] +
                     " none does; leave one of these two out, or give --activation-dtype exact");
}

}  // namespace

RankId close_ranks_of(const RunConfig& c) {
  if (c.second_copy > 0 || c.sums != RankSums::int4) return static_cast<RankId>(c.second_copy);
  if (c.close_ranks > 0 && shard_group_of(c) % c.close_ranks == 0) return static_cast<RankId>(c.close_ranks);
  // Those between neighbours along dp are of the same machine.
  const std::size_t dp = c.mesh_order.find("dp");
  const int between = (dp < c.mesh_order.find("cp") ? c.context : 1) * (dp < c.mesh_order.find("tp") ? c.tensor : 1);
  return static_cast<RankId>(std::gcd(shard_group_of(c), std::max(1, ranks_of_machine(c) / between)));
}

int ranks_with_all_states(const RunConfig& c) {
  if (c.shard_group == 0 || c.stages > 1) return c.ranks;
  const auto stride = [&](const char* axis) {
    int ranks = 1;
    for (const auto& [name, size] :
         {std::pair("dp", batch_ranks(c)), std::pair("cp", c.context), std::pair("tp", c.tensor)})
      if (c.mesh_order.find(name) > c.mesh_order.find(axis)) ranks *= size;
    return ranks;
  };
  return 1 + (c.shard_group - 1) * stride("dp") + (c.tensor - 1) * stride("tp");
}

Result<MeshOrder> mesh_order_of(const RunConfig& c) {
  // Every name has two letters.
  std::array<std::string, 4> names;
  for (std::size_t i = 0; i < names.size() && 3 * i < c.mesh_order.size(); ++i)
    names[i] = c.mesh_order.substr(3 * i, 2);
  MeshOrder order{};
  std::string written;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = std::ranges::find(mesh_axis_names, names[i]);
    if (found == mesh_axis_names.end()) break;
    order[i] = static_cast<MeshAxis>(found - mesh_axis_names.begin());
    written += (i > 0 ? "," : "") + names[i];
  }
  MeshOrder sorted = order;
  std::ranges::sort(sorted);
  const bool is_whole = written == c.mesh_order && std::ranges::adjacent_find(sorted) == sorted.end();
  if (is_whole && order.front() == MeshAxis::pp) return order;
  return bad_request("--mesh-order " + c.mesh_order +
                     ": give pp, dp, cp and tp, each once and with commas between, and pp first: the ranks of a stage "
                     "are neighbours");
}

namespace {

/// Of ranks that have all of a sequence.
Status check_sequence_slices(const RunConfig& c) {
  const std::string given = "--slices " + std::to_string(c.slices);
  if (c.slices < 1) return bad_request(given + ": give at least 1");
  if (c.slices == 1) return success();
  if (c.sequence % c.slices != 0)
    return bad_request(given + ": slices are of equal length, and --seq is " + std::to_string(c.sequence) +
                       "; give what divides it");
  if (c.context > 1)
    return bad_request(given + " with --cp " + std::to_string(c.context) +
                       ": a rank that takes sequences slice by slice has all of each; give --slices 1, or no --cp");
  return success();
}

}  // namespace

Status check_mesh(const RunConfig& c) {
  const std::string given = "--pp " + std::to_string(c.stages);
  if (c.stages < 1 || c.ranks % c.stages != 0)
    return bad_request(given + " on --ranks " + std::to_string(c.ranks) +
                       ": stages have as many ranks each; give what divides " + std::to_string(c.ranks));
  if (c.tensor < 1 || c.ranks % (c.stages * c.tensor) != 0)
    return bad_request("--tp " + std::to_string(c.tensor) + (c.stages > 1 ? " with " + given : "") + " on --ranks " +
                       std::to_string(c.ranks) +
                       ": sublayers are cut over as many ranks everywhere; give what divides " +
                       std::to_string(c.ranks / c.stages));
  if (c.context < 1 || c.ranks % (c.stages * c.tensor * c.context) != 0)
    return bad_request("--cp " + std::to_string(c.context) + " on " + std::to_string(c.ranks / c.stages / c.tensor) +
                       " ranks with a whole " + (c.stages > 1 ? "stage" : "model") +
                       ": sequences are cut over as many ranks everywhere; give what divides " +
                       std::to_string(c.ranks / c.stages / c.tensor));
  SLUICE_TRY(mesh_order_of(c));
  if (c.sequence % c.context != 0)
    return bad_request("--cp " + std::to_string(c.context) + ": ranks have equal slices of --seq " +
                       std::to_string(c.sequence) + "; give a --seq that it divides");
  const bool is_ring = c.context_attention == ContextAttention::ring;
  if (is_ring && c.context == 1)
    return bad_request(
        "--cp-attention ring is of sequences that are cut over ranks, and --cp is 1; give --cp, or leave it out");
  if (is_ring && c.sequence % (2 * c.context) != 0)
    return bad_request("--cp-attention ring: each of " + std::to_string(c.context) +
                       " ranks has two equal pieces of --seq " + std::to_string(c.sequence) + "; give a multiple of " +
                       std::to_string(2 * c.context));
  SLUICE_TRY(check_sequence_slices(c));
  const std::int64_t tokens = std::int64_t{c.micro_batch} * c.sequence / c.context / c.slices;
  if (c.tensor > 1 && tokens % c.tensor != 0)
    return bad_request("--tp " + std::to_string(c.tensor) + ": a micro-batch has " + std::to_string(tokens) +
                       (c.context > 1 || c.slices > 1 ? " tokens a slice" : " tokens") +
                       ", and ranks have equal slices of them; give a --seq or --micro-batch that it divides");
  if (c.tensor > 1 && splits_backward(c.pipeline.order))
    return bad_request(std::string("--pipeline ") + pipeline_order_names[static_cast<std::size_t>(c.pipeline.order)] +
                       " with --tp: sublayers that are cut over ranks do not split their backward pass; give gpipe, "
                       "1f1b or interleaved");
  if ((c.context > 1 || c.slices > 1) && splits_backward(c.pipeline.order))
    return bad_request(std::string("--pipeline ") + pipeline_order_names[static_cast<std::size_t>(c.pipeline.order)] +
                       " with " + (c.context > 1 ? "--cp" : "--slices") +
                       ": attention of slices does not split its backward pass; give gpipe, 1f1b or "
                       "interleaved");
  if (c.pipeline.chunks > chunks_max)
    return bad_request("--chunks " + std::to_string(c.pipeline.chunks) + ": give at most " +
                       std::to_string(chunks_max));
  if (c.stages == 1 && (c.pipeline.chunks > 1 || c.pipeline.order != PipelineOrder::one_forward_one_backward))
    return bad_request("--pipeline and --chunks are of a pipeline, and there is one stage; add --pp P");
  return success();
}

Status check_sharing(const RunConfig& c) {
  SLUICE_TRY(check_lots(c));
  SLUICE_TRY(check_shard_group(c));
  SLUICE_TRY(check_second_copy(c));
  SLUICE_TRY(check_few_bits(c));
  return check_activation_dtype(c);
}

Status check_pipeline_groups(const Workload& w, const RunConfig& c) {
  if (c.stages == 1) return success();
  Status last;
  const int slices = w.slices(), sequences = w.micro_batches_of_sum() / slices;
  for (int group = 1; group <= sequences; ++group) {
    if (c.wish.group && group != std::min(*c.wish.group, sequences)) continue;
    Schedule s;
    s.group = group * slices;
    const auto groups = static_cast<int>(micro_batch_groups(w, s, PlanKind::train).size());
    last = check_pipeline({c.pipeline.order, static_cast<RankId>(c.stages), c.pipeline.chunks, groups});
    if (last.ok()) return last;
  }
  // With ZeRO 2 and 3 the group is a lot, so that no whole gradient waits.
  const std::string fewer =
      c.wish.group ? "; give a smaller --group, or with --zero 2 and 3 --reduction pass and more --lots" : "";
  return bad_request("--pp " + std::to_string(c.stages) + ": " + last.error().message + fewer);
}

}  // namespace sluice
