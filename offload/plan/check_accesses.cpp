// Order of accesses, worked out per buffer and without looking at how waits were derived: every access has to come
// after all earlier conflicting ones of its bytes, not only after the last.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "offload/plan/check.h"

namespace sluice::planning {
namespace {

using Kind = Violation::Kind;

struct Use {
  OpId op;
  std::uint32_t access;
};

/// Per buffer, its accesses in program order.
class Uses {
 public:
  explicit Uses(const StepPlan& plan) : first_(plan.buffers.size() + 1) {
    for (const Op& op : plan.ops)
      for (const Access& a : op.accesses) ++first_[a.buffer + 1];
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    uses_.resize(first_.back());
    std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
    for (OpId i = 0; i < plan.ops.size(); ++i)
      for (std::uint32_t a = 0; a < plan.ops[i].accesses.size(); ++a)
        uses_[next[plan.ops[i].accesses[a].buffer]++] = {i, a};
  }
  std::span<const Use> of(BufferId id) const { return {uses_.data() + first_[id], uses_.data() + first_[id + 1]}; }

 private:
  std::vector<std::size_t> first_;
  std::vector<Use> uses_;
};

/// One buffer cut at every border of an access: per cell, the last position in each lane that wrote and that read it.
class BufferCheck {
 public:
  BufferCheck(Findings& findings, const Program& program, const HappensBefore& order)
      : findings_(findings), program_(program), order_(order), lanes_(program.lanes()) {}

  void run(BufferId id, std::span<const Use> uses) {
    const Buffer& b = program_.plan().buffers[id];
    uses_ = uses;
    borders_.clear();
    for (const Use& u : uses) {
      borders_.push_back(access(u).offset);
      borders_.push_back(access(u).offset + access(u).bytes);
    }
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
    const std::size_t cells = borders_.size() * (b.slots == 2 ? 2 : 1);
    last_write_.assign(cells * lanes_, 0);
    last_read_.assign(cells * lanes_, 0);
    written_.assign(cells, !is_transient(b.life));
    is_carried_ = b.life == Life::carried;
    const std::uint32_t last = program_.iterations() - 1;
    // A transient lives within one iteration; later ones are judged where buffers share bytes.
    for (std::uint32_t k = is_transient(b.life) ? last : 0; k <= last; ++k) walk(k, k == last);
  }

 private:
  const Access& access(const Use& u) const { return program_.plan().ops[u.op].accesses[u.access]; }

  void walk(std::uint32_t iteration, bool judge) {
    bool is_given_up = !is_carried_;
    // What was carried is lost where the buffer is written again: others have had its bytes.
    const auto give_up = [&] {
      if (!std::exchange(is_given_up, true)) std::fill(written_.begin(), written_.end(), false);
    };
    for (std::size_t i = 0; i < uses_.size();) {
      std::size_t end = i;
      for (; end < uses_.size() && uses_[end].op == uses_[i].op; ++end)
        if (access(uses_[end]).mode == Mode::write) give_up();
      if (judge)
        for (std::size_t u = i; u < end; ++u) examine(uses_[u], iteration);
      for (; i < end; ++i) record(uses_[i], iteration);
    }
    give_up();
  }

  std::pair<std::size_t, std::size_t> cells_of(const Access& a, std::uint32_t iteration) const {
    const bool two = program_.plan().buffers[a.buffer].slots == 2;
    const std::size_t half = two ? (iteration + static_cast<std::size_t>(a.slot)) % 2 * borders_.size() : 0;
    const auto index = [this](std::uint64_t at) {
      return static_cast<std::size_t>(std::lower_bound(borders_.begin(), borders_.end(), at) - borders_.begin());
    };
    return {half + index(a.offset), half + index(a.offset + a.bytes)};
  }

  /// Bytes of the buffer that the access needs to find written.
  std::pair<std::uint64_t, std::uint64_t> read_range(const Use& u) const {
    const Access& a = access(u);
    const StepPlan& plan = program_.plan();
    const Op& op = plan.ops[u.op];
    if (a.mode == Mode::write || a.role == Role::workspace) return {0, 0};
    const bool gathers = op.kind == OpKind::all_gather && a.mode == Mode::read_write && op.group >= 0;
    if (!gathers) return {a.offset, a.offset + a.bytes};
    const AxisSet group = plan.groups[static_cast<std::size_t>(op.group)];
    const std::uint64_t part = a.bytes / plan.topology.size(group);
    const std::uint64_t from = a.offset + plan.topology.position(group) * part;
    return {from, from + part};
  }

  void examine(const Use& u, std::uint32_t iteration) {
    const Access& a = access(u);
    const NodeId n = program_.node(iteration, u.op);
    const Clock clock = order_.start(n);
    const auto [first, end] = cells_of(a, iteration);
    const auto [read_from, read_to] = read_range(u);
    for (std::size_t cell = first; cell < end; ++cell) {
      const std::size_t border = cell % borders_.size();
      const std::uint64_t at = std::max(borders_[border], read_from);
      if (!written_[cell] && at < std::min(borders_[border + 1], read_to)) {
        findings_.add(Kind::unwritten_read, u.op, no_op, a.buffer,
                      findings_.use(a, u.op) + " has no write before it of byte " + std::to_string(at));
        return;
      }
      for (std::size_t l = 0; l < lanes_; ++l) {
        const std::uint32_t write = last_write_[cell * lanes_ + l], read = last_read_[cell * lanes_ + l];
        if (write > clock[l]) return report(u, l, write, "write");
        if (writes(a) && read > clock[l]) return report(u, l, read, "read");
      }
    }
  }

