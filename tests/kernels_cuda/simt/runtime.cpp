// The host's side of the model. Each stream has a thread; the default one is the caller's. Device memory is out of
// reach while its device does nothing, and an address is never given twice: what a host reads or writes of it, and what
// is used after it was freed, ends the program. Copies name memory of one allocation, and, on streams of their own,
// host memory that was registered: CUDA would take other memory and make the caller wait. Memory, streams and events
// belong to the device that was current when they were made, and so does what is launched.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda_runtime.h"
#include "ranges.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#endif

namespace {

using simt::card;
using simt::number;
using Clock = std::chrono::steady_clock;

constexpr std::size_t page = 4096, alignment = 256, poisoned_bytes_max = std::size_t{64} << 20;
constexpr std::size_t large_bytes = std::size_t{4} << 20;
constexpr std::size_t address_space = std::size_t{1} << 42;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
std::uint64_t mixed(std::uint64_t n) { return n * 0x9e3779b97f4a7c15u >> 32; }

/// One call of cudaEventRecord. An event that is recorded again has another one, and who waits keeps what it waits for.
struct Record {
  bool reached = false;
  Clock::time_point at;
};

/// Who may touch the memory of a device. With a protection key of the processor those threads alone that do its work;
/// without (no such processor, or no key left) all threads while it works, which takes a system call for each piece of
/// work and allocation.
class Gate {
 public:
  Gate() : key_(pkey_alloc(0, PKEY_DISABLE_ACCESS)) {}
  /// Of an allocation, once.
  void keep(void* pages, std::size_t bytes) const {
    if (key_ >= 0 && pkey_mprotect(pages, bytes, PROT_READ | PROT_WRITE, key_) != 0) std::abort();
  }
  void open(const simt::Ranges& memory) const { key_ >= 0 ? set(0) : protect(memory, PROT_READ | PROT_WRITE); }
  void close(const simt::Ranges& memory) const { key_ >= 0 ? set(PKEY_DISABLE_ACCESS) : protect(memory, PROT_NONE); }
  bool is_of_threads() const { return key_ >= 0; }

 private:
  void set(unsigned rights) const {
    if (pkey_set(key_, rights) != 0) std::abort();
  }
  static void protect(const simt::Ranges& memory, int protection) {
    memory.each([&](void* p, std::size_t bytes) {
      const std::uintptr_t begin = number(p) / page * page;
      const std::size_t size = number(p) + round_up(bytes, alignment) - begin;
      if (mprotect(reinterpret_cast<void*>(begin), size, protection) != 0) std::abort();
    });
  }

  int key_;
};

/// Everything below is under one mutex, which nobody holds while work runs.
struct Device {
  int index = 0;
  Gate gate;
  cudaError_t failed = cudaSuccess;  ///< for good
  std::uint64_t allocations = 0;
  std::byte* space = nullptr;  ///< addresses of its memory, handed out from the front
  std::size_t used = 0;
  simt::Ranges memory;
  unsigned working = 0;

  bool owns(const void* p) const { return space != nullptr && number(p) - number(space) < address_space; }
  /// To the calling thread, which does its work.
  void open() {
    if (working++ == 0 || gate.is_of_threads()) gate.open(memory);
  }
  void close() {
    if (--working == 0 || gate.is_of_threads()) gate.close(memory);
  }
};

/// All devices and what they share.
struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, Device> devices;
  std::uint64_t done = 0;  ///< work of all streams
  simt::Ranges registered;

  Device& at(int index) {
    Device& d = devices[index];
    d.index = index;
    return d;
  }
  Device* owner(const void* p) {
    for (auto& [index, d] : devices)
      if (d.owns(p)) return &d;
    return nullptr;
  }
  /// Runs it without the mutex, unless the device has failed or fails now.
  void run(Device& d, std::unique_lock<std::mutex>& lock, const std::function<void()>& work) {
    if (d.failed != cudaSuccess) return;
    if (++done == card().fails_at) {
      d.failed = cudaErrorECCUncorrectable;
      return;
    }
    const std::uint64_t random = card().delay_seed == 0 ? 1 : mixed(card().delay_seed + done);
    d.open();
    lock.unlock();
    if (random % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random / 4 % 300));
    work();
    lock.lock();
    d.close();
    changed.notify_all();
  }
  /// On a device that has failed nothing runs any more; what is still on its way here ends first.
  void end_of_failed(const Device& d, std::unique_lock<std::mutex>& lock) {
    if (d.failed != cudaSuccess) changed.wait(lock, [&] { return d.working == 0; });
  }
};

Machine& machine() {
  static Machine& m = *new Machine;  // outlives streams of threads that end late
  return m;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;

/// Of the calling thread; under the mutex.
Device& device() { return machine().at(current); }

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Record> last;
};

