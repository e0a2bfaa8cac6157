#include "src/schedule/driver.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace sluice {

Driver::Driver(StepPlan& plan, PlanKind kind, const Workload& w, const Schedule& s, Detail detail, Lives room)
    : emitter_(plan, detail, std::move(room)),
      kind_(kind),
      work_(w),
      schedule_(s),
      context_{emitter_, w, s, kind, Stages(w, s), {}},
      rank_(context_),
      ahead_(rank_.optimizer, s.tiles_in_flight, true),
      back_(rank_.optimizer, s.tiles_in_flight, false) {
  head_ = static_cast<UnitId>(w.model->units.size()) - 1;
  for (UnitId u = 0; u <= head_; ++u)
    if (has(u)) units_.push_back(u);
}

void Driver::run() {
  if (kind_ == PlanKind::flush) {
    flush();
    return;
  }
  begin();
  for (std::size_t p = 0; p < order_.passes.size(); ++p) emit_pass(p);
  finish_step();
}

void Driver::begin() {
  order_ = order_passes(kind_, work_, schedule_);
  prepared_.resize(order_.passes.size());
  open_uses_.resize(work_.model->units.size());
  has_second_copy_.resize(work_.model->units.size());
  for (const UnitId u : units_)
    if (!fetches_at_last(u)) rank_.parameters.expect_no_retained_tiles(u);
  for (const UnitId u : order_.updates_ahead) ahead_.add(unit_tiles(work_, schedule_, u));
  for (const UnitId u : order_.updates_back) back_.add(unit_tiles(work_, schedule_, u));
  rank_.wait_for_commits();
  if (is_tied() && has(head_) && !has(0)) rank_.parameters.receive_tied();
}

/// For what comes to turns from other stages.
void Driver::listen(std::size_t turn) {
  // On the way back, the first that takes what comes.
  const auto first = [&](std::size_t t) -> const Pass& {
    std::size_t p = order_.turns[t];
    while (order_.passes[p].phase == Phase::again) ++p;
    return order_.passes[p];
  };
  for (const std::size_t t : order_.listens[turn]) {
    Pass sender = first(t);
    // A head has sent what it makes on its one way.
    if (goes_back(sender.phase) && sender.unit + 1 == head_) sender.phase = Phase::head;
    for (const int mb : micro_batches(sender))
      rank_.activations.receive_inputs(first(t).unit, mb, goes_back(first(t).phase));
  }
  for (const std::size_t t : order_.listens_to_head[turn]) rank_.gradients.receive_tied_gradients(first(t).group);
}

/// Updates ahead of the forward happen in the unit's first pass of the step.
bool Driver::updated_in(const Pass& p) const {
  return train() && schedule_.updates_ahead(p.unit) && p.is_first && p.goes_forward();
}

void Driver::fetch_tasks(UnitId u, bool retain, std::vector<Task>& out) {
  const bool resident = choice(u).resident;
  // Still open for an earlier pass (the turnaround from forward to backward), or held: nothing travels.
  if (open_uses_[static_cast<std::size_t>(u)]++ > 0 || rank_.parameters.is_open(u)) return;
  out.push_back([this, u] { rank_.parameters.open_parameters(u); });
  if (resident) return;
  if (has_second_copy_[static_cast<std::size_t>(u)]) {
    out.push_back([this, u] { rank_.parameters.fetch_second_copy(u); });
    return;
  }
  for (const TileRef& t : unit_tiles(work_, schedule_, u))
    out.push_back([this, t, retain] { rank_.parameters.fetch_tile(t, retain); });
  out.push_back([this, u] { rank_.parameters.gather(u); });
  second_copy_task(u, out);
}

/// Behind the first gather of the step.
void Driver::second_copy_task(UnitId u, std::vector<Task>& out) {
  if (!makes_second_copy(u)) return;
  has_second_copy_[static_cast<std::size_t>(u)] = true;
  out.push_back([this, u] { rank_.parameters.keep_second_copy(u); });
}

/// Where any later pass of the step finds the unit gone.
bool Driver::makes_second_copy(UnitId u) const {
  const UnitChoice& c = choice(u);
  if (!train() || !c.second_copy || c.resident || c.held || work_.shards() == 1) return false;
  const std::vector<std::size_t>& at = readers(u);
  return std::ranges::adjacent_find(at, [&](std::size_t before, std::size_t after) {
           return after - before > static_cast<std::size_t>(std::max(0, schedule_.prefetch));
         }) != at.end();
}

/// Whether the step's last pass over the unit fetches it from home, and finds it neither open still nor in a copy.
bool Driver::fetches_at_last(UnitId u) const {
  const std::vector<std::size_t>& at = readers(u);
  if (at.size() < 2) return true;
  const bool is_open =
      at[at.size() - 1] - at[at.size() - 2] <= static_cast<std::size_t>(std::max(0, schedule_.prefetch));
  return !choice(u).held && !makes_second_copy(u) && !is_open;
}

