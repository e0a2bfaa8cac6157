// Timelines as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.
#pragma once

#include <string>

#include "offload/plan/simulate.h"
#include "sluice/status.h"

namespace sluice {

constexpr const char* trace_begin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
struct NamedTimeline {
  std::string name;  ///< process name in the trace: "predicted", "measured"
  Timeline spans;
};
/// One process per timeline, a thread per lane (more where its ops overlap), one slice per op with its unit,
/// bytes and FLOP; counters for live bytes of each arena. Same names in every timeline. Written atomically.
Status write_trace(const std::string& path, const StepPlan& plan, const std::vector<NamedTimeline>& timelines);

}  // namespace sluice
