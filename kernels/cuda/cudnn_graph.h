// cuDNN's graphs: operations over tensors, and the plan that its heuristics make of them (internal to attention_cudnn).
#pragma once

#include <cudnn_backend.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/status.h"

namespace sluice::kernels::cuda {

/// The functions of cuDNN that are used here, from a library that is opened at run time.
struct Cudnn {
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnBackendCreateDescriptor) descriptor_create;
  decltype(&cudnnBackendDestroyDescriptor) descriptor_destroy;
  decltype(&cudnnBackendSetAttribute) set;
  decltype(&cudnnBackendGetAttribute) get;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;

  static Result<Cudnn> open();
  Status as_status(cudnnStatus_t code, const char* what) const;
};

using CudnnDescriptor = std::unique_ptr<void, cudnnStatus_t (*)(cudnnBackendDescriptor_t)>;

/// Pointers for the tensors of a graph, by their ids; scalars are the host's.
struct CudnnPointer {
  std::int64_t id;
  const void* address;
};

class CudnnPlan {
 public:
  CudnnPlan(const Cudnn& cudnn, CudnnDescriptor plan, std::int64_t workspace_bytes)
      : cudnn_(cudnn), plan_(std::move(plan)), workspace_bytes_(workspace_bytes) {}
  std::uint64_t workspace_bytes() const { return static_cast<std::uint64_t>(workspace_bytes_); }
  /// In the order of the stream that the handle was given. Allocates little.
  Status run(cudnnHandle_t handle, std::span<const CudnnPointer> tensors, void* workspace) const;

 private:
  Cudnn cudnn_;
  CudnnDescriptor plan_;
  std::int64_t workspace_bytes_;
};

/// Builds one graph. The first error is kept and what comes after it does nothing; plan() says what it was.
class CudnnGraph {
 public:
  using Four = std::array<std::int64_t, 4>;
  using Tensor = std::size_t;  ///< a number of this graph

  explicit CudnnGraph(const Cudnn& cudnn) : cudnn_(cudnn) {}

  /// In memory, aligned to 16 bytes; or a single value of the host's; or nowhere: from one operation to others.
  Tensor in_memory(std::int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type);
  Tensor scalar(std::int64_t id, cudnnDataType_t type);
  Tensor between(const Four& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor between(const Four& sizes, const Four& strides, cudnnDataType_t type);

  void matmul(Tensor a, Tensor b, Tensor c);
  void reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);
  /// y = mode(x) or mode(x, b), or with a condition x where it holds and b elsewhere. `axis` is that of indices.
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y,
                 cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT);
  void select(Tensor x, Tensor b, Tensor condition, Tensor y);
  void index(std::int64_t axis, Tensor like, Tensor y);

  /// The first plan of the heuristics that the device runs, and, if asked for, that gives the same bits every time.
  Result<CudnnPlan> plan(cudnnHandle_t handle, bool deterministic);

 private:
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t arithmetic;
    std::int64_t axis = -1;
  };
  CudnnDescriptor make(cudnnBackendDescriptorType_t type);
  void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const void* values, std::int64_t count = 1);
  void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, Tensor tensor);
  void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void finish(const CudnnDescriptor& d, const char* what);
  Tensor add_tensor(std::int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type, bool is_virtual,
                    bool by_value);
  void add_pointwise(const Pointwise& how, Tensor x, const Tensor* b, const Tensor* condition, Tensor y);
  bool gives_the_same_bits(const CudnnDescriptor& config);

  Cudnn cudnn_;
  Status status_;
  std::vector<CudnnDescriptor> tensors_, operations_, parts_;
  std::int64_t next_id_ = 1000;
};

}  // namespace sluice::kernels::cuda
