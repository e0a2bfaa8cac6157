// Hazards of program order, then the smallest set of waits that orders them.
#include <algorithm>

#include "offload/plan/address_map.h"
#include "offload/plan/finish.h"
#include "offload/plan/happens_before.h"
#include "offload/plan/ownership.h"
#include "sluice/status.h"

namespace sluice {
using namespace planning;
namespace {

constexpr std::size_t tiers = tier_names.size();

/// Walks program order and knows what each op has to wait for: the last conflicting accesses of the same bytes, for
/// transients all uses of the buffers that held their bytes before, and the order of durable writes, sync and commit.
class HazardScan {
 public:
  explicit HazardScan(const Program& program)
      : program_(program),
        lanes_(program.lanes()),
        owners_(tiers),
        uses_(program.plan().buffers.size() * lanes_),
        claims_(program.plan().buffers.size() * lanes_),
        claimed_in_(program.plan().buffers.size(), ~0u),
        need_(lanes_) {
    for (std::size_t i = 0; i < tiers + 1; ++i) maps_.emplace_back(program.lanes());
    const std::vector<Buffer>& buffers = program.plan().buffers;
    for (BufferId id = 0; id < buffers.size(); ++id)
      if (const Buffer& b = buffers[id]; b.life == Life::carried)
        owners_[arena_of(id)].take(b.offset, b.offset + footprint_bytes(b), id);
  }

  /// need[lane]: 1 + the last node of that lane that n has to wait for. Valid until the next call; call in node order.
  std::span<const std::uint32_t> visit(NodeId n) {
    const StepPlan& plan = program_.plan();
    const Op& op = plan.ops[program_.op(n)];
    std::fill(need_.begin(), need_.end(), 0u);
    collect(op, program_.iteration(n));
    record(op, n);
    return need_;
  }

 private:
  /// The rule of finish.h about sync and commit, as reading and writing one imaginary byte: durable writes
  /// and votes share it, sync, commit and barrier take it alone, meetings come after who took it.
  enum class DriveOrder { none, after, shared, alone };
  static DriveOrder drive_order(const StepPlan& plan, const Op& op) {
    if (op.kind == OpKind::sync || op.kind == OpKind::commit || op.kind == OpKind::barrier) return DriveOrder::alone;
    if (op.kind == OpKind::verify || op.kind == OpKind::control || op.kind == OpKind::step_end)
      return DriveOrder::shared;
    if (is_sum(op)) return DriveOrder::after;
    for (const Access& a : op.accesses)
      if (is_durable_write(plan, a)) return DriveOrder::shared;
    return DriveOrder::none;
  }

  void collect(const Op& op, std::uint32_t iteration) {
    const StepPlan& plan = program_.plan();
    const auto node_lane = [this](NodeId i) { return program_.lane(i); };
    if (const DriveOrder drive = drive_order(plan, op); drive != DriveOrder::none)
      maps_[tiers].collect(0, 1, drive == DriveOrder::alone, need_, node_lane);
    for (const Access& a : op.accesses) {
      if (const Life life = plan.buffers[a.buffer].life; life != Life::persistent) {
        const bool begins = is_transient(life) || a.mode == Mode::write;
        if (begins && claimed_in_[a.buffer] != iteration) claim(a.buffer, iteration);
        if (writes(a) && claimed_in_[a.buffer] == iteration) join(need_, row(claims_, a.buffer));
      }
      if (const std::uint64_t at = address(plan, a, iteration); a.bytes > 0)
        maps_[arena_of(a.buffer)].collect(at, at + a.bytes, writes(a), need_, node_lane);
    }
  }

  void record(const Op& op, NodeId n) {
    const StepPlan& plan = program_.plan();
    const std::uint32_t k = program_.iteration(n);
    for (const Access& a : op.accesses) {
      row(uses_, a.buffer)[op.lane] = n + 1;
      if (const std::uint64_t at = address(plan, a, k); a.bytes > 0 && !writes(a))
        maps_[arena_of(a.buffer)].read(at, at + a.bytes, op.lane, n);
    }
    for (const Access& a : op.accesses)
      if (const std::uint64_t at = address(plan, a, k); a.bytes > 0 && writes(a))
        maps_[arena_of(a.buffer)].write(at, at + a.bytes, n);
    const DriveOrder drive = drive_order(plan, op);
    if (drive == DriveOrder::shared) maps_[tiers].read(0, 1, op.lane, n);
    if (drive == DriveOrder::alone) maps_[tiers].write(0, 1, n);
  }

  /// Where a buffer's life begins, of a transient at its first use in an iteration, of a carried one at its first
  /// write: its writes come after all uses of those that held its bytes.
  void claim(BufferId id, std::uint32_t iteration) {
    const Buffer& b = program_.plan().buffers[id];
    claimed_in_[id] = iteration;
    const auto claims = row(claims_, id);
    std::fill(claims.begin(), claims.end(), 0u);
    for (const BufferId former : owners_[arena_of(id)].take(b.offset, b.offset + footprint_bytes(b), id))
      join(claims, row(uses_, former));
    const auto uses = row(uses_, id);
    std::fill(uses.begin(), uses.end(), 0u);
  }

