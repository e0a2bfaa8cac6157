#include "src/train/request/machine.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "sluice/size.h"
#include "src/device/calibrate.h"
#include "src/device/device.h"
#include "src/device/link_measure.h"
#include "src/device/profile.h"
#include "src/device/profile_device.h"
#include "src/device/profile_measure.h"
#include "src/device/profile_rates.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/assumed_drive.h"
#include "src/train/request/drive_space.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/profile_doubts.h"
#include "src/train/request/saving.h"

namespace sluice {
namespace {

/// With what the kernel keeps of files and would give up.
std::uint64_t available_memory_bytes() {
  if (const std::uint64_t bytes = available_host_bytes(); bytes > 0) return bytes;
  const long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return static_cast<std::uint64_t>(std::max(0L, pages)) * static_cast<std::uint64_t>(size);
}

bool all_exist(const std::vector<std::string>& directories) {
  std::error_code ignored;
  return std::ranges::all_of(directories, [&](const std::string& d) { return std::filesystem::exists(d, ignored); });
}

/// Budgets per rank; what the user left open is a share of what the machine has now.
Status set_budgets(const RunConfig& c, const Device& what_computes, Workload& w) {
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(c));
  const std::uint64_t memory = available_memory_bytes();
  SLUICE_ASSIGN(const std::uint64_t own, what_computes.free_bytes());
  SLUICE_ASSIGN(const int sharers, ranks_of_device(c));
  SLUICE_ASSIGN(const std::uint64_t all, bytes_for_ranks(c, own));
  const std::uint64_t of_card = all / 10 * 9 / static_cast<std::uint64_t>(sharers);
  const std::uint64_t device = c.device_memory ? c.device_memory : own > 0 ? of_card : memory / 2 / ranks;
  const std::uint64_t host = (c.host_memory ? c.host_memory : memory / (own > 0 ? 2 : 4)) / ranks;
  std::uint64_t nvme = c.nvme_space / ranks;
  if (c.nvme.empty()) {
    nvme = 1;  // nothing fits a byte, and 0 would mean no limit
  } else if (nvme == 0 && c.assume && !all_exist(c.nvme)) {
    nvme = 0;  // as large as it has to be
  } else if (nvme == 0) {
    SLUICE_ASSIGN(const std::uint64_t space, free_space(c.nvme));
    nvme = std::max<std::uint64_t>(1, space / 10 * 9 / ranks);
  }
  w.budget_bytes = {device, host, nvme};
  return success();
}

/// The same of a machine that is not here.
Status set_budgets_there(const RunConfig& c, Workload& w) {
  const Cluster& there = *c.cluster;
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(c));
  const auto refuse = [&](const char* option, std::uint64_t asked, const std::string& what, std::uint64_t bytes) {
    return bad_request(std::string(option) + " " + format_bytes(asked) + ": " + what + " of --cluster " + there.path +
                       " has " + format_bytes(bytes) + "; give less");
  };
  if (c.device_memory > there.device->memory_bytes)
    return refuse("--device-memory", c.device_memory, there.device->name, there.device->memory_bytes);
  if (c.host_memory > there.host.memory_bytes)
    return refuse("--host-memory", c.host_memory, "a host", there.host.memory_bytes);
  const std::uint64_t drives = there.drives ? static_cast<std::uint64_t>(there.drives->count) * there.drives->bytes : 0;
  if (c.nvme_space > drives) return refuse("--nvme-space", c.nvme_space, "a machine", drives);
  const std::uint64_t nvme = c.nvme_space ? c.nvme_space : drives / 10 * 9;
  w.budget_bytes = {c.device_memory ? c.device_memory : there.device->memory_bytes / 10 * 9,
                    (c.host_memory ? c.host_memory : there.host.memory_bytes / 2) / ranks,
                    std::max<std::uint64_t>(1, nvme / ranks)};
  return success();
}

/// Into the profile, where it succeeds. `why` is told beside the drives' names.
Status measure_drives(Prepared& run, const std::vector<std::string>& drives, const std::string& why, Doubts& doubts,
                      const Tell& progress) {
  DriveOptions options;
  options.directories = drives;
  SLUICE_ASSIGN(options.file_bytes, measuring_bytes(drives));
  const std::string key = drive_key(drives);
  if (progress) progress("measuring " + key + why);
  SLUICE_ASSIGN(const DriveProfile measured, measure_drive_quietly(options, doubts));
  run.profile.drives[key] = measured;
  return success();
}

/// For predictions alone, so that a drive which can not be measured hinders nobody. Whether it was measured now.
bool measure_drive_of_checkpoints(Prepared& run, Doubts& doubts, const Tell& progress) {
  const std::optional<std::string> other = other_drive_of_checkpoints(run.config, run.workload);
  if (!other) return false;
  const std::vector drives{*other};
  if (run.profile.drives.contains(drive_key(drives)) || access(other->c_str(), W_OK) != 0) return false;
  return measure_drives(run, drives, ", for checkpoints (once, about 10 seconds)", doubts, progress).ok();
}