  void report(const Use& u, std::size_t lane, std::uint32_t stamp, const char* what) {
    const Access& a = access(u);
    const OpId other = program_.op(program_.at(static_cast<LaneId>(lane), stamp));
    findings_.add(
        Kind::unordered_access, other, u.op, a.buffer,
        findings_.use(a, u.op) + " is not ordered after its " + what + " by " + describe(program_.plan(), other));
  }

  void record(const Use& u, std::uint32_t iteration) {
    const Access& a = access(u);
    const NodeId n = program_.node(iteration, u.op);
    const std::size_t lane = program_.lane(n);
    const std::uint32_t stamp = program_.stamp(n);
    const auto [first, end] = cells_of(a, iteration);
    for (std::size_t cell = first; cell < end; ++cell) {
      if (a.mode != Mode::write) last_read_[cell * lanes_ + lane] = stamp;
      if (!writes(a)) continue;
      last_write_[cell * lanes_ + lane] = stamp;
      written_[cell] = true;
    }
  }

  Findings& findings_;
  const Program& program_;
  const HappensBefore& order_;
  std::size_t lanes_;
  std::span<const Use> uses_;
  bool is_carried_ = false;
  std::vector<std::uint64_t> borders_;
  std::vector<std::uint32_t> last_write_, last_read_;
  std::vector<bool> written_;
};

/// One transient in one iteration: what all its uses come after, and what comes after all its uses. A carried buffer is
/// two: from the iteration's begin, to which it was carried, and from its write to the end.
struct Tenant {
  BufferId buffer = 0;
  std::uint32_t first_use = 0;  ///< node
  bool was_carried = false, is_carried_on = false;
  std::vector<std::uint32_t> earliest_start, last_use;
};

class SharingCheck {
 public:
  SharingCheck(Findings& findings, const Program& program, const HappensBefore& order)
      : findings_(findings), program_(program), order_(order), uses_(program.plan()) {}

  void run() {
    const StepPlan& plan = program_.plan();
    std::map<Tier, std::vector<BufferId>> transients, persistent;
    for (BufferId id = 0; id < plan.buffers.size(); ++id) {
      const Buffer& b = plan.buffers[id];
      if (b.bytes > 0) (b.life == Life::persistent ? persistent : transients)[b.tier].push_back(id);
    }
    for (auto& [arena, buffers] : persistent) check_persistent(buffers, transients[arena]);
    for (const auto& [arena, buffers] : transients) check_transients(buffers);
  }

 private:
  /// The bytes of a persistent buffer are nobody else's at any time.
  void check_persistent(std::vector<BufferId> owners, const std::vector<BufferId>& transients) {
    const StepPlan& plan = program_.plan();
    std::vector<BufferId> all = owners;
    all.insert(all.end(), transients.begin(), transients.end());
    std::sort(all.begin(), all.end(), [&](BufferId a, BufferId b) {
      return std::pair(plan.buffers[a].offset, a) < std::pair(plan.buffers[b].offset, b);
    });
    const auto end = [&](BufferId id) { return plan.buffers[id].offset + footprint_bytes(plan.buffers[id]); };
    BufferId highest = all.front(), highest_owner = owners.front();
    bool owner_seen = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool owner = plan.buffers[all[i]].life == Life::persistent;
      // Those that begin before this one and may reach into it: any, if this one is persistent.
      const bool any = i > 0 && (owner || owner_seen);
      const BufferId before = owner ? highest : highest_owner;
      if (any && end(before) > plan.buffers[all[i]].offset)
        findings_.add(Kind::shared_bytes, no_op, no_op, all[i],
                      plan.buffers[before].name + " and " + plan.buffers[all[i]].name +
                          " share bytes, and a persistent buffer shares with none");
      if (i == 0 || end(all[i]) > end(highest)) highest = all[i];
      if (owner && (!owner_seen || end(all[i]) > end(highest_owner))) highest_owner = all[i];
      owner_seen |= owner;
    }
  }

  Tenant tenant(BufferId id, NodeId first_use) const {
    return {.buffer = id,
            .first_use = first_use,
            .earliest_start = std::vector<std::uint32_t>(program_.lanes(), ~0u),
            .last_use = std::vector<std::uint32_t>(program_.lanes(), 0)};
  }
  void use(Tenant& t, NodeId n) const {
    t.first_use = std::min(t.first_use, n);
    const Clock clock = order_.start(n);
    for (std::size_t l = 0; l < clock.size(); ++l) t.earliest_start[l] = std::min(t.earliest_start[l], clock[l]);
    t.last_use[program_.lane(n)] = std::max(t.last_use[program_.lane(n)], program_.stamp(n));
  }

