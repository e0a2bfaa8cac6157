// Hazards of program order, then the smallest set of waits that orders them.
#include <algorithm>
#include <memory>

#include "offload/plan/address_map.h"
#include "offload/plan/finish.h"
#include "offload/plan/happens_before.h"
#include "sluice/status.h"

namespace sluice {
namespace {

constexpr std::size_t tiers = tier_names.size();

/// Walks program order and knows what each op has to wait for.
class HazardScan {
 public:
  explicit HazardScan(const Program& program) : program_(program), need_(program.lanes()) {
    const StepPlan& plan = program.plan();
    for (std::size_t i = 0; i < (tiers + 1) * plan.ranks; ++i) maps_.emplace_back(program.lanes());
  }

  /// need[lane]: 1 + the last node of that lane that n has to wait for. Valid until the next call; call in node order.
  std::span<const std::uint32_t> visit(NodeId n) {
    const StepPlan& plan = program_.plan();
    const Op& op = plan.ops[program_.op(n)];
    const std::uint32_t k = program_.iteration(n);
    const LaneId lane = op.lane;
    const auto node_lane = [this](NodeId i) { return program_.lane(i); };
    std::fill(need_.begin(), need_.end(), 0u);
    const DriveOrder drive = drive_order(plan, op);
    AddressMap& order = maps_[tiers * plan.ranks + plan.lanes[lane].rank];
    if (drive != DriveOrder::none) order.collect(0, 1, drive == DriveOrder::alone, need_, node_lane);
    for (const Access& a : op.accesses)
      if (const std::uint64_t at = address(plan, a, k); a.bytes > 0)
        map_of(a).collect(at, at + a.bytes, writes(a), need_, node_lane);
    for (const Access& a : op.accesses)
      if (const std::uint64_t at = address(plan, a, k); a.bytes > 0 && !writes(a))
        map_of(a).read(at, at + a.bytes, lane, n);
    for (const Access& a : op.accesses)
      if (const std::uint64_t at = address(plan, a, k); a.bytes > 0 && writes(a)) map_of(a).write(at, at + a.bytes, n);
    if (drive == DriveOrder::shared) order.read(0, 1, lane, n);
    if (drive == DriveOrder::alone) order.write(0, 1, n);
    return need_;
  }

 private:
  /// The rule of finish.h about sync and commit, as reading and writing one imaginary byte per rank: durable writes
  /// share it, sync and commit take it alone.
  enum class DriveOrder { none, shared, alone };
  static DriveOrder drive_order(const StepPlan& plan, const Op& op) {
    if (op.kind == OpKind::sync || op.kind == OpKind::commit) return DriveOrder::alone;
    if (op.kind == OpKind::control && op.collective >= 0) return DriveOrder::shared;
    for (const Access& a : op.accesses)
      if (is_durable_write(plan, a)) return DriveOrder::shared;
    return DriveOrder::none;
  }
  AddressMap& map_of(const Access& a) {
    const Buffer& b = program_.plan().buffers[a.buffer];
    return maps_[b.rank * tiers + static_cast<std::size_t>(b.tier)];
  }

  const Program& program_;
  std::vector<AddressMap> maps_;
  std::vector<std::uint32_t> need_;
};

/// Every op's waits become all its hazards, the last op of each lane standing for those before it. A hazard with an
/// older iteration than the previous one is met by the same op of the previous one, which comes later in its lane.
void set_hazards(StepPlan& plan) {
  const std::uint32_t iterations = steady_iterations(plan);
  std::vector<std::vector<Wait>> waits(plan.ops.size());
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

void derive_waits(StepPlan& plan) {
  set_hazards(plan);
  const std::uint32_t iterations = plan.cyclic ? 2 : 1;
  std::vector<std::vector<Wait>> kept(plan.ops.size());
  {
    const Program program(plan, iterations);
    const HappensBefore order(program);
    // Collectives that no order of starting can satisfy: leave every hazard in place, check() names the ops.
    if (!order.complete()) return;
    for (OpId i = 0; i < plan.ops.size(); ++i) kept[i] = reduce(program, order, program.node(iterations - 1, i));
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) plan.ops[i].waits = std::move(kept[i]);
}

void finish(StepPlan& plan) {
  pack(plan);
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
