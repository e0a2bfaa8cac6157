#include "src/train/request/step_json.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/plan/step_passes.h"
#include "offload/plan/step_picture.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// To 10 ns: digits beyond that are of no use, and take room.
double rounded(double seconds) { return std::round(seconds * 1e8) / 1e8; }

template <std::size_t n, class T>
const char* name_in(const std::array<const char*, n>& names, T value) {
  return names[static_cast<std::size_t>(value)];
}

/// Slices are [start, end, busy seconds, ops, index in "names"].
Json lanes_json(const std::vector<LanePicture>& lanes, Json& names) {
  std::map<std::string, std::size_t> known;
  Json all = Json::array();
  for (const LanePicture& lane : lanes) {
    Json slices = Json::array();
    for (const LaneSlice& s : lane.slices) {
      const auto [name, is_new] = known.try_emplace(s.name, known.size());
      if (is_new) names.push_back(s.name);
      slices.push_back({rounded(s.start), rounded(s.end), rounded(s.busy), s.ops, name->second});
    }
    all.push_back({{"lane", name_in(lane_names, lane.lane)}, {"busy_seconds", lane.busy_seconds}, {"slices", slices}});
  }
  return all;
}

Json work_json(const std::vector<WorkPicture>& work) {
  Json all = Json::array();
  for (const WorkPicture& w : work)
    all.push_back({{"lane", name_in(lane_names, w.lane)},
                   {"op", name_in(op_names, w.kind)},
                   {"ops", w.ops},
                   {"seconds", w.seconds},
                   {"bytes", w.bytes},
                   {"flop", w.flop}});
  return all;
}

/// Points are [seconds, bytes of each of "contents" ...].
Json memory_json(const std::vector<MemoryPicture>& memory) {
  Json all = Json::array();
  for (const MemoryPicture& m : memory) {
    if (m.points.empty()) continue;
    Json points = Json::array();
    for (const MemoryPicture::Point& point : m.points) {
      Json line{rounded(point.seconds)};
      for (const std::uint64_t bytes : point.bytes) line.push_back(bytes);
      points.push_back(std::move(line));
    }
    all.push_back({{"tier", name_in(tier_names, m.arena.tier)},
                   {"budget_bytes", m.arena.budget_bytes},
                   {"arena_bytes", m.arena.arena_bytes},
                   {"peak_bytes", m.peak_bytes},
                   {"contents", content_names},
                   {"points", points}});
  }
  return all;
}

Json picture_json(const StepPlan& plan, const Timeline& timeline, double step_seconds) {
  const StepPicture picture = step_picture(plan, timeline);
  Json names = Json::array();
  const Json lanes = lanes_json(picture.lanes, names);
  Json j;
  if (step_seconds > 0) j["step_seconds"] = step_seconds;
  j["seconds"] = picture.seconds;
  j["work"] = work_json(picture.work);
  j["pass_seconds"] = pass_seconds(plan, timeline);
  j["memory"] = memory_json(picture.memory);
  j["names"] = names;
  j["lanes"] = lanes;
  return j;
}

Json passes_json(const StepPlan& plan, const HardwareProfile& hw) {
  Json all = Json::array();
  for (const PassBound& bound : pass_bounds(plan, hw)) {
    const bool has_unit = bound.pass.unit >= 0;
    Json pass{{"unit", has_unit ? plan.units[static_cast<std::size_t>(bound.pass.unit)] : ""},
              {"direction", bound.pass.backward ? "backward" : "forward"},
              {"times", bound.times},
              {"bound_seconds", bound.bound_seconds},
              {"limit", name_in(resource_names, bound.limit)}};
    for (std::size_t r = 0; r < resource_names.size(); ++r)
      if (bound.resource_seconds[r] > 0) pass["resources"][resource_names[r]] = bound.resource_seconds[r];
    all.push_back(std::move(pass));
  }
  return all;
}

}  // namespace

Json step_json(const Prepared& run, const Timeline& measured, bool ahead) {
  const StepPlan& plan = run.plan(ahead);
  const Simulation& p = run.predicted(ahead);
  Json j;
  j["rank"] = 0;
  j["ranks"] = run.workload.ranks();
  j["bound_seconds"] = p.bound_seconds;
  j["pass_bound_seconds"] = p.pass_bound_seconds;
  j["bottleneck"] = name_in(resource_names, p.bottleneck);
  for (std::size_t r = 0; r < resource_names.size(); ++r) j["resources"][resource_names[r]] = p.resource_seconds[r];
  j["passes"] = passes_json(plan, run.profile);
  j["predicted"] = picture_json(plan, p.timeline, p.step_seconds);
  if (!measured.empty()) j["measured"] = picture_json(plan, measured, 0);
  return j;
}

Json machine_json(const Prepared& run) {
  const HardwareProfile& hw = run.profile;
  Json j{{"machine", hw.machine},
         {"device", run.workload.device.empty() ? "cpu" : run.workload.device},
         {"cores", hw.cores},
         {"compute_threads", hw.compute_threads},
         {"optimizer_threads", hw.optimizer_threads},
         {"memory_bytes_per_second", hw.memory_bytes_per_second}};
  const bool is_bf16 = run.workload.dtype == Dtype::bf16;
  if (const auto& gpu = hw.device) {
    j["matmul_flop_per_second"] = is_bf16 ? gpu->gemm_flops_bf16 : gpu->gemm_flops_f32;
    j["device_memory_bytes_per_second"] = gpu->memory_bytes_per_second;
    j["h2d_bytes_per_second"] = gpu->h2d_bytes_per_second;
    j["d2h_bytes_per_second"] = gpu->d2h_bytes_per_second;
  } else {
    j["matmul_flop_per_second"] = is_bf16 ? hw.gemm_flops_bf16 : hw.gemm_flops_f32;
    j["h2d_bytes_per_second"] = hw.h2d_bytes_per_second;
    j["d2h_bytes_per_second"] = hw.d2h_bytes_per_second;
  }
  if (!run.config.nvme.empty()) {
    j["drive_read_bytes_per_second"] = hw.drive.read_bytes_per_second;
    j["drive_write_bytes_per_second"] = hw.drive.write_bytes_per_second;
    j["drive_mixed_bytes_per_second"] = hw.drive.mixed_bytes_per_second;
    j["drive_block_bytes"] = hw.drive.block_bytes;
    j["drive_requests_in_flight"] = hw.drive.depth;
  }
  return j;
}

}  // namespace sluice
