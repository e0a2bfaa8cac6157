// NUMA nodes, from /sys/devices/system/node, and memory on a given one.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "offload/run/memory.h"
#include "sluice/status.h"

namespace sluice {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;  ///< none where a node is only memory
};

/// Nodes with memory, at least one: where the kernel tells of none, all cores are on node 0.
std::vector<NumaNode> numa_nodes();

/// A list as the kernel writes them: "0-2,8" is 0, 1, 2, 8. None of anything else.
std::vector<int> parse_index_list(std::string_view text);

/// Pages whose memory is all on `node`. Errors: bad_request where the node has too little, fault where the kernel does
/// not let this process choose (containers may forbid set_mempolicy).
Result<Pages> pages_on(int node, std::uint64_t bytes);

/// Runs `work` in a thread that stays on the node's cores, as do the threads that it starts; on any core where it has
/// none. Errors: fault where the kernel refuses.
Status run_on(const NumaNode& node, const std::function<void()>& work);

}  // namespace sluice
