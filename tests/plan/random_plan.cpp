#include "tests/plan/random_plan.h"

#include <set>
#include <string>
#include <tuple>

#include "sluice/random.h"

namespace sluice {
namespace {

class Generator {
 public:
  Generator(std::uint64_t seed, const RandomPlanOptions& options) : seed_(seed), options_(options) {
    plan_.cyclic = options.cyclic;
    plan_.topology = options.topology;
    plan_.units = {"a", "b", "c"};
    for (const LaneKind k : {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write,
                             LaneKind::optimizer, LaneKind::commit})
      plan_.lanes.push_back({k, k == LaneKind::nvme_read || k == LaneKind::nvme_write});
    for (AxisSet set = 1; set <= plan_.topology.all_axes(); ++set) {
      plan_.lanes.push_back({LaneKind::comm, false, static_cast<std::int32_t>(plan_.groups.size())});
      plan_.groups.push_back(set);
    }
  }

  StepPlan run() {
    declare();
    for (int i = 0; i < options_.rounds; ++i) {
      carry(i);
      if (meets() && below(4) == 0) open_gather();
      if (!gathers_.empty() && below(3) == 0) gather();
      if (meets() && below(8) == 0) scatter();
      work();
    }
    while (!gathers_.empty()) gather();
    carry(options_.rounds);
    if (options_.durable) {
      at(OpKind::sync, LaneKind::commit);
      at(OpKind::commit, LaneKind::commit);
    }
    if (meets()) control();
    return std::move(plan_);
  }

 private:
  struct Gather {
    BufferId buffer;
    std::int32_t group;
  };

  bool meets() const { return !plan_.topology.axes.empty(); }
  std::uint64_t below(std::uint64_t n) { return philox(seed_, draw_++, 7)[0] % n; }

  BufferId buffer(const std::string& name, Tier tier, std::uint64_t bytes, Life life, std::uint8_t slots = 1) {
    Buffer b;
    b.name = name + std::to_string(plan_.buffers.size());
    b.tier = tier;
    b.bytes = bytes;
    b.life = life;
    b.slots = slots;
    plan_.buffers.push_back(b);
    return static_cast<BufferId>(plan_.buffers.size() - 1);
  }

  void declare() {
    for (int i = 0; i < 2; ++i)
      persistent_.push_back(buffer("state", i ? Tier::host : Tier::device, 8192, Life::persistent));
    control_ = buffer("control", Tier::host, 512, Life::persistent);
    if (options_.durable) durable_.push_back(buffer("durable", Tier::nvme, 16384, Life::persistent, 2));
    // Whose gap is shortest lies lowest, and one lies out of turn.
    const int rounds = options_.rounds;
    for (const auto& [tier, until, from] :
         {std::tuple(Tier::device, rounds / 2, rounds / 2 + 1), std::tuple(Tier::device, rounds / 4, 3 * rounds / 4),
          std::tuple(Tier::device, rounds / 3, rounds), std::tuple(Tier::host, 1, rounds / 2)})
      carried_.push_back({buffer("carried", tier, 4096 + 2048 * below(8), Life::carried), until, from});
  }

  /// What was carried is read up to its round, and from another one on there is something new.
  void carry(int round) {
    for (const Carried& c : carried_) {
      const bool goes_on = round >= c.from;
      if (!goes_on && (round >= c.until || below(3) == 0)) continue;
      constexpr LaneKind kinds[] = {LaneKind::compute, LaneKind::h2d, LaneKind::optimizer};
      Op& op = at(OpKind::copy, kinds[below(3)]);
      const std::uint64_t half = plan_.buffers[c.buffer].bytes / 2, which = below(2);
      if (round == c.from) {
        touch(op, c.buffer, which * half, half, Mode::write);
        touch(at(OpKind::copy, kinds[below(3)]), c.buffer, (1 - which) * half, half, Mode::write);
      } else if (goes_on || below(2) == 0) {
        touch(op, c.buffer, which * half, half, below(3) ? Mode::read : Mode::read_write);
      } else {
        touch(op, c.buffer, 0, 2 * half, Mode::read);
      }
    }
  }

