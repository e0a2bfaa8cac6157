// What kernels/cuda uses of CUDA, on the host: kernels compiled as C++ against this header run on any machine. Blocks
// run one after the other, the threads of a block as coroutines: each warp runs as far ahead of the others as barriers
// let it, the first warp first or the last. So arithmetic, indices, tails, barriers that not all threads reach and most
// missing barriers show without a device; memory errors show under AddressSanitizer. Tensor cores are modelled fragment
// by fragment. Streams are threads beside the host. What only hardware does (the rest of PTX, scheduling, speed) does
// not show.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "card.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's.
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define SLUICE_SIMT 1

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// What follows has the names, the values and the calling conventions of the toolkit's own header, so that code compiled
// against that runs on the model too (simt/runtime.cpp).
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
#define CUDART_VERSION 12000
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrHostNumaId = 134
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

extern "C" {
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
/// A small device, so that kernels stride.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

cudaError_t cudaMalloc(void** p, std::size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* total);
cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* p);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* p, int value, std::size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset2DAsync(void* p, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream);

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
}

// For benches at smoke size. The toolkit's has more in it, and a function of its own (libraries/model/properties.cpp).
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {"model of a CUDA device", 0, 0, 0};
  cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&properties->minor, cudaDevAttrComputeCapabilityMinor, device);
  return cudaDeviceGetAttribute(&properties->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}

namespace simt {

/// cudaSuccess where the device takes a launch of that shape.
cudaError_t check(const cudaLaunchConfig_t& config);
/// Runs all blocks on the calling thread, one launch at a time.
void run(const cudaLaunchConfig_t& config, const std::function<void()>& thread);
/// Waits for the other threads of the block; whether `any` was true for one of them.
bool block_barrier(bool any);
/// The values of all 32 threads of the warp.
const std::uint64_t* warp_exchange(std::uint64_t value);
unsigned lane();

/// The block's dynamic shared memory. Poison (NaN in every type) when a block begins.
std::byte* dynamic_shared();
/// Of a block at most, dynamic; tests of kernels that choose their tiles by it change it.
inline int shared_bytes_max = 227 << 10;

// Tensor cores and asynchronous copies, as the PTX manual describes them (kernels/cuda/mma.cuh has the real ones).

/// ldmatrix .x4 of 8 x 8 matrices of 16-bit elements: lane 8 i + r hands in the address of row r of matrix i.
void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed);
/// mma.m16n8k16, bf16 operands: c += a b; sums in double precision, rounded once.
void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
/// cp.async: nothing arrives before this thread waits for its group.
void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes);
void copy_commit();
void copy_wait(unsigned groups_left);

template <class T>
T exchanged(std::uint32_t mask, T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  if (mask != 0xffffffffu) __builtin_trap();  // parts of warps are not modelled
  std::memcpy(&value, &warp_exchange(bits)[from % 32], sizeof(T));
  return value;
}

}  // namespace simt

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*)(Parameters...), cudaFuncAttribute, int value) {
  return value <= simt::shared_bytes_max ? cudaSuccess : cudaErrorInvalidValue;
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (const cudaError_t error = simt::check(*config); error != cudaSuccess) return error;
  const std::tuple<Parameters...> copy(std::forward<Arguments>(arguments)...);
  const auto thread = [kernel, copy] { std::apply(kernel, copy); };
  return static_cast<cudaError_t>(simt_submit(config->stream, [c = *config, thread] { simt::run(c, thread); }));
}

inline void __syncthreads() { simt::block_barrier(false); }
inline int __syncthreads_or(int any) { return simt::block_barrier(any != 0) ? 1 : 0; }
template <class T>
T __shfl_sync(std::uint32_t mask, T value, int from) {
  return simt::exchanged(mask, value, static_cast<unsigned>(from));
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int with) {
  return simt::exchanged(mask, value, simt::lane() ^ static_cast<unsigned>(with));
}
inline unsigned __ballot_sync(std::uint32_t, int yes) {
  const std::uint64_t* all = simt::warp_exchange(yes != 0);
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i) ballot |= static_cast<unsigned>(all[i]) << i;
  return ballot;
}
inline unsigned __reduce_max_sync(std::uint32_t, unsigned value) {
  const std::uint64_t* all = simt::warp_exchange(value);
  std::uint64_t most = 0;
  for (unsigned i = 0; i < 32; ++i) most = all[i] > most ? all[i] : most;
  return static_cast<unsigned>(most);
}
inline unsigned __reduce_add_sync(std::uint32_t, unsigned value) {
  const std::uint64_t* all = simt::warp_exchange(value);
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < 32; ++i) sum += all[i];
  return static_cast<unsigned>(sum);
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  const unsigned long long old = *p;
  *p += v;
  return old;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float a) { return std::isnan(a) ? 0 : static_cast<int>(std::nearbyint(a)); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fdividef(float a, float b) { return a / b; }
// NOLINTEND(bugprone-reserved-identifier)
