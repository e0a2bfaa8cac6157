#include "src/train/request/machine_limits.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "sluice/size.h"
#include "src/device/device.h"
#include "src/train/request/assumed_drive.h"

namespace sluice {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// The number that a file holds; `unlimited` for "max", and where there is none.
std::uint64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t bytes = 0;
  return file >> bytes ? bytes : unlimited;
}

/// Of the group and of those that it is in. In a container the path may be one that is seen from outside.
std::uint64_t group_limit(const std::string& root, std::filesystem::path group, const std::string& name) {
  std::uint64_t least = limit_in(root + "/" + name);
  for (; group.has_relative_path(); group = group.parent_path())
    least = std::min(least, limit_in(root + group.string() + "/" + name));
  return least;
}

std::uint64_t control_group_bytes() {
  std::ifstream groups("/proc/self/cgroup");
  std::uint64_t least = unlimited;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t controllers = line.find(':'), path = line.find(':', controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string which = line.substr(controllers + 1, path - controllers - 1), group = line.substr(path + 1);
    if (which.empty()) least = std::min(least, group_limit("/sys/fs/cgroup", group, "memory.max"));
    if (which == "memory")
      least = std::min(least, group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

/// Of all ranks; what 64 bits do not hold is more than any machine has.
std::uint64_t times(std::uint64_t bytes, int ranks) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(std::max(1, ranks)), &product) ? unlimited : product;
}
std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? unlimited : sum;
}

std::string shown(std::uint64_t bytes) { return bytes == unlimited ? "more than 16 EiB" : format_bytes(bytes); }

/// The device's arenas and the host's are in one memory.
void add_shared_memory(const RunConfig& c, std::vector<Excess>& excess) {
  const std::uint64_t device = times(c.device_memory, ranks_of_machine(c)), memory = machine_memory_bytes();
  const std::uint64_t asked = plus(device, c.host_memory);
  if (asked <= memory) return;
  const bool both = device > 0 && c.host_memory > 0;
  std::string options, what;
  if (device > 0) {
    options = fmt::format("--device-memory {}", shown(c.device_memory));
    if (ranks_of_machine(c) > 1) options += fmt::format(" x {} ranks", ranks_of_machine(c));
    what = shown(device) + " of device memory";
  }
  if (c.host_memory > 0) {
    options += fmt::format("{}--host-memory {}", both ? " and " : "", shown(c.host_memory));
    what += fmt::format("{}{} of host memory", both ? " and " : "", shown(c.host_memory));
  }
  excess.push_back({"memory", fmt::format("{} (this machine has {}{})", what, shown(memory), both ? " for both" : ""),
                    fmt::format("{}{}: this machine has {} of memory{}; give less", options,
                                both ? " are " + shown(asked) + " together" : "", shown(memory),
                                both ? ", and the CPU computes in it too" : ""),
                    asked, memory});
}

Status add_apart_memory(const RunConfig& c, std::vector<Excess>& excess) {
  SLUICE_ASSIGN(const std::unique_ptr<Device> device, Device::open(c.device));
  SLUICE_ASSIGN(const std::uint64_t free, device->free_bytes());
  SLUICE_ASSIGN(const std::uint64_t card, bytes_for_ranks(c, free));
  SLUICE_ASSIGN(const int sharers, ranks_of_device(c));
  const std::uint64_t asked = times(c.device_memory, sharers);
  const std::string ranks = sharers > 1 ? fmt::format(" x {} ranks", sharers) : "";
  if (asked > card)
    excess.push_back({"device_memory",
                      fmt::format("{} of device memory ({} has {})", shown(asked), device->description(), shown(card)),
                      fmt::format("--device-memory {}{}: {} has {} to give; give less", shown(c.device_memory), ranks,
                                  device->description(), shown(card)),
                      asked, card});
  const std::uint64_t memory = machine_memory_bytes();
  if (c.host_memory > memory)
    excess.push_back(
        {"host_memory", fmt::format("{} of host memory (this machine has {})", shown(c.host_memory), shown(memory)),
         fmt::format("--host-memory {}: this machine has {} of memory; give less", shown(c.host_memory), shown(memory)),
         c.host_memory, memory});
  return success();
}

/// Directories on one file system share its room.
std::uint64_t room_of(const std::vector<std::string>& directories) {
  std::set<dev_t> seen;
  std::uint64_t bytes = 0;
  for (const std::string& directory : directories) {
    struct stat st {};
    struct statvfs space {};
    if (stat(directory.c_str(), &st) != 0 || statvfs(directory.c_str(), &space) != 0) continue;
    if (seen.insert(st.st_dev).second)
      bytes = plus(bytes, static_cast<std::uint64_t>(space.f_bavail) * static_cast<std::uint64_t>(space.f_frsize));
  }
  return bytes;
}

