// Program order of a step (internal to the building of plans).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "offload/plan/finish.h"
#include "src/schedule/passes.h"
#include "src/schedule/rank_builder.h"
#include "src/schedule/task.h"
#include "src/schedule/tile_stream.h"

namespace sluice {

/// Walks through one iteration and calls the builder in program order.
class Driver {
 public:
  Driver(StepPlan& plan, PlanKind kind, const Workload& w, const Schedule& s, Detail detail, Lives room = {});
  /// The whole of it, once.
  void run();
  Lives take_lives() { return emitter_.take_lives(); }

 private:
  bool train() const { return kind_ == PlanKind::train; }
  /// In the order in which the pass takes them: back over the slices of a sequence, the last one first.
  int micro_batch(const Pass& p, std::size_t slot) const {
    const int at = p.group.first + static_cast<int>(slot);
    return goes_back(p.phase) ? work_.turn_back(at) : at;
  }
  std::vector<int> micro_batches(const Pass& p) const {
    std::vector<int> list;
    for (int i = p.group.first; i < p.group.end; ++i) list.push_back(micro_batch(p, list.size()));
    return list;
  }
  bool has(UnitId u) const { return context_.stages.stage_of(u) == work_.topology.position(pipeline_axes); }
  bool is_tied() const { return work_.model->config.tied; }
  bool tied_head(const Pass& p) const { return p.phase == Phase::head && is_tied() && has(0); }
  /// Embedding and head of a tied model are on two stages, and the pass is the step's first over one of them.
  bool meets_tied(const Pass& p) const {
    return is_tied() && p.is_first && p.goes_forward() && has(0) != has(head_) && (p.unit == 0 || p.unit == head_);
  }
  void begin();
  void listen(std::size_t turn);
  void emit_pass(std::size_t p);
  void finish_step();
  void commit_ahead();
  void commit();
  void flush();
  const UnitChoice& choice(UnitId u) const { return schedule_.units[static_cast<std::size_t>(u)]; }
  const std::vector<std::size_t>& readers(UnitId u) const { return order_.readers[static_cast<std::size_t>(u)]; }
  bool makes_second_copy(UnitId u) const;
  bool fetches_at_last(UnitId u) const;
  void second_copy_task(UnitId u, std::vector<Task>& out);
  void fetch_tasks(UnitId u, bool retain, std::vector<Task>& out);
  std::vector<Task> prepare(std::size_t p);
  std::vector<Task> drain(std::size_t p);
  void emit_slot(const Pass& pass, int mb);
  void close_pass(std::size_t p);
  bool updated_in(const Pass& p) const;
  void bring_next(std::size_t p, std::size_t slot);
  void bring_next_gradients(std::size_t p);
  void park_leaving();
  void park_deferred();

  Emitter emitter_;
  PlanKind kind_;
  const Workload& work_;
  const Schedule& schedule_;
  RankContext context_;
  RankBuilder rank_;
  TileStream ahead_, back_;  ///< of units that are updated ahead of their forward pass, and in the backward pass
  PassOrder order_;
  std::vector<bool> prepared_;
  std::vector<int> open_uses_;         ///< passes, by unit, that its open parameters still serve
  std::vector<bool> has_second_copy_;  ///< by unit
  std::vector<Task> deferred_;         ///< parks of the previous slot
  std::optional<UnitId> leaving_;      ///< whose sums of gradients are still to be parked
  std::vector<std::size_t> drains_;    ///< passes whose gradients are still to be drained
  UnitId head_ = 0;
  std::vector<UnitId> units_;  ///< of the stage
  bool committed_ = false;
};

}  // namespace sluice
