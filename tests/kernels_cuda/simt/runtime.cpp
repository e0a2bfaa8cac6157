// The host's side of the model. Each stream has a thread; the default one is the caller's. Device memory is out of
// reach while the device does nothing, and an address is never given twice: what a host reads or writes of it, and what
// is used after it was freed, ends the program. Copies name memory of one allocation, and, on streams of their own,
// host memory that was registered: CUDA would take other memory and make the caller wait.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
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

/// Everything below is under one mutex, which nobody holds while work runs.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  cudaError_t failed = cudaSuccess;  ///< for good
  std::uint64_t allocations = 0, done = 0;
  std::byte* space = nullptr;  ///< addresses of device memory, handed out from the front
  std::size_t used = 0;
  simt::Ranges memory, registered;
  unsigned working = 0;

  bool owns(const void* p) const { return space != nullptr && number(p) - number(space) < address_space; }
  void reach(int protection) const {
    memory.each([&](void* p, std::size_t bytes) {
      const std::uintptr_t begin = number(p) / page * page;
      const std::size_t size = number(p) + round_up(bytes, alignment) - begin;
      if (mprotect(reinterpret_cast<void*>(begin), size, protection) != 0) std::abort();
    });
  }
  /// Runs it without the mutex, unless the device has failed or fails now.
  void run(std::unique_lock<std::mutex>& lock, const std::function<void()>& work) {
    if (failed != cudaSuccess) return;
    if (++done == card().fails_at) {
      failed = cudaErrorECCUncorrectable;
      return;
    }
    const std::uint64_t random = card().delay_seed == 0 ? 1 : mixed(card().delay_seed + done);
    if (working++ == 0) reach(PROT_READ | PROT_WRITE);
    lock.unlock();
    if (random % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random / 4 % 300));
    work();
    lock.lock();
    if (--working == 0) reach(PROT_NONE);
    changed.notify_all();
  }
  /// On a device that has failed nothing runs any more; what is still on its way here ends first.
  void end_of_failed(std::unique_lock<std::mutex>& lock) {
    if (failed != cudaSuccess) changed.wait(lock, [&] { return working == 0; });
  }
};

