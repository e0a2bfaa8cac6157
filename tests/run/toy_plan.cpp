#include "tests/run/toy_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "offload/plan/finish.h"
#include "offload/plan/world.h"

namespace sluice::test {
namespace {

class Builder {
 public:
  Builder(RankId ranks, RankId rank) {
    plan.topology = Topology::of({{"dp", ranks}}, rank);
    plan.cyclic = true;
    const AxisSet all = plan.topology.all_axes();
    if (ranks > 1) plan.groups = {all, all};
  }

  RankId ranks() const { return plan.topology.ranks(); }
  RankId own() const { return plan.topology.rank(); }
  bool many() const { return ranks() > 1; }

  LaneId lane(LaneKind kind) {
    if (const auto it = lanes_.find(kind); it != lanes_.end()) return it->second;
    const auto id = static_cast<LaneId>(plan.lanes.size());
    plan.lanes.push_back(
        {kind, kind == LaneKind::nvme_read || kind == LaneKind::nvme_write, kind == LaneKind::comm ? 0 : -1});
    return lanes_[kind] = id;
  }

  BufferId buffer(const std::string& name, Tier tier, std::uint64_t bytes, Life life, int slots = 1) {
    Buffer b;
    b.name = name + "@" + std::to_string(own());
    b.tier = tier;
    b.bytes = bytes;
    b.life = life;
    b.slots = static_cast<std::uint8_t>(slots);
    b.block_bytes = 8192;
    plan.buffers.push_back(b);
    return static_cast<BufferId>(plan.buffers.size() - 1);
  }

  Op& op(OpKind kind, LaneKind on) {
    Op made;
    made.kind = kind;
    made.lane = lane(on);
    plan.ops.push_back(made);
    return plan.ops.back();
  }

  Op& meet(OpKind kind, LaneKind on, std::int32_t group) {
    Op& o = op(kind, on);
    o.group = group;
    o.collective = met_[static_cast<std::size_t>(group)]++;
    return o;
  }

  void touch(Op& o, BufferId b, Role role, Mode mode, Slot slot = Slot::current) {
    o.accesses.push_back({b, 0, plan.buffers[b].bytes, role, mode, slot});
  }
  static void part(Op& o, BufferId b, std::uint64_t offset, std::uint64_t bytes, Role role, Mode mode,
                   Slot slot = Slot::current) {
    o.accesses.push_back({b, offset, bytes, role, mode, slot});
  }

  /// The own part is read, the others' are written.
  void gather_parts(Op& o, BufferId b, std::uint64_t bytes) const {
    for (RankId r = 0; r < ranks(); ++r) part(o, b, r * bytes, bytes, Role::dst, r == own() ? Mode::read : Mode::write);
  }

  void move(OpKind kind, LaneKind on, BufferId src, BufferId dst, Slot src_slot = Slot::current,
            Slot dst_slot = Slot::current) {
    Op& o = op(kind, on);
    touch(o, src, Role::src, Mode::read, src_slot);
    touch(o, dst, Role::dst, Mode::write, dst_slot);
    o.bytes = plan.buffers[src].bytes;
  }

  StepPlan plan;

 private:
  std::map<LaneKind, LaneId> lanes_;
  std::array<std::int32_t, 2> met_{};
};

constexpr std::uint64_t sizes[] = {4096, 12288, 20480, 10000};

class RandomBuilder {
 public:
  RandomBuilder(const RandomPlanOptions& options, RankId rank)
      : options_(options), b_(options.ranks, rank), random_(options.seed) {
    b_.plan.cyclic = options.cyclic;
  }

