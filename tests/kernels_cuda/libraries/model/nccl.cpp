// An NCCL on the host, for tests without devices: the functions that kernels/cuda/nccl.cpp calls, as the manual
// describes them, for ranks that are threads of one process and have a device of the model each. Work waits in its
// stream until all that it meets is there, and moves bytes then. What the manual forbids is refused: two ranks on one
// device, another call before a communicator has settled, sizes and types that differ among ranks, orders that differ
// among ranks or among the communicators of devices, memory that is not the device's, a communicator that is gone. A
// thread that ends with an open group ends the program; so does memory that is freed early, as the model of the device
// has it.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../../simt/card.h"  // beside a cuda_runtime.h that nccl.h must not find

namespace {

/// A collective or a message, of those ranks of a clique that meet in it.
struct Meeting {
  enum class Kind : std::uint8_t { all_gather, reduce_scatter, message };
  Kind kind{};
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  std::size_t expected = 0, arrived = 0, done = 0;
  std::map<int, const std::byte*> sent;  ///< by rank
  /// What devices have issued right ahead of it, and right behind.
  std::vector<std::shared_ptr<Meeting>> ahead, behind;
  bool is_over = false;     ///< done, or one of its ranks is gone
  bool is_settled = false;  ///< and so is all that any device has issued ahead of it: its order is nobody's concern
};

/// All ranks of a communicator.
struct Clique {
  int ranks = 0;
  std::map<int, int> devices;  ///< by rank, of those that have joined
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<Meeting>> meetings;  ///< by sender, receiver, turn
  ncclResult_t broken = ncclSuccess;
  std::string why;
};

/// Work that one rank puts into a stream at once.
struct Call {
  std::shared_ptr<Meeting> meeting;
  const std::byte* from = nullptr;  ///< null: receives alone
  std::byte* to = nullptr;          ///< null: sends alone
  int sender = -1;                  ///< of a message
};
struct Launch {
  std::vector<Call> calls;
  cudaStream_t stream = nullptr;
};

/// Everything is under one mutex, also while bytes move.
std::mutex& mutex() {
  static std::mutex& m = *new std::mutex;
  return m;
}
std::condition_variable& changed() {
  static std::condition_variable& c = *new std::condition_variable;
  return c;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;  ///< messages, by peer
  bool is_asked = false;                        ///< something, and has not been seen to settle
  int polls = 0;
  Launch pending;  ///< enqueued when it has settled
  int running = 0;
  bool aborted = false;
  std::string why;
};

namespace {

struct World {
  std::map<std::string, std::shared_ptr<Clique>> cliques;  ///< by id
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> live;
  std::map<int, std::deque<std::vector<std::shared_ptr<Meeting>>>> issued;  ///< by device, at once, what is not settled
  std::uint64_t ids = 0;
};
World& world() {
  static World& w = *new World;
  return w;
}

struct Group {
  int depth = 0;
  std::map<std::shared_ptr<ncclComm>, Launch> launches;
  ncclResult_t failed = ncclSuccess;
  ~Group() {
    if (depth == 0) return;
    std::fprintf(stderr, "model of NCCL: a thread has left a group open\n");
    std::abort();
  }
};
thread_local Group group;
thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, const std::string& why, ncclComm* comm = nullptr) {
  last_error = why;
  if (comm != nullptr) comm->why = why;
  return result;
}

std::size_t bytes_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 1; }

std::shared_ptr<ncclComm> find(ncclComm_t handle) {
  const auto found = world().live.find(handle);
  return found == world().live.end() ? nullptr : found->second;
}

bool settle(Meeting& m) {
  if (m.is_settled) return true;
  m.is_settled = m.is_over && std::all_of(m.ahead.begin(), m.ahead.end(), [](const auto& a) { return settle(*a); });
  if (!m.is_settled) return false;
  m.ahead.clear();
  m.behind.clear();
  return true;
}

/// Whether the order of some devices leads from it to one of the others.
bool leads_to(const Meeting& from, const std::set<const Meeting*>& others, std::set<const Meeting*>& seen) {
  return std::any_of(from.behind.begin(), from.behind.end(), [&](const auto& next) {
    return seen.insert(next.get()).second && (others.contains(next.get()) || leads_to(*next, others, seen));
  });
}

