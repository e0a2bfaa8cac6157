// What the model of a device has to say in the toolkit's own types, and that the other names have the toolkit's values.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "card.h"

static_assert(cudaErrorECCUncorrectable == 214 && cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600);
static_assert(cudaErrorHostMemoryAlreadyRegistered == 712 && cudaErrorHostMemoryNotRegistered == 713);
static_assert(cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101 && cudaErrorInvalidConfiguration == 9);
static_assert(cudaMemcpyDefault == 4 && cudaDevAttrMaxSharedMemoryPerBlockOptin == 97);
static_assert(cudaDevAttrComputeCapabilityMajor == 75 && cudaDevAttrComputeCapabilityMinor == 76);

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "model of a CUDA device");
  properties->totalGlobalMem = simt::card().memory;
  properties->l2CacheSize = 1 << 18;
  cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&properties->minor, cudaDevAttrComputeCapabilityMinor, device);
  return cudaDeviceGetAttribute(&properties->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}
