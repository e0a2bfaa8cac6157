// From emitted ops to a complete plan, and the proof that it is legal.
//
// Rules that a builder follows:
// - Program order is a legal sequential execution. The collectives of a group are numbered in it, on one lane.
// - Every byte that an op touches is in its accesses. A transient buffer starts each iteration unwritten: bytes are
//   written (Mode::write) before they are read or read_written. Role::workspace is scratch and needs no earlier write;
//   an all_gather's read_write reads the rank's own part, an equal slice by its place in the group.
// - Durable buffers (slots == 2) are read from Slot::current and written to Slot::next. In iteration k slot s lies at
//   offset + ((k + s) & 1) * padded_bytes(bytes): what is `next` in one iteration is `current` in the following one.
//   (Plans without a commit op do not write them.)
// - Where updates come in both passes, those of step t are written in iteration t in the backward pass and in iteration
//   t + 1 ahead of the forward pass; the buffers of the latter are `behind`. They are written ahead of the iteration's
//   commit, the others behind it: it commits step t - 1, and the others' writes with the next iteration's. Their slots
//   are one step behind, so that the states of a step lie in one slot: what the rule above calls slot s is the other
//   one there, which changes nothing of what it orders.
// - Durability is ordered by kind, as no bytes of an arena show it. As listed, also across iterations: a
//   `sync` comes after the durable writes before it, a `commit` after the sync, the `verify` op (of the updates that
//   the device did), the `control` op (the vote) and the `step_end` op (what the record tells of the step) before it,
//   and durable writes, verify, control, step_end and sync after the commit before them. Every iteration with durable
//   writes ends them with sync, then commit; what comes behind it is of a plan with buffers that are behind.
// - With several ranks a durable write also comes after every other rank's commit before it, because a rank that fell
//   behind may still have to resume one step earlier. Waits do not cross ranks, so a meeting has to lie between:
//   collective reduce_scatter and control ops come after their rank's commit before them, and what needs their result
//   comes after all commits (check_world, world.h, proves it). With updates in the backward pass the reduce_scatter
//   does it wherever the commit is listed, or a barrier, which comes after the commit before it and ahead of the
//   durable writes listed behind it; with updates ahead of the forward pass the commit belongs before the iteration's
//   control op.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// sketch: the first greedy order alone, for who simulates many plans; quick: greedy orders only; full: also the
/// complete search (up to about half a second per arena) where they leave an arena above 1.02 x its lower bound
/// (max_live_bytes). More effort never packs larger.
enum class PackEffort : std::uint8_t { sketch, quick, full };

/// Give every buffer an offset and every arena its sizes; arenas that the plan lacks are added without a budget.
/// Persistent buffers first, in order, and carried ones behind them: whose life ends last ahead of its write, and
/// begins first, is to be listed first, since a transient lies above all that is carried during its life. Transients
/// above them by their life in program order (first to last access): size-descending best fit, `lasting` ones before
/// `brief` ones so that they lie low, then other orders and the search. Arena::packing says how that ended.
/// Deterministic. Budgets are not looked at here. A transient that no op touches is a builder's bug and stops the
/// program.
void pack(StepPlan& plan, PackEffort effort = PackEffort::full);

/// The ops that use each buffer first and last in program order; `first` is no_op where none does. Of a carried one the
/// op that first writes it, with Mode::write, and the last that uses it ahead of that; no_op where there is none.
struct Lives {
  std::vector<OpId> first, last;
  OpId ops = 0;  ///< all there are

  void add(Life life) {
    first.push_back(no_op);
    last.push_back(life == Life::carried ? no_op : 0);
  }
  void use(Life life, const Access& a, OpId op) {
    const bool is_carried = life == Life::carried;
    if (first[a.buffer] == no_op && (!is_carried || a.mode == Mode::write)) first[a.buffer] = op;
    if (!is_carried || first[a.buffer] == no_op) last[a.buffer] = op;
  }
  /// Whether an op that uses the buffer finds there what was carried to its iteration.
  bool was_carried(BufferId id, Life life, OpId op) const {
    return life == Life::carried && last[id] != no_op && op <= last[id];
  }
};
Lives lives_of(const StepPlan& plan);
/// pack() where only the lives of the buffers are known: their offsets, and the sizes of the arenas.
void pack(std::vector<Buffer>& buffers, std::vector<Arena>& arenas, const Lives& lives, PackEffort effort);

/// Set every op's waits: the data hazards (read after write, write after read, write after write) on address ranges of
/// the arenas and the durability rule above, between lanes and on windowed lanes, within an iteration and from the
/// previous one, with everything implied by lane order and other waits removed. Needs pack.
void derive_waits(StepPlan& plan);

/// The waits of derive_waits with those that are implied: enough to simulate, and quicker to find.
void derive_hazards(StepPlan& plan);

/// pack, then derive_waits.
void finish(StepPlan& plan, PackEffort effort = PackEffort::full);

/// A legal plan has none. Each names the two ops and the buffer: "read of L3.mlp.parameters by #41 h2d copy is not
/// ordered after its write by #38 nvme_read read".
struct Violation {
  enum class Kind : std::uint8_t {
    unwritten_read,
    unordered_access,
    shared_bytes,
    over_budget,
    out_of_bounds,
    durable_overwrite,
    collective_order,
    deadlock,
    bad_slot
  } kind;
  OpId first = no_op, second = no_op;
  BufferId buffer = 0xffffffffu;
  std::string message;
};

/// Prove from lanes and waits alone (happens-before, vector clocks; cyclic plans over two unrolled iterations, three
/// where durable slots alternate), without trusting pack or derive_waits, that: every read follows its write
/// (persistent and carried buffers are written on entry); conflicting accesses are ordered; buffers share bytes only if
/// all uses of one happen before all uses of the other, and carried ones only while they are not alive; budgets hold; a
/// durable buffer's current slot is never written, and its next slot is written only after the commit before it and
/// before a sync and commit of its own; the collectives of each group are numbered in turn on one lane; the rank itself
/// can not deadlock (whether ranks can is the question of check_world). Stops after `limit` findings.
std::vector<Violation> check(const StepPlan& plan, std::size_t limit = 8);

/// Waits that the rest of the plan already implies (removing one alone changes no happens-before relation).
struct ImpliedWait {
  OpId op;
  Wait wait;
};
std::vector<ImpliedWait> implied_waits(const StepPlan& plan);

/// Canonical 64-bit hash over everything that the plan says (names included), the same on every machine.
std::uint64_t plan_hash(const StepPlan& plan);

/// "#41 h2d copy L3.mlp mb1 tile 2" for messages and traces.
std::string describe(const StepPlan& plan, OpId op);

}  // namespace sluice
