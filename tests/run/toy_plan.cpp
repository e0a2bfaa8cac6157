#include "tests/run/toy_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>

#include "offload/plan/finish.h"

namespace sluice::testing {
namespace {

class Builder {
 public:
  explicit Builder(RankId ranks) {
    plan.ranks = ranks;
    plan.cyclic = true;
    std::vector<RankId> all;
    for (RankId r = 0; r < ranks; ++r) all.push_back(r);
    plan.groups = {all, all};
  }

  LaneId lane(LaneKind kind, RankId rank) {
    const auto key = std::pair(kind, rank);
    if (const auto it = lanes_.find(key); it != lanes_.end()) return it->second;
    const auto id = static_cast<LaneId>(plan.lanes.size());
    plan.lanes.push_back({kind, rank, kind == LaneKind::nvme_read || kind == LaneKind::nvme_write});
    return lanes_[key] = id;
  }

  BufferId buffer(const std::string& name, Tier tier, RankId rank, std::uint64_t bytes, Life life, int slots = 1) {
    Buffer b;
    b.name = name + "@" + std::to_string(rank);
    b.tier = tier;
    b.rank = rank;
    b.bytes = bytes;
    b.life = life;
    b.slots = static_cast<std::uint8_t>(slots);
    b.block_bytes = 8192;
    plan.buffers.push_back(b);
    return static_cast<BufferId>(plan.buffers.size() - 1);
  }

  Op& op(OpKind kind, LaneKind on, RankId rank) {
    Op made;
    made.kind = kind;
    made.lane = lane(on, rank);
    plan.ops.push_back(made);
    return plan.ops.back();
  }

  void touch(Op& o, BufferId b, Role role, Mode mode, Slot slot = Slot::current) {
    o.accesses.push_back({b, 0, plan.buffers[b].bytes, role, mode, slot});
  }
  static void part(Op& o, BufferId b, std::uint64_t offset, std::uint64_t bytes, Role role, Mode mode,
                   Slot slot = Slot::current) {
    o.accesses.push_back({b, offset, bytes, role, mode, slot});
  }

  /// The own part is read, the others' are written.
  void gather_parts(Op& o, BufferId b, RankId own, std::uint64_t bytes) const {
    for (RankId r = 0; r < plan.ranks; ++r)
      part(o, b, r * bytes, bytes, Role::dst, r == own ? Mode::read : Mode::write);
  }

  void move(OpKind kind, LaneKind on, RankId rank, BufferId src, BufferId dst, Slot src_slot = Slot::current,
            Slot dst_slot = Slot::current) {
    Op& o = op(kind, on, rank);
    touch(o, src, Role::src, Mode::read, src_slot);
    touch(o, dst, Role::dst, Mode::write, dst_slot);
    o.bytes = plan.buffers[src].bytes;
  }

  StepPlan plan;

 private:
  std::map<std::pair<LaneKind, RankId>, LaneId> lanes_;
};

constexpr std::uint64_t sizes[] = {4096, 12288, 20480, 10000};

class RandomBuilder {
 public:
  explicit RandomBuilder(const RandomPlanOptions& options)
      : options_(options), b_(options.ranks), random_(options.seed), ranks_(options.ranks) {
    b_.plan.cyclic = options.cyclic;
  }

  StepPlan build() {
    for (RankId r = 0; r < options_.ranks; ++r) start_rank(r);
    for (int i = 0; i < options_.ops; ++i) {
      if (options_.ranks > 1 && i % 8 == 7) collective();
      for (RankId r = 0; r < options_.ranks; ++r) random_op(r);
    }
    std::vector<BufferId> firsts(options_.ranks);
    if (options_.ranks > 1) firsts = meet_before_durable_writes();
    for (RankId r = 0; r < options_.ranks; ++r) end_rank(r, firsts[r]);
    for (RankId r = 0; r < options_.ranks; ++r) control(r);
    return std::move(b_.plan);
  }

