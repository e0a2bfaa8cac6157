#include "src/schedule/byte_law.h"

#include <algorithm>
#include <array>
#include <vector>

#include "src/model/sublayer.h"
#include "src/model/workspaces.h"
#include "src/schedule/parked.h"
#include "src/schedule/passes.h"

namespace sluice {
namespace {

class Law {
 public:
  Law(const Workload& w, const Schedule& s)
      : work_(w),
        schedule_(s),
        head_(static_cast<UnitId>(w.model->units.size()) - 1),
        stages_(w, s),
        order_(order_passes(PlanKind::train, w, s)),
        groups_(micro_batch_groups(w, s, PlanKind::train)),
        lots_(w.lot_sums()),
        element_(dtype_bytes(w.dtype)),
        remainder_(w.dtype == Dtype::bf16 ? 2 : 0) {}

  LinkBytes total() {
    const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
    bool reads_tokens = has(0) || has(head_);
    std::array<bool, 2> updates_on_device{};  // in the backward pass, and ahead of the forward pass
    for (UnitId u = 0; u <= head_; ++u) {
      if (!has(u)) continue;
      parameters(u);
      optimizer(u);
      gradient(u);
      activations(u);
      messages(u);
      if (work_.split != nullptr) cut_sublayer(u);
      if (work_.shape.context > 1) cut_sequences(u);
      if (work_.shape.slices > 1) sliced_sequences(u);
      reads_tokens |=
          work_.has_positions() && work_.model->units[static_cast<std::size_t>(u)].kind == Sublayer::attention;
      if (choice(u).update_on_device) updates_on_device[schedule_.updates_ahead(u) ? 1 : 0] = true;
    }
    if (reads_tokens) b_.h2d += micro_batches * TokenPlanes::bytes(work_.shape, work_.documents);
    if (has(head_)) b_.d2h += 8u * micro_batches;  // losses
    if (work_.model->config.tied && has(head_)) tied_accumulator();
    // How many parameters of each unit diverged.
    b_.d2h += 8u * schedule_.units.size() * static_cast<std::uint64_t>(std::ranges::count(updates_on_device, true));
    return b_;
  }

 private:
  /// How often ranks add up a gradient.
  std::uint64_t sums_of_step() const {
    return static_cast<std::uint64_t>(std::ranges::count_if(groups_, &MicroBatchGroup::ends_sum));
  }

  /// Passes over a unit's parameters, in order, and which of them find the unit still open.
  struct Passes {
    std::uint64_t count = 0, still_open = 0;
    bool last_still_open = false;  ///< the last backward (or head) pass
  };

  bool has(UnitId u) const { return stages_.has(work_.topology.rank(), u); }
  std::uint64_t tied_numel() const {
    return static_cast<std::uint64_t>(work_.model->config.vocabulary * work_.model->config.hidden);
  }
  const UnitChoice& choice(UnitId u) const { return schedule_.units[static_cast<std::size_t>(u)]; }
  SublayerCost cost(UnitId u) const {
    return sublayer_cost(*work_.model, work_.model->units[static_cast<std::size_t>(u)], work_.shape, work_.dtype,
                         *work_.kernels);
  }

  /// A unit closes at the end of a pass; whatever is fetched `prefetch` passes ahead finds it open when the pass before
  /// it that used the unit is no further away.
  Passes passes(UnitId u) const {
    const std::vector<std::size_t>& at = order_.readers[static_cast<std::size_t>(u)];
    Passes p;
    p.count = at.size();
    for (std::size_t i = 1; i < at.size(); ++i) {
      p.last_still_open = choice(u).held || at[i] - at[i - 1] <= static_cast<std::size_t>(schedule_.prefetch);
      p.still_open += p.last_still_open;
    }
    return p;
  }