/// In the order of its device; false where other devices have it the other way round.
bool keeps_order(const Launch& launch, int device) {
  auto& before = world().issued[device];
  const auto is_settled = [](const auto& at_once) {
    return std::all_of(at_once.begin(), at_once.end(), [](const auto& m) { return settle(*m); });
  };
  while (!before.empty() && is_settled(before.front())) before.pop_front();
  std::set<const Meeting*> earlier, seen;
  for (const auto& at_once : before)
    for (const auto& m : at_once) earlier.insert(m.get());
  for (const Call& call : launch.calls)
    if (leads_to(*call.meeting, earlier, seen)) return false;
  std::vector<std::shared_ptr<Meeting>> at_once;
  for (const Call& call : launch.calls) {
    at_once.push_back(call.meeting);
    if (before.empty()) continue;
    for (const auto& last : before.back()) {
      last->behind.push_back(call.meeting);
      call.meeting->ahead.push_back(last);
    }
  }
  before.push_back(std::move(at_once));
  return true;
}

/// Work of one device may touch the memory of those it meets.
class Peers {
 public:
  explicit Peers(const ncclComm& comm) {
    for (const auto& [rank, device] : comm.clique->devices)
      if (device != comm.device) devices_.insert(device);
    for (const int device : devices_) simt_reach(device, true);
  }
  ~Peers() {
    for (const int device : devices_) simt_reach(device, false);
  }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

 private:
  std::set<int> devices_;
};

/// In the stream: waits for whom it meets, and takes what is its own.
void run(const std::shared_ptr<ncclComm>& comm, const Launch& launch) {
  std::unique_lock lock(mutex());
  if (comm->aborted) return;
  ++comm->running;
  const auto all = [&](auto is_there) {
    changed().notify_all();
    changed().wait(lock, [&] {
      return comm->aborted ||
             std::all_of(launch.calls.begin(), launch.calls.end(), [&](const Call& c) { return is_there(*c.meeting); });
    });
    return !comm->aborted;
  };
  for (const Call& c : launch.calls) {
    if (c.from != nullptr) c.meeting->sent[comm->rank] = c.from;
    ++c.meeting->arrived;
  }
  if (all([](const Meeting& m) { return m.arrived == m.expected; })) {
    const Peers peers(*comm);
    for (const Call& c : launch.calls) {
      if (c.to == nullptr) continue;
      const Meeting& m = *c.meeting;
      const std::size_t bytes = m.count * bytes_of(m.type);
      if (m.kind == Meeting::Kind::message) std::memcpy(c.to, m.sent.at(c.sender), bytes);
      if (m.kind == Meeting::Kind::all_gather)
        for (const auto& [rank, from] : m.sent)
          if (c.to + static_cast<std::size_t>(rank) * bytes != from)
            std::memcpy(c.to + static_cast<std::size_t>(rank) * bytes, from, bytes);
      if (m.kind == Meeting::Kind::reduce_scatter) {
        // An order of its own: around the ring, to this rank last.
        std::vector<float> sum(m.count);
        for (int step = 1; step <= comm->clique->ranks; ++step) {
          const auto* const from =
              reinterpret_cast<const float*>(m.sent.at((comm->rank + step) % comm->clique->ranks)) +
              static_cast<std::size_t>(comm->rank) * m.count;
          for (std::size_t i = 0; i < m.count; ++i) sum[i] += from[i];
        }
        std::memcpy(c.to, sum.data(), bytes);
      }
    }
    for (const Call& c : launch.calls)
      if (++c.meeting->done == c.meeting->expected) c.meeting->is_over = true;
    all([](const Meeting& m) { return m.done == m.expected; });
  }
  // Its memory may be gone soon. Who has not read it yet meets nobody, and waits until it is called off itself.
  if (comm->aborted)
    for (const Call& c : launch.calls) --c.meeting->arrived;
  --comm->running;
  changed().notify_all();
}