 private:
  struct Ready {  // buffers with defined content, by size class
    std::vector<std::pair<BufferId, Slot>> nvme[4];
    std::vector<BufferId> host[4], device[4];
    std::vector<BufferId> host_kept, device_kept, nvme_kept, durable;
    BufferId control = 0;
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }
  std::string name(const char* what) { return what + std::to_string(count_++); }
  Life life() { return below(2) ? Life::lasting : Life::brief; }

  void start_rank(RankId r) {
    Ready& ready = ranks_[r];
    ready.control = b_.buffer("control", Tier::host, r, control_block_bytes(0, 2), Life::persistent);
    for (std::size_t s = 0; s < 4; ++s) {
      const BufferId durable = b_.buffer(name("durable"), Tier::nvme, r, sizes[s], Life::persistent, 2);
      const BufferId kept = b_.buffer(name("nvme_kept"), Tier::nvme, r, sizes[s], Life::persistent);
      ready.host_kept.push_back(b_.buffer(name("host_kept"), Tier::host, r, sizes[s], Life::persistent));
      ready.device_kept.push_back(b_.buffer(name("device_kept"), Tier::device, r, sizes[s], Life::persistent));
      ready.durable.push_back(durable);
      ready.nvme_kept.push_back(kept);
      ready.nvme[s] = {{durable, Slot::current}, {kept, Slot::current}};
      ready.host[s] = {ready.host_kept[s]};
      ready.device[s] = {ready.device_kept[s]};
    }
  }

  void random_op(RankId r) {
    Ready& ready = ranks_[r];
    const std::size_t s = below(4);
    switch (below(6)) {
      case 0: {
        const auto [from, slot] = pick(ready.nvme[s]);
        const BufferId to = b_.buffer(name("staged"), Tier::host, r, sizes[s], life());
        b_.move(OpKind::read, LaneKind::nvme_read, r, from, to, slot);
        ready.host[s].push_back(to);
        return;
      }
      case 1: {
        const BufferId from = pick(ready.host[s]);
        const bool keep = below(2) == 0;
        const BufferId to = keep ? ready.nvme_kept[s] : b_.buffer(name("spilled"), Tier::nvme, r, sizes[s], life());
        b_.move(OpKind::write, LaneKind::nvme_write, r, from, to);
        if (!keep) ready.nvme[s].push_back({to, Slot::current});
        return;
      }
      case 2: {
        const BufferId to =
            below(3) ? b_.buffer(name("fetched"), Tier::device, r, sizes[s], life()) : ready.device_kept[s];
        b_.move(OpKind::copy, LaneKind::h2d, r, pick(ready.host[s]), to);
        ready.device[s].push_back(to);
        return;
      }
      case 3: {
        const BufferId to = below(3) ? b_.buffer(name("drained"), Tier::host, r, sizes[s], life()) : ready.host_kept[s];
        b_.move(OpKind::copy, LaneKind::d2h, r, pick(ready.device[s]), to);
        ready.host[s].push_back(to);
        return;
      }
      default: compute(r);
    }
  }

  void compute(RankId r) {
    Ready& ready = ranks_[r];
    const std::size_t s = below(4);
    const BufferId made = b_.buffer(name("made"), Tier::device, r, sizes[s], life());
    Op& o = b_.op(OpKind::forward, LaneKind::compute, r);
    b_.touch(o, pick(ready.device[below(4)]), Role::x_in, Mode::read);
    b_.touch(o, pick(ready.device[below(4)]), Role::parameters, Mode::read);
    if (below(3) == 0) {
      const BufferId kept = pick(ready.device_kept);
      bool twice = false;
      for (const Access& a : o.accesses) twice |= a.buffer == kept;
      if (!twice) b_.touch(o, kept, Role::gradient, Mode::read_write);
    }
    b_.touch(o, made, Role::x_out, Mode::write);
    ready.device[s].push_back(made);
  }