/// What must be on the device before pass p can compute.
std::vector<Task> Driver::prepare(std::size_t p) {
  std::vector<Task> tasks;
  const Pass pass = order_.passes[p];
  const UnitId u = pass.unit;
  if (!pass.reads_parameters()) return tasks;
  if (updated_in(pass)) {
    ++open_uses_[static_cast<std::size_t>(u)];
    tasks.push_back([this, u] { rank_.parameters.open_parameters(u); });
    for (std::size_t i = unit_tiles(work_, schedule_, u).size(); i > 0; --i)
      tasks.push_back([this] { ahead_.advance(true); });
    tasks.push_back([this, u] {
      rank_.optimizer.mark_updated(u);
      rank_.parameters.gather(u);
    });
    second_copy_task(u, tasks);
  } else {
    const bool ends = goes_back(pass.phase) || pass.phase == Phase::head;
    const bool retain = train() && !schedule_.updates_ahead(u) && pass.is_last && ends;
    fetch_tasks(u, retain, tasks);
  }
  if (tied_head(pass)) fetch_tasks(0, false, tasks);
  return tasks;
}

/// What remains to be done with a unit's gradient after its last backward pass.
std::vector<Task> Driver::drain(std::size_t p) {
  const UnitId u = order_.passes[p].unit;
  const bool resident = choice(u).resident, updates = !schedule_.updates_ahead(u);
  std::vector<Task> tasks;
  for (const TileRef& t : unit_tiles(work_, schedule_, u)) {
    tasks.push_back([this, t, resident, updates] {
      if (updates) back_.read_ahead();
      rank_.gradients.drain_tile(t);
      if (updates) back_.advance(resident);
    });
  }
  tasks.push_back([this, u, resident, updates] {
    rank_.gradients.close_gradient(u);
    if (updates && resident) rank_.parameters.gather(u);
  });
  return tasks;
}

void Driver::emit_slot(const Pass& pass, int mb) {
  switch (pass.phase) {
    case Phase::forward: rank_.activations.forward(pass.unit, mb, pass.keeps); break;
    case Phase::again: return rank_.activations.forward(pass.unit, mb, pass.keeps);
    case Phase::head:
      if (kind_ == PlanKind::decode) {
        rank_.activations.decode_head();
      } else if (train()) {
        rank_.activations.head(mb);
      } else {
        rank_.activations.evaluate_head(mb);
      }
      break;
    case Phase::backward:
      rank_.activations.recompute(pass.unit, mb, false);
      rank_.activations.backward(pass.unit, mb);
      break;
    case Phase::backward_input:
      rank_.activations.recompute(pass.unit, mb, true);
      rank_.activations.backward_input(pass.unit, mb);
      break;
    case Phase::backward_weight: rank_.activations.backward_weight(pass.unit, mb); return;
  }
  if (pass.phase != Phase::head || train()) rank_.activations.send_outputs(pass.unit, mb, pass.makes_input_gradients());
}

void Driver::close_pass(std::size_t p) {
  const Pass& pass = order_.passes[p];
  const bool tied = tied_head(pass);
  const auto close = [&](UnitId u) {
    const auto at = static_cast<std::size_t>(u);
    const bool stays = choice(u).held && p < readers(u).back();
    if (--open_uses_[at] == 0 && !stays) rank_.parameters.close_parameters(u);
  };
  if (pass.reads_parameters()) close(pass.unit);
  if (tied) close(0);
  if (!train()) return;
  if (pass.phase == Phase::head && is_tied()) rank_.gradients.park_tied_gradients();
  if (!makes_gradients(pass.phase)) return;
  if (pass.group.ends_sum) {
    rank_.gradients.reduce(pass.unit, work_.lot_sums().lot_of(pass.group.first));
  } else if (schedule_.gradients_ahead) {
    leaving_ = pass.unit;
  } else {
    rank_.gradients.park_gradients(pass.unit);
  }
}

