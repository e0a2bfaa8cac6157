#ifdef SLUICE_HAS_CUDNN
#include "kernels/cuda/cudnn_graph.h"

#include <string>

#include "kernels/cuda/library.h"

namespace sluice::kernels::cuda {

Result<Cudnn> Cudnn::open() {
  const std::string file = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  SLUICE_ASSIGN(const Library library, Library::open({file, SLUICE_CUDA_LIBRARIES "/" + file}));
  Cudnn f{};
  SLUICE_TRY(library.find("cudnnCreate", f.create));
  SLUICE_TRY(library.find("cudnnDestroy", f.destroy));
  SLUICE_TRY(library.find("cudnnSetStream", f.set_stream));
  SLUICE_TRY(library.find("cudnnGetVersion", f.version));
  SLUICE_TRY(library.find("cudnnGetErrorString", f.error_string));
  SLUICE_TRY(library.find("cudnnBackendCreateDescriptor", f.descriptor_create));
  SLUICE_TRY(library.find("cudnnBackendDestroyDescriptor", f.descriptor_destroy));
  SLUICE_TRY(library.find("cudnnBackendSetAttribute", f.set));
  SLUICE_TRY(library.find("cudnnBackendGetAttribute", f.get));
  SLUICE_TRY(library.find("cudnnBackendFinalize", f.finalize));
  SLUICE_TRY(library.find("cudnnBackendExecute", f.execute));
  return f;
}

Status Cudnn::as_status(cudnnStatus_t code, const char* what) const {
  if (code == CUDNN_STATUS_SUCCESS) return success();
  return fault(std::string("cuDNN: ") + what + ": " + error_string(code));
}

Status CudnnPlan::run(cudnnHandle_t handle, std::span<const CudnnPointer> tensors, void* workspace) const {
  constexpr std::size_t most = 16;
  std::array<std::int64_t, most> ids{};
  std::array<void*, most> addresses{};
  SLUICE_CHECK(tensors.size() <= most, "%zu tensors", tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ids[i] = tensors[i].id;
    addresses[i] = const_cast<void*>(tensors[i].address);  // inputs are only read
  }
  // One that is finalized takes no other addresses: it is made anew for each call.
  cudnnBackendDescriptor_t made = nullptr;
  SLUICE_TRY(cudnn_.as_status(cudnn_.descriptor_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &made), "pointers"));
  const CudnnDescriptor pack(made, cudnn_.descriptor_destroy);
  const auto count = static_cast<std::int64_t>(tensors.size());
  SLUICE_TRY(cudnn_.as_status(
      cudnn_.set(made, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data()),
      "pointers"));
  SLUICE_TRY(cudnn_.as_status(cudnn_.set(made, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data()),
                              "pointers"));
  SLUICE_TRY(cudnn_.as_status(cudnn_.set(made, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace),
                              "pointers"));
  SLUICE_TRY(cudnn_.as_status(cudnn_.finalize(made), "pointers"));
  return cudnn_.as_status(cudnn_.execute(handle, plan_.get(), made), "a plan cannot run");
}

CudnnDescriptor CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  if (status_) static_cast<void>(status_ = cudnn_.as_status(cudnn_.descriptor_create(type, &made), "a descriptor"));
  return {made, cudnn_.descriptor_destroy};
}

void CudnnGraph::set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     const void* values, std::int64_t count) {
  if (!status_) return;
  const cudnnStatus_t code = cudnn_.set(d.get(), name, type, count, values);
  if (code != CUDNN_STATUS_SUCCESS)
    static_cast<void>(status_ = cudnn_.as_status(code, ("attribute " + std::to_string(name)).c_str()));
}
void CudnnGraph::set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, Tensor tensor) {
  if (status_) set(d, name, tensors_[tensor]);
}
void CudnnGraph::set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  cudnnBackendDescriptor_t raw = value.get();
  set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw);
}
void CudnnGraph::finish(const CudnnDescriptor& d, const char* what) {
  if (status_) static_cast<void>(status_ = cudnn_.as_status(cudnn_.finalize(d.get()), what));
}