  void collective() {
    constexpr std::uint64_t part = 4096;
    if (below(2) == 0) {
      gather(part);
      return;
    }
    const std::vector<BufferId> parts = reduce(part);
    for (RankId r = 0; r < options_.ranks; ++r) ranks_[r].device[0].push_back(parts[r]);
  }

  /// The source of a collective is made by compute, so that every rank comes at its own time.
  BufferId full_buffer(RankId r, std::uint64_t part, bool own_part_only) {
    const BufferId full = b_.buffer(name("full"), Tier::device, r, part * options_.ranks, life());
    Op& o = b_.op(OpKind::forward, LaneKind::compute, r);
    b_.touch(o, pick(ranks_[r].device[below(4)]), Role::x_in, Mode::read);
    if (own_part_only)
      Builder::part(o, full, part * r, part, Role::x_out, Mode::write);
    else
      b_.touch(o, full, Role::x_out, Mode::write);
    return full;
  }

  Op& meet(OpKind kind, RankId r, std::uint64_t part) {
    Op& o = b_.op(kind, LaneKind::comm, r);
    o.collective = collectives_;
    o.group = 0;
    o.bytes = part * (options_.ranks - 1u);
    return o;
  }

  void gather(std::uint64_t part) {
    std::vector<BufferId> fulls;
    for (RankId r = 0; r < options_.ranks; ++r) fulls.push_back(full_buffer(r, part, true));
    for (RankId r = 0; r < options_.ranks; ++r) b_.gather_parts(meet(OpKind::all_gather, r, part), fulls[r], r, part);
    ++collectives_;
    for (RankId r = 0; r < options_.ranks; ++r) {
      Op& o = b_.op(OpKind::forward, LaneKind::compute, r);
      b_.touch(o, fulls[r], Role::x_in, Mode::read);
      b_.touch(o, ranks_[r].device_kept[0], Role::x_out, Mode::write);
    }
  }

  std::vector<BufferId> reduce(std::uint64_t part) {
    std::vector<BufferId> fulls, parts;
    for (RankId r = 0; r < options_.ranks; ++r) {
      fulls.push_back(full_buffer(r, part, false));
      parts.push_back(b_.buffer(name("part"), Tier::device, r, part, life()));
    }
    for (RankId r = 0; r < options_.ranks; ++r) {
      Op& o = meet(OpKind::reduce_scatter, r, part);
      b_.touch(o, fulls[r], Role::src, Mode::read);
      b_.touch(o, parts[r], Role::dst, Mode::write);
    }
    ++collectives_;
    return parts;
  }

  /// What the first durable write of each rank writes, so that it comes after every rank's previous commit.
  std::vector<BufferId> meet_before_durable_writes() {
    std::vector<BufferId> drained;
    const std::vector<BufferId> parts = reduce(4096);
    for (RankId r = 0; r < options_.ranks; ++r) {
      drained.push_back(b_.buffer(name("first"), Tier::host, r, 4096, Life::brief));
      b_.move(OpKind::copy, LaneKind::d2h, r, parts[r], drained[r]);
    }
    return drained;
  }

  void end_rank(RankId r, BufferId first) {
    Ready& ready = ranks_[r];
    for (std::size_t s = 0; s < 4; ++s) {
      const BufferId from = s == 0 && options_.ranks > 1 ? first : pick(ready.host[s]);
      b_.move(OpKind::write, LaneKind::nvme_write, r, from, ready.durable[s], Slot::current, Slot::next);
    }
    b_.op(OpKind::sync, LaneKind::commit, r);
    b_.op(OpKind::commit, LaneKind::commit, r);
  }

  // After the commits, so that no rank overwrites a slot that another has not left behind.
  void control(RankId r) {
    Op& o = b_.op(OpKind::control, LaneKind::optimizer, r);
    if (options_.ranks > 1) {
      o.collective = collectives_;
      o.group = 1;
    }
    b_.touch(o, ranks_[r].control, Role::control, Mode::read_write);
  }