bool is_joined(const ncclComm& comm) {
  return comm.clique->devices.size() == static_cast<std::size_t>(comm.clique->ranks);
}

/// Adds it to the thread's group. Checks what can be known when it is asked for.
ncclResult_t add(ncclComm_t handle, Meeting::Kind kind, const void* from, std::size_t from_parts, void* to,
                 std::size_t to_parts, std::size_t count, ncclDataType_t type, int peer, bool sends,
                 cudaStream_t stream) {
  const std::shared_ptr<ncclComm> comm = find(handle);
  if (!comm) return refuse(ncclInvalidArgument, "there is no such communicator: it was aborted, or never made");
  if (comm->is_asked || !is_joined(*comm))
    return refuse(ncclInvalidUsage, "the communicator has not been seen to settle", comm.get());
  if (stream == nullptr || type == ncclNumTypes || (type != ncclInt8 && type != ncclFloat32))
    return refuse(ncclInvalidArgument, "a stream or a type that the model does not know", comm.get());
  const std::size_t bytes = count * bytes_of(type);
  for (const auto& [p, parts] : {std::pair{from, from_parts}, std::pair<const void*, std::size_t>{to, to_parts}})
    if (parts > 0 && !simt_has_memory(comm->device, p, parts * bytes))
      return refuse(ncclInvalidArgument, "a buffer is no memory of the communicator's device", comm.get());
  const bool is_message = kind == Meeting::Kind::message;
  if (is_message && (peer < 0 || peer >= comm->clique->ranks || peer == comm->rank))
    return refuse(ncclInvalidArgument, "there is no such peer", comm.get());
  const int sender = !is_message ? -1
                     : sends     ? comm->rank
                                 : peer,
            receiver = !is_message ? -1
                       : sends     ? peer
                                   : comm->rank;
  std::uint64_t& turn = !is_message ? comm->collectives : sends ? comm->sent[peer] : comm->received[peer];
  std::shared_ptr<Meeting>& meeting = comm->clique->meetings[{sender, receiver, turn}];
  if (!meeting) {
    meeting = std::make_shared<Meeting>();
    meeting->kind = kind;
    meeting->count = count;
    meeting->type = type;
    meeting->expected = is_message ? 2 : static_cast<std::size_t>(comm->clique->ranks);
  }
  if (meeting->kind != kind || meeting->count != count || meeting->type != type)
    return refuse(ncclInvalidUsage, "another rank has another collective, size or type in this turn", comm.get());
  ++turn;
  Launch& launch = group.launches[comm];
  if (launch.stream != nullptr && launch.stream != stream)
    return refuse(ncclInvalidUsage, "a group is in two streams", comm.get());
  launch.stream = stream;
  launch.calls.push_back({meeting, sends || !is_message ? static_cast<const std::byte*>(from) : nullptr,
                          static_cast<std::byte*>(to), sender});
  return ncclSuccess;
}

/// The thread's group becomes work of each of its communicators.
ncclResult_t end_group() {
  ncclResult_t result = std::exchange(group.failed, ncclSuccess);
  for (auto& [comm, launch] : std::exchange(group.launches, {})) {
    if (result != ncclSuccess && result != ncclInProgress) continue;
    if (!keeps_order(launch, comm->device)) {
      result = refuse(ncclInvalidUsage, "the ranks do not issue their work in one order", comm.get());
      continue;
    }
    comm->pending = std::move(launch);
    comm->is_asked = true;
    comm->polls = 0;
    result = ncclInProgress;
  }
  return result;
}

