// Durable writes, sync, commit, control and step_end by the rules at the head of finish.h.
#include <algorithm>

#include "offload/plan/check.h"

namespace sluice::planning {
namespace {

using Kind = Violation::Kind;

/// The op of each kind that was listed last, this iteration or the one before it.
struct Latest {
  NodeId sync = no_node, commit = no_node, control = no_node;
};

class DurabilityCheck {
 public:
  DurabilityCheck(Findings& findings, const Program& program, const HappensBefore& order)
      : findings_(findings),
        plan_(program.plan()),
        program_(program),
        order_(order),
        has_behind_(std::ranges::any_of(plan_.buffers, &Buffer::behind)) {}

  void run() {
    const std::uint32_t last = program_.iterations() - 1;
    for (std::uint32_t k = last == 0 ? 0 : last - 1; k <= last; ++k) {
      judge_ = k == last;
      for (OpId i = 0; i < plan_.ops.size() && !findings_.full(); ++i) visit(program_.node(k, i));
    }
    check_committed(last);
    const auto leads = [](const Buffer& b) { return b.slots == 2 && !b.behind; };
    if (has_behind_ && std::ranges::none_of(plan_.buffers, leads))
      findings_.add(Kind::bad_slot, no_op, no_op, no_buffer,
                    "all durable buffers are behind, and none is ahead of them");
  }

 private:
  void visit(NodeId n) {
    const Op& op = plan_.ops[program_.op(n)];
    Latest& own = latest_;
    if (op.kind == OpKind::commit) {
      if (judge_ && own.sync == no_node)
        findings_.add(Kind::durable_overwrite, program_.op(n), no_op, no_buffer,
                      describe(plan_, program_.op(n)) + " has no sync before it");
      require(own.sync, n, "");
      require(own.control, n, "");
      require(own.commit, n, "");
      own.commit = n;
    } else if (op.kind == OpKind::sync) {
      require(own.commit, n, "");
      own.sync = n;
    } else if (op.kind == OpKind::verify || op.kind == OpKind::control || op.kind == OpKind::step_end) {
      require(own.commit, n, "");
      own.control = n;  // the last of them: they follow each other on the same lane
    } else if (is_sum(op) || op.kind == OpKind::barrier) {
      require(own.commit, n, "");
    } else if (const Access* a = durable_write(op)) {
      require(own.commit, n, findings_.use(*a, program_.op(n)), a->buffer);
      if (judge_ && is_committed_later(*a) &&
          (own.commit == no_node || program_.iteration(own.commit) + 1 < program_.iterations()))
        findings_.add(Kind::durable_overwrite, program_.op(n), no_op, a->buffer,
                      findings_.use(*a, program_.op(n)) + " is committed with what is behind, a step too early");
    }
  }

  /// Of a plan with buffers that are behind, the others' writes belong to the next iteration's commit.
  bool is_committed_later(const Access& a) const { return has_behind_ && !plan_.buffers[a.buffer].behind; }

  /// Every durable write comes before the sync that the commit rests on that is to tell of it: its iteration's last, or
  /// the next iteration's.
  void check_committed(std::uint32_t k) {
    NodeId sync = no_node, now = no_node;
    for (OpId i = 0; i < plan_.ops.size(); ++i) {
      if (plan_.ops[i].kind == OpKind::sync) now = program_.node(k, i);
      if (plan_.ops[i].kind == OpKind::commit) sync = now;
    }
    for (OpId i = 0; i < plan_.ops.size() && !findings_.full(); ++i) {
      const Access* a = durable_write(plan_.ops[i]);
      if (!a) continue;
      const std::uint32_t written = is_committed_later(*a) && k > 0 ? k - 1 : k;
      if (sync == no_node)
        findings_.add(Kind::durable_overwrite, i, no_op, a->buffer,
                      findings_.use(*a, i) + " is never synced and committed");
      else if (!order_.before(program_.node(written, i), sync))
        findings_.add(Kind::durable_overwrite, i, program_.op(sync), a->buffer,
                      describe(plan_, program_.op(sync)) + " is not ordered after the " + findings_.use(*a, i));
    }
  }

  const Access* durable_write(const Op& op) const {
    const auto a = std::find_if(op.accesses.begin(), op.accesses.end(),
                                [this](const Access& x) { return is_durable_write(plan_, x); });
    return a == op.accesses.end() ? nullptr : &*a;
  }

  void require(NodeId before, NodeId n, const std::string& what, BufferId buffer = no_buffer) {
    if (!judge_ || before == no_node || order_.before(before, n)) return;
    const std::string name = what.empty() ? describe(plan_, program_.op(n)) : what;
    const bool previous = program_.iteration(before) != program_.iteration(n);
    findings_.add(Kind::durable_overwrite, program_.op(before), program_.op(n), buffer,
                  name + " is not ordered after " + (previous ? "the previous iteration's " : "") +
                      describe(plan_, program_.op(before)));
  }
  static constexpr BufferId no_buffer = 0xffffffffu;
  Findings& findings_;
  const StepPlan& plan_;
  const Program& program_;
  const HappensBefore& order_;
  bool has_behind_;
  Latest latest_;
  bool judge_ = false;
};

}  // namespace

void check_durability(Findings& findings, const Program& program, const HappensBefore& order) {
  DurabilityCheck(findings, program, order).run();
}

}  // namespace sluice::planning