Device& device() {
  static Device& d = *new Device;  // outlives streams of threads that end late
  return d;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace

struct CUevent_st {
  std::shared_ptr<Record> last;
};

/// Work in order, on a thread of its own.
struct CUstream_st {
  struct Task {
    std::function<void()> work;
    std::shared_ptr<Record> waits_for, reaches;
  };

  CUstream_st() : thread_([this] { serve(); }) {}
  /// When all of it has run.
  ~CUstream_st() {
    {
      const std::lock_guard lock(device().mutex);
      ending_ = true;
      device().changed.notify_all();
    }
    thread_.join();
  }
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  // Under the device's mutex.
  void put(Task task) {
    tasks_.push_back(std::move(task));
    device().changed.notify_all();
  }
  bool idle() const { return tasks_.empty(); }

 private:
  void serve() {
    Device& d = device();
    std::unique_lock lock(d.mutex);
    for (;;) {
      d.changed.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const Task& task = tasks_.front();
      if (task.waits_for) d.changed.wait(lock, [&] { return task.waits_for->reached; });
      if (task.work) d.run(lock, task.work);
      if (task.reaches) *task.reaches = {true, Clock::now()};
      tasks_.pop_front();
      d.changed.notify_all();
    }
  }

  std::deque<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

namespace {

/// Null for the default stream, whose work the caller does.
CUstream_st* thread_of(cudaStream_t stream) {
  if (stream != cudaStreamPerThread) return stream;
  thread_local CUstream_st own;
  return &own;
}

cudaError_t submit(cudaStream_t handle, CUstream_st::Task task) {
  CUstream_st* const stream = thread_of(handle);
  Device& d = device();
  std::unique_lock lock(d.mutex);
  if (d.failed != cudaSuccess) return d.failed;
  if (stream != nullptr) {
    stream->put(std::move(task));
    return cudaSuccess;
  }
  if (task.waits_for) d.changed.wait(lock, [&] { return task.waits_for->reached; });
  if (task.work) d.run(lock, task.work);
  if (task.reaches) *task.reaches = {true, Clock::now()};
  d.changed.notify_all();
  return d.failed;
}

/// Whether a copy or a fill may name it: all of it in one allocation, or of the host.
bool is_usable(const void* p, std::size_t bytes, cudaStream_t stream) {
  const Device& d = device();
  if (d.owns(p)) return d.memory.contain(p, bytes);
  return stream == nullptr || stream == cudaStreamPerThread || d.registered.contain(p, bytes);
}

std::size_t unused_bytes() {
  const Device& d = device();
  const std::size_t used = card().taken + d.memory.bytes();
  return d.allocations >= card().allocations || used > card().memory ? 0 : card().memory - used;
}

}  // namespace

namespace simt {

void restart() {
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  d.failed = cudaSuccess;
  d.allocations = d.done = 0;
}

std::uint64_t work_done() {
  const std::lock_guard lock(device().mutex);
  return device().done;
}

}  // namespace simt

extern "C" {

unsigned simt_submit(CUstream_st* stream, std::function<void()> work) {
  return result(submit(stream, {.work = std::move(work), .waits_for = {}, .reaches = {}}));
}

// ---- devices

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(device().mutex);
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
  Device& d = device();
  std::unique_lock lock(d.mutex);
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
  d.reach(PROT_READ | PROT_WRITE);
  std::memset(begin, 0xff, std::min(bytes, poisoned_bytes_max));  // NaN in every type
  if (d.working == 0) d.reach(PROT_NONE);
  ASAN_POISON_MEMORY_REGION(begin + bytes, padded - bytes);
  *p = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (p == nullptr) return cudaSuccess;
  Device& d = device();
  std::unique_lock lock(d.mutex);
  d.end_of_failed(lock);
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
  const std::lock_guard lock(device().mutex);
  *unused = unused_bytes();
  *total = card().memory;
  return result(device().failed);
}

cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  if (d.failed != cudaSuccess) return result(d.failed);
  if (p == nullptr || bytes == 0) return result(cudaErrorInvalidValue);
  if (d.registered.meet(p, bytes)) return result(cudaErrorHostMemoryAlreadyRegistered);
  if (bytes > card().lockable || d.registered.bytes() > card().lockable - bytes)
    return result(cudaErrorMemoryAllocation);
  d.registered.add(p, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* p) {
  std::unique_lock lock(device().mutex);
  device().end_of_failed(lock);
  return result(device().registered.remove(p) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  {
    const std::lock_guard lock(device().mutex);
    if (!is_usable(to, bytes, stream) || !is_usable(from, bytes, stream)) return result(cudaErrorInvalidValue);
  }
  return static_cast<cudaError_t>(simt_submit(stream, [=] { std::memcpy(to, from, bytes); }));
}

cudaError_t cudaMemset2DAsync(void* p, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  {
    const std::lock_guard lock(device().mutex);
    if (width > pitch || !is_usable(p, pitch * (height - 1) + width, stream)) return result(cudaErrorInvalidValue);
  }
  return static_cast<cudaError_t>(simt_submit(stream, [=] {
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
    const std::lock_guard lock(device().mutex);
    if (device().failed != cudaSuccess) return result(device().failed);
  }
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const CUstream_st* const stream = thread_of(handle);
  Device& d = device();
  std::unique_lock lock(d.mutex);
  if (stream != nullptr) d.changed.wait(lock, [&] { return stream->idle(); });
  return result(d.failed);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::shared_ptr<Record> last;
  {
    const std::lock_guard lock(device().mutex);
    last = event->last;
  }
  return result(submit(stream, {.work = {}, .waits_for = last, .reaches = {}}));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto record = std::make_shared<Record>();
  const cudaError_t error = submit(stream, {.work = {}, .waits_for = {}, .reaches = record});
  const std::lock_guard lock(device().mutex);
  if (error == cudaSuccess) event->last = record;
  return result(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Device& d = device();
  std::unique_lock lock(d.mutex);
  const std::shared_ptr<Record> record = event->last;
  if (record) d.changed.wait(lock, [&] { return record->reached; });
  return result(d.failed);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(device().mutex);
  if (device().failed != cudaSuccess) return result(device().failed);
  if (!begin->last || !end->last) return result(cudaErrorInvalidResourceHandle);
  if (!begin->last->reached || !end->last->reached) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->last->at - begin->last->at).count();
  return cudaSuccess;
}

}  // extern "C"