  StepPlan build() {
    start();
    for (int i = 0; i < options_.ops; ++i) {
      if (b_.many() && i % 8 == 7) collective();
      random_op();
    }
    const BufferId first = b_.many() ? meet_before_durable_writes() : 0;
    end(first);
    control();
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

  void start() {
    Ready& ready = ready_;
    ready.control = b_.buffer("control", Tier::host, control_block_bytes(2), Life::persistent);
    for (std::size_t s = 0; s < 4; ++s) {
      const BufferId durable = b_.buffer(name("durable"), Tier::nvme, sizes[s], Life::persistent, 2);
      const BufferId kept = b_.buffer(name("nvme_kept"), Tier::nvme, sizes[s], Life::persistent);
      ready.host_kept.push_back(b_.buffer(name("host_kept"), Tier::host, sizes[s], Life::persistent));
      ready.device_kept.push_back(b_.buffer(name("device_kept"), Tier::device, sizes[s], Life::persistent));
      ready.durable.push_back(durable);
      ready.nvme_kept.push_back(kept);
      ready.nvme[s] = {{durable, Slot::current}, {kept, Slot::current}};
      ready.host[s] = {ready.host_kept[s]};
      ready.device[s] = {ready.device_kept[s]};
    }
  }

  void random_op() {
    Ready& ready = ready_;
    const std::size_t s = below(4);
    switch (below(6)) {
      case 0: {
        const auto [from, slot] = pick(ready.nvme[s]);
        const BufferId to = b_.buffer(name("staged"), Tier::host, sizes[s], life());
        b_.move(OpKind::read, LaneKind::nvme_read, from, to, slot);
        ready.host[s].push_back(to);
        return;
      }
      case 1: {
        const BufferId from = pick(ready.host[s]);
        const bool keep = below(2) == 0;
        const BufferId to = keep ? ready.nvme_kept[s] : b_.buffer(name("spilled"), Tier::nvme, sizes[s], life());
        b_.move(OpKind::write, LaneKind::nvme_write, from, to);
        if (!keep) ready.nvme[s].push_back({to, Slot::current});
        return;
      }
      case 2: {
        const BufferId to =
            below(3) ? b_.buffer(name("fetched"), Tier::device, sizes[s], life()) : ready.device_kept[s];
        b_.move(OpKind::copy, LaneKind::h2d, pick(ready.host[s]), to);
        ready.device[s].push_back(to);
        return;
      }
      case 3: {
        const BufferId to = below(3) ? b_.buffer(name("drained"), Tier::host, sizes[s], life()) : ready.host_kept[s];
        b_.move(OpKind::copy, LaneKind::d2h, pick(ready.device[s]), to);
        ready.host[s].push_back(to);
        return;
      }
      default: compute();
    }
  }

  void compute() {
    Ready& ready = ready_;
    const std::size_t s = below(4);
    const BufferId made = b_.buffer(name("made"), Tier::device, sizes[s], life());
    Op& o = b_.op(OpKind::forward, LaneKind::compute);
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
    ready_.device[0].push_back(reduce(part));
  }

  /// The source of a collective is made by compute, so that every rank comes at its own time.
  BufferId full_buffer(std::uint64_t part, bool own_part_only) {
    const BufferId full = b_.buffer(name("full"), Tier::device, part * options_.ranks, life());
    Op& o = b_.op(OpKind::forward, LaneKind::compute);
    b_.touch(o, pick(ready_.device[below(4)]), Role::x_in, Mode::read);
    if (own_part_only)
      Builder::part(o, full, part * b_.own(), part, Role::x_out, Mode::write);
    else
      b_.touch(o, full, Role::x_out, Mode::write);
    return full;
  }

  Op& meet(OpKind kind, std::uint64_t part) {
    Op& o = b_.meet(kind, LaneKind::comm, 0);
    o.bytes = part * (options_.ranks - 1u);
    return o;
  }

  void gather(std::uint64_t part) {
    const BufferId full = full_buffer(part, true);
    b_.gather_parts(meet(OpKind::all_gather, part), full, part);
    Op& o = b_.op(OpKind::forward, LaneKind::compute);
    b_.touch(o, full, Role::x_in, Mode::read);
    b_.touch(o, ready_.device_kept[0], Role::x_out, Mode::write);
  }

  BufferId reduce(std::uint64_t part) {
    const BufferId full = full_buffer(part, false);
    const BufferId sum = b_.buffer(name("part"), Tier::device, part, life());
    Op& o = meet(OpKind::reduce_scatter, part);
    b_.touch(o, full, Role::src, Mode::read);
    b_.touch(o, sum, Role::dst, Mode::write);
    return sum;
  }

  /// What the first durable write writes, so that it comes after every rank's previous commit.
  BufferId meet_before_durable_writes() {
    const BufferId sum = reduce(4096);
    const BufferId drained = b_.buffer(name("first"), Tier::host, 4096, Life::brief);
    b_.move(OpKind::copy, LaneKind::d2h, sum, drained);
    return drained;
  }

  void end(BufferId first) {
    for (std::size_t s = 0; s < 4; ++s) {
      const BufferId from = s == 0 && b_.many() ? first : pick(ready_.host[s]);
      b_.move(OpKind::write, LaneKind::nvme_write, from, ready_.durable[s], Slot::current, Slot::next);
    }
    b_.op(OpKind::sync, LaneKind::commit);
    b_.op(OpKind::commit, LaneKind::commit);
  }

  // After the commits, so that no rank overwrites a slot that another has not left behind.
  void control() {
    Op& o = b_.many() ? b_.meet(OpKind::control, LaneKind::optimizer, 1) : b_.op(OpKind::control, LaneKind::optimizer);
    b_.touch(o, ready_.control, Role::control, Mode::read_write);
  }

  RandomPlanOptions options_;
  Builder b_;
  std::mt19937_64 random_;
  Ready ready_;
  int count_ = 0;
};

void finish_and_check(std::vector<StepPlan>& plans) {
  for (StepPlan& plan : plans) {
    finish(plan);
    for (const Violation& violation : check(plan)) ADD_FAILURE() << violation.message;
  }
  for (const Violation& violation : check_world(plans)) ADD_FAILURE() << violation.message;
}

/// The toy training step; see toy_training.
class TrainingBuilder {
 public:
  TrainingBuilder(RankId ranks, RankId rank, int units, int micro_batches)
      : b_(ranks, rank), units_(units), micro_batches_(micro_batches) {
    for (int u = 0; u < units; ++u) b_.plan.units.push_back("U" + std::to_string(u));
  }

