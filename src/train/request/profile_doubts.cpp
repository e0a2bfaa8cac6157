#include "src/train/request/profile_doubts.h"

#include <algorithm>
#include <set>

#include "io/drives/queue.h"
#include "sluice/size.h"
#include "src/device/calibrate.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "src/device/profile_rates.h"
#include "src/train/request/drive_space.h"

namespace sluice {
namespace {

/// Below, wake-ups and clocks decide.
constexpr double judged_seconds = 0.02;
/// Of the bound: what clocks and the ends of steps may be off by.
constexpr double beaten_by = 0.98;
/// Measured over predicted seconds of an op: beyond what neighbours on cores and in caches do.
constexpr double far_quicker = 0.7, far_slower = 1.6;
/// An op matters that is this share of the step.
constexpr double share_that_matters = 0.1;
/// Of the file that a drive is measured with again: smaller ones show what caches do.
constexpr std::uint64_t again_bytes_min = 32u << 20, again_bytes_max = 256u << 20;

std::vector<std::string> op_names_of(const Workload& w) {
  std::vector<std::string> names;
  for (const Sublayer sublayer : {Sublayer::embed, Sublayer::attention, Sublayer::mlp, Sublayer::head})
    for (auto kind = OpKind::forward; kind < OpKind::quantize; kind = static_cast<OpKind>(static_cast<int>(kind) + 1))
      names.push_back(cost_key(w, sublayer, kind));
  return names;
}

/// All that predictions of this workload rest on.
std::vector<std::string> names_in_use(const Workload& w, const std::vector<std::string>& drives) {
  std::vector<std::string> names = rate_names();
  if (!drives.empty()) names.push_back(drive_doubt(drive_key(drives)));
  if (!w.device.empty()) names.push_back(device_doubt(w.device));
  for (std::string& name : op_names_of(w)) names.push_back(std::move(name));
  return names;
}

/// Of a drive that is nearly full, as one is that holds the run itself, the old figures and their doubt stay: a run
/// does not fail for want of better ones.
void measure_drive_again(HardwareProfile& profile, const std::vector<std::string>& drives, Doubts& doubts,
                         CpuClock* clock) {
  const Result<std::uint64_t> room = measuring_bytes(drives);
  if (!room.ok() || *room < again_bytes_min) return;
  DriveProfile& known = profile.drives[drive_key(drives)];
  DriveOptions options;
  options.directories = drives;
  options.file_bytes = std::min(*room, again_bytes_max);
  options.setting.block_bytes = known.block_bytes;
  options.setting.depth = known.depth;
  const Result<IoBackendKind> backend = parse_io_backend(known.backend);
  if (!backend.ok()) return;
  options.setting.backend = *backend;
  Result<DriveProfile> measured = measure_drive_quietly(options, doubts, clock);
  if (!measured.ok()) return;
  // Where things lie in swap files follows from them.
  measured->stripe_weights = known.stripe_weights;
  known = *std::move(measured);
}

/// What the bound of this resource was worked out from.
std::vector<std::string> names_behind(const Prepared& run, Resource resource) {
  const Workload& w = run.workload;
  const std::string gemm = w.dtype == Dtype::bf16 ? "gemm_flops_bf16" : "gemm_flops_f32";
  const auto with_ops = [&](std::vector<std::string> names) {
    std::set<std::string> keys;
    for (const StagePlans& stage : run.stages) keys.insert(stage.main.cost_keys.begin(), stage.main.cost_keys.end());
    for (const std::string& key : keys)
      if (run.profile.op_seconds.contains(key)) names.push_back(key);
    return names;
  };
  const std::string device = device_doubt(w.device);
  switch (resource) {
    case Resource::compute: return with_ops({w.device.empty() ? gemm : device});
    case Resource::cores:
      if (!w.device.empty()) return {"checksum_bytes_per_second", device};
      return with_ops({gemm, "adamw_parameters_per_second", "norm_bytes_per_second", "checksum_bytes_per_second"});
    case Resource::memory: return {"memory_bytes_per_second"};
    case Resource::drive: return {drive_doubt(drive_key(run.config.nvme))};
    case Resource::link_down:
    case Resource::link_up: return {w.device.empty() ? "h2d_bytes_per_second" : device};
    case Resource::network: return {};  // what 'bench collective' measures again when it is asked to
  }
  return {};
}

}  // namespace

Result<DriveProfile> measure_drive_quietly(const DriveOptions& options, Doubts& doubts, CpuClock* clock) {
  QuietMeasurer quiet(clock);
  DriveProfile best;
  double most = -1;
  const auto once = [&]() -> Result<double> {
    SLUICE_ASSIGN(const DriveProfile measured, measure_drive(options));
    if (measured.mixed_bytes_per_second > most) best = measured;
    most = std::max(most, measured.mixed_bytes_per_second);
    return measured.mixed_bytes_per_second;
  };
  SLUICE_ASSIGN(const QuietMeasurer::Measured m,
                quiet.measure(QuietMeasurer::Better::more, once, tolerated_share_of_drives));
  doubts.measured(drive_doubt(drive_key(options.directories)), m.disturbance);
  return best;
}

Result<MeasuredAgain> settle_doubts(HardwareProfile& profile, const Workload& workload,
                                    const std::vector<std::string>& drives, Doubts& doubts, const Tell& progress,
                                    CpuClock* clock) {
  MeasuredAgain result;
  std::vector<std::string> names;
  for (const std::string& name : names_in_use(workload, drives))
    if (doubts.to_measure(name)) names.push_back(name);
  if (names.empty()) return result;
  SystemCpuClock system;
  if (!disturbance_now(clock != nullptr ? *clock : system).empty()) return result;
  if (progress) progress("measuring again what is doubted: " + doubts.describe(names));
  const auto chosen = [&](const std::string& name) { return std::ranges::count(names, name) > 0; };
  SLUICE_TRY(measure_rates(profile, chosen, doubts, clock));
  if (!drives.empty() && chosen(drive_doubt(drive_key(drives))) && profile.drives.contains(drive_key(drives)))
    measure_drive_again(profile, drives, doubts, clock);
  for (const std::string& name : names) profile.op_seconds.erase(name);
  result.changed = true;
  result.device = !workload.device.empty() && chosen(device_doubt(workload.device));
  return result;
}

void say_doubts(const Workload& workload, const std::vector<std::string>& drives, const Doubts& doubts,
                const Tell& progress) {
  const std::vector<std::string> names = names_in_use(workload, drives);
  const std::string text = doubts.describe(names);
  if (text.empty() || !progress) return;
  const bool again = std::ranges::any_of(names, [&](const std::string& name) { return doubts.to_measure(name); });
  progress("the profile is doubtful: " + text + "; predictions may be off; " +
           (again ? "the next command on a quiet machine measures it again"
                  : "it was measured again and runs still differ; 'sluice bench all' makes it anew"));
}

std::vector<double> seconds_by_key(const StepPlan& plan, const Timeline& timeline) {
  std::vector<double> seconds(plan.cost_keys.size());
  for (const Span& s : timeline)
    if (const std::int32_t key = plan.ops[s.op].cost; key >= 0)
      seconds[static_cast<std::size_t>(key)] += s.end - s.start;
  return seconds;
}

namespace {

/// A drive's flushes take now this long, now that: steps whose flushes were quicker contradict nothing.
double firm_bound_seconds(const Prepared& run) {
  const Simulation& predicted = run.predicted();
  double flushes = 0;
  for (const Op& op : run.main().ops)
    if (op.kind == OpKind::sync) flushes += run.profile.ranks * op_seconds(run.main(), op, run.profile);
  return predicted.bound_seconds - (predicted.bottleneck == Resource::drive ? flushes : 0);
}

}  // namespace

std::vector<Contradiction> contradictions(const Prepared& run, const ObservedSteps& steps) {
  std::vector<Contradiction> found;
  // When ranks that share a GPU compute beside each other is no matter of the profile.
  if (run.profile.ranks_of_device > 1) return found;
  const Simulation& predicted = run.predicted();
  if (const double bound = firm_bound_seconds(run); bound >= judged_seconds && steps.step_seconds < beaten_by * bound)
    found.push_back({names_behind(run, predicted.bottleneck),
                     "steps took " + format_seconds(steps.step_seconds) +
                         ", the profile says that none is quicker than " + format_seconds(bound) + " (" +
                         resource_names[static_cast<std::size_t>(predicted.bottleneck)] + ")"});
  if (steps.op_seconds.empty()) return found;
  const std::vector<double> foreseen = seconds_by_key(run.main(), predicted.timeline);
  Contradiction ops;
  for (std::size_t key = 0; key < foreseen.size(); ++key) {
    const double measured = steps.op_seconds[key], expected = foreseen[key];
    const bool matters =
        std::max(measured, expected) >= std::max(judged_seconds, share_that_matters * steps.step_seconds);
    const bool far = measured < far_quicker * expected || (!steps.disturbed && measured > far_slower * expected);
    // What of earlier slices documents or a window show a slice was measured of the nearest alone.
    const bool is_mixed = run.main().cost_keys[key].starts_with("attention.core_earlier") &&
                          (run.workload.documents || run.model.config.window > 0);
    if (!matters || !far || is_mixed || !run.profile.op_seconds.contains(run.main().cost_keys[key])) continue;
    ops.names.push_back(run.main().cost_keys[key]);
    if (ops.text.empty())
      ops.text = "'" + run.main().cost_keys[key] + "' took " + format_seconds(measured) + " a step, calibrated were " +
                 format_seconds(expected);
  }
  if (ops.names.size() > 1) ops.text += ", and " + std::to_string(ops.names.size() - 1) + " other ops differ as much";
  if (!ops.names.empty()) found.push_back(ops);
  return found;
}

Status doubt_profile(const RunConfig& config, const std::vector<Contradiction>& found) {
  std::string path = config.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  Doubts doubts = load_doubts(path);
  for (const Contradiction& c : found)
    for (const std::string& name : c.names) doubts.contradict(name, c.text);
  return save_doubts(path, doubts);
}

}  // namespace sluice
