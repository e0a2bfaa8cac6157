#include "tests/plan/random_plan.h"

#include <string>

#include "sluice/random.h"

namespace sluice {
namespace {

class Generator {
 public:
  Generator(std::uint64_t seed, const RandomPlanOptions& options) : seed_(seed), options_(options) {
    plan_.cyclic = options.cyclic;
    plan_.ranks = options.ranks;
    plan_.units = {"a", "b", "c"};
    plan_.groups.emplace_back();
    for (RankId r = 0; r < options.ranks; ++r) {
      plan_.groups[0].push_back(r);
      for (const LaneKind k : {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write,
                               LaneKind::optimizer, LaneKind::comm, LaneKind::commit})
        plan_.lanes.push_back({k, r, k == LaneKind::nvme_read || k == LaneKind::nvme_write});
    }
  }

  StepPlan run() {
    for (RankId r = 0; r < options_.ranks; ++r) declare(r);
    for (int i = 0; i < options_.rounds; ++i) {
      if (options_.ranks > 1 && below(5) == 0) meet(OpKind::all_gather);
      for (RankId r = 0; r < options_.ranks; ++r) work(r);
    }
    for (RankId r = 0; r < options_.ranks && options_.durable; ++r) {
      at(OpKind::sync, LaneKind::commit, r);
      at(OpKind::commit, LaneKind::commit, r);
    }
    if (options_.ranks > 1) meet(OpKind::control);
    return std::move(plan_);
  }

 private:
  struct RankState {
    std::vector<BufferId> persistent, durable, open;
    BufferId control = 0;
  };

  std::uint64_t below(std::uint64_t n) { return philox(seed_, draw_++, 7)[0] % n; }

  BufferId buffer(const std::string& name, Tier tier, RankId r, std::uint64_t bytes, Life life,
                  std::uint8_t slots = 1) {
    Buffer b;
    b.name = name + std::to_string(plan_.buffers.size());
    b.tier = tier;
    b.rank = r;
    b.bytes = bytes;
    b.life = life;
    b.slots = slots;
    plan_.buffers.push_back(b);
    return static_cast<BufferId>(plan_.buffers.size() - 1);
  }

  void declare(RankId r) {
    RankState s;
    for (int i = 0; i < 2; ++i)
      s.persistent.push_back(buffer("state", i ? Tier::host : Tier::device, r, 8192, Life::persistent));
    s.control = buffer("control", Tier::host, r, 512, Life::persistent);
    if (options_.durable) s.durable.push_back(buffer("durable", Tier::nvme, r, 16384, Life::persistent, 2));
    ranks_.push_back(s);
  }

  Op& at(OpKind kind, LaneKind lane, RankId r) {
    Op op;
    op.kind = kind;
    for (LaneId l = 0; l < plan_.lanes.size(); ++l)
      if (plan_.lanes[l].kind == lane && plan_.lanes[l].rank == r) op.lane = l;
    op.unit = static_cast<UnitId>(below(3));
    plan_.ops.push_back(op);
    return plan_.ops.back();
  }

  static void touch(Op& op, BufferId b, std::uint64_t offset, std::uint64_t bytes, Mode mode,
                    Slot slot = Slot::current) {
    op.accesses.push_back({b, offset, bytes, mode == Mode::read ? Role::src : Role::dst, mode, slot});
  }

  /// Some op on some lane: reads what was written, writes something new or again.
  void work(RankId r) {
    RankState& s = ranks_[r];
    constexpr LaneKind kinds[] = {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write,
                                  LaneKind::optimizer};
    const LaneKind lane = kinds[below(5)];
    Op& op = at(lane == LaneKind::nvme_write ? OpKind::write : OpKind::copy, lane, r);
    for (std::uint64_t i = 0, reads = below(3); i < reads && !s.open.empty(); ++i) {
      const BufferId b = s.open[below(s.open.size())];
      const std::uint64_t bytes = plan_.buffers[b].bytes, from = below(bytes);
      touch(op, b, from, 1 + below(bytes - from), below(4) ? Mode::read : Mode::read_write);
    }
    if (below(4) == 0)
      touch(op, s.persistent[below(2)], 4096 * below(2), 4096, below(2) ? Mode::read : Mode::read_write);
    if (!s.durable.empty() && below(3) == 0) touch(op, s.durable[0], 4096 * below(3), 8192, Mode::read);
    if (!s.durable.empty() && lane == LaneKind::nvme_write && below(2) == 0)
      touch(op, s.durable[0], 4096 * below(3), 8192, Mode::write, Slot::next);
    // The ranks' meeting of the iteration before stands between two rounds of durable writes.
    if (options_.ranks > 1 && lane == LaneKind::nvme_write) touch(op, s.control, 0, 8, Mode::read);
    if (below(4) != 0) {
      const BufferId b = buffer("t", static_cast<Tier>(below(3)), r, 1 + below(20000), static_cast<Life>(1 + below(2)));
      touch(op, b, 0, plan_.buffers[b].bytes, Mode::write);
      s.open.push_back(b);
    }
    if (!s.open.empty() && below(3) == 0)
      s.open.erase(s.open.begin() + static_cast<std::ptrdiff_t>(below(s.open.size())));
  }

  void meet(OpKind kind) {
    const std::int32_t id = collectives_++;
    for (RankId r = 0; r < options_.ranks; ++r) {
      RankState& s = ranks_[r];
      Op& op = at(kind, kind == OpKind::control ? LaneKind::optimizer : LaneKind::comm, r);
      op.collective = id;
      op.group = 0;
      if (kind == OpKind::control) {
        touch(op, s.control, 0, 64, Mode::read_write);
        continue;
      }
      if (!s.open.empty()) touch(op, s.open[below(s.open.size())], 0, 1, Mode::read);
      const BufferId b = buffer("g", Tier::device, r, 1 + below(20000), Life::brief);
      touch(op, b, 0, plan_.buffers[b].bytes, Mode::write);
      s.open.push_back(b);
    }
  }

  std::uint64_t seed_, draw_ = 0;
  RandomPlanOptions options_;
  StepPlan plan_;
  std::vector<RankState> ranks_;
  std::int32_t collectives_ = 0;
};

}  // namespace

StepPlan random_plan(std::uint64_t seed, const RandomPlanOptions& options) { return Generator(seed, options).run(); }

namespace {

/// Emits the ops of transformer_plan.
class Transformer {
 public:
  Transformer(int layers, int micro_batches, bool keep) : layers_(layers), micro_batches_(micro_batches), keep_(keep) {
    for (const LaneKind k : {LaneKind::compute, LaneKind::h2d, LaneKind::d2h}) plan_.lanes.push_back({k, 0, false});
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
    plan_.buffers.push_back({name + std::to_string(plan_.buffers.size()), tier, 0, bytes, life});
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