  RandomPlanOptions options_;
  Builder b_;
  std::mt19937_64 random_;
  std::vector<Ready> ranks_;
  int count_ = 0, collectives_ = 0;
};

void finish_and_check(StepPlan& plan) {
  finish(plan);
  for (const Violation& violation : check(plan)) ADD_FAILURE() << violation.message;
}

/// The toy training step; see toy_training.
class TrainingBuilder {
 public:
  TrainingBuilder(RankId ranks, int units, int micro_batches)
      : b_(ranks), units_(units), micro_batches_(micro_batches) {
    for (int u = 0; u < units; ++u) b_.plan.units.push_back("U" + std::to_string(u));
  }

  StepPlan build() {
    for (RankId r = 0; r < b_.plan.ranks; ++r) declare(r);
    for (int u = 0; u < units_; ++u) {
      for (RankId r = 0; r < b_.plan.ranks; ++r) update(r, u);
      if (b_.plan.ranks > 1) gather(u);
      for (RankId r = 0; r < b_.plan.ranks; ++r) forward(r, u);
    }
    for (int u = units_ - 1; u >= 0; --u) {
      for (RankId r = 0; r < b_.plan.ranks; ++r) backward(r, u);
      if (b_.plan.ranks > 1) scatter(u);
      for (RankId r = 0; r < b_.plan.ranks; ++r) drain(r, u);
    }
    for (RankId r = 0; r < b_.plan.ranks; ++r) commit(r);
    for (RankId r = 0; r < b_.plan.ranks; ++r) control(r);
    for (RankId r = 0; r < b_.plan.ranks; ++r) step_end(r);
    return std::move(b_.plan);
  }

  static constexpr std::uint64_t tile_numel = 4096, shard_numel = 3 * tile_numel;
  static constexpr std::uint64_t tile_bytes = tile_numel * 4, shard_bytes = shard_numel * 4;

 private:
  struct Unit {
    BufferId state[3], gradient, device_parameters, device_gradient, device_shard;
  };
  struct Rank {
    std::vector<Unit> units;
    BufferId control, losses, x, tokens, diverged;
  };
  bool many() const { return b_.plan.ranks > 1; }

  void declare(RankId r) {
    Rank rank;
    rank.control =
        b_.buffer("control", Tier::host, r,
                  control_block_bytes(static_cast<std::size_t>(units_), static_cast<std::size_t>(micro_batches_)),
                  Life::persistent);
    for (int u = 0; u < units_; ++u) {
      Unit unit{};
      const std::string at = "U" + std::to_string(u) + ".";
      for (int k = 0; k < 3; ++k)
        unit.state[k] = b_.buffer(at + state_names[static_cast<std::size_t>(k == 0 ? 0 : k + 1)], Tier::nvme, r,
                                  shard_bytes, Life::persistent, 2);
      unit.gradient = b_.buffer(at + "gradient", Tier::host, r, shard_bytes, Life::persistent);
      unit.device_parameters = b_.buffer(at + "device", Tier::device, r, shard_bytes * b_.plan.ranks, Life::lasting);
      unit.device_gradient = b_.buffer(at + "dgradient", Tier::device, r, shard_bytes * b_.plan.ranks, Life::brief);
      unit.device_shard =
          many() ? b_.buffer(at + "dshard", Tier::device, r, shard_bytes, Life::brief) : unit.device_gradient;
      rank.units.push_back(unit);
    }
    rank.losses = b_.buffer("losses", Tier::device, r, 8ull * static_cast<unsigned>(micro_batches_), Life::brief);
    rank.diverged = b_.buffer("diverged", Tier::device, r, 8ull * static_cast<unsigned>(units_), Life::persistent);
    rank.x = b_.buffer("x", Tier::device, r, 8192, Life::lasting);
    rank.tokens = b_.buffer("tokens", Tier::device, r, 256, Life::lasting);
    ranks_.push_back(rank);
    const BufferId loaded = b_.buffer("tokens.stage", Tier::host, r, 256, Life::brief);
    Op& o = b_.op(OpKind::load_tokens, LaneKind::input, r);
    o.micro_batch = 0;
    o.bytes = 256;
    b_.touch(o, loaded, Role::tokens, Mode::write);
    b_.move(OpKind::copy, LaneKind::h2d, r, loaded, rank.tokens);
  }