/// Work in order, on a thread of its own.
struct CUstream_st {
  struct Task {
    std::function<void()> work;
    std::shared_ptr<Record> waits_for, reaches;
  };

  explicit CUstream_st(int index) : device(index), thread_([this] { serve(); }) {}
  /// When all of it has run.
  ~CUstream_st() {
    {
      const std::lock_guard lock(machine().mutex);
      ending_ = true;
      machine().changed.notify_all();
    }
    thread_.join();
  }
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  const int device;

  // Under the mutex.
  void put(Task task) {
    tasks_.push_back(std::move(task));
    machine().changed.notify_all();
  }
  bool idle() const { return tasks_.empty(); }

 private:
  void serve() {
    Machine& m = machine();
    current = device;
    std::unique_lock lock(m.mutex);
    for (;;) {
      m.changed.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const Task& task = tasks_.front();
      if (task.waits_for) m.changed.wait(lock, [&] { return task.waits_for->reached; });
      if (task.work) m.run(m.at(device), lock, task.work);
      if (task.reaches) *task.reaches = {true, Clock::now()};
      tasks_.pop_front();
      m.changed.notify_all();
    }
  }

  std::deque<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

namespace {

/// Null for the default stream of the current device, whose work the caller does.
CUstream_st* thread_of(cudaStream_t stream) {
  if (stream != cudaStreamPerThread) return stream;
  thread_local std::map<int, CUstream_st> own;
  return &own.try_emplace(current, current).first->second;
}

cudaError_t submit(cudaStream_t handle, CUstream_st::Task task) {
  CUstream_st* const stream = thread_of(handle);
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  Device& d = stream != nullptr ? m.at(stream->device) : device();
  if (d.failed != cudaSuccess) return d.failed;
  if (stream != nullptr) {
    stream->put(std::move(task));
    return cudaSuccess;
  }
  if (task.waits_for) m.changed.wait(lock, [&] { return task.waits_for->reached; });
  if (task.work) m.run(d, lock, task.work);
  if (task.reaches) *task.reaches = {true, Clock::now()};
  m.changed.notify_all();
  return d.failed;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  return submit(stream, CUstream_st::Task{.work = std::move(work), .waits_for = {}, .reaches = {}});
}

/// Whether a copy or a fill may name it: all of it in one allocation, or of the host. Copies between devices are not
/// modelled.
bool is_usable(const void* p, std::size_t bytes, cudaStream_t stream) {
  Machine& m = machine();
  const bool is_own = stream != nullptr && stream != cudaStreamPerThread;
  if (const Device* const d = m.owner(p))
    return d->index == (is_own ? stream->device : current) && d->memory.contain(p, bytes);
  return !is_own || m.registered.contain(p, bytes);
}

std::size_t unused_bytes() {
  const Device& d = device();
  const std::size_t used = card().taken + d.memory.bytes();
  return d.allocations >= card().allocations || used > card().memory ? 0 : card().memory - used;
}

}  // namespace

namespace simt {

void restart() {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.done = 0;
  for (auto& [index, d] : m.devices) {
    d.failed = cudaSuccess;
    d.allocations = 0;
  }
}

std::uint64_t work_done() {
  const std::lock_guard lock(machine().mutex);
  return machine().done;
}

}  // namespace simt

extern "C" {

unsigned simt_submit(CUstream_st* stream, std::function<void()> work) {
  const bool is_own = stream != nullptr && stream != cudaStreamPerThread;
  if (is_own && stream->device != current) return result(cudaErrorInvalidResourceHandle);
  return result(submit(stream, std::move(work)));
}

int simt_current_device() { return current; }

void simt_reach(int index, bool open) {
  const std::lock_guard lock(machine().mutex);
  Device& d = machine().at(index);
  open ? d.open() : d.close();
}

bool simt_has_memory(int index, const void* p, std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  return machine().at(index).memory.contain(p, bytes);
}

// ---- devices

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(machine().mutex);
  return device().failed != cudaSuccess ? device().failed : std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(card().driver);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(card().devices);
  return result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* index) {
  *index = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  if (index < 0 || static_cast<std::uint64_t>(index) >= card().devices) return result(cudaErrorInvalidDevice);
  current = index;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 2; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = static_cast<int>(card().capability / 10); return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = static_cast<int>(card().capability % 10); return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = simt::shared_bytes_max; return cudaSuccess;
    case cudaDevAttrHostNumaId: *value = -1; return cudaSuccess;
  }
  return result(cudaErrorInvalidValue);
}

// ---- memory