/// Empty where a swap file can be made in the directory.
std::string wrong_with(const std::string& directory) {
  struct stat st {};
  if (stat(directory.c_str(), &st) != 0) return std::strerror(errno);
  if (!S_ISDIR(st.st_mode)) return "is not a directory";
  return access(directory.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

std::string refusal_of(const std::string& directory, const std::string& wrong) {
  return fmt::format("--nvme {}: {}; give a directory that can be written to", directory, wrong);
}

void add_drives(const RunConfig& c, std::vector<Excess>& excess) {
  std::string listed;
  for (const std::string& directory : c.nvme) listed += (listed.empty() ? "" : ",") + directory;
  for (const std::string& directory : c.nvme) {
    const std::string wrong = wrong_with(directory);
    if (wrong.empty()) continue;
    const std::string size = c.nvme_space > 0 ? shown(c.nvme_space) : "as much as it takes";
    const bool missing = !std::filesystem::exists(directory);
    excess.push_back({"drive",
                      missing
                          ? fmt::format("{} of drive in {} that reads and writes {} ({} is not there)", size, listed,
                                        format_rate(assumed_drive(c.nvme.size()).read_bytes_per_second), directory)
                          : fmt::format("{} of drive in {} ({}: {})", size, listed, directory, wrong),
                      refusal_of(directory, wrong), c.nvme_space, 0});
    return;
  }
  const std::uint64_t room = room_of(c.nvme);
  if (c.nvme.empty() || c.nvme_space <= room) return;
  excess.push_back({"nvme_space",
                    fmt::format("{} of drive in {} (it has room for {})", shown(c.nvme_space), listed, shown(room)),
                    fmt::format("--nvme-space {}: {} has room for {}; give less, or another --nvme",
                                shown(c.nvme_space), listed, shown(room)),
                    c.nvme_space, room});
}

}  // namespace

std::uint64_t machine_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  const auto physical = static_cast<std::uint64_t>(std::max(0L, pages)) * static_cast<std::uint64_t>(size);
  return std::min(physical, control_group_bytes());
}

Result<std::vector<Excess>> beyond_machine(const RunConfig& config) {
  std::vector<Excess> excess;
  if (has_other_devices(config)) return excess;  // prepare holds budgets against what is described
  if (config.device == "cpu")
    add_shared_memory(config, excess);
  else
    SLUICE_TRY(add_apart_memory(config, excess));
  add_drives(config, excess);
  return excess;
}

Status check_machine(const RunConfig& config) {
  SLUICE_ASSIGN(const std::vector<Excess> excess, beyond_machine(config));
  return excess.empty() ? success() : Status(bad_request(excess.front().refusal));
}

Result<std::uint64_t> bytes_for_ranks(const RunConfig& c, std::uint64_t free_bytes) {
  constexpr std::uint64_t context_bytes_max = 512ull << 20;
  // What NCCL takes for its own buffers follows from channels and peers, and it does not tell.
  constexpr std::uint64_t nccl_bytes_max = 1ull << 30;
  SLUICE_ASSIGN(const bool by_nccl, collects_on_device(c));
  if (by_nccl) free_bytes -= std::min(nccl_bytes_max, free_bytes / 16);
  if (c.ranks_of_node == 0) return free_bytes;
  SLUICE_ASSIGN(const int sharers, ranks_of_device(c));
  const std::uint64_t contexts = std::min(context_bytes_max, free_bytes / 16) * static_cast<std::uint64_t>(sharers - 1);
  return free_bytes - std::min(free_bytes, contexts);
}

Result<int> ranks_of_device(const RunConfig& c) {
  if (c.device == "cpu" || c.cluster || c.devices_apart) return 1;
  SLUICE_ASSIGN(const int devices, count_devices(c.device));
  return (ranks_of_machine(c) + devices - 1) / devices;
}

Result<bool> collects_on_device(const RunConfig& c) {
  if (c.transport == Transport::staged) return false;
  const bool is_asked_for = c.transport == Transport::nccl;
  if (c.device == "cpu" && is_asked_for)
    return bad_request(
        "--transport nccl is of ranks on GPUs, and the CPU computes; leave it out, or add --device cuda");
  if (c.device == "cpu" || c.ranks == 1) return false;
  SLUICE_ASSIGN(const int sharers, ranks_of_device(c));
  if (sharers > 1 && is_asked_for)
    return bad_request(
        fmt::format("--transport nccl: {} ranks of a machine would share a GPU, and NCCL takes one of "
                    "each; give fewer --ranks, or --transport staged",
                    sharers));
  if (sharers > 1) return false;
  const Status there = check_device_collectives();
  if (!there.ok() && is_asked_for) return there.error().in("--transport nccl");
  return there.ok();
}

Status check_arenas(const Prepared& run) {
  std::uint64_t asked = 0;
  for (RankId r = 0; r < ranks_of_machine(run.config) && !run.stages.empty(); ++r) {
    const TierBytes& needs = run.stage_of_rank(r).needs;
    asked = plus(asked, plus(run.workload.device.empty() ? needs.device : 0, needs.host));
  }
  const std::uint64_t memory = machine_memory_bytes();
  if (asked <= memory) return success();
  return bad_request(
      fmt::format("{}: the run's plan takes {} of memory, and this machine has {}; go on on a larger one",
                  run.config.run, shown(asked), shown(memory)));
}

nlohmann::ordered_json to_json(const std::vector<Excess>& excess) {
  nlohmann::ordered_json j;
  for (const Excess& e : excess) j[e.key] = {{"asked_bytes", e.asked_bytes}, {"there_bytes", e.there_bytes}};
  return j;
}

}  // namespace sluice