  void add_tenants(BufferId id, std::uint32_t iteration, std::vector<Tenant>& tenants) const {
    const std::span<const Use> uses = uses_.of(id);
    if (uses.empty()) return;
    Tenant t = tenant(id, no_node);
    if (program_.plan().buffers[id].life != Life::carried) {
      for (const Use& u : uses) use(t, program_.node(iteration, u.op));
      tenants.push_back(std::move(t));
      return;
    }
    const auto write = std::ranges::find_if(
        uses, [&](const Use& u) { return program_.plan().ops[u.op].accesses[u.access].mode == Mode::write; });
    Tenant before = tenant(id, program_.node(iteration, 0));
    before.was_carried = true;
    for (auto u = uses.begin(); u != write; ++u) use(before, program_.node(iteration, u->op));
    for (auto u = write; u != uses.end(); ++u) {
      if (iteration > 0) use(before, program_.node(iteration - 1, u->op));
      use(t, program_.node(iteration, u->op));
    }
    before.first_use = program_.node(iteration, 0);
    tenants.push_back(std::move(before));
    t.is_carried_on = true;
    if (write != uses.end()) tenants.push_back(std::move(t));
  }

  /// Tenants in order of first use; each byte's neighbours in time have to be ordered, and then all are. In a steady
  /// iteration the pairs are (before, now) and (now, now).
  void check_transients(const std::vector<BufferId>& buffers) {
    const std::uint32_t last = program_.iterations() - 1;
    std::vector<Tenant> tenants;
    for (std::uint32_t k = last == 0 ? 0 : last - 1; k <= last; ++k)
      for (const BufferId id : buffers) add_tenants(id, k, tenants);
    std::sort(tenants.begin(), tenants.end(), [](const Tenant& a, const Tenant& b) {
      return std::tuple(a.first_use, !a.was_carried, a.buffer) < std::tuple(b.first_use, !b.was_carried, b.buffer);
    });
    std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> held;  // start -> end, tenant
    for (std::size_t i = 0; i < tenants.size() && !findings_.full(); ++i) {
      const Buffer& b = program_.plan().buffers[tenants[i].buffer];
      const std::uint64_t lo = b.offset, hi = b.offset + footprint_bytes(b);
      auto it = held.upper_bound(lo);
      if (it != held.begin() && std::prev(it)->second.first > lo) --it;
      std::vector<std::pair<std::uint64_t, std::pair<std::uint64_t, std::size_t>>> rests;
      while (it != held.end() && it->first < hi) {
        const auto [end, other] = it->second;
        if (program_.iteration(tenants[i].first_use) == last) compare(tenants[other], tenants[i]);
        if (it->first < lo) rests.push_back({it->first, {lo, other}});
        if (end > hi) rests.push_back({hi, {end, other}});
        it = held.erase(it);
      }
      held.insert(rests.begin(), rests.end());
      held[lo] = {hi, i};
    }
  }

  void compare(const Tenant& before, const Tenant& now) {
    if (before.was_carried && now.was_carried && before.buffer != now.buffer) return share_carried(before, now);
    if (now.was_carried) return;  // its reads come after its writes, of the iteration before
    if (before.is_carried_on) return share_carried(before, now);
    for (std::size_t l = 0; l < before.last_use.size(); ++l) {
      if (before.last_use[l] <= now.earliest_start[l]) continue;
      const StepPlan& plan = program_.plan();
      const OpId first = program_.op(program_.at(static_cast<LaneId>(l), before.last_use[l]));
      const std::uint32_t k = program_.iteration(now.first_use);
      OpId second = no_op;
      for (const Use& u : uses_.of(now.buffer))
        if (order_.start(program_.node(k, u.op))[l] < before.last_use[l]) {
          second = u.op;
          break;
        }
      findings_.add(Kind::shared_bytes, first, second, now.buffer,
                    plan.buffers[now.buffer].name + " shares bytes with " + plan.buffers[before.buffer].name +
                        ", but its use by " + describe(plan, second) + " is not ordered after the use by " +
                        describe(plan, first));
      return;
    }
  }

  void share_carried(const Tenant& before, const Tenant& now) {
    const StepPlan& plan = program_.plan();
    findings_.add(Kind::shared_bytes, program_.op(before.first_use), program_.op(now.first_use), now.buffer,
                  plan.buffers[now.buffer].name + " shares bytes with " + plan.buffers[before.buffer].name +
                      ", which is carried into the next iteration");
  }

  Findings& findings_;
  const Program& program_;
  const HappensBefore& order_;
  Uses uses_;
};

}  // namespace

void check_accesses(Findings& findings, const Program& program, const HappensBefore& order) {
  const Uses uses(program.plan());
  BufferCheck check(findings, program, order);
  for (BufferId id = 0; id < program.plan().buffers.size() && !findings.full(); ++id)
    if (!uses.of(id).empty()) check.run(id, uses.of(id));
}

void check_sharing(Findings& findings, const Program& program, const HappensBefore& order) {
  SharingCheck(findings, program, order).run();
}

}  // namespace sluice::planning
