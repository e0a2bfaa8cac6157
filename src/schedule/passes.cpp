#include "src/schedule/passes.h"

#include <algorithm>
#include <array>
#include <optional>

namespace sluice {
namespace {

/// Without a way back as many groups as there are stages go through a chunk, then through the next one.
std::vector<StagePass> turns_of_stage(PlanKind kind, const Pipeline& pipeline, RankId stage) {
  if (kind == PlanKind::train) return stage_passes(pipeline, stage);
  std::vector<StagePass> turns;
  for (int first = 0; first < pipeline.groups; first += pipeline.stages)
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk)
      for (int group = first; group < std::min(first + pipeline.stages, pipeline.groups); ++group)
        turns.push_back({StagePass::Kind::forward, chunk, group});
  return turns;
}

/// When a stage listens to what comes from the others.
class Listening {
 public:
  Listening(PlanKind kind, const Pipeline& pipeline, RankId stage, bool head_is_alone)
      : pipeline_(pipeline), stage_(stage), head_is_alone_(head_is_alone) {
    for (RankId s = 0; s < pipeline.stages; ++s) passes_.push_back(turns_of_stage(kind, pipeline, s));
    order_ = common_order(pipeline, passes_);
  }

  /// The turn of this stage ahead of whose work it listens to what comes to its turn `index`; none where nothing does.
  std::optional<std::size_t> turn_for(std::size_t index) const {
    const StagePass& pass = passes_[stage_][index];
    if (pass.kind == StagePass::Kind::backward_weight) return std::nullopt;
    const int place = place_of(pipeline_, stage_, pass.chunk);
    const bool forward = pass.kind == StagePass::Kind::forward;
    const int from = forward ? place - 1 : place + 1;
    if (from < 0 || from == pipeline_.places() || owner_of(pipeline_, from).stage == stage_) return std::nullopt;
    // A head alone has its gradient when it is passed.
    const bool at_head = !forward && head_is_alone_ && from == pipeline_.places() - 1;
    return before(index, from, pass.group, forward || at_head);
  }
  /// The same for what the head has for a tied matrix.
  std::size_t turn_for_head(std::size_t index) const {
    return before(index, pipeline_.places() - 1, passes_[stage_][index].group, true);
  }

 private:
  std::size_t before(std::size_t index, int sender, int group, bool forward) const {
    const auto [stage, chunk] = owner_of(pipeline_, sender);
    const std::vector<StagePass>& theirs = passes_[stage];
    const auto sends = std::ranges::find_if(theirs, [&, chunk = chunk](const StagePass& p) {
      return p.chunk == chunk && p.group == group && (p.kind == StagePass::Kind::forward) == forward;
    });
    SLUICE_CHECK(sends != theirs.end(), "(place %d, group %d)", sender, group);
    const std::size_t sent = order_[stage][static_cast<std::size_t>(sends - theirs.begin())];
    const auto behind = std::ranges::upper_bound(order_[stage_], sent) - order_[stage_].begin();
    return std::min(index > 0 ? index - 1 : 0, static_cast<std::size_t>(behind));
  }

  const Pipeline& pipeline_;
  RankId stage_;
  bool head_is_alone_;  ///< at the last place
  AllPasses passes_;
  std::vector<std::vector<std::size_t>> order_;
};

/// Where the units are and who passes them.
struct Cut {
  Stages stages;
  RankId stage;
  UnitId head;
  bool tied, head_is_alone;
  Cut(const Workload& workload, const Schedule& schedule)
      : stages(workload, schedule),
        stage(workload.topology.position(pipeline_axes)),
        head(static_cast<UnitId>(workload.model->units.size()) - 1),
        tied(workload.model->config.tied),
        head_is_alone(!schedule.cut.empty() && schedule.cut.back() == head) {}
};

/// The passes of a turn: over the units of a chunk, up or down.
class Turn {
 public:
  Turn(const StagePass& turn, const MicroBatchGroup& group, const Cut& cut, const Schedule& schedule)
      : kind_(turn.kind), group_(group), schedule_(schedule) {
    for (UnitId u = 0; u <= cut.head; ++u) {
      const StageChunk owner = cut.stages.owner(u);
      if (owner.stage != cut.stage || owner.chunk != turn.chunk) continue;
      has_head_ = u == cut.head;
      if (!has_head_) inner_.push_back(u);
    }
    head_ = cut.head;
  }

  std::vector<Pass> passes(bool trains) {
    if (kind_ == StagePass::Kind::forward) {
      for (const UnitId u : inner_) add(Phase::forward, u, !trains || u == inner_.back() || sweep(u + 1) == 0);
      if (has_head_) add(Phase::head, head_);
    } else if (kind_ == StagePass::Kind::backward_weight) {
      for (std::size_t i = inner_.size(); i-- > 0;)
        if (inner_[i] > 0) add(Phase::backward_weight, inner_[i]);
    } else if (!inner_.empty()) {
      go_back_between(inner_.front(), inner_.back(), 0);
    }
    return std::move(passes_);
  }

