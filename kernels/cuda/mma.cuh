// Tensor cores on bf16 tiles in shared memory, and copies into shared memory that a thread need not wait for: the
// instructions that every device from sm_80 on has (PTX ISA: mma.m16n8k16, ldmatrix, cp.async).
//
// Fragments: lane 4 g + t holds, of a 16 x 8 accumulator, rows g and g + 8, columns 2 t and 2 t + 1, in that order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/pack.cuh"

namespace sluice::kernels::cuda {

#ifdef __CUDACC__

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// threadIdx.x, anew each time: what follows from it is not kept in registers over a loop that has none to spare.
__device__ inline int thread_here() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// The block's dynamic shared memory (launch_shared), aligned to 16 bytes.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ uint4 sluice_dynamic_shared[];
  return reinterpret_cast<std::byte*>(sluice_dynamic_shared);
}

/// Four 8 x 8 matrices of bf16: lane 8 i + r gives the address of row r of matrix i, 16 bytes in shared memory. r[i]
/// becomes elements 2 t, 2 t + 1 of row g of matrix i, or of its column g.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// c[16, 8] += a[16, 16] b[16, 8], fp32 sums. Of a: rows g, g + 8 x columns 2 t, 2 t + 1, then the same 8 columns on.
/// Of b: rows 2 t, 2 t + 1 of column g (b0), and 8 rows on (b1).
__device__ inline void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 bytes (or 4) to shared memory, on their way until this thread waits for the group they are committed to; those
/// from `valid` on are zero and are not read. Others see them behind a barrier after that.
__device__ inline void copy_16_async(void* to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid)
               : "memory");
}
__device__ inline void copy_4_async(void* to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All groups but the newest `left` have arrived.
template <int left>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// 2^x within 2^-22 of it; 0 of minus infinity and of what would be denormal.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else  // the model of a device in tests/kernels_cuda/simt

inline int thread_here() { return static_cast<int>(threadIdx.x); }
inline std::byte* dynamic_shared() { return simt::dynamic_shared(); }
inline void load_matrices(std::uint32_t (&r)[4], const void* row) { simt::load_matrices(r, row, false); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) { simt::load_matrices(r, row, true); }
inline void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  simt::multiply_tiles(c, a, b0, b1);
}
inline void copy_16_async(void* to, const void* from, int valid) {
  simt::copy_async(to, from, 16, static_cast<unsigned>(valid));
}
inline void copy_4_async(void* to, const void* from, int valid) {
  simt::copy_async(to, from, 4, static_cast<unsigned>(valid));
}
inline void commit_copies() { simt::copy_commit(); }
template <int left>
void wait_for_copies() {
  simt::copy_wait(left);
}
inline float fast_exp2(float x) { return std::exp2(x); }

#endif

/// As launch, with `shared_bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch_shared(Stream& stream, const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                   std::size_t shared_bytes, const Arguments&... arguments) {
  if (!stream.status()) return;
  cudaError_t error = cudaSuccess;
  if (const auto* key = reinterpret_cast<const void*>(kernel); !stream.may_share(key, shared_bytes)) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess)
      return stream.fail(std::string("CUDA kernel ") + name + " cannot have " + std::to_string(shared_bytes) +
                             " bytes of shared memory",
                         error);
    stream.shares(key, shared_bytes);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle();
  error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  stream.launched(name);
  if (error != cudaSuccess) stream.fail(std::string("CUDA kernel ") + name + " was not launched", error);
}

}  // namespace sluice::kernels::cuda