  Op& at(OpKind kind, LaneKind lane, std::int32_t group = -1) {
    Op op;
    op.kind = kind;
    op.group = group;
    for (LaneId l = 0; l < plan_.lanes.size(); ++l)
      if (plan_.lanes[l].kind == lane && (lane != LaneKind::comm || plan_.lanes[l].group == group)) op.lane = l;
    if (group >= 0) {
      met_.resize(plan_.groups.size());
      op.collective = met_[static_cast<std::size_t>(group)]++;
    }
    op.unit = static_cast<UnitId>(below(3));
    plan_.ops.push_back(op);
    return plan_.ops.back();
  }

  static void touch(Op& op, BufferId b, std::uint64_t offset, std::uint64_t bytes, Mode mode,
                    Slot slot = Slot::current) {
    op.accesses.push_back({b, offset, bytes, mode == Mode::read ? Role::src : Role::dst, mode, slot});
  }

  /// Some op on some lane: reads what was written, writes something new or again.
  void work() {
    constexpr LaneKind kinds[] = {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write,
                                  LaneKind::optimizer};
    const LaneKind lane = kinds[below(5)];
    Op& op = at(lane == LaneKind::nvme_write ? OpKind::write : OpKind::copy, lane);
    for (std::uint64_t i = 0, reads = below(3); i < reads && !open_.empty(); ++i) {
      const BufferId b = open_[below(open_.size())];
      const std::uint64_t bytes = plan_.buffers[b].bytes, some = below(bytes), from = whole_.contains(b) ? 0 : some;
      touch(op, b, from, whole_.contains(b) ? bytes : 1 + below(bytes - from),
            below(4) ? Mode::read : Mode::read_write);
    }
    if (below(4) == 0)
      touch(op, persistent_[below(2)], 4096 * below(2), 4096, below(2) ? Mode::read : Mode::read_write);
    if (!durable_.empty() && below(3) == 0) touch(op, durable_[0], 4096 * below(3), 8192, Mode::read);
    if (!durable_.empty() && lane == LaneKind::nvme_write && below(2) == 0)
      touch(op, durable_[0], 4096 * below(3), 8192, Mode::write, Slot::next);
    // The ranks' meeting of the iteration before stands between two rounds of durable writes.
    if (meets() && lane == LaneKind::nvme_write) touch(op, control_, 0, 8, Mode::read);
    if (below(4) != 0) {
      const BufferId b = buffer("t", static_cast<Tier>(below(3)), 1 + below(20000), static_cast<Life>(1 + below(2)));
      touch(op, b, 0, plan_.buffers[b].bytes, Mode::write);
      open_.push_back(b);
    }
    if (!open_.empty() && below(3) == 0) open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(below(open_.size())));
  }

  std::int32_t some_group() { return static_cast<std::int32_t>(below(plan_.topology.all_axes())); }
  AxisSet axes_of(std::int32_t group) const { return plan_.groups[static_cast<std::size_t>(group)]; }

  /// The own part, which others do not have.
  void open_gather() {
    const std::int32_t group = some_group();
    const std::uint64_t ranks = plan_.topology.size(axes_of(group)), part = 1 + below(5000);
    const BufferId b = buffer("g", Tier::device, ranks * part, Life::brief);
    touch(at(OpKind::copy, LaneKind::h2d), b, plan_.topology.position(axes_of(group)) * part, part, Mode::write);
    gathers_.push_back({b, group});
  }

  void gather() {
    const auto [b, group] = gathers_.front();
    gathers_.erase(gathers_.begin());
    const std::uint64_t bytes = plan_.buffers[b].bytes, part = bytes / plan_.topology.size(axes_of(group));
    const std::uint64_t own = plan_.topology.position(axes_of(group)) * part, after = own + part;
    const bool in_pieces = below(2) == 0;
    Op& op = at(OpKind::all_gather, LaneKind::comm, group);
    op.bytes = bytes - part;
    if (in_pieces) {
      whole_.insert(b);
      touch(op, b, own, part, Mode::read);
      if (own > 0) touch(op, b, 0, own, Mode::write);
      if (after < bytes) touch(op, b, after, bytes - after, Mode::write);
    } else {
      touch(op, b, 0, bytes, Mode::read_write);
    }
    open_.push_back(b);
  }

