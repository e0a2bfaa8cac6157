#include "src/schedule/gradient_moves.h"

#include <utility>

#include "sluice/status.h"

namespace sluice {

void GradientMoves::bring_gradients(UnitId u) {
  PerUnit& s = unit(u);
  for (std::size_t i = 0; i < s.parked_gradients.size(); ++i)
    s.gradients.push_back(
        bring(s.parked_gradients[i], lot_label(u, "gradient", static_cast<int>(i)), u, -1, Life::lasting));
  s.parked_gradients.clear();
}

void GradientMoves::park_gradients(UnitId u) {
  PerUnit& s = unit(u);
  if (choice(u).accumulator == Place::device) return;
  for (std::size_t i = 0; i < s.gradients.size(); ++i)
    s.parked_gradients.push_back(
        park(s.gradients[i], choice(u).accumulator, lot_label(u, "gradient", static_cast<int>(i)), u, -1));
  s.gradients.clear();
}

/// The gradient of the micro-batch's lot is at the end of the unit's partial sums. How a backward op meets it.
Mode GradientMoves::open_lot(UnitId u, int mb) {
  if (!lot_sums_.begins_lot(mb)) return Mode::read_write;
  std::vector<Part>& sums = unit(u).gradients;
  // The first lot's is the one that all are added to.
  if (sums.empty() && sums_where_it_waits(work_, schedule_, u))
    sums.push_back(unit(u).gradient_wait);
  else
    sums.push_back(device(lot_label(u, "gradient", lot_sums_.lot_of(mb)), work_.full_numel(u) * 4, Life::lasting));
  return Mode::write;
}

/// Behind a lot's last micro-batch. The two gradients of a tied matrix are accumulated apart and added once a lot, so
/// that the order of additions does not depend on how micro-batches are grouped.
void GradientMoves::close_lot(UnitId u, int mb) {
  if (!lot_sums_.ends_lot(mb)) return;
  const int lot = lot_sums_.lot_of(mb);
  std::vector<Part>& sums = unit(u).gradients;
  add_copies(u, sums.back());
  if (u == head_unit() && has_tied_elsewhere()) {
    send(tied_gradient_group(), stages_.stage_of(0), tied_gradient(lot), lot_label(0, "tied_gradient", lot), 0);
    tied_gradient(lot) = Part{};
  }
  if (u == 0 && has_tied_gradient()) {
    Part& tied = tied_gradient(lot);
    add(tied, sums.back().slice(spec(0).tensors.front().offset * 4, tied.bytes), 0);
    tied = Part{};
  }
  if (work_.reduction == Reduction::pass) return;  // once it is reduced
  for (int left = lot_sums_.additions_after(lot); left > 0; --left) {
    const Part top = sums.back();
    sums.pop_back();
    add(top, sums.back(), u);
  }
}

/// What several ranks that a sublayer is cut over have alike: each has a part of its gradient. Ahead of all other sums,
/// so that these do not depend on how many ranks have lots.
void GradientMoves::add_copies(UnitId u, const Part& gradient) {
  if (work_.split == nullptr) return;
  for (const SplitModel::Copied& copied : work_.split->copied(u))
    add_in_place(u, gradient.slice(4 * copied.first, 4 * copied.numel),
                 copied.copies == work_.tensor_ranks() ? tensor_group : copy_group);
}

void GradientMoves::add(const Part& from, const Part& to, UnitId u) {
  Op& op = emit_.op(OpKind::accumulate, LaneKind::compute, u);
  op.bytes = from.bytes;
  Emitter::touch(op, from, Role::src, Mode::read);
  Emitter::touch(op, to, Role::dst, Mode::read_write);
}

/// On the device, wherever it was.
Part& GradientMoves::tied_gradient(int lot) {
  Tied& tied = tied_[static_cast<std::size_t>(lot)];
  if (tied.open.valid()) return tied.open;
  const std::string name = lot_label(0, "tied_gradient", lot);
  if (tied.arrived.valid()) return tied.open = landed(std::exchange(tied.arrived, Part{}), name, 0);
  if (tied.parked.part.valid()) {
    tied.open = bring(tied.parked, name, 0, -1, Life::lasting);
    tied.parked = {};
    return tied.open;
  }
  tied.open = device(name, tied_bytes(4), Life::lasting);
  return tied.open;
}

void GradientMoves::receive_tied_gradients(const MicroBatchGroup& group) {
  if (!has_tied_elsewhere()) return;
  for (int mb = group.first; mb < group.end; ++mb) {
    const int lot = lot_sums_.lot_of(mb);
    if (lot_sums_.ends_lot(mb))
      tied_[static_cast<std::size_t>(lot)].arrived = receive(tied_gradient_group(), stages_.stage_of(head_unit()),
                                                             tied_bytes(4), lot_label(0, "tied_gradient", lot), 0);
  }
}

void GradientMoves::park_tied_gradients() {
  if (choice(0).accumulator == Place::device) return;
  for (std::size_t lot = 0; lot < tied_.size(); ++lot) {
    Tied& tied = tied_[lot];
    if (!tied.open.valid()) continue;
    tied.parked = park(tied.open, choice(0).accumulator, lot_label(0, "tied_gradient", static_cast<int>(lot)), 0, -1);
    tied.open = Part{};
  }
}

void GradientMoves::reduce(UnitId u, int lot) {
  PerUnit& s = unit(u);
  SLUICE_CHECK(s.gradients.size() == 1, "unit %d has %zu partial sums", u, s.gradients.size());
  Part sum = reduced(u, s.gradients.front());
  s.gradients.clear();
  const bool is_last = work_.reduction == Reduction::last || lot == work_.lots - 1;
  if (work_.reduction == Reduction::pass) {
    // The ranks' lots of a pass are a node of the tree; passes add up as a rank's own lots do.
    for (int left = lot_sums_.additions_after(lot); left > 0; --left) {
      const Parked below = s.shard_sums.back();
      s.shard_sums.pop_back();
      const Part to = below.place == Place::device
                          ? below.part
                          : bring(below, lot_label(u, "gradient.shard", lot - 1), u, -1, Life::lasting);
      add(sum, to, u);
      sum = to;
    }
  }
  if (is_last) {
    s.shard_gradient = sum;
    return;
  }
  const Place place = choice(u).accumulator;
  s.shard_sums.push_back(place == Place::device ? Parked{place, sum}
                                                : park(sum, place, lot_label(u, "gradient.shard", lot), u, -1));
}

/// Over the ranks: first those that share one copy of the states, neighbours and so a part of the tree, then the
/// replicas, each of which adds up a part of the shard for all of them.
Part GradientMoves::reduced(UnitId u, const Part& gradient) {
  if (work_.data_ranks() == 1) return gradient;
  if (work_.sums == RankSums::int4 && work_.shards() > 1) return reduced_in_bits(u, gradient);
  const auto on_device = [&] {
    const Life life = work_.reduction == Reduction::pass ? Life::lasting : Life::brief;
    return work_.shards() == 1 ? gradient : device(label(u, "gradient.shard"), work_.shard_numel(u) * 4, life);
  };
  Part sum = gradient;
  const bool staged = work_.stages_collectives();
  if (staged) {
    sum = stage(label(u, "gradient"), gradient.bytes);
    emit_.move(OpKind::copy, LaneKind::d2h, u, gradient, sum);
  }
  if (work_.shards() > 1) {
    const Part shard = staged ? own_part(sum, sharding_group) : on_device();
    reduce_parts(u, sum, shard, sharding_group);
    sum = shard;
  }
  if (work_.replicas() > 1) add_met(u, sum, replica_group);
  if (!staged) return sum;
  const Part shard = on_device();
  emit_.move(OpKind::copy, LaneKind::h2d, u, sum, shard);
  return shard;
}

/// Each of the close ranks gets the parts of those ranks that are in its place elsewhere, adds them up over the group,
/// and gives each its part.
Part GradientMoves::reduced_in_bits(UnitId u, const Part& gradient) {
  const RankId close = work_.close_ranks(), groups = work_.far_groups();
  const auto numel = static_cast<std::int64_t>(work_.shard_numel(u));
  Part sum = gradient;
  const auto exchange = [&](std::int32_t group, RankId members, RankId pieces, const char* name, Life life) {
    const Part given = quantized(u, sum, numel, members * pieces, reduced_blocks, label(u, "gradient.given"));
    const Part taken = device(label(u, "gradient.taken"), given.bytes);
    exchange_parts(u, given, taken, group, pieces, RankSums::int4);
    sum = device(label(u, name), work_.shard_numel(u) * 4 * pieces, life);
    quantize(OpKind::dequantize_sum, u, taken, sum, numel, members, reduced_blocks);
  };
  const Life last = work_.reduction == Reduction::pass ? Life::lasting : Life::brief;
  if (close > 1)
    exchange(close_group, close, groups, groups > 1 ? "gradient.close" : "gradient.shard",
             groups > 1 ? Life::brief : last);
  if (groups > 1) exchange(far_group, groups, 1, "gradient.shard", last);
  if (work_.replicas() > 1) add_in_place(u, sum, replica_group);
  return sum;
}

/// Up, into the norm, and to where the update finds it: rounded on the way if that is asked for, always where its norm
/// is taken, so that it makes no difference when and by whom it is read.
void GradientMoves::drain_tile(const TileRef& t) {
  const Part from = tile_of(unit(t.unit).shard_gradient, t, 4);
  const bool waits = schedule_.stores_gradient(t.unit), waits_in_host = waits && choice(t.unit).gradient == Place::host;
  const auto waiting = [&] { return tile_of(unit(t.unit).gradient_wait, t, gradient_bytes()); };
  const std::string name = tile_label(t, StateKind::gradient);
  const Part host = waits_in_host && !work_.rounds_gradients() ? waiting() : stage(name, from.bytes);
  const Part kept = !work_.rounds_gradients() ? host
                    : waits_in_host           ? waiting()
                                              : stage(name + ".rounded", t.numel * gradient_bytes());
  emit_.move(OpKind::copy, LaneKind::d2h, t.unit, from, host, t.index);
  Op& norm = emit_.op(OpKind::grad_norm, LaneKind::optimizer, t.unit);
  norm.tile = t.index;
  norm.element = t.element;
  norm.numel = t.numel;
  norm.bytes = host.bytes;
  Emitter::touch(norm, host, Role::gradient, Mode::read);
  if (work_.rounds_gradients()) {
    norm.bytes += host.bytes + 2 * kept.bytes;  // a pass of its own; memory is read where it is written
    Emitter::touch(norm, kept, Role::dst, Mode::write);
  }
  norm.accumulate = std::exchange(parts_.has_norm, true);
  Emitter::touch(norm, parts_.control.slice(control_result_bytes, sizeof(ExactSum)), Role::control,
                 norm.accumulate ? Mode::read_write : Mode::write);
  if (waits && choice(t.unit).gradient == Place::nvme)
    emit_.move(OpKind::write, LaneKind::nvme_write, t.unit, kept, waiting(), t.index);
  if (waits && choice(t.unit).gradient == Place::device && !sums_where_it_waits(work_, schedule_, t.unit))
    emit_.move(OpKind::copy, LaneKind::h2d, t.unit, kept, waiting(), t.index);
  if (updates_ahead(t.unit)) return;
  if (!choice(t.unit).update_on_device) {
    tile(t)[StateKind::gradient] = kept;
  } else if (work_.rounds_gradients()) {
    Part& down = device_tile(t)[StateKind::gradient] = device(name + ".device", kept.bytes);
    emit_.move(OpKind::copy, LaneKind::h2d, t.unit, kept, down, t.index);
  } else {
    device_tile(t)[StateKind::gradient] = from;
  }
}

void GradientMoves::close_gradient(UnitId u) { unit(u).shard_gradient = Part{}; }

}  // namespace sluice
