#include "tools/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "io/checksum.h"
#include "src/comm/mpi.h"
#include "src/device/device.h"

namespace sluice::tools {
namespace {

/// Clocks that differ by more make files look older than what they were made from.
constexpr std::int64_t clock_seconds_max = 120;

/// Also of what has no size, as files of /proc.
std::uint64_t checksum_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(1u << 20, '\0');
  std::size_t size = 0;
  while (in.read(text.data() + size, static_cast<std::streamsize>(text.size() - size))) {
    size = text.size();
    text.resize(2 * size);
  }
  size += static_cast<std::size_t>(in.gcount());
  return checksum(std::as_bytes(std::span(text).first(size)));
}

/// What must be alike.
struct Process {
  std::uint64_t program = 0, arguments = 0;
  std::int64_t clock_seconds = 0;
  std::uint64_t node_ranks = 0;
};

Status check_alike(World& world) {
  // All at the same time.
  SLUICE_TRY(agree(world, success()));
  Process own;
  own.program = checksum_of("/proc/self/exe");
  own.arguments = checksum_of("/proc/self/cmdline");
  own.clock_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  own.node_ranks = world.ranks_of_node();
  SLUICE_ASSIGN(const std::vector<std::string> texts,
                world.exchange({reinterpret_cast<const char*>(&own), sizeof own}));
  Process first;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    Process other;
    if (texts[rank].size() != sizeof other) return bad_request("rank " + std::to_string(rank) + " runs another sluice");
    std::memcpy(&other, texts[rank].data(), sizeof other);
    if (rank == 0) first = other;
    const std::string who = "rank " + std::to_string(rank);
    if (other.program != first.program) return bad_request(who + " runs another program than rank 0: install the same");
    if (other.arguments != first.arguments)
      return bad_request(who + " was started with other options than rank 0: all ranks need the same");
    if (other.node_ranks != first.node_ranks)
      return bad_request(who + " is one of " + std::to_string(other.node_ranks) +
                         " on its machine, and rank 0 one of " + std::to_string(first.node_ranks) +
                         ": give all machines as many");
    if (std::abs(other.clock_seconds - first.clock_seconds) > clock_seconds_max)
      return bad_request("the clock of " + who + " is " + std::to_string(other.clock_seconds - first.clock_seconds) +
                         " s away from that of rank 0: set them right");
  }
  return success();
}

/// mpirun binds a process to one core where it can. A rank has a share of the machine's, and its threads need them.
void widen_binding(int node_ranks) {
  cpu_set_t bound, all;
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (cores > CPU_SETSIZE || sched_getaffinity(0, sizeof bound, &bound) != 0) return;
  if (CPU_COUNT(&bound) >= std::max(1L, cores / node_ranks)) return;
  CPU_ZERO(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
  // The kernel takes those that this process's control group may use.
  static_cast<void>(sched_setaffinity(0, sizeof all, &all));
}

/// Launchers may show each process GPUs of its own.
Result<bool> has_devices_apart(World& world) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string own;
  for (const std::string& gpu : visible_gpus()) own += std::string(host.data()) + " " + gpu + std::string(1, '\n');
  SLUICE_ASSIGN(const std::vector<std::string> all, world.exchange(own));
  std::set<std::string> seen;
  bool apart = true;
  for (const std::string& text : all) {
    apart = apart && !text.empty();
    for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
      end = text.find('\n', at);
      if (end == std::string::npos) end = text.size();
      apart = apart && seen.insert(text.substr(at, end - at)).second;
    }
  }
  return apart;
}

/// The world that this process was started in; none where it was started alone.
Status join_world(RunOptions& options, std::set<std::string>& given, std::unique_ptr<World>& world) {
  if (launched().processes == 1) return success();
  SLUICE_ASSIGN(world, connect_by_mpi());
  SLUICE_TRY(check_alike(*world));
  widen_binding(world->ranks_of_node());
  const int ranks = world->ranks();
  if (given.contains("--ranks") && options.config.ranks != ranks)
    return bad_request("--ranks " + std::to_string(options.config.ranks) + ": " + std::to_string(ranks) +
                       " processes were started, and each is a rank; leave --ranks out");
  options.config.ranks = ranks;
  options.config.ranks_of_node = world->ranks_of_node();
  SLUICE_ASSIGN(options.config.devices_apart, has_devices_apart(*world));
  given.insert("--ranks");
  return success();
}

}  // namespace

void run_on_ranks(const char* command, RunOptions& options, std::set<std::string> given, Outcome& outcome,
                  const RankWork& work) {
  std::unique_ptr<World> world;
  Status done = join_world(options, given, world);
  if (done.ok()) {
    done = work(given, world.get());
    if (world != nullptr && !world->has_lost_a_process()) done = agree(*world, done);
  }
  if (world != nullptr) world->end();
  if (world == nullptr || !world->has_lost_a_process()) return outcome.finish(command, done);
  const Error lost = done.ok() ? fault("a process was lost when all was done") : done.error();
  outcome.finish_alone(command, lost.in("rank " + std::to_string(world->here().first)));
  // mpirun ends all when one has failed: each is to say it first.
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

Status check_alone(const std::string& command) {
  if (launched().processes == 1) return success();
  return bad_request("'" + command + "' is one process, and " + std::to_string(launched().processes) +
                     " were started; start it without mpirun");
}

bool is_first_process() { return launched().number == 0; }

}  // namespace sluice::tools
