// What a configuration asks for, beside what this machine has.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/train/request/prepare.h"

namespace sluice {

/// Of all memory, or of the control group that this process is in where that is less.
std::uint64_t machine_memory_bytes();

/// Something that is asked for and not there.
struct Excess {
  std::string key;      ///< in JSON: "memory", "device_memory", "host_memory", "nvme_space", "drive"
  std::string assumed;  ///< for people: "512 GiB of host memory (this machine has 23.4 GiB)"
  std::string refusal;  ///< the option, what is there, and what to do
  std::uint64_t asked_bytes = 0, there_bytes = 0;
};

/// Budgets that are given and exceed the machine's memory, its card's, or the room of the file systems of --nvme; and
/// directories of --nvme that are missing or can not be written to. Budgets that are left open follow the machine.
/// bad_request where the device can not be opened.
Result<std::vector<Excess>> beyond_machine(const RunConfig& config);
/// bad_request for the first of those.
Status check_machine(const RunConfig& config);
/// Whether the arenas of a run that goes on fit into this machine's memory, whatever its budgets are.
Status check_arenas(const Prepared& run);

/// Of a GPU with so many free bytes, what its ranks may take: each process but the first makes a CUDA context, half a
/// GiB of a large card.
Result<std::uint64_t> bytes_for_ranks(const RunConfig& config, std::uint64_t free_bytes);

/// That share a GPU, at most; 1 on the CPU, and where a cluster is described, whose ranks have one each.
Result<int> ranks_of_device(const RunConfig& config);

/// Whether collectives of ranks on GPUs go from GPU to GPU. bad_request where that is asked for and can not be.
Result<bool> collects_on_device(const RunConfig& config);

/// {"host_memory": {"asked_bytes": ..., "there_bytes": ...}, ...}
nlohmann::ordered_json to_json(const std::vector<Excess>& excess);

}  // namespace sluice