  void scatter() {
    const std::int32_t group = some_group();
    const std::uint64_t ranks = plan_.topology.size(axes_of(group));
    if (open_.empty()) return;
    const BufferId src = open_[below(open_.size())];
    const std::uint64_t part = plan_.buffers[src].bytes / ranks;
    if (part == 0 || (whole_.contains(src) && part * ranks != plan_.buffers[src].bytes)) return;
    const BufferId dst = buffer("r", Tier::device, part, Life::brief);
    Op& op = at(OpKind::reduce_scatter, LaneKind::comm, group);
    op.bytes = part * (ranks - 1);
    touch(op, src, 0, part * ranks, Mode::read);
    touch(op, dst, 0, part, Mode::write);
    open_.push_back(dst);
  }

  /// All ranks at once, or along one axis after the other.
  void control() {
    const AxisSet all = plan_.topology.all_axes();
    std::vector<AxisSet> sets{all};
    if (below(2) == 0) {
      sets.clear();
      for (AxisSet axis = 1; axis <= all; axis *= 2) sets.push_back(axis);
    }
    for (const AxisSet set : sets) {
      plan_.groups.push_back(set);
      Op& op = at(OpKind::control, LaneKind::optimizer, static_cast<std::int32_t>(plan_.groups.size()) - 1);
      touch(op, control_, 0, 64, Mode::read_write);
    }
  }

  struct Carried {
    BufferId buffer;
    int until, from;  ///< rounds
  };

  std::uint64_t seed_, draw_ = 0;
  RandomPlanOptions options_;
  StepPlan plan_;
  std::vector<BufferId> persistent_, durable_, open_;
  std::vector<Carried> carried_;
  BufferId control_ = 0;
  /// What was gathered in pieces: who touched the own part alone would not wait for the gather, and only in this rank.
  std::set<BufferId> whole_;
  std::vector<Gather> gathers_;    ///< whose own part is on its way
  std::vector<std::int32_t> met_;  ///< by group: collectives so far
};

}  // namespace

Topology grid(const std::vector<RankId>& sizes) {
  constexpr const char* names[] = {"dp", "tp", "pp", "a", "b", "c", "d", "e"};
  std::vector<Axis> axes;
  for (const RankId size : sizes) axes.push_back({names[axes.size() % std::size(names)], size});
  return Topology::of(std::move(axes), 0);
}

StepPlan random_plan(std::uint64_t seed, const RandomPlanOptions& options) { return Generator(seed, options).run(); }

namespace {

/// Emits the ops of transformer_plan.
class Transformer {
 public:
  Transformer(int layers, int micro_batches, bool keep) : layers_(layers), micro_batches_(micro_batches), keep_(keep) {
    for (const LaneKind k : {LaneKind::compute, LaneKind::h2d, LaneKind::d2h}) plan_.lanes.push_back({k});
    plan_.cyclic = true;
  }

  StepPlan run() {
    home_ = buffer("home", Tier::host, 64 << 20, Life::persistent);
    boundaries_.resize(layers_ + 1);
    for (int l = 0; l <= layers_; ++l)
      for (int m = 0; m < micro_batches_; ++m)
        boundaries_[l].push_back(buffer("x", Tier::device, 3 << 20, Life::lasting));
    saved_.resize(layers_);
    for (int m = 0; m < micro_batches_; ++m)
      op(OpKind::copy, 1, {{home_, Mode::read}, {boundaries_[0][m], Mode::write}});
    BufferId next = fetch(0);
    for (int l = 0; l < layers_; ++l) {
      const BufferId parameters = next;
      if (l + 1 < layers_) next = fetch(l + 1);
      for (int m = 0; m < micro_batches_; ++m) forward(l, m, parameters);
    }
    std::vector<BufferId> d;
    for (int m = 0; m < micro_batches_; ++m) {
      d.push_back(buffer("d", Tier::device, 3 << 20, Life::brief));
      op(OpKind::forward_backward, 0, {{boundaries_[layers_][m], Mode::read}, {d[m], Mode::write}});
    }
    next = fetch(layers_ - 1);
    for (int l = layers_ - 1; l >= 0; --l) {
      const BufferId parameters = next;
      if (l > 0) next = fetch(l - 1);
      backward(l, parameters, d);
    }
    return std::move(plan_);
  }

