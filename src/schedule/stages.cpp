#include "src/schedule/stages.h"

#include <algorithm>
#include <string>

namespace sluice {

Stages::Stages(const Workload& workload, const Schedule& schedule)
    : count_(workload.stages()), ranks_(workload.ranks_of_stage()) {
  if (count_ == 1) return;
  const Pipeline pipeline = pipeline_of(workload, schedule, 1);
  const auto units = static_cast<UnitId>(workload.model->units.size());
  SLUICE_CHECK(schedule.cut.size() + 1 == static_cast<std::size_t>(pipeline.places()), "%zu places of a pipeline of %d",
               schedule.cut.size() + 1, pipeline.places());
  for (UnitId u = 0, place = 0; u < units; ++u) {
    while (static_cast<std::size_t>(place) < schedule.cut.size() && schedule.cut[static_cast<std::size_t>(place)] <= u)
      ++place;
    owners_.push_back(owner_of(pipeline, place));
  }
}

Status check_stages(const Workload& workload, const Schedule& schedule) {
  const std::size_t places =
      workload.stages() == 1 ? 1 : workload.stages() * static_cast<std::size_t>(schedule.pipeline.chunks);
  UnitId before = 0;
  bool ascends = schedule.cut.size() + 1 == places;
  for (const UnitId first : schedule.cut) ascends = ascends && first > std::exchange(before, first);
  if (ascends && before < static_cast<UnitId>(workload.model->units.size())) {
    const std::size_t groups = micro_batch_groups(workload, schedule, workload.main_kind()).size();
    return check_pipeline(pipeline_of(workload, schedule, static_cast<int>(groups)));
  }
  return bad_request("the schedule cuts a model into " + std::to_string(schedule.cut.size() + 1) +
                     " parts, not this one into " + std::to_string(places));
}

Pipeline pipeline_of(const Workload& workload, const Schedule& schedule, int groups) {
  if (workload.stages() == 1) return {PipelineOrder::one_forward_one_backward, 1, 1, groups};
  return {schedule.pipeline.order, workload.stages(), schedule.pipeline.chunks, groups};
}

Workload at_stage(const Workload& workload, RankId stage) {
  Workload w = workload;
  w.topology = workload.topology.at(static_cast<RankId>(stage * workload.ranks_of_stage()));
  return w;
}

}  // namespace sluice