  void parameters(UnitId u) {
    const UnitChoice& c = choice(u);
    const std::uint64_t bytes = work_.shard_numel(u) * element_;
    const Passes p = passes(u);
    // Of later passes, which a second copy serves.
    std::uint64_t again = p.count - p.still_open - 1;
    const bool has_second_copy = again > 0 && c.second_copy && !c.resident && !c.held && work_.shards() > 1;
    if (has_second_copy) {
      const std::uint64_t part_bytes = work_.full_numel(u) / work_.close_ranks() * element_;
      b_.d2h += part_bytes;
      b_.h2d += again * part_bytes;
      b_.collective += again * part_bytes * (work_.close_ranks() - 1u);
      through_host(again, part_bytes, work_.close_ranks());
      again = 0;
    }
    std::uint64_t fetches = again + (schedule_.updates_ahead(u) ? 0 : 1);
    if (c.resident) fetches = 0;
    // Ahead of the forward pass the updated parameters go straight into the open unit; else only to a resident copy.
    const std::uint64_t published = schedule_.updates_ahead(u) || c.resident ? 1 : 0;
    // The device updates them in place, or in staging, and they come up; only a resident copy need not go down.
    const std::uint64_t down = c.update_on_device ? (c.resident ? 0 : 1) : published;
    b_.h2d += (fetches + down) * bytes;
    if (c.update_on_device) b_.d2h += bytes;
    const std::uint64_t given = work_.gathers == RankGathers::exact
                                    ? bytes
                                    : quantized_bytes(static_cast<std::int64_t>(work_.shard_numel(u)), gathered_blocks);
    b_.collective += (fetches + published) * given * (work_.shards() - 1u);
    through_host(fetches + published, given, work_.shards());
    if (c.parameter_home == Place::nvme || work_.durable) b_.nvme_write += bytes;
    if (c.parameter_home != Place::nvme) return;
    const bool retained =
        !schedule_.updates_ahead(u) && u != 0 && !c.resident && !p.last_still_open && !has_second_copy;
    const bool on_device = c.resident && c.update_on_device;
    b_.nvme_read += (fetches + (retained || on_device ? 0 : 1)) * bytes;
  }

  void optimizer(UnitId u) {
    // Residency saves reads, never durable writes.
    const MomentLayout moments = MomentLayout::of(work_.moments, schedule_.tile_numel);
    const std::uint64_t bytes = work_.shard_numel(u) * remainder_ + 2 * moments.bytes(work_.shard_numel(u));
    if (choice(u).state_home == Place::nvme) b_.nvme_read += bytes;
    if (choice(u).state_home == Place::nvme || work_.durable) b_.nvme_write += bytes;
    if (!choice(u).update_on_device) return;
    // In the backward pass the gradient is on the device already, but for one that was rounded in host memory.
    const bool is_down = schedule_.updates_ahead(u) ? choice(u).gradient == Place::device : !work_.rounds_gradients();
    b_.h2d += bytes + (is_down ? 0 : waiting_bytes(u));
    b_.d2h += bytes;
  }

  /// Of the gradient that an update reads.
  std::uint64_t waiting_bytes(UnitId u) const { return work_.shard_numel(u) * dtype_bytes(work_.gradient_dtype); }

  void gradient(UnitId u) {
    const std::uint64_t shard_bytes = work_.shard_numel(u) * 4;
    b_.d2h += shard_bytes;
    // Every replica of a shard group adds up a part of the shard for all of them.
    const std::uint64_t sums = sums_of_step(), part_bytes = shard_bytes / work_.replicas();
    const bool in_bits = work_.sums == RankSums::int4 && work_.shards() > 1;
    const RankSums sent =
        work_.sends_sums() ? work_.sums : RankSums::tree;  // in one process they read each other's fp32
    const std::uint64_t part_sent = wire_bytes(sent, part_bytes), shard_sent = wire_bytes(sent, shard_bytes);
    if (in_bits) gradient_in_bits(u, sums);
    const std::uint64_t over_shards = in_bits ? 0 : shard_sent * (work_.shards() - 1u);
    b_.collective += sums * (over_shards + (part_sent + part_bytes) * (work_.replicas() - 1u));
    if (in_bits && work_.stages_collectives() && work_.replicas() > 1) {
      b_.d2h += sums * shard_bytes;
      b_.h2d += sums * shard_bytes;
    } else if (!in_bits && work_.stages_collectives() && work_.data_ranks() > 1) {
      b_.d2h += sums * work_.full_numel(u) * 4;
      b_.h2d += sums * shard_bytes;
    }
    park(choice(u).accumulator, sums - 1, shard_bytes, 1);
    if (choice(u).gradient == Place::nvme) {
      if (schedule_.updates_ahead(u)) b_.nvme_read += waiting_bytes(u);
      if (schedule_.stores_gradient(u)) b_.nvme_write += waiting_bytes(u);
    }
    if (choice(u).gradient == Place::device) {
      if (schedule_.updates_ahead(u) && !choice(u).update_on_device) b_.d2h += waiting_bytes(u);
      if (schedule_.stores_gradient(u) && !sums_where_it_waits(work_, schedule_, u)) b_.h2d += waiting_bytes(u);
    }
    std::uint64_t between = 0;
    for (const MicroBatchGroup& g : groups_)
      if (!g.ends_sum)
        between += work_.reduction == Reduction::pass ? 1u : static_cast<std::uint64_t>(lots_.depth_after(g.end));
    park(choice(u).accumulator, between, work_.full_numel(u) * 4, 1);
  }