void Driver::emit_pass(std::size_t p) {
  const Pass pass = order_.passes[p];
  const auto lead = static_cast<std::size_t>(std::max(0, schedule_.prefetch));
  const auto make_ready = [&](std::size_t q) {
    if (q >= order_.passes.size() || prepared_[q]) return std::vector<Task>{};
    prepared_[q] = true;
    return prepare(q);
  };
  if (order_.turns[pass.turn] == p) listen(pass.turn);
  const std::size_t at_once = p == 0 ? std::max<std::size_t>(1, lead) : p + 1;
  for (std::size_t q = p; q < at_once; ++q)
    for (Task& t : make_ready(q)) t();
  if (meets_tied(pass)) {
    if (pass.unit == 0) rank_.parameters.send_tied();
    if (pass.unit == head_) rank_.parameters.land_tied();
  }

  // Fetches of the pass `lead` ahead, and drains of finished passes, spread evenly over this pass's micro-batches.
  std::vector<Task> spread = lead > 0 ? make_ready(p + lead) : std::vector<Task>{};
  std::vector<Task> drains;
  while (!drains_.empty() && p >= drains_.front() + static_cast<std::size_t>(schedule_.lag)) {
    for (Task& t : drain(drains_.front())) drains.push_back(std::move(t));
    drains_.erase(drains_.begin());
  }
  const std::vector<int> slots = micro_batches(pass);
  const bool back = goes_back(pass.phase), has_inputs = pass.phase != Phase::backward_weight;
  if (train() && makes_gradients(pass.phase)) {
    if (leaving_ == pass.unit) park_leaving();
    rank_.gradients.bring_gradients(pass.unit);
  }
  std::size_t fetched = 0, drained = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto share = [&](std::size_t total) { return total * (i + 1) / slots.size(); };
    if (i == 0 && (back || !schedule_.hold)) park_deferred();
    if (has_inputs) {
      rank_.activations.land_inputs(pass.unit, slots[i], back);
      rank_.activations.bring_inputs(pass.unit, slots[i], back);
    }
    while (fetched < share(spread.size())) spread[fetched++]();
    if (schedule_.prefetch > 0) bring_next(p, i);
    if (i + 1 == slots.size()) bring_next_gradients(p);
    std::vector<Task> earlier = std::move(deferred_);
    deferred_.clear();
    emit_slot(pass, slots[i]);
    // After this slot's compute in program order, so that what they free is not what this slot needs.
    for (Task& t : earlier) t();
    park_leaving();  // as those
    while (drained < share(drains.size())) drains[drained++]();
    if (kind_ == PlanKind::decode || (pass.phase == Phase::head && !train()) || !has_inputs) continue;
    const int mb = slots[i];
    deferred_.push_back(
        [this, pass, mb] { rank_.activations.park_outputs(pass.unit, mb, pass.makes_input_gradients()); });
    if (schedule_.lag == 0) park_deferred();
  }
  if (schedule_.mixes()) commit_ahead();
  close_pass(p);
  if (train() && makes_gradients(pass.phase) && pass.is_last) {
    if (schedule_.lag > 0) {
      drains_.push_back(p);
    } else {
      for (Task& t : drain(p)) t();
    }
  }
  commit_ahead();
}

/// Updates ahead of the forward were voted on in the step before. Their commit follows the last of them, so that its
/// syncs pass beside the backward pass, and comes before the ranks meet for control, so that no rank overwrites a slot
/// that another one may still have to resume from. Where others are updated in the backward pass, it comes before the
/// ranks add up the first of their gradients, and with the next one theirs are committed.
void Driver::commit_ahead() {
  if (train() && !order_.updates_ahead.empty() && ahead_.done()) commit();
}

void Driver::commit() {
  if (!work_.durable || std::exchange(committed_, true)) return;
  rank_.commit();
}

void Driver::finish_step() {
  for (std::size_t p : drains_)
    for (Task& t : drain(p)) t();
  drains_.clear();
  if (kind_ == PlanKind::decode) return;
  rank_.collect_losses();
  rank_.control();
  rank_.step_end();
  if (train()) commit();
}

void Driver::flush() {
  const auto waits = [&](UnitId u) { return schedule_.updates_ahead(u); };
  for (const UnitId u : units_ | std::views::filter(waits)) ahead_.add(unit_tiles(work_, schedule_, u));
  for (const UnitId u : units_ | std::views::filter(waits)) {
    const bool resident = choice(u).resident;
    if (resident) rank_.parameters.open_parameters(u);
    for (std::size_t i = unit_tiles(work_, schedule_, u).size(); i > 0; --i) ahead_.advance(resident);
    if (resident) rank_.parameters.gather(u);
  }
  commit();
}

void Driver::park_deferred() {
  for (Task& t : deferred_) t();
  deferred_.clear();
}

/// Sums of the pass before.
void Driver::park_leaving() {
  if (leaving_) rank_.gradients.park_gradients(*std::exchange(leaving_, std::nullopt));
}

/// So that they come while this pass computes. If it adds to them itself, none are away.
void Driver::bring_next_gradients(std::size_t p) {
  if (!train() || !schedule_.gradients_ahead || p + 1 >= order_.passes.size()) return;
  const Pass& next = order_.passes[p + 1];
  if (makes_gradients(next.phase)) rank_.gradients.bring_gradients(next.unit);
}

/// Fetch the activations of the next slots before this one computes, so that they travel meanwhile.
void Driver::bring_next(std::size_t p, std::size_t slot) {
  const std::size_t own = p;
  for (int ahead = 0; ahead < schedule_.activations_ahead; ++ahead) {
    const MicroBatchGroup& group = order_.passes[p].group;
    if (slot + 1 < static_cast<std::size_t>(group.end - group.first)) {
      ++slot;
    } else {
      if (p + 1 >= order_.passes.size()) return;
      const Phase next = order_.passes[p + 1].phase;
      if (!goes_back(next) && next != Phase::again) return;
      park_deferred();
      ++p;
      slot = 0;
    }
    const Pass& pass = order_.passes[p];
    if (pass.phase == Phase::backward_weight) return;
    const int mb = micro_batch(pass, slot);
    if (p == own) rank_.activations.land_inputs(pass.unit, mb, goes_back(pass.phase));
    rank_.activations.bring_inputs(pass.unit, mb, goes_back(pass.phase));
  }
}

}  // namespace sluice