/// As a group of its own where the thread has none.
template <class Add>
ncclResult_t call(Add put) {
  const std::lock_guard lock(mutex());
  const ncclResult_t result = put();
  if (group.depth > 0) {
    if (group.failed == ncclSuccess) group.failed = result;
    return result;
  }
  if (result == ncclSuccess) return end_group();
  group.launches.clear();
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(simt_nccl_version());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array names{"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                             "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
  return names[static_cast<std::size_t>(result)];
}

const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  const std::lock_guard lock(mutex());
  const auto comm = find(handle);
  text = comm && !comm->why.empty() ? comm->why : last_error;
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex());
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "model of NCCL %d %llu", static_cast<int>(getpid()),
                static_cast<unsigned long long>(++world().ids));
  world().cliques[id->internal] = std::make_shared<Clique>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex());
  *made = nullptr;
  const auto found = world().cliques.find(id.internal);
  if (found == world().cliques.end())
    return refuse(ncclInvalidArgument, "an id of no rank of this process, and the model has no others");
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0)
    return refuse(ncclInvalidArgument, "the model has communicators that block nobody alone");
  const std::shared_ptr<Clique>& clique = found->second;
  if (clique->ranks == 0) clique->ranks = ranks;
  if (group.depth > 0 || ranks != clique->ranks || rank < 0 || rank >= ranks || clique->devices.contains(rank))
    return refuse(ncclInvalidUsage, "a rank that is there twice, is none of the others', or joins in a group");
  const int device = simt_current_device();
  for (const auto& [other, its] : clique->devices)
    if (its == device) {
      clique->broken = ncclInvalidUsage;
      clique->why = "Duplicate GPU detected: rank " + std::to_string(other) + " and rank " + std::to_string(rank) +
                    " both on CUDA device " + std::to_string(device);
    }
  clique->devices[rank] = device;
  const auto comm = std::make_shared<ncclComm>();
  comm->clique = clique;
  comm->rank = rank;
  comm->device = device;
  comm->is_asked = true;
  world().live[comm.get()] = comm;
  *made = comm.get();
  return ncclInProgress;
}

/// Work comes into its stream no sooner than with the second question: who puts something behind it before is early.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const std::lock_guard lock(mutex());
  const std::shared_ptr<ncclComm> comm = find(handle);
  if (!comm) return refuse(ncclInvalidArgument, "there is no such communicator");
  if (group.depth > 0) return refuse(ncclInvalidUsage, "a group is open", comm.get());
  *state = comm->clique->broken;
  if (*state != ncclSuccess) comm->why = comm->clique->why;
  if (*state != ncclSuccess || !comm->is_asked) return ncclSuccess;
  *state = ncclInProgress;
  if (!is_joined(*comm) || ++comm->polls < 2) return ncclSuccess;
  comm->is_asked = false;
  *state = ncclSuccess;
  const Launch launch = std::exchange(comm->pending, {});
  if (launch.calls.empty()) return ncclSuccess;
  if (simt_submit(launch.stream, [comm, launch] { run(comm, launch); }) != 0) *state = ncclUnhandledCudaError;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  std::unique_lock lock(mutex());
  const std::shared_ptr<ncclComm> comm = find(handle);
  if (!comm) return refuse(ncclInvalidArgument, "there is no such communicator");
  if (group.depth > 0) return refuse(ncclInvalidUsage, "a group is open", comm.get());
  comm->aborted = true;
  for (const auto& [turn, meeting] : comm->clique->meetings) meeting->is_over = true;
  changed().notify_all();
  changed().wait(lock, [&] { return comm->running == 0; });
  world().live.erase(handle);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::lock_guard lock(mutex());
  if (group.depth == 0) return refuse(ncclInvalidUsage, "no group is open");
  return --group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call([&] {
    const auto known = find(comm);
    const std::size_t ranks = known ? static_cast<std::size_t>(known->clique->ranks) : 1;
    return add(comm, Meeting::Kind::all_gather, from, 1, to, ranks, count, type, -1, true, stream);
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call([&] {
    const auto known = find(comm);
    const std::size_t ranks = known ? static_cast<std::size_t>(known->clique->ranks) : 1;
    if (op != ncclSum || type != ncclFloat32) return refuse(ncclInvalidArgument, "the model adds up fp32 alone");
    return add(comm, Meeting::Kind::reduce_scatter, from, ranks, to, 1, count, type, -1, true, stream);
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call([&] { return add(comm, Meeting::Kind::message, from, 1, nullptr, 0, count, type, peer, true, stream); });
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call([&] { return add(comm, Meeting::Kind::message, nullptr, 0, to, 1, count, type, peer, false, stream); });
}

}  // extern "C"