/// `measures`: also the ops of the run's sublayers.
Status get_profile(Prepared& run, Device& device, bool measures, const Tell& progress) {
  const RunConfig& c = run.config;
  std::string path = c.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  bool usable = std::filesystem::exists(path);
  if (usable) {
    Result<HardwareProfile> loaded = load_profile(path);
    // The user's own file is not ours to replace; the default one may be of an older version.
    if (!loaded.ok() && !c.profile.empty()) return loaded.error();
    usable = loaded.ok() && profile_is_of_this_machine(*loaded);
    if (usable) run.profile = *std::move(loaded);
  }
  bool changed = false;
  Doubts doubts = usable ? load_doubts(path) : Doubts();
  if (!usable) {
    if (progress) progress("measuring this machine (once, about half a minute)");
    MeasureOptions options;
    options.progress = progress;
    SLUICE_ASSIGN(run.profile, measure_profile(options, doubts));
    changed = true;
  }
  const bool is_assumed = c.assume && !all_exist(c.nvme);
  const std::vector<std::string> drives = is_assumed ? std::vector<std::string>() : c.nvme;
  MeasuredAgain again;
  if (measures) {
    SLUICE_ASSIGN(again, settle_doubts(run.profile, run.workload, drives, doubts, progress));
  }
  changed = changed || again.changed;
  if (is_assumed) run.profile.drive = assumed_drive(c.nvme.size());
  if (!drives.empty() && !select_drive(run.profile, drives)) {
    SLUICE_TRY(measure_drives(run, drives, " (once, about 10 seconds a drive)", doubts, progress));
    select_drive(run.profile, drives);
    changed = true;
  }
  if (measures) changed = measure_drive_of_checkpoints(run, doubts, progress) || changed;
  run.workload.block_bytes = run.profile.drive.block_bytes;
  if (c.queue_depth > 0) run.profile.drive.depth = static_cast<std::uint32_t>(c.queue_depth);
  if (!select_device(run.profile, device.kind()) || again.device) {
    if (progress) progress("measuring " + device.description() + " (once, some seconds)");
    SLUICE_ASSIGN(const std::unique_ptr<DeviceBench> bench, device.make_bench(run.workload.threads, {}));
    SLUICE_ASSIGN(const std::uint64_t free, device.free_bytes());
    const auto choices = std::move(run.profile.devices[device.kind()].choices);
    SLUICE_ASSIGN(run.profile.devices[device.kind()], measure_device(*bench, DeviceSizes(free)));
    run.profile.devices[device.kind()].choices = choices;
    doubts.measured(device_doubt(device.kind()), "");
    select_device(run.profile, device.kind());
    changed = true;
  }
  bool added = false;
  // A GPU's kernels are chosen as they are measured: all of them are.
  const double budget_seconds = device.kind().empty() ? 30 : 300;
  const bool measures_ops = measures && (run.profile.measures_ops || !device.kind().empty());
  if (measures_ops) SLUICE_TRY(calibrate(run.workload, device, run.profile, budget_seconds, &added, &doubts));
  if (changed || added) {
    SLUICE_TRY(save_profile(path, run.profile));
    SLUICE_TRY(save_doubts(path, doubts));
  }
  if (measures) say_doubts(run.workload, drives, doubts, progress);
  return success();
}

}  // namespace

Status set_sharing(Prepared& run) {
  const RunConfig& c = run.config;
  run.profile.ranks = ranks_of_machine(c);
  run.profile.ranks_apart = run.workload.exchanges;
  // Rates of multiplies were measured with as many threads as the profile says, and an op takes the cores of a rank's.
  const double share = static_cast<double>(run.workload.threads) / std::max(1, run.profile.compute_threads);
  if (run.workload.device.empty() && share < 1) {
    run.profile.gemm_flops_bf16 *= share;
    run.profile.gemm_flops_f32 *= share;
    run.profile.compute_threads = run.workload.threads;
  }
  SLUICE_ASSIGN(run.profile.ranks_of_device, ranks_of_device(c));
  return success();
}

Status take_machine(Prepared& run, bool measures, const Tell& progress) {
  const RunConfig& config = run.config;
  if (has_other_devices(config)) {
    run.workload.device = config.cluster->device->name;
    SLUICE_TRY(set_budgets_there(config, run.workload));
    run.profile = profile_of(*config.cluster);
    run.workload.block_bytes = run.profile.drive.block_bytes;
    if (config.queue_depth > 0) run.profile.drive.depth = static_cast<std::uint32_t>(config.queue_depth);
  } else {
    SLUICE_ASSIGN(const std::unique_ptr<Device> device, Device::open(config.device));
    run.workload.device = device->kind();
    SLUICE_TRY(set_budgets(config, *device, run.workload));
    SLUICE_TRY(get_profile(run, *device, measures, progress));
  }
  SLUICE_TRY(set_sharing(run));
  if (config.cluster) {
    run.profile.messages_inside = config.cluster->messages_inside;
    run.profile.messages_between = config.cluster->messages_between;
  }
  return success();
}

}  // namespace sluice
