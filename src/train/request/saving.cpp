#include "src/train/request/saving.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "io/checkpoint/state_writer.h"
#include "io/files/publish.h"
#include "offload/plan/simulate.h"
#include "src/device/profile.h"

namespace sluice {
namespace {

std::optional<dev_t> device_of(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? std::optional(info.st_dev) : std::nullopt;
}

bool is_on_drives(const RunConfig& c, const std::string& directory) {
  const std::optional<dev_t> device = device_of(directory);
  return device && std::ranges::any_of(c.nvme, [&](const std::string& d) { return device_of(d) == device; });
}

/// As save ops find it: all states are durable on drives that share blocks with the checkpoints.
bool shares_blocks(const RunConfig& c, const Workload& workload) {
  const std::string there = nearest_directory(checkpoints_path(c));
  return workload.saves && workload.durable && !c.nvme.empty() &&
         std::ranges::all_of(c.nvme, [&](const std::string& d) {
           return device_of(d) == device_of(there) && directories_share_blocks(d, there);
         });
}

/// Where the checkpoints go, as the simulator has it.
std::optional<Saving> place_of(const Prepared& run) {
  if (run.config.cluster) return std::nullopt;  // where those lie, it does not say
  Saving saving;
  saving.replicas = run.workload.replicas();
  const std::optional<std::string> elsewhere = other_drive_of_checkpoints(run.config, run.workload);
  saving.to_drive = !elsewhere;
  saving.shares_blocks = shares_blocks(run.config, run.workload);
  if (saving.to_drive) return saving;
  const auto measured = run.profile.drives.find(drive_key(std::vector{*elsewhere}));
  if (measured == run.profile.drives.end()) return std::nullopt;
  saving.bytes_per_second = measured->second.write_bytes_per_second;
  return saving;
}

}  // namespace

std::optional<std::string> other_drive_of_checkpoints(const RunConfig& config, const Workload& workload) {
  if (!workload.saves) return std::nullopt;
  const std::string there = nearest_directory(checkpoints_path(config));
  return is_on_drives(config, there) ? std::nullopt : std::optional(there);
}

std::uint64_t saved_to_drives(const Prepared& run, std::uint64_t saves) {
  const RunConfig& c = run.config;
  if (saves == 0 || c.run.empty() || c.cluster || !is_on_drives(c, nearest_directory(checkpoints_path(c)))) return 0;
  if (shares_blocks(c, run.workload)) return 0;
  return saves * (state_bytes(run) / run.workload.replicas());
}

std::optional<SavingStep> predict_saving(const Prepared& run) {
  if (!run.workload.saves || run.stages.empty()) return std::nullopt;
  const std::optional<Saving> place = place_of(run);
  if (!place) return std::nullopt;
  HardwareProfile profile = run.profile;
  profile.saving = place;
  SavingStep step;
  step.to_swap_drive = place->to_drive;
  step.shares_blocks = place->shares_blocks;
  std::vector<const StepPlan*> plans;
  for (const StagePlans& stage : run.stages) {
    plans.push_back(&stage.main);
    std::uint64_t bytes = 0;
    for (const Op& op : stage.main.ops) bytes += op.kind == OpKind::save ? op.bytes : 0;
    step.bytes += bytes * run.workload.ranks_of_stage() / run.workload.replicas();
  }
  const WorldSimulation world = simulate_world(plans, profile);
  step.seconds = world.step_seconds;
  step.bound_seconds = world.bound_seconds;
  return step;
}

}  // namespace sluice