  StepPlan build() {
    declare();
    for (int u = 0; u < units_; ++u) {
      update(u);
      if (b_.many()) gather(u);
      forward(u);
    }
    for (int u = units_ - 1; u >= 0; --u) {
      backward(u);
      if (b_.many()) scatter(u);
      drain(u);
    }
    commit();
    control();
    step_end();
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

  void declare() {
    Rank& rank = rank_;
    rank.control = b_.buffer("control", Tier::host, control_block_bytes(static_cast<std::size_t>(micro_batches_)),
                             Life::persistent);
    for (int u = 0; u < units_; ++u) {
      Unit unit{};
      const std::string at = "U" + std::to_string(u) + ".";
      for (int k = 0; k < 3; ++k)
        unit.state[k] = b_.buffer(at + state_names[static_cast<std::size_t>(k == 0 ? 0 : k + 1)], Tier::nvme,
                                  shard_bytes, Life::persistent, 2);
      unit.gradient = b_.buffer(at + "gradient", Tier::host, shard_bytes, Life::persistent);
      unit.device_parameters = b_.buffer(at + "device", Tier::device, shard_bytes * b_.ranks(), Life::lasting);
      unit.device_gradient = b_.buffer(at + "dgradient", Tier::device, shard_bytes * b_.ranks(), Life::brief);
      unit.device_shard =
          b_.many() ? b_.buffer(at + "dshard", Tier::device, shard_bytes, Life::brief) : unit.device_gradient;
      rank.units.push_back(unit);
    }
    rank.losses = b_.buffer("losses", Tier::device, 8ull * static_cast<unsigned>(micro_batches_), Life::brief);
    rank.diverged = b_.buffer("diverged", Tier::device, 8ull * static_cast<unsigned>(units_), Life::persistent);
    rank.x = b_.buffer("x", Tier::device, 8192, Life::lasting);
    rank.tokens = b_.buffer("tokens", Tier::device, 256, Life::lasting);
    const BufferId loaded = b_.buffer("tokens.stage", Tier::host, 256, Life::brief);
    Op& o = b_.op(OpKind::load_tokens, LaneKind::input);
    o.micro_batch = 0;
    o.bytes = 256;
    b_.touch(o, loaded, Role::tokens, Mode::write);
    b_.move(OpKind::copy, LaneKind::h2d, loaded, rank.tokens);
  }

  void update(int u) {
    const Unit& unit = rank_.units[static_cast<std::size_t>(u)];
    for (std::uint64_t t = 0; t < shard_numel / tile_numel; ++t) {
      BufferId staged[3];
      for (int k = 0; k < 3; ++k) {
        staged[k] = b_.buffer("stage" + std::to_string(count_++), Tier::host, tile_bytes, Life::brief);
        Op& read = b_.op(OpKind::read, LaneKind::nvme_read);
        read.bytes = tile_bytes;
        Builder::part(read, unit.state[k], t * tile_bytes, tile_bytes, Role::src, Mode::read);
        b_.touch(read, staged[k], Role::dst, Mode::write);
      }
      u % 2 == 0 ? update_on_cpu(u, t, staged) : update_on_device(u, t, staged);
      for (int k = 0; k < 3; ++k) {
        Op& write = b_.op(OpKind::write, LaneKind::nvme_write);
        write.bytes = tile_bytes;
        b_.touch(write, staged[k], Role::src, Mode::read);
        Builder::part(write, unit.state[k], t * tile_bytes, tile_bytes, Role::dst, Mode::write, Slot::next);
      }
      if (u % 2 == 0) open_tile(copy_op(LaneKind::h2d), u, t, staged[0]);
    }
  }

  Op& copy_op(LaneKind lane) { return b_.op(OpKind::copy, lane); }
  void open_tile(Op& copy, int u, std::uint64_t t, BufferId staged) {
    copy.bytes += tile_bytes;
    b_.touch(copy, staged, Role::src, Mode::read);
    Builder::part(copy, rank_.units[static_cast<std::size_t>(u)].device_parameters,
                  b_.own() * shard_bytes + t * tile_bytes, tile_bytes, Role::dst, Mode::write);
  }

  Op& update_op(LaneKind lane, int u, std::uint64_t t) {
    Op& o = b_.op(OpKind::update, lane);
    o.unit = u;
    o.element = t * tile_numel;
    o.numel = tile_numel;
    return o;
  }

  void update_on_cpu(int u, std::uint64_t t, const BufferId (&staged)[3]) {
    Op& o = update_op(LaneKind::optimizer, u, t);
    b_.touch(o, staged[0], Role::parameters, Mode::read_write);
    b_.touch(o, staged[1], Role::exp_avg, Mode::read_write);
    b_.touch(o, staged[2], Role::exp_avg_sq, Mode::read_write);
    Builder::part(o, rank_.units[static_cast<std::size_t>(u)].gradient, t * tile_bytes, tile_bytes, Role::gradient,
                  Mode::read);
    Builder::part(o, rank_.control, 0, control_result_bytes, Role::control, Mode::read);
  }

  /// Parameters in their place, moments and gradient through staging.
  void update_on_device(int u, std::uint64_t t, const BufferId (&staged)[3]) {
    const Unit& unit = rank_.units[static_cast<std::size_t>(u)];
    BufferId on_device[3];
    for (BufferId& b : on_device)
      b = b_.buffer("device_stage" + std::to_string(count_++), Tier::device, tile_bytes, Life::brief);
    Op& down = copy_op(LaneKind::h2d);
    open_tile(down, u, t, staged[0]);
    for (int k = 0; k < 3; ++k) {
      if (k < 2) b_.touch(down, staged[k + 1], Role::src, Mode::read);
      if (k == 2) Builder::part(down, unit.gradient, t * tile_bytes, tile_bytes, Role::src, Mode::read);
      b_.touch(down, on_device[k], Role::dst, Mode::write);
      down.bytes += tile_bytes;
    }
    Op& o = update_op(LaneKind::compute, u, t);
    const std::uint64_t at = b_.own() * shard_bytes + t * tile_bytes;
    Builder::part(o, unit.device_parameters, at, tile_bytes, Role::parameters, Mode::read_write);
    b_.touch(o, on_device[0], Role::exp_avg, Mode::read_write);
    b_.touch(o, on_device[1], Role::exp_avg_sq, Mode::read_write);
    b_.touch(o, on_device[2], Role::gradient, Mode::read);
    Builder::part(o, rank_.control, 0, control_result_bytes, Role::control, Mode::read);
    Builder::part(o, rank_.diverged, 8ull * static_cast<unsigned>(u), 8, Role::diverged,
                  t == 0 ? Mode::write : Mode::read_write);
    Op& up = copy_op(LaneKind::d2h);
    up.bytes = 3 * tile_bytes;
    for (int k = 0; k < 3; ++k) {
      if (k == 0) Builder::part(up, unit.device_parameters, at, tile_bytes, Role::src, Mode::read);
      if (k > 0) b_.touch(up, on_device[k - 1], Role::src, Mode::read);
      b_.touch(up, staged[k], Role::dst, Mode::write);
    }
  }

  void verify() {
    if (units_ < 2) return;
    const BufferId diverged = rank_.diverged,
                   found = b_.buffer("found", Tier::host, 8ull * static_cast<unsigned>(units_), Life::brief);
    b_.move(OpKind::copy, LaneKind::d2h, diverged, found);
    Op& o = b_.op(OpKind::verify, LaneKind::optimizer);
    for (int u = 1; u < units_; u += 2)
      Builder::part(o, found, 8ull * static_cast<unsigned>(u), 8, Role::diverged, Mode::read);
  }

  void gather(int u) {
    Op& o = b_.meet(OpKind::all_gather, LaneKind::comm, 0);
    o.bytes = shard_bytes * (b_.ranks() - 1u);
    b_.gather_parts(o, rank_.units[static_cast<std::size_t>(u)].device_parameters, shard_bytes);
  }

  void forward(int u) {
    const Rank& rank = rank_;
    Op& o = b_.op(OpKind::forward, LaneKind::compute);
    o.unit = u;
    b_.touch(o, rank.tokens, Role::tokens, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_parameters, Role::parameters, Mode::read);
    b_.touch(o, rank.x, Role::x_out, u == 0 ? Mode::write : Mode::read_write);
    if (u + 1 < units_) return;
    Op& loss = b_.op(OpKind::loss, LaneKind::compute);
    loss.unit = u;
    b_.touch(loss, rank.x, Role::x_in, Mode::read);
    b_.touch(loss, rank.losses, Role::loss, Mode::write);
    Op& copy = b_.op(OpKind::copy, LaneKind::d2h);
    copy.bytes = b_.plan.buffers[rank.losses].bytes;
    b_.touch(copy, rank.losses, Role::src, Mode::read);
    Builder::part(copy, rank.control, control_loss_offset(0), copy.bytes, Role::dst, Mode::write);
  }

  void backward(int u) {
    const Rank& rank = rank_;
    Op& o = b_.op(OpKind::backward, LaneKind::compute);
    o.unit = u;
    b_.touch(o, rank.x, Role::x_in, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_parameters, Role::parameters, Mode::read);
    b_.touch(o, rank.units[static_cast<std::size_t>(u)].device_gradient, Role::gradient, Mode::write);
  }

  void scatter(int u) {
    const Unit& unit = rank_.units[static_cast<std::size_t>(u)];
    Op& o = b_.meet(OpKind::reduce_scatter, LaneKind::comm, 0);
    o.bytes = shard_bytes * (b_.ranks() - 1u);
    b_.touch(o, unit.device_gradient, Role::src, Mode::read);
    b_.touch(o, unit.device_shard, Role::dst, Mode::write);
  }

  void drain(int u) {
    const Unit& unit = rank_.units[static_cast<std::size_t>(u)];
    for (std::uint64_t t = 0; t < shard_numel / tile_numel; ++t) {
      Op& copy = b_.op(OpKind::copy, LaneKind::d2h);
      copy.bytes = tile_bytes;
      Builder::part(copy, unit.device_shard, t * tile_bytes, tile_bytes, Role::src, Mode::read);
      Builder::part(copy, unit.gradient, t * tile_bytes, tile_bytes, Role::dst, Mode::write);
      Op& norm = b_.op(OpKind::grad_norm, LaneKind::optimizer);
      norm.unit = u;
      norm.element = t * tile_numel;
      norm.numel = tile_numel;
      Builder::part(norm, unit.gradient, t * tile_bytes, tile_bytes, Role::gradient, Mode::read);
      norm.accumulate = u + 1 < units_ || t > 0;
      Builder::part(norm, rank_.control, control_result_bytes, sizeof(ExactSum), Role::control,
                    norm.accumulate ? Mode::read_write : Mode::write);
    }
  }

  void commit() {
    verify();
    b_.op(OpKind::sync, LaneKind::commit);
    b_.op(OpKind::commit, LaneKind::commit);
  }

  void control() {
    Op& o = b_.many() ? b_.meet(OpKind::control, LaneKind::optimizer, 1) : b_.op(OpKind::control, LaneKind::optimizer);
    b_.touch(o, rank_.control, Role::control, Mode::read_write);
  }

  void step_end() {
    Op& o = b_.op(OpKind::step_end, LaneKind::optimizer);
    b_.touch(o, rank_.control, Role::control, Mode::read);
  }

  Builder b_;
  int units_, micro_batches_;
  Rank rank_;
  int count_ = 0;
};

}  // namespace

std::vector<StepPlan> random_plans(const RandomPlanOptions& options) {
  std::vector<StepPlan> plans;
  for (RankId r = 0; r < options.ranks; ++r) plans.push_back(RandomBuilder(options, r).build());
  finish_and_check(plans);
  return plans;
}

ToyTraining toy_training(RankId ranks, int units, int micro_batches) {
  ToyTraining toy;
  // Two tensors per shard with padding between and after them; the second is not decayed.
  const std::uint64_t shard = TrainingBuilder::shard_numel;
  for (RankId own = 0; own < ranks; ++own) {
    toy.plans.push_back(TrainingBuilder(ranks, own, units, micro_batches).build());
    OptimizerUnit unit;
    unit.shard_begin = own * shard;
    for (RankId r = 0; r < ranks; ++r) {
      unit.segments.push_back({r * shard + 64, 5000, 1, 1, true});
      unit.segments.push_back({r * shard + 5120, 7000, 0, 0.5f, true});
      unit.segments.push_back({r * shard + 12160, 100, 1, 1, false});
    }
    toy.units.emplace_back(static_cast<std::size_t>(units), unit);
  }
  finish_and_check(toy.plans);
  return toy;
}

}  // namespace sluice::test