 private:
  int sweep(UnitId u) const { return schedule_.units[static_cast<std::size_t>(u)].sweep; }
  void add(Phase phase, UnitId u, bool keeps = true) { passes_.push_back({phase, u, group_, 0, keeps}); }

  /// The inputs of `first` and of those that this sweep keeps are there.
  void go_back_between(UnitId first, UnitId last, int kept) {
    UnitId end = last;
    for (UnitId u = last; u > first; --u) {
      if (sweep(u) != kept) continue;
      go_back(u, end);
      end = u - 1;
    }
    go_back(first, end);
  }
  /// Of these units only the first one's input is there.
  void go_back(UnitId first, UnitId last) {
    if (first == last)
      return add(first > 0 && kind_ == StagePass::Kind::backward_input ? Phase::backward_input : Phase::backward,
                 first);
    int next = sweep(last);
    for (UnitId u = first + 1; u < last; ++u) next = std::min(next, sweep(u));
    UnitId end = last;
    while (sweep(end) != next) --end;
    for (UnitId u = first; u < end; ++u) add(Phase::again, u, sweep(u + 1) == next);
    go_back_between(first, last, next);
  }

  StagePass::Kind kind_;
  const MicroBatchGroup& group_;
  const Schedule& schedule_;
  std::vector<UnitId> inner_;  ///< all but the head
  UnitId head_ = 0;
  bool has_head_ = false;
  std::vector<Pass> passes_;
};

/// Which of each unit's passes is first and last, which read parameters, and in which order units are updated.
void mark(PassOrder& order, const Cut& cut, bool trains, const Schedule& schedule) {
  const std::size_t units = static_cast<std::size_t>(cut.head) + 1;
  // By phase and unit: its latest pass so far.
  std::array<std::vector<Pass*>, phase_count> latest;
  latest.fill(std::vector<Pass*>(units, nullptr));
  order.readers.resize(units);
  const bool is_tied_here = cut.tied && cut.stages.stage_of(0) == cut.stages.stage_of(cut.head);
  for (std::size_t p = 0; p < order.passes.size(); ++p) {
    Pass& pass = order.passes[p];
    const auto unit = static_cast<std::size_t>(pass.unit);
    Pass*& before = latest[static_cast<std::size_t>(pass.phase)][unit];
    pass.is_first = before == nullptr;
    pass.is_last = true;
    if (before != nullptr) before->is_last = false;
    before = &pass;
    if (pass.reads_parameters()) order.readers[unit].push_back(p);
    if (pass.phase == Phase::head && is_tied_here) order.readers.front().push_back(p);
    if (trains && pass.is_first && schedule.updates_ahead(pass.unit) && pass.goes_forward())
      order.updates_ahead.push_back(pass.unit);
  }
  for (const Pass& pass : order.passes)
    if (trains && !schedule.updates_ahead(pass.unit) && pass.is_last && makes_gradients(pass.phase))
      order.updates_back.push_back(pass.unit);
}

}  // namespace

PassOrder order_passes(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  const std::vector<MicroBatchGroup> groups = micro_batch_groups(workload, schedule, kind);
  const Cut cut(workload, schedule);
  const Pipeline pipeline = pipeline_of(workload, schedule, static_cast<int>(groups.size()));
  const std::vector<StagePass> turns = turns_of_stage(kind, pipeline, cut.stage);
  PassOrder order;
  std::vector<std::size_t> kept;  // turns that have passes: a chunk that is the head alone has no way back
  std::vector<std::size_t> at_kept(turns.size());  // of each turn, the latest kept one
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const std::vector<Pass> passes =
        Turn(turns[t], groups[static_cast<std::size_t>(turns[t].group)], cut, schedule).passes(kind == PlanKind::train);
    if (!passes.empty()) {
      order.turns.push_back(order.passes.size());
      kept.push_back(t);
    }
    at_kept[t] = kept.empty() ? 0 : kept.size() - 1;
    for (const Pass& pass : passes) {
      order.passes.push_back(pass);
      order.passes.back().turn = kept.size() - 1;
    }
  }
  order.listens.resize(kept.size());
  order.listens_to_head.resize(kept.size());
  if (pipeline.stages > 1) {
    const Listening listening(kind, pipeline, cut.stage, cut.head_is_alone);
    const bool has_head_elsewhere = cut.tied && cut.stages.stage_of(cut.head) != cut.stage;
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const StagePass& turn = turns[kept[k]];
      if (const auto at = listening.turn_for(kept[k])) order.listens[at_kept[*at]].push_back(k);
      const bool goes_back = turn.kind == StagePass::Kind::backward || turn.kind == StagePass::Kind::backward_input;
      const bool ends_embedding = goes_back && place_of(pipeline, cut.stage, turn.chunk) == 0;
      if (has_head_elsewhere && ends_embedding)
        order.listens_to_head[at_kept[listening.turn_for_head(kept[k])]].push_back(k);
    }
  }
  mark(order, cut, kind == PlanKind::train, schedule);
  return order;
}

}  // namespace sluice