CudnnGraph::Tensor CudnnGraph::add_tensor(std::int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type,
                                          bool is_virtual, bool by_value) {
  CudnnDescriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const std::int64_t alignment = 16;
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
  set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes.data(), 4);
  set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4);
  set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
  set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
  finish(d, "a tensor");
  tensors_.push_back(std::move(d));
  return tensors_.size() - 1;
}
CudnnGraph::Tensor CudnnGraph::in_memory(std::int64_t id, const Four& sizes, const Four& strides,
                                         cudnnDataType_t type) {
  return add_tensor(id, sizes, strides, type, false, false);
}
CudnnGraph::Tensor CudnnGraph::scalar(std::int64_t id, cudnnDataType_t type) {
  return add_tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, type, false, true);
}
CudnnGraph::Tensor CudnnGraph::between(const Four& n, cudnnDataType_t type) {
  return between(n, {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, type);
}
CudnnGraph::Tensor CudnnGraph::between(const Four& sizes, const Four& strides, cudnnDataType_t type) {
  return add_tensor(next_id_++, sizes, strides, type, true, false);
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  CudnnDescriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &arithmetic);
  finish(how, "a matmul");
  CudnnDescriptor d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  finish(d, "a matmul of tensors");
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(d));
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  CudnnDescriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &op);
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &arithmetic);
  finish(how, "a reduction");
  CudnnDescriptor d = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  set(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  finish(d, "a reduction of tensors");
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(d));
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  CudnnDescriptor d = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  finish(d, "a reshape");
  operations_.push_back(std::move(d));
}

void CudnnGraph::add_pointwise(const Pointwise& p, Tensor x, const Tensor* b, const Tensor* condition, Tensor y) {
  CudnnDescriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &p.mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &p.arithmetic);
  if (p.axis >= 0) set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &p.axis);
  finish(how, "a pointwise operation");
  CudnnDescriptor d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (condition != nullptr) set(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  finish(d, "a pointwise operation on tensors");
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(d));
}
void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, cudnnDataType_t arithmetic) {
  add_pointwise({mode, arithmetic}, x, nullptr, nullptr, y);
}
void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, cudnnDataType_t arithmetic) {
  add_pointwise({mode, arithmetic}, x, &b, nullptr, y);
}
void CudnnGraph::select(Tensor x, Tensor b, Tensor condition, Tensor y) {
  add_pointwise({CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT}, x, &b, &condition, y);
}
void CudnnGraph::index(std::int64_t axis, Tensor like, Tensor y) {
  add_pointwise({CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis}, like, nullptr, nullptr, y);
}

bool CudnnGraph::gives_the_same_bits(const CudnnDescriptor& config) {
  const CudnnDescriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (!status_ ||
      cudnn_.get(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw) !=
          CUDNN_STATUS_SUCCESS ||
      cudnn_.get(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                 &count, notes) != CUDNN_STATUS_SUCCESS)
    return false;
  for (std::int64_t i = 0; i < count; ++i)
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  return true;
}

Result<CudnnPlan> CudnnGraph::plan(cudnnHandle_t handle, bool deterministic) {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& d : operations_) operations.push_back(d.get());
  CudnnDescriptor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
      static_cast<std::int64_t>(operations.size()));
  finish(graph, "a graph");
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  CudnnDescriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  finish(heuristics, "no engine for a graph");
  SLUICE_TRY(status_);

  constexpr std::int64_t most = 16;
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) {
    configs.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configs.back().get());
  }
  std::int64_t count = 0;
  SLUICE_TRY(status_);
  SLUICE_TRY(cudnn_.as_status(cudnn_.get(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         most, &count, raw.data()),
                              "no engine for a graph"));
  for (std::int64_t i = 0; i < count && i < most; ++i) {
    const CudnnDescriptor& config = configs[static_cast<std::size_t>(i)];
    if (deterministic && !gives_the_same_bits(config)) continue;
    CudnnDescriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    SLUICE_TRY(status_);
    if (cudnn_.finalize(plan.get()) != CUDNN_STATUS_SUCCESS) continue;  // the next one may run here
    std::int64_t bytes = 0, got = 0;
    SLUICE_TRY(cudnn_.as_status(
        cudnn_.get(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, &bytes),
        "workspace"));
    return CudnnPlan(cudnn_, std::move(plan), bytes);
  }
  return fault("cuDNN: none of " + std::to_string(count) + " engines runs a graph here" +
               (deterministic ? " with the same bits every time" : ""));
}

}  // namespace sluice::kernels::cuda
#endif