 private:
  struct Touch {
    BufferId buffer;
    Mode mode;
  };
  BufferId buffer(const char* name, Tier tier, std::uint64_t bytes, Life life) {
    plan_.buffers.push_back({name + std::to_string(plan_.buffers.size()), tier, bytes, life});
    return static_cast<BufferId>(plan_.buffers.size() - 1);
  }
  void op(OpKind kind, LaneId lane, const std::vector<Touch>& touches) {
    Op o;
    o.kind = kind;
    o.lane = lane;
    for (const Touch& t : touches)
      o.accesses.push_back({t.buffer, 0, plan_.buffers[t.buffer].bytes, Role::src, t.mode});
    plan_.ops.push_back(o);
  }
  BufferId fetch(int layer) {
    const BufferId b = buffer("p", Tier::device, (layer % 2 ? 9u << 20 : 5u << 20) + 12345, Life::brief);
    op(OpKind::copy, 1, {{home_, Mode::read}, {b, Mode::write}});
    return b;
  }
  void forward(int l, int m, BufferId parameters) {
    const BufferId workspace = buffer("w", Tier::device, (l % 2 ? 2u << 20 : 4u << 20) + 1, Life::brief);
    std::vector<Touch> touches{{boundaries_[l][m], Mode::read},
                               {parameters, Mode::read},
                               {workspace, Mode::write},
                               {boundaries_[l + 1][m], Mode::write}};
    if (keep_) {
      saved_[l].push_back(buffer("s", Tier::device, (l % 2 ? 11u << 20 : 7u << 20), Life::lasting));
      touches.push_back({saved_[l][m], Mode::write});
    }
    op(OpKind::forward, 0, touches);
  }
  void backward(int l, BufferId parameters, std::vector<BufferId>& d) {
    const BufferId gradient = buffer("g", Tier::device, 2 * plan_.buffers[parameters].bytes, Life::brief);
    for (int m = 0; m < micro_batches_; ++m) {
      BufferId saved = keep_ ? saved_[l][m] : buffer("r", Tier::device, (l % 2 ? 11u << 20 : 7u << 20), Life::brief);
      if (!keep_)
        op(OpKind::recompute, 0, {{boundaries_[l][m], Mode::read}, {parameters, Mode::read}, {saved, Mode::write}});
      const BufferId d_in = buffer("d", Tier::device, 3 << 20, Life::brief);
      const BufferId workspace = buffer("w", Tier::device, (l % 2 ? 5u << 20 : 6u << 20), Life::brief);
      op(OpKind::backward, 0,
         {{boundaries_[l][m], Mode::read},
          {saved, Mode::read},
          {parameters, Mode::read},
          {d[m], Mode::read},
          {workspace, Mode::write},
          {d_in, Mode::write},
          {gradient, m == 0 ? Mode::write : Mode::read_write}});
      d[m] = d_in;
    }
    op(OpKind::copy, 2, {{gradient, Mode::read}, {home_, Mode::write}});
  }

  int layers_, micro_batches_;
  bool keep_;
  StepPlan plan_;
  BufferId home_ = 0;
  std::vector<std::vector<BufferId>> boundaries_, saved_;
};

}  // namespace

StepPlan transformer_plan(int layers, int micro_batches, bool keep_activations) {
  return Transformer(layers, micro_batches, keep_activations).run();
}

}  // namespace sluice