  void update(RankId r, int u) {
    const Unit& unit = ranks_[r].units[static_cast<std::size_t>(u)];
    for (std::uint64_t t = 0; t < shard_numel / tile_numel; ++t) {
      BufferId staged[3];
      for (int k = 0; k < 3; ++k) {
        staged[k] = b_.buffer("stage" + std::to_string(count_++), Tier::host, r, tile_bytes, Life::brief);
        Op& read = b_.op(OpKind::read, LaneKind::nvme_read, r);
        read.bytes = tile_bytes;
        Builder::part(read, unit.state[k], t * tile_bytes, tile_bytes, Role::src, Mode::read);
        b_.touch(read, staged[k], Role::dst, Mode::write);
      }
      u % 2 == 0 ? update_on_cpu(r, u, t, staged) : update_on_device(r, u, t, staged);
      for (int k = 0; k < 3; ++k) {
        Op& write = b_.op(OpKind::write, LaneKind::nvme_write, r);
        write.bytes = tile_bytes;
        b_.touch(write, staged[k], Role::src, Mode::read);
        Builder::part(write, unit.state[k], t * tile_bytes, tile_bytes, Role::dst, Mode::write, Slot::next);
      }
      if (u % 2 == 0) open_tile(copy_op(LaneKind::h2d, r), r, u, t, staged[0]);
    }
  }

  Op& copy_op(LaneKind lane, RankId r) { return b_.op(OpKind::copy, lane, r); }
  void open_tile(Op& copy, RankId r, int u, std::uint64_t t, BufferId staged) {
    copy.bytes += tile_bytes;
    b_.touch(copy, staged, Role::src, Mode::read);
    Builder::part(copy, ranks_[r].units[static_cast<std::size_t>(u)].device_parameters,
                  r * shard_bytes + t * tile_bytes, tile_bytes, Role::dst, Mode::write);
  }

  Op& update_op(LaneKind lane, RankId r, int u, std::uint64_t t) {
    Op& o = b_.op(OpKind::update, lane, r);
    o.unit = u;
    o.element = t * tile_numel;
    o.numel = tile_numel;
    return o;
  }

  void update_on_cpu(RankId r, int u, std::uint64_t t, const BufferId (&staged)[3]) {
    Op& o = update_op(LaneKind::optimizer, r, u, t);
    b_.touch(o, staged[0], Role::parameters, Mode::read_write);
    b_.touch(o, staged[1], Role::exp_avg, Mode::read_write);
    b_.touch(o, staged[2], Role::exp_avg_sq, Mode::read_write);
    Builder::part(o, ranks_[r].units[static_cast<std::size_t>(u)].gradient, t * tile_bytes, tile_bytes, Role::gradient,
                  Mode::read);
    Builder::part(o, ranks_[r].control, 0, sizeof(ControlBlock), Role::control, Mode::read);
  }

