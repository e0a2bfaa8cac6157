// NUMA nodes, from /sys/devices/system/node, and memory on a given one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

/// Where a rank works, by its place among the ranks of its machine: nodes with cores are dealt out in order, so that
/// each has as many ranks, or each rank has as many nodes, whose cores are then one. `near` is the node of the rank's
/// GPU, or -1 where it is not known. None, for anywhere: of one rank or one node, and where they do not come out even.
std::optional<NumaNode> node_of_rank(const std::vector<NumaNode>& nodes, int place, int ranks, int near = -1);

/// Whether this process may use fewer cores than the machine has: somebody has placed it.
bool is_placed();

}  // namespace sluice
