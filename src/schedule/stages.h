// Which stage of a pipeline has which units of the model.
#pragma once

#include <vector>

#include "src/schedule/pipeline.h"
#include "src/schedule/schedule.h"

namespace sluice {

class Stages {
 public:
  /// One stage of one rank, which has all units.
  Stages() = default;
  /// The schedule's cut has a first unit for each place but the first, in ascending order.
  Stages(const Workload& workload, const Schedule& schedule);

  RankId count() const { return count_; }
  /// The first rank of a stage; a stage's ranks are neighbours.
  RankId first_rank(RankId stage) const { return static_cast<RankId>(stage * ranks_); }
  RankId stage_of_rank(RankId rank) const { return static_cast<RankId>(rank / ranks_); }
  StageChunk owner(UnitId u) const { return owners_.empty() ? StageChunk{} : owners_[static_cast<std::size_t>(u)]; }
  RankId stage_of(UnitId u) const { return owner(u).stage; }
  /// Those that have the unit.
  RankRange ranks_of(UnitId u) const { return {first_rank(stage_of(u)), ranks_}; }
  bool has(RankId rank, UnitId u) const { return ranks_of(u).contains(rank); }

 private:
  RankId count_ = 1, ranks_ = 1;    ///< of a stage
  std::vector<StageChunk> owners_;  ///< by unit; none: one stage
};

/// bad_request where the cut is not one of the workload's model for its stages, or its groups do not go with their
/// order.
Status check_stages(const Workload& workload, const Schedule& schedule);

/// The pipeline of a schedule, whose micro-batches go in so many groups.
Pipeline pipeline_of(const Workload& workload, const Schedule& schedule, int groups);

/// The same workload as the first rank of a stage has it.
Workload at_stage(const Workload& workload, RankId stage);

}  // namespace sluice
