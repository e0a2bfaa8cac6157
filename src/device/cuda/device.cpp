#include "src/device/cuda/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "sluice/clock.h"
#include "sluice/size.h"

namespace sluice {
namespace {

constexpr std::uint64_t reserve_bytes_max = 1ull << 30;
constexpr int least_major = 8;  ///< compute capability: bf16 on tensor cores, cp.async

Error cuda_fault(const char* what, cudaError_t error) {
  return fault(fmt::format("CUDA: {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

Status check(cudaError_t error, const char* what) {
  return error == cudaSuccess ? success() : Status(cuda_fault(what, error));
}

/// Threads of lanes come and go: each call says whose device it is about.
Status use(int index) { return check(cudaSetDevice(index), "cudaSetDevice"); }

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

Status check_driver() {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return bad_request("no CUDA driver is installed; install NVIDIA's, or compute on --device cpu");
  SLUICE_TRY(check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  if (driver / 1000 < runtime / 1000)
    return bad_request(
        fmt::format("the CUDA driver is for {}, this program needs one for {}.0 or newer; update it, or "
                    "compute on --device cpu",
                    version(driver), runtime / 1000));
  return success();
}

}  // namespace

// ---- memory

Result<int> CudaDevice::count() {
  SLUICE_TRY(check_driver());
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return bad_request(fmt::format("CUDA has no device: {}; compute on --device cpu", cudaGetErrorString(error)));
  return count;
}

std::vector<std::string> CudaDevice::identities() {
  const Result<int> count = CudaDevice::count();
  std::vector<std::string> names;
  for (int index = 0; count.ok() && index < *count; ++index) {
    cudaDeviceProp properties{};
    const bool is_told = cudaGetDeviceProperties(&properties, index) == cudaSuccess;
    const std::string uuid(properties.uuid.bytes, sizeof properties.uuid.bytes);
    const bool has_uuid = is_told && uuid.find_first_not_of('\0') != std::string::npos;
    names.push_back(has_uuid ? uuid : std::to_string(index));
  }
  return names;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int index) {
  SLUICE_ASSIGN(const int count, CudaDevice::count());
  if (index < 0 || index >= count)
    return bad_request(
        fmt::format("there is no device cuda:{}; the driver knows {} (cuda:0 to cuda:{})", index, count, count - 1));
  cudaDeviceProp properties{};
  SLUICE_TRY(check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  if (properties.major < least_major)
    return bad_request(fmt::format("cuda:{} ({}) has compute capability {}.{}, {}.0 is needed; choose another device",
                                   index, properties.name, properties.major, properties.minor, least_major));
  SLUICE_TRY(use(index));
  SLUICE_TRY(check(cudaFree(nullptr), "making the device's context"));
  std::unique_ptr<CudaDevice> device(new CudaDevice());
  device->index_ = index;
  device->kind_ = properties.name;
  device->name_ = fmt::format("{} (cuda:{})", properties.name, index);
  device->total_bytes_ = properties.totalGlobalMem;
  device->cache_bytes_ = static_cast<std::uint64_t>(std::max(0, properties.l2CacheSize));
  return device;
}

int CudaDevice::numa_node() const {
  constexpr auto host_numa_id = static_cast<cudaDeviceAttr>(134);  // CUDA 12.2 gave it a name
  int node = -1;
  if (cudaDeviceGetAttribute(&node, host_numa_id, index_) == cudaSuccess) return node;
  static_cast<void>(cudaGetLastError());  // of a driver that does not know the question
  return -1;
}

Status CudaDevice::make_current() const { return use(index_); }

Result<std::uint64_t> CudaDevice::unused_bytes() const {
  SLUICE_TRY(use(index_));
  std::size_t free = 0, total = 0;
  SLUICE_TRY(check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return std::uint64_t{free};
}

// Loading everything at once (CUDA_MODULE_LOADING=EAGER) would need no reserve, and take the libraries' whole code.
std::uint64_t CudaDevice::reserve_bytes() const { return std::min(total_bytes_ / 32, reserve_bytes_max); }

Result<std::uint64_t> CudaDevice::free_bytes() const {
  SLUICE_ASSIGN(const std::uint64_t unused, unused_bytes());
  return unused - std::min(reserve_bytes(), unused / 2);
}

Result<std::byte*> CudaDevice::allocate(std::uint64_t bytes) {
  SLUICE_ASSIGN(const std::uint64_t usable, free_bytes());
  void* address = nullptr;
  const cudaError_t error = bytes > usable ? cudaErrorMemoryAllocation : cudaMalloc(&address, bytes);
  if (error == cudaSuccess) return static_cast<std::byte*>(address);
  static_cast<void>(cudaGetLastError());
  if (error != cudaErrorMemoryAllocation) return cuda_fault("cudaMalloc", error);
  SLUICE_ASSIGN(const std::uint64_t unused, unused_bytes());
  return bad_request(fmt::format(
      "{} of {} are asked for, and {} are free (of {}), {} of them for code that is loaded later", format_bytes(bytes),
      name_, format_bytes(unused), format_bytes(total_bytes_), format_bytes(std::min(reserve_bytes(), unused / 2))));
}

void CudaDevice::free(std::byte* address, std::uint64_t) {
  static_cast<void>(cudaSetDevice(index_));
  static_cast<void>(cudaFree(address));
}

std::uint64_t& pinned_piece_bytes() {
  static std::uint64_t bytes = 64ull << 30;
  return bytes;
}

namespace {

/// Calls f(offset, bytes) for what lies in each piece of the addresses of `a`, and of `b`, until one fails.
template <class F>
cudaError_t each_piece(const std::byte* a, const std::byte* b, std::uint64_t bytes, F&& f) {
  const std::uint64_t piece = pinned_piece_bytes();
  const auto left = [piece](const std::byte* p) { return piece - (reinterpret_cast<std::uintptr_t>(p) & (piece - 1)); };
  cudaError_t error = cudaSuccess;
  for (std::uint64_t at = 0, n = 0; at < bytes && error == cudaSuccess; at += n) {
    n = std::min({bytes - at, left(a + at), left(b + at)});
    error = f(at, n);
  }
  return error;
}

cudaError_t copy_in_pieces(std::byte* dst, const std::byte* src, std::uint64_t bytes, cudaStream_t stream) {
  return each_piece(dst, src, bytes, [&](std::uint64_t at, std::uint64_t n) {
    return cudaMemcpyAsync(dst + at, src + at, n, cudaMemcpyDefault, stream);
  });
}

void unpin_in_pieces(std::byte* host, std::uint64_t bytes) {
  each_piece(host, host, bytes, [host](std::uint64_t at, std::uint64_t) {
    static_cast<void>(cudaHostUnregister(host + at));  // of a device that has failed, too
    return cudaSuccess;
  });
}

/// All of it or nothing.
cudaError_t pin_in_pieces(std::byte* host, std::uint64_t bytes) {
  std::uint64_t done = 0;
  const cudaError_t error = each_piece(host, host, bytes, [&](std::uint64_t at, std::uint64_t n) {
    const cudaError_t code = cudaHostRegister(host + at, n, cudaHostRegisterPortable);
    if (code == cudaSuccess) done = at + n;
    return code;
  });
  if (error != cudaSuccess) unpin_in_pieces(host, done);
  return error;
}

}  // namespace

// With the stream of the calling thread alone: lanes go on meanwhile.
Status CudaDevice::copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
  SLUICE_TRY(use(index_));
  SLUICE_TRY(check(copy_in_pieces(dst, src, bytes, cudaStreamPerThread), "copying"));
  return check(cudaStreamSynchronize(cudaStreamPerThread), "copying");
}

Status CudaDevice::fill(std::byte* dst, std::byte value, std::uint64_t bytes) {
  SLUICE_TRY(use(index_));
  SLUICE_TRY(check(cudaMemsetAsync(dst, std::to_integer<int>(value), bytes, cudaStreamPerThread), "filling"));
  return check(cudaStreamSynchronize(cudaStreamPerThread), "filling");
}

Status CudaDevice::pin(std::byte* host, std::uint64_t bytes) {
  SLUICE_TRY(use(index_));
  const cudaError_t error = pin_in_pieces(host, bytes);
  if (error == cudaSuccess) return success();
  static_cast<void>(cudaGetLastError());
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur < bytes)
    return bad_request(
        fmt::format("{} of host memory can not be locked for the device: the limit of this process is {} "
                    "(ulimit -l); raise it to unlimited",
                    format_bytes(bytes), format_bytes(limit.rlim_cur)));
  return bad_request(fmt::format("{} of host memory can not be locked for the device: {}; give a smaller --host-memory",
                                 format_bytes(bytes), cudaGetErrorString(error)));
}

void CudaDevice::unpin(std::byte* host, std::uint64_t bytes) {
  static_cast<void>(cudaSetDevice(index_));
  unpin_in_pieces(host, bytes);
}

// ---- queues

namespace {

/// Marks that may be in flight, and the one before the oldest of them: the time of each is told from the one before.
constexpr std::uint64_t ring = DeviceQueue::marks_in_flight + 1;

class Event {
 public:
  Status create() { return check(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync), "cudaEventCreate"); }
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct CudaQueue::Impl {
  int device = 0;
  cudaStream_t stream = nullptr;
  std::array<Event, ring> begun, ended;  ///< by number of the mark since the queue was made
  Event base;
  double last_end = 0;  ///< of the last mark that was awaited, by the host's clock
  Watch watch;
  bool begins = false;                   ///< begin() was called for the next mark
  std::uint64_t number = 0;              ///< of the last mark that was set
  std::atomic<std::uint64_t> offset{0};  ///< each plan counts its marks from 1

  ~Impl() {
    static_cast<void>(cudaSetDevice(device));
    if (stream == nullptr) return;
    // After an error copies may still be on their way, and the memory that they name may go next.
    static_cast<void>(cudaStreamSynchronize(stream));
    static_cast<void>(cudaStreamDestroy(stream));
  }
};

CudaQueue::CudaQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaQueue::~CudaQueue() = default;

Result<std::unique_ptr<CudaQueue>> CudaDevice::make_queue(bool urgent) {
  SLUICE_TRY(use(index_));
  auto impl = std::make_unique<CudaQueue::Impl>();
  impl->device = index_;
  int least = 0, greatest = 0;
  SLUICE_TRY(check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
  SLUICE_TRY(check(cudaStreamCreateWithPriority(&impl->stream, cudaStreamNonBlocking, urgent ? greatest : least),
                   "cudaStreamCreate"));
  SLUICE_TRY(impl->base.create());
  for (std::uint64_t i = 0; i < ring; ++i) {
    SLUICE_TRY(impl->begun[i].create());
    SLUICE_TRY(impl->ended[i].create());
  }
  SLUICE_TRY(check(cudaEventRecord(impl->base, impl->stream), "cudaEventRecord"));
  SLUICE_TRY(check(cudaEventSynchronize(impl->base), "cudaEventSynchronize"));
  impl->last_end = now_seconds();
  return std::unique_ptr<CudaQueue>(new CudaQueue(std::move(impl)));
}

CUstream_st* CudaQueue::stream() const { return impl_->stream; }

Status CudaQueue::begin() {
  SLUICE_TRY(use(impl_->device));
  if (impl_->begins) return success();
  impl_->begins = true;
  return check(cudaEventRecord(impl_->begun[(impl_->number + 1) % ring], impl_->stream), "cudaEventRecord");
}

Status CudaQueue::copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
  SLUICE_TRY(begin());
  return check(copy_in_pieces(dst, src, bytes, impl_->stream), "copying");
}

Status CudaQueue::mark(std::uint64_t mark) {
  SLUICE_TRY(begin());
  if (mark == 1) impl_->offset.store(impl_->number);
  ++impl_->number;
  impl_->begins = false;
  return check(cudaEventRecord(impl_->ended[impl_->number % ring], impl_->stream), "cudaEventRecord");
}

Status CudaQueue::wait_for(const DeviceQueue& other, std::uint64_t mark) {
  SLUICE_TRY(use(impl_->device));
  const Impl& source = *static_cast<const CudaQueue&>(other).impl_;
  const std::uint64_t number = source.offset.load() + mark;
  return check(cudaStreamWaitEvent(impl_->stream, source.ended[number % ring], 0), "cudaStreamWaitEvent");
}

namespace {

/// Pauses between questions: a 32nd of the time waited so far, so that who waits takes no core and wakes soon.
void pause(std::chrono::steady_clock::time_point since) {
  using namespace std::chrono;
  const auto waited = duration_cast<microseconds>(steady_clock::now() - since);
  std::this_thread::sleep_for(std::clamp(waited / 32, microseconds(20), microseconds(1000)));
}

/// Until the event is reached, or the check has an error.
Status await_watched(cudaEvent_t begun, cudaEvent_t ended, const CudaQueue::Watch& watch) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point since = Clock::now();
  for (Clock::time_point began = Clock::time_point::max();;) {
    const cudaError_t state = cudaEventQuery(ended);
    if (state != cudaErrorNotReady) return check(state, "the device's work failed");
    if (began == Clock::time_point::max() && cudaEventQuery(begun) == cudaSuccess) began = Clock::now();
    static_cast<void>(cudaGetLastError());  // that it is not ready is none
    SLUICE_TRY(watch.check(std::max(Clock::duration(0), Clock::now() - std::min(began, Clock::now()))));
    pause(since);
  }
}

}  // namespace

void CudaQueue::set_watch(Watch watch) { impl_->watch = std::move(watch); }

void CudaQueue::abandon() {
  if (impl_->watch.abandon) impl_->watch.abandon();
  static_cast<void>(cudaSetDevice(impl_->device));
  static_cast<void>(cudaStreamSynchronize(impl_->stream));
}

Result<DeviceQueue::Ran> CudaQueue::await(std::uint64_t mark) {
  SLUICE_TRY(use(impl_->device));
  Impl& q = *impl_;
  const std::uint64_t number = q.offset.load() + mark;
  if (q.watch.check) SLUICE_TRY(await_watched(q.begun[number % ring], q.ended[number % ring], q.watch));
  SLUICE_TRY(check(cudaEventSynchronize(q.ended[number % ring]), "the device's work failed"));
  const cudaEvent_t before = number > 1 ? q.ended[(number - 1) % ring] : q.base;
  float begun_ms = 0, ended_ms = 0;
  SLUICE_TRY(check(cudaEventElapsedTime(&begun_ms, before, q.begun[number % ring]), "cudaEventElapsedTime"));
  SLUICE_TRY(check(cudaEventElapsedTime(&ended_ms, before, q.ended[number % ring]), "cudaEventElapsedTime"));
  const double now = now_seconds();
  Ran ran{q.last_end + 1e-3 * begun_ms, q.last_end + 1e-3 * ended_ms};
  // The device's clock and its rounding drift; the host knows that the work has ended by now, and not long ago.
  constexpr double latency = 2e-3;
  const double wrong = ran.end > now ? now - ran.end : ran.end < now - latency ? now - latency - ran.end : 0;
  ran.start += wrong;
  ran.end += wrong;
  q.last_end = ran.end;
  return ran;
}

}  // namespace sluice