  /// Parameters in their place, moments and gradient through staging.
  void update_on_device(RankId r, int u, std::uint64_t t, const BufferId (&staged)[3]) {
    const Unit& unit = ranks_[r].units[static_cast<std::size_t>(u)];
    BufferId on_device[3];
    for (BufferId& b : on_device)
      b = b_.buffer("device_stage" + std::to_string(count_++), Tier::device, r, tile_bytes, Life::brief);
    Op& down = copy_op(LaneKind::h2d, r);
    open_tile(down, r, u, t, staged[0]);
    for (int k = 0; k < 3; ++k) {
      if (k < 2) b_.touch(down, staged[k + 1], Role::src, Mode::read);
      if (k == 2) Builder::part(down, unit.gradient, t * tile_bytes, tile_bytes, Role::src, Mode::read);
      b_.touch(down, on_device[k], Role::dst, Mode::write);
      down.bytes += tile_bytes;
    }
    Op& o = update_op(LaneKind::compute, r, u, t);
    const std::uint64_t at = r * shard_bytes + t * tile_bytes;
    Builder::part(o, unit.device_parameters, at, tile_bytes, Role::parameters, Mode::read_write);
    b_.touch(o, on_device[0], Role::exp_avg, Mode::read_write);
    b_.touch(o, on_device[1], Role::exp_avg_sq, Mode::read_write);
    b_.touch(o, on_device[2], Role::gradient, Mode::read);
    Builder::part(o, ranks_[r].control, 0, sizeof(ControlBlock), Role::control, Mode::read);
    Builder::part(o, ranks_[r].diverged, 8ull * static_cast<unsigned>(u), 8, Role::diverged,
                  t == 0 ? Mode::write : Mode::read_write);
    Op& up = copy_op(LaneKind::d2h, r);
    up.bytes = 3 * tile_bytes;
    for (int k = 0; k < 3; ++k) {
      if (k == 0) Builder::part(up, unit.device_parameters, at, tile_bytes, Role::src, Mode::read);
      if (k > 0) b_.touch(up, on_device[k - 1], Role::src, Mode::read);
      b_.touch(up, staged[k], Role::dst, Mode::write);
    }
  }

  void verify(RankId r) {
    if (units_ < 2) return;
    const BufferId diverged = ranks_[r].diverged,
                   found = b_.buffer("found", Tier::host, r, 8ull * static_cast<unsigned>(units_), Life::brief);
    b_.move(OpKind::copy, LaneKind::d2h, r, diverged, found);
    Op& o = b_.op(OpKind::verify, LaneKind::optimizer, r);
    for (int u = 1; u < units_; u += 2)
      Builder::part(o, found, 8ull * static_cast<unsigned>(u), 8, Role::diverged, Mode::read);
  }

  void gather(int u) {
    for (RankId r = 0; r < b_.plan.ranks; ++r) {
      Op& o = b_.op(OpKind::all_gather, LaneKind::comm, r);
      o.collective = collectives_;
      o.group = 0;
      o.bytes = shard_bytes * (b_.plan.ranks - 1u);
      b_.gather_parts(o, ranks_[r].units[static_cast<std::size_t>(u)].device_parameters, r, shard_bytes);
    }
    ++collectives_;
  }

  void forward(RankId r, int u) {
    const Rank& rank = ranks_[r];
    Op& o = b_.op(OpKind::forward, LaneKind::compute, r);
    o.unit = u;
    b_.touch(o, rank.tokens, Role::tokens, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_parameters, Role::parameters, Mode::read);
    b_.touch(o, rank.x, Role::x_out, u == 0 ? Mode::write : Mode::read_write);
    if (u + 1 < units_) return;
    Op& loss = b_.op(OpKind::loss, LaneKind::compute, r);
    loss.unit = u;
    b_.touch(loss, rank.x, Role::x_in, Mode::read);
    b_.touch(loss, rank.losses, Role::loss, Mode::write);
    Op& copy = b_.op(OpKind::copy, LaneKind::d2h, r);
    copy.bytes = b_.plan.buffers[rank.losses].bytes;
    b_.touch(copy, rank.losses, Role::src, Mode::read);
    Builder::part(copy, rank.control, control_loss_offset(static_cast<std::size_t>(units_), 0), copy.bytes, Role::dst,
                  Mode::write);
  }

