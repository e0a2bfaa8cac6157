// From emitted ops to a complete plan.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// Give every buffer an offset and every arena its sizes. Persistent buffers first, in order; transients above them by
/// their life in program order (first to last access): size-descending best fit, then a bounded search if the arena
/// exceeds 1.02 x the lower bound. `lasting` transients are tried low, `brief` ones high. Deterministic. Budgets are not
/// looked at here.
void pack(StepPlan& plan);

/// Set every op's waits: the data hazards (read after write, write after read, write after write) on address ranges of the
/// arenas, between lanes and on windowed lanes, within an iteration and from the previous one, with everything implied by
/// lane order, other waits and collectives removed. Collective ops of one `collective` id meet: what happens before any
/// of them on its rank happens before the end of all. Needs pack.
void derive_waits(StepPlan& plan);

/// pack, then derive_waits.
void finish(StepPlan& plan);

/// A legal plan has none. Each names the two ops and the buffer: "read of L3.mlp.parameters by #41 copy(...) is not
/// ordered after its write by #38 read(...)".
struct Violation {
  enum class Kind : std::uint8_t {
    unwritten_read, unordered_access, shared_bytes, over_budget, out_of_bounds, durable_overwrite, collective_order,
    deadlock, bad_slot
  } kind;
  OpId first = no_op, second = no_op;
  BufferId buffer = 0xffffffffu;
  std::string message;
};

/// Prove from lanes and waits alone (happens-before, vector clocks; cyclic plans over two unrolled iterations), without
/// trusting pack or derive_waits, that: every read follows its write (persistent buffers are written on entry); conflicting
/// accesses are ordered; buffers share bytes only if all uses of one happen before all uses of the other; budgets hold; a
/// durable buffer's current slot is never written, and its next slot is written only after the previous iteration's commit;
/// the collectives of each group come in one order on all its ranks; nothing can deadlock. Stops after `limit` findings.
std::vector<Violation> check(const StepPlan& plan, std::size_t limit = 8);

/// Waits that the rest of the plan already implies (removing one alone changes no happens-before relation).
struct ImpliedWait {
  OpId op;
  Wait wait;
};
std::vector<ImpliedWait> implied_waits(const StepPlan& plan);

/// Canonical 64-bit hash over everything that the plan says (names included).
std::uint64_t plan_hash(const StepPlan& plan);

/// "#41 h2d copy L3.mlp tile 2" for messages and traces.
std::string describe(const StepPlan& plan, OpId op);

}  // namespace sluice