  /// Close ranks exchange what is all ranks', then groups what is one's.
  void gradient_in_bits(UnitId u, std::uint64_t sums) {
    const std::uint64_t piece = quantized_bytes(static_cast<std::int64_t>(work_.shard_numel(u)), reduced_blocks);
    const RankId close = work_.close_ranks(), groups = work_.far_groups();
    b_.collective += sums * piece * (groups * (close - 1u) + groups - 1u);
    if (!work_.stages_collectives()) return;
    const std::uint64_t staged = (close > 1 ? close * groups : 0u) + (groups > 1 ? groups : 0u);
    b_.d2h += sums * piece * staged;
    b_.h2d += sums * piece * staged;
  }

  /// The head's part of a tied matrix's gradient, by lot, is put away after every group and added to the embedding's.
  /// On its way to another stage it is put away until its lot ends.
  void tied_accumulator() {
    std::uint64_t touched = 0;
    for (const MicroBatchGroup& g : groups_)
      touched += static_cast<std::uint64_t>(lots_.lot_of(g.end - 1) - lots_.lot_of(g.first) + 1);
    if (!has(0)) touched -= static_cast<std::uint64_t>(work_.lots);
    park(choice(0).accumulator, touched, 4 * tied_numel(), 1);
  }

  /// At the borders of a unit that another stage has its neighbour of.
  void messages(UnitId u) {
    const std::uint64_t activations = static_cast<std::uint64_t>(work_.micro_batches) * cost(u).boundary_bytes;
    const bool has_ends_apart = work_.model->config.tied && has(0) != has(head_);
    const std::uint64_t matrix = has_ends_apart ? tied_numel() * element_ : 0;
    const std::uint64_t gradients = has_ends_apart ? static_cast<std::uint64_t>(work_.lots) * tied_numel() * 4 : 0;
    if (u > 0 && !has(u - 1)) exchanged(activations, activations);
    if (u < head_ && !has(u + 1)) exchanged(activations, activations);
    if (u == 0) exchanged(gradients, matrix);
    if (u == head_) exchanged(matrix, gradients);
  }
  void exchanged(std::uint64_t received, std::uint64_t sent) {
    b_.message += received;
    if (!work_.meets_in_host) return;
    b_.h2d += received;
    b_.d2h += sent;
  }

  void activations(UnitId u) {
    const UnitChoice& c = choice(u);
    const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
    const bool is_core_apart = cost(u).core_bytes > 0 && c.core.value_or(c.saved) != c.saved;
    const auto leaves = [&](Saved choice, SavedPart part) {
      if (choice != Saved::host && choice != Saved::nvme) return;
      const Place place = choice == Saved::host ? Place::host : Place::nvme;
      park(place, micro_batches, parked_saved(work_, cost(u), part).bytes, 1);
    };
    if (u < head_) leaves(c.saved, is_core_apart ? SavedPart::rest : SavedPart::all);
    if (u < head_ && is_core_apart) leaves(*c.core, SavedPart::core);
    if (u == 0) return;
    // The unit's input waits for its backward pass (the head has none of its own); where neighbouring passes do not
    // hand activations over on the device, input and gradient of the input also leave in between.
    const bool travels = !schedule_.hold && schedule_.group > 1 && has(u - 1);
    const std::uint64_t bytes = cost(u).boundary_bytes;
    const bool in_bits = parks_input_in_bits(work_, travels);
    travel(c.boundary, in_bits ? parked_input(work_, cost(u)).bytes : bytes, travels_of_input(u, travels));
    if (travels) park(c.boundary, micro_batches, bytes, 1);
  }