/// No better aligned than CUDA promises, with an end before a page that nobody may touch.
cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  *p = nullptr;
  const std::lock_guard lock(machine().mutex);
  Device& d = device();
  if (d.failed != cudaSuccess || bytes == 0) return result(d.failed);
  if (d.space == nullptr) {
    void* const space = mmap(nullptr, address_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    d.space = static_cast<std::byte*>(space);
  }
  const std::size_t padded = round_up(bytes, alignment), end = d.used + page + round_up(padded, page);
  if (bytes > unused_bytes() || end + page > address_space) return result(cudaErrorMemoryAllocation);
  std::byte* const begin = d.space + end - padded;
  d.used = end;
  ++d.allocations;
  d.memory.add(begin, bytes);
  // Fewer pages to open and close.
  if (padded > large_bytes) madvise(d.space + end - round_up(padded, page), round_up(padded, page), MADV_HUGEPAGE);
  d.gate.keep(d.space + end - round_up(padded, page), round_up(padded, page));
  d.open();
  std::memset(begin, 0xff, std::min(bytes, poisoned_bytes_max));  // NaN in every type
  d.close();
  ASAN_POISON_MEMORY_REGION(begin + bytes, padded - bytes);
  *p = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (p == nullptr) return cudaSuccess;
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  Device* const owner = m.owner(p);
  if (owner == nullptr) return result(cudaErrorInvalidValue);
  Device& d = *owner;
  m.end_of_failed(d, lock);
  const std::size_t bytes = d.memory.remove(p);
  if (bytes == 0) return result(cudaErrorInvalidValue);
  const std::uintptr_t begin = number(p) / page * page;
  const std::size_t padded = round_up(bytes, alignment);
  ASAN_UNPOISON_MEMORY_REGION(p, padded);
  void* const pages = reinterpret_cast<void*>(begin);
  if (mmap(pages, number(p) + padded - begin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) != pages)
    std::abort();
  return result(d.failed);
}

cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* total) {
  const std::lock_guard lock(machine().mutex);
  *unused = unused_bytes();
  *total = card().memory;
  return result(device().failed);
}

cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (device().failed != cudaSuccess) return result(device().failed);
  if (p == nullptr || bytes == 0) return result(cudaErrorInvalidValue);
  if (m.registered.meet(p, bytes)) return result(cudaErrorHostMemoryAlreadyRegistered);
  if (bytes > card().lockable || m.registered.bytes() > card().lockable - bytes)
    return result(cudaErrorMemoryAllocation);
  m.registered.add(p, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* p) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  m.end_of_failed(device(), lock);
  return result(m.registered.remove(p) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  {
    const std::lock_guard lock(machine().mutex);
    if (!is_usable(to, bytes, stream) || !is_usable(from, bytes, stream)) return result(cudaErrorInvalidValue);
  }
  return result(submit(stream, [=] { std::memcpy(to, from, bytes); }));
}

cudaError_t cudaMemset2DAsync(void* p, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  {
    const std::lock_guard lock(machine().mutex);
    if (width > pitch || !is_usable(p, pitch * (height - 1) + width, stream)) return result(cudaErrorInvalidValue);
  }
  return result(submit(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) std::memset(static_cast<std::byte*>(p) + row * pitch, value, width);
  }));
}

cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(p, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemset(void* p, int value, std::size_t bytes) { return cudaMemsetAsync(p, value, bytes, nullptr); }

// ---- streams and events

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = nullptr;
  {
    const std::lock_guard lock(machine().mutex);
    if (device().failed != cudaSuccess) return result(device().failed);
  }
  *stream = new CUstream_st(current);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const CUstream_st* const stream = thread_of(handle);
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  if (stream != nullptr) m.changed.wait(lock, [&] { return stream->idle(); });
  return result(stream != nullptr ? m.at(stream->device).failed : device().failed);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::shared_ptr<Record> last;
  {
    const std::lock_guard lock(machine().mutex);
    last = event->last;
  }
  return result(submit(stream, CUstream_st::Task{.work = {}, .waits_for = last, .reaches = {}}));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st{.device = current, .last = {}};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const bool is_own = stream != nullptr && stream != cudaStreamPerThread;
  if (event->device != (is_own ? stream->device : current)) return result(cudaErrorInvalidResourceHandle);
  const auto record = std::make_shared<Record>();
  const cudaError_t error = submit(stream, CUstream_st::Task{.work = {}, .waits_for = {}, .reaches = record});
  const std::lock_guard lock(machine().mutex);
  if (error == cudaSuccess) event->last = record;
  return result(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  const std::shared_ptr<Record> record = event->last;
  if (record) m.changed.wait(lock, [&] { return record->reached; });
  return result(m.at(event->device).failed);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (const cudaError_t failed = machine().at(event->device).failed; failed != cudaSuccess) return result(failed);
  return event->last && !event->last->reached ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(machine().mutex);
  if (const cudaError_t failed = machine().at(end->device).failed; failed != cudaSuccess) return result(failed);
  if (!begin->last || !end->last) return result(cudaErrorInvalidResourceHandle);
  if (!begin->last->reached || !end->last->reached) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->last->at - begin->last->at).count();
  return cudaSuccess;
}

}  // extern "C"