  std::size_t arena_of(BufferId id) const { return static_cast<std::size_t>(program_.plan().buffers[id].tier); }
  std::span<std::uint32_t> row(std::vector<std::uint32_t>& rows, BufferId id) const {
    return {&rows[id * lanes_], lanes_};
  }

  const Program& program_;
  std::size_t lanes_;
  std::vector<AddressMap> maps_;  ///< per arena, then the imaginary byte
  std::vector<Ownership> owners_;
  std::vector<std::uint32_t> uses_;    ///< per buffer and lane: 1 + last node of this life that used it
  std::vector<std::uint32_t> claims_;  ///< per buffer and lane: 1 + last node that used its bytes before
  std::vector<std::uint32_t> claimed_in_;
  std::vector<std::uint32_t> need_;
};

/// Latest to finish first, keep what is not covered yet. What is kept later never covers what was kept before: it has
/// finished earlier.
std::vector<Wait> reduce(const Program& program, const HappensBefore& order, NodeId n) {
  const std::vector<Wait>& all = program.plan().ops[program.op(n)].waits;
  if (all.empty()) return {};
  std::vector<std::pair<std::uint32_t, std::size_t>> by_finish;
  for (std::size_t i = 0; i < all.size(); ++i) by_finish.emplace_back(order.finish_order(program.target(n, all[i])), i);
  std::sort(by_finish.rbegin(), by_finish.rend());
  std::vector<std::uint32_t> clock = order.lane_clock(n);
  std::vector<Wait> kept;
  for (const auto& [finish, i] : by_finish) {
    const NodeId target = program.target(n, all[i]);
    if (clock[program.lane(target)] >= program.stamp(target)) continue;
    kept.push_back(all[i]);
    join(clock, order.finish(target));
  }
  std::sort(kept.begin(), kept.end(), [](const Wait& a, const Wait& b) {
    return std::pair(!a.previous_iteration, a.op) < std::pair(!b.previous_iteration, b.op);
  });
  return kept;
}

}  // namespace

/// Every op's waits become all its hazards, the last op of each lane standing for those before it. A hazard with an
/// older iteration than the previous one is met by the same op of the previous one, which comes later in its lane.
void derive_hazards(StepPlan& plan) {
  const std::uint32_t iterations = steady_iterations(plan);
  std::vector<std::vector<Wait>> waits(plan.ops.size());
  for (Op& op : plan.ops) op.waits.clear();
  const Program program(plan, iterations);
  HazardScan scan(program);
  for (NodeId n = 0; n < program.nodes(); ++n) {
    const auto need = scan.visit(n);
    if (program.iteration(n) + 1 < iterations) continue;
    for (const std::uint32_t after : need)
      if (after > 0)
        waits[program.op(n)].push_back({program.op(after - 1), program.iteration(after - 1) != program.iteration(n)});
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) plan.ops[i].waits = std::move(waits[i]);
}

void derive_waits(StepPlan& plan) {
  derive_hazards(plan);
  const std::uint32_t iterations = plan.cyclic ? 2 : 1;
  std::vector<std::vector<Wait>> kept(plan.ops.size());
  {
    const Program program(plan, iterations);
    const HappensBefore order(program);
    SLUICE_CHECK(order.complete(), "%zu lanes stop, though hazards follow program order", order.stuck().size());
    for (OpId i = 0; i < plan.ops.size(); ++i) kept[i] = reduce(program, order, program.node(iterations - 1, i));
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) plan.ops[i].waits = std::move(kept[i]);
}

void finish(StepPlan& plan, PackEffort effort) {
  pack(plan, effort);
  derive_waits(plan);
}

std::vector<ImpliedWait> implied_waits(const StepPlan& plan) {
  const std::uint32_t iterations = steady_iterations(plan);
  const Program program(plan, iterations);
  const HappensBefore order(program);
  std::vector<ImpliedWait> implied;
  if (!order.complete()) return implied;
  for (OpId i = 0; i < plan.ops.size(); ++i) {
    const NodeId n = program.node(iterations - 1, i);
    const std::vector<Wait>& waits = plan.ops[i].waits;
    for (std::size_t w = 0; w < waits.size(); ++w) {
      const NodeId target = program.target(n, waits[w]);
      std::vector<std::uint32_t> clock = order.lane_clock(n);
      for (std::size_t other = 0; other < waits.size(); ++other)
        if (const NodeId t = program.target(n, waits[other]); other != w && t != no_node) join(clock, order.finish(t));
      // In a plan that runs once, nothing comes before the first iteration.
      if (target == no_node || clock[program.lane(target)] >= program.stamp(target)) implied.push_back({i, waits[w]});
    }
  }
  return implied;
}

}  // namespace sluice