  struct Travels {
    std::uint64_t away = 0, back = 0;
  };
  /// Of a unit's input, of all micro-batches: it leaves the device where it is made to be kept, or travels, and comes
  /// back to every pass that finds it gone. From another stage it arrives with the unit's own pass.
  Travels travels_of_input(UnitId u, bool travels) const {
    Travels t;
    bool is_here = false;
    for (const Pass& pass : order_.passes) {
      const auto count = static_cast<std::uint64_t>(pass.group.end - pass.group.first);
      const bool forward = pass.phase == Phase::forward || pass.phase == Phase::again;
      if (forward && pass.unit + 1 == u) {
        if (travels || (pass.keeps && u < head_)) t.away += count;
        is_here = !travels;
      }
      if (pass.unit != u || pass.phase == Phase::backward_weight) continue;
      const bool arrives = pass.phase == Phase::forward && !has(u - 1);
      if (arrives && u < head_) t.away += count;
      if (!is_here && !arrives && !(pass.phase == Phase::head && !has(u - 1))) t.back += count;
      is_here = false;
    }
    return t;
  }
  /// Passes forward over it, of all micro-batches.
  std::uint64_t forward_passes(UnitId u) const {
    std::uint64_t count = 0;
    for (const Pass& pass : order_.passes)
      if (pass.unit == u && (pass.phase == Phase::forward || pass.phase == Phase::again || pass.phase == Phase::head))
        count += static_cast<std::uint64_t>(pass.group.end - pass.group.first);
    return count;
  }