  void backward(RankId r, int u) {
    const Rank& rank = ranks_[r];
    Op& o = b_.op(OpKind::backward, LaneKind::compute, r);
    o.unit = u;
    b_.touch(o, rank.x, Role::x_in, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_parameters, Role::parameters, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_gradient, Role::gradient, Mode::write);
  }

  void scatter(int u) {
    for (RankId r = 0; r < b_.plan.ranks; ++r) {
      const Unit& unit = ranks_[r].units[static_cast<std::size_t>(u)];
      Op& o = b_.op(OpKind::reduce_scatter, LaneKind::comm, r);
      o.collective = collectives_;
      o.group = 0;
      o.bytes = shard_bytes * (b_.plan.ranks - 1u);
      b_.touch(o, unit.device_gradient, Role::src, Mode::read);
      b_.touch(o, unit.device_shard, Role::dst, Mode::write);
    }
    ++collectives_;
  }

  void drain(RankId r, int u) {
    const Unit& unit = ranks_[r].units[static_cast<std::size_t>(u)];
    for (std::uint64_t t = 0; t < shard_numel / tile_numel; ++t) {
      Op& copy = b_.op(OpKind::copy, LaneKind::d2h, r);
      copy.bytes = tile_bytes;
      Builder::part(copy, unit.device_shard, t * tile_bytes, tile_bytes, Role::src, Mode::read);
      Builder::part(copy, unit.gradient, t * tile_bytes, tile_bytes, Role::dst, Mode::write);
      Op& norm = b_.op(OpKind::grad_norm, LaneKind::optimizer, r);
      norm.unit = u;
      norm.element = t * tile_numel;
      norm.numel = tile_numel;
      Builder::part(norm, unit.gradient, t * tile_bytes, tile_bytes, Role::gradient, Mode::read);
      Builder::part(norm, ranks_[r].control, control_unit_offset(static_cast<std::size_t>(u)), 8, Role::control,
                    t == 0 ? Mode::write : Mode::read_write);
    }
  }

  void commit(RankId r) {
    verify(r);
    b_.op(OpKind::sync, LaneKind::commit, r);
    b_.op(OpKind::commit, LaneKind::commit, r);
  }

  void control(RankId r) {
    Op& o = b_.op(OpKind::control, LaneKind::optimizer, r);
    if (many()) {
      o.collective = collectives_;
      o.group = 1;
    }
    b_.touch(o, ranks_[r].control, Role::control, Mode::read_write);
  }

  void step_end(RankId r) {
    Op& o = b_.op(OpKind::step_end, LaneKind::optimizer, r);
    b_.touch(o, ranks_[r].control, Role::control, Mode::read);
  }

  Builder b_;
  int units_, micro_batches_;
  std::vector<Rank> ranks_;
  int count_ = 0, collectives_ = 0;
};

}  // namespace

StepPlan random_plan(const RandomPlanOptions& options) {
  StepPlan plan = RandomBuilder(options).build();
  finish_and_check(plan);
  return plan;
}

ToyTraining toy_training(RankId ranks, int units, int micro_batches) {
  ToyTraining toy;
  toy.plan = TrainingBuilder(ranks, units, micro_batches).build();
  finish_and_check(toy.plan);
  // Two tensors per shard with padding between and after them; the second is not decayed.
  const std::uint64_t shard = TrainingBuilder::shard_numel;
  for (int u = 0; u < units; ++u) {
    OptimizerUnit unit;
    for (RankId r = 0; r < ranks; ++r) {
      unit.shard_begin.push_back(r * shard);
      unit.segments.push_back({r * shard + 64, 5000, 1, 1, true});
      unit.segments.push_back({r * shard + 5120, 7000, 0, 0.5f, true});
      unit.segments.push_back({r * shard + 12160, 100, 1, 1, false});
    }
    toy.units.push_back(unit);
  }
  return toy;
}

}  // namespace sluice::testing
