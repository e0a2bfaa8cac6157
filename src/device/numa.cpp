#include "src/device/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace sluice {
namespace {

constexpr int max_nodes = 1024;  ///< of the kernel (NODES_SHIFT 10)

std::vector<int> list_in(const std::string& path) {
  std::ifstream file("/sys/devices/system/node/" + path);
  std::string line;
  std::getline(file, line);
  return parse_index_list(line);
}

std::string reason(int error) { return std::strerror(error); }

/// From here on the calling thread's new pages come from `node`. libnuma would be a dependency for one call.
Status allocate_on(int node) {
  constexpr int bits = 8 * sizeof(unsigned long);
  unsigned long mask[max_nodes / bits] = {};
  SLUICE_CHECK(node >= 0 && node < max_nodes, "(node %d)", node);
  mask[node / bits] = 1ul << (node % bits);
  if (syscall(SYS_set_mempolicy, MPOL_BIND, mask, max_nodes + 1) == 0) return success();
  return fault("cannot choose memory of NUMA node " + std::to_string(node) + ": " + reason(errno) +
               "; a container must allow set_mempolicy");
}

Status stay_on(const NumaNode& node) {
  if (node.cores.empty()) return success();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : node.cores)
    if (core < CPU_SETSIZE) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) == 0) return success();
  return fault("cannot run on the cores of NUMA node " + std::to_string(node.id) + ": " + reason(errno));
}

}  // namespace

std::vector<int> parse_index_list(std::string_view text) {
  constexpr int most = 1 << 16;
  std::vector<int> list;
  const char *at = text.data(), *const end = at + text.size();
  const auto number = [&](int* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next;
    return error == std::errc() && *value >= 0 && *value < most;
  };
  for (bool more = true; more;) {
    int first = 0;
    if (!number(&first)) return {};
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last) || last < first) return {};
    }
    for (int i = first; i <= last; ++i) list.push_back(i);
    more = at != end;
    if (more && *at++ != ',') return {};
  }
  return list;
}

std::vector<NumaNode> numa_nodes() {
  std::vector<NumaNode> nodes;
  for (const int id : list_in("has_memory")) nodes.push_back({id, list_in("node" + std::to_string(id) + "/cpulist")});
  if (nodes.empty()) nodes.push_back({0, {}});
  return nodes;
}

Result<Pages> pages_on(int node, std::uint64_t bytes) {
  Result<Pages> pages = fault("");
  // The policy is the thread's, and ends with it.
  std::thread([&] {
    const Status chosen = allocate_on(node);
    pages = chosen.ok() ? Pages::make(bytes) : Result<Pages>(chosen.error());
  }).join();
  return pages;
}

std::optional<NumaNode> node_of_rank(const std::vector<NumaNode>& nodes, int place, int ranks, int near) {
  std::vector<NumaNode> with_cores;
  std::ranges::copy_if(nodes, std::back_inserter(with_cores), [](const NumaNode& n) { return !n.cores.empty(); });
  const int count = static_cast<int>(with_cores.size());
  if (count <= 1 || ranks <= 1) return std::nullopt;
  for (const NumaNode& node : with_cores)
    if (node.id == near) return node;
  if (ranks % count == 0) return with_cores[static_cast<std::size_t>(place / (ranks / count))];
  if (count % ranks != 0) return std::nullopt;
  const auto share = static_cast<std::size_t>(count / ranks), first = static_cast<std::size_t>(place) * share;
  NumaNode all = with_cores[first];
  for (std::size_t i = first + 1; i < first + share; ++i)
    all.cores.insert(all.cores.end(), with_cores[i].cores.begin(), with_cores[i].cores.end());
  return all;
}

bool is_placed() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < sysconf(_SC_NPROCESSORS_ONLN);
}

Status run_on(const NumaNode& node, const std::function<void()>& work) {
  Status status;
  std::thread([&] {
    status = stay_on(node);
    if (status.ok()) work();
  }).join();
  return status;
}

}  // namespace sluice