  /// What ranks that a sublayer is cut over give each other.
  void cut_sublayer(UnitId u) {
    const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
    const RankId members = work_.tensor_ranks();
    const std::uint64_t slice = cost(u).boundary_bytes, sum = slice / element_ * 4;
    const bool is_inner = u > 0 && u < head_;
    // Normed and again, and the gradient; of the embedding that, of the head the first. The sum and its gradient; of
    // the ends one of them.
    const std::uint64_t passes = forward_passes(u);
    gathered(is_inner ? passes + 2 * micro_batches : micro_batches, slice, members);
    reduced(is_inner ? passes + micro_batches : passes, sum, members);
    if (u == head_) {
      const Dims d(*work_.model, work_.shape, work_.dtype, *work_.kernels);
      gathered(micro_batches * static_cast<std::uint64_t>(cost(u).chunks), vocabulary_part_bytes(d), members);
    }
    for (const SplitModel::Copied& copied : work_.split->copied(u)) {
      const auto lots = static_cast<std::uint64_t>(work_.lots);
      const std::uint64_t part = copied.numel * 4 / copied.copies;
      b_.collective += lots * (on_wire(part) + part) * (copied.copies - 1u);
      if (!work_.stages_collectives()) continue;
      b_.d2h += lots * copied.numel * 4;
      b_.h2d += lots * copied.numel * 4;
    }
  }
  /// Keys and values of slices that one rank takes one after the other, where they wait away from the device: each
  /// comes to the queries of later slices, and so does its gradient, which begins with the last ones and is whole
  /// behind its own.
  void sliced_sequences(UnitId u) {
    const Place place = choice(u).blocks;
    if (work_.model->units[static_cast<std::size_t>(u)].kind != Sublayer::attention || place == Place::device) return;
    const Dims d(*work_.model, work_.shape, work_.dtype, *work_.kernels);
    const auto sequences = static_cast<std::uint64_t>(work_.sequence_batches()),
               slices = static_cast<std::uint64_t>(d.slices);
    std::uint64_t earlier = 0;
    for (std::int64_t s = 0; s < d.slices; ++s) earlier += static_cast<std::uint64_t>(d.earlier_blocks(s));
    Travels blocks;
    for (const Pass& pass : order_.passes) {
      if (pass.unit != u || (pass.phase != Phase::forward && pass.phase != Phase::again)) continue;
      const std::uint64_t passed = static_cast<std::uint64_t>(pass.group.end - pass.group.first) / slices;
      blocks.away += passed * (pass.keeps ? slices : slices - 1);
      blocks.back += passed * earlier;
    }
    // Where q is made again, so is the slice's own block.
    blocks.back += sequences * (earlier + (choice(u).saved == Saved::recompute ? earlier : slices));
    travel(place, block_bytes(d), blocks);
    travel(place, block_gradient_bytes(d), {sequences * earlier, sequences * earlier});
  }
  /// What ranks that have slices of sequences give each other of attention: q, k and v, its output, and the gradients
  /// of both; the first two again where they are not kept.
  void cut_sequences(UnitId u) {
    if (work_.model->units[static_cast<std::size_t>(u)].kind != Sublayer::attention) return;
    const Dims d(*work_.model, work_.shape, work_.dtype, *work_.kernels);
    const ContextSaved saved(d);
    const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
    const std::uint64_t passes = forward_passes(u) + micro_batches * (choice(u).saved == Saved::recompute ? 2 : 1);
    if (work_.shape.ring) {
      // A block comes by in every pass over it, and its gradient comes home.
      const std::uint64_t ranks = work_.context_ranks();
      return shifted((ranks - 1) * passes * saved.block.bytes + micro_batches * ranks * block_gradient_bytes(d));
    }
    const std::uint64_t bytes = passes * (saved.mixed.bytes + saved.attended.bytes);
    b_.collective += bytes / work_.context_ranks() * (work_.context_ranks() - 1u);
    if (!work_.stages_collectives()) return;
    b_.d2h += bytes;
    b_.h2d += bytes;
  }
  void shifted(std::uint64_t bytes) {
    b_.collective += bytes;
    if (!work_.stages_collectives()) return;
    b_.d2h += bytes;
    b_.h2d += bytes;
  }
  std::uint64_t on_wire(std::uint64_t bytes) const {
    return work_.sends_sums() ? wire_bytes(work_.sums, bytes) : bytes;
  }
  void gathered(std::uint64_t count, std::uint64_t part_bytes, RankId members) {
    b_.collective += count * part_bytes * (members - 1u);
    through_host(count, part_bytes, members);
  }
  void reduced(std::uint64_t count, std::uint64_t part_bytes, RankId members) {
    b_.collective += count * on_wire(part_bytes) * (members - 1u);
    if (!work_.stages_collectives()) return;
    b_.d2h += count * part_bytes * members;
    b_.h2d += count * part_bytes;
  }

  /// `count` gathers over so many members: the own part up, and the others' down.
  void through_host(std::uint64_t count, std::uint64_t part_bytes, std::uint64_t members) {
    if (!work_.stages_collectives() || members == 1) return;
    b_.d2h += count * part_bytes;
    b_.h2d += count * part_bytes * (members - 1);
  }

  /// `count` things away from the device once, back `reads` times. The drive moves whole pages.
  void park(Place place, std::uint64_t count, std::uint64_t bytes, std::uint64_t reads) {
    travel(place, bytes, {count, count * reads});
  }
  void travel(Place place, std::uint64_t bytes, Travels t) {
    if (place == Place::device) return;
    b_.d2h += t.away * bytes;
    b_.h2d += t.back * bytes;
    if (place != Place::nvme) return;
    b_.nvme_write += t.away * padded_bytes(bytes);
    b_.nvme_read += t.back * padded_bytes(bytes);
  }

  const Workload& work_;
  const Schedule& schedule_;
  UnitId head_;
  Stages stages_;
  PassOrder order_;
  std::vector<MicroBatchGroup> groups_;
  LotSums lots_;
  std::uint64_t element_, remainder_;
  LinkBytes b_;
};

}  // namespace

LinkBytes byte_law(const Workload& workload, const Schedule& schedule) { return Law(workload, schedule).total(); }

LinkBytes byte_law_of_all(const Workload& workload, const Schedule& schedule) {
  LinkBytes all;
  for (RankId s = 0; s < workload.stages(); ++s)
    all += byte_law(at_stage(workload, s), schedule) * workload.ranks_of_stage();
  return all;
}

}  // namespace sluice
