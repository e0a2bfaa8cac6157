// A cuBLASLt on the host, for tests without a device: the functions that kernels/cuda/gemm.cpp calls, as the manual
// describes them, with plain loops. It refuses what the library would: sizes that do not meet, rows that overlap,
// addresses less aligned than was promised, workspaces that are too small, algorithms that it did not name.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "card.h"
#include "sluice/dtype.h"

namespace {

struct Descriptor {
  cublasComputeType_t arithmetic;
  cublasOperation_t left = CUBLAS_OP_N, right = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t bias_type = -1, aux_type = -1;
};
struct Layout {
  cudaDataType type;
  std::int64_t rows, columns, ld;
  std::int64_t at(std::int64_t r, std::int64_t c, bool transposed) const {
    return transposed ? c + r * ld : r + c * ld;
  }
};
struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};

constexpr int algorithms = 3;

double load(const void* p, std::int64_t i, std::int32_t type) {
  return type == CUDA_R_16BF ? sluice::to_float(static_cast<const sluice::bf16*>(p)[i])
                             : static_cast<const float*>(p)[i];
}
void store(void* p, std::int64_t i, std::int32_t type, double v) {
  if (type == CUDA_R_16BF)
    static_cast<sluice::bf16*>(p)[i] = sluice::to_bf16(static_cast<float>(v));
  else
    static_cast<float*>(p)[i] = static_cast<float>(v);
}
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }

template <class T>
bool assign(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&to, from, bytes);
  return true;
}
cublasStatus_t as_status(bool ok) { return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE; }

/// Whether the matrices meet: sizes, rows that do not overlap, types that there is arithmetic for.
bool consistent(const Descriptor& d, const Layout& a, const Layout& b, const Layout& c) {
  const std::int64_t m = d.left == CUBLAS_OP_N ? a.rows : a.columns, k = d.left == CUBLAS_OP_N ? a.columns : a.rows;
  const std::int64_t k2 = d.right == CUBLAS_OP_N ? b.rows : b.columns, n = d.right == CUBLAS_OP_N ? b.columns : b.rows;
  return m == c.rows && n == c.columns && k == k2 && k > 0 && m > 0 && n > 0 && a.ld >= a.rows && b.ld >= b.rows &&
         c.ld >= c.rows && a.type == b.type && (a.type != CUDA_R_32F || c.type == CUDA_R_32F);
}

constexpr std::uint32_t epilogue_aux = 128;

/// What a call of cublasLtMatmul asks for.
struct Multiply {
  Descriptor d;
  Layout a, b, c;
  const void *a_data, *b_data;
  void* out;
  float alpha, beta;
  std::int64_t parts;  ///< in which sums are added up

  bool has(std::uint32_t part_of_epilogue) const { return (d.epilogue & part_of_epilogue) != 0; }
  /// An operand as floats, [k][i].
  static std::vector<float> floats(const void* data, const Layout& layout, std::int64_t count, std::int64_t k,
                                   bool k_first, bool transposed) {
    std::vector<float> all(static_cast<std::size_t>(count * k));
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t i = 0; i < count; ++i)
        all[static_cast<std::size_t>(p * count + i)] = static_cast<float>(
            load(data, k_first ? layout.at(p, i, transposed) : layout.at(i, p, transposed), layout.type));
    return all;
  }
  void run() const {
    const std::int64_t k = d.left == CUBLAS_OP_N ? a.columns : a.rows;
    const std::vector<float> left = floats(a_data, a, c.rows, k, false, d.left == CUBLAS_OP_T),
                             right = floats(b_data, b, c.columns, k, true, d.right == CUBLAS_OP_T);
    const auto rows = static_cast<std::size_t>(c.rows);
    std::vector<float> part(algorithms * rows);  // sums of every row, [part][i]
    for (std::int64_t j = 0; j < c.columns; ++j) {
      std::fill(part.begin(), part.end(), 0.0f);
      for (std::int64_t p = 0, to = 0; p < k; ++p, to = to + 1 == parts ? 0 : to + 1) {
        const float *const x = &left[static_cast<std::size_t>(p) * rows],
                           y = right[static_cast<std::size_t>(p * c.columns + j)];
        float* const sums = &part[static_cast<std::size_t>(to) * rows];
        for (std::size_t i = 0; i < rows; ++i) sums[i] += x[i] * y;
      }
      for (std::int64_t i = 0; i < c.rows; ++i) {
        const float* const of = &part[static_cast<std::size_t>(i)];
        double sum = alpha * (static_cast<double>(of[0]) + of[rows] + of[2 * rows]);
        if (beta != 0) sum += beta * load(out, i + j * c.ld, c.type);
        if (has(CUBLASLT_EPILOGUE_BIAS)) sum += load(d.bias, i, d.bias_type);
        if (has(epilogue_aux)) store(d.aux, i + j * d.aux_ld, d.aux_type, sum);
        store(out, i + j * c.ld, c.type, has(CUBLASLT_EPILOGUE_GELU) ? gelu(sum) : sum);
      }
    }
  }
};

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(1));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return "no error";
  return status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "the device failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t arithmetic,
                                        cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Descriptor{.arithmetic = arithmetic});
  return as_status(scale == CUDA_R_32F && arithmetic == CUBLAS_COMPUTE_32F);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete reinterpret_cast<Descriptor*>(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto& d = *reinterpret_cast<Descriptor*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return as_status(assign(d.left, value, bytes));
    case CUBLASLT_MATMUL_DESC_TRANSB: return as_status(assign(d.right, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return as_status(assign(d.epilogue, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return as_status(assign(d.bias, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return as_status(assign(d.bias_type, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return as_status(assign(d.aux, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return as_status(assign(d.aux_ld, value, bytes) && d.aux_ld % 8 == 0);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return as_status(assign(d.aux_type, value, bytes));
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  auto& p = *reinterpret_cast<Preference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return as_status(assign(p.workspace_bytes, value, bytes));
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return as_status(assign(p.reductions, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return as_status(assign(p.alignment[0], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return as_status(assign(p.alignment[1], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return as_status(assign(p.alignment[2], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return as_status(assign(p.alignment[3], value, bytes));
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

/// Algorithms 1, 2, 3 sum up in other orders; the last word keeps what alignment they were promised.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t preference,
                                              int most, cublasLtMatmulHeuristicResult_t results[], int* count) {
  const auto& p = *reinterpret_cast<Preference*>(preference);
  *count = 0;
  if (c != out || p.reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ||
      !consistent(*reinterpret_cast<Descriptor*>(d), *reinterpret_cast<Layout*>(a), *reinterpret_cast<Layout*>(b),
                  *reinterpret_cast<Layout*>(c)))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (; *count < most && *count < algorithms; ++*count) {
    cublasLtMatmulHeuristicResult_t& r = results[*count];
    r = {};
    r.algo.data[0] = static_cast<std::uint64_t>(*count) + 1;
    for (const std::uint32_t alignment : p.alignment) r.algo.data[7] = r.algo.data[7] << 8 | alignment;
    r.workspaceSize = 1000 * r.algo.data[0];
    r.state = r.workspaceSize <= p.workspace_bytes ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->algo = *algorithm;
  result->workspaceSize = 1000 * algorithm->data[0];
  const auto& descriptor = *reinterpret_cast<Descriptor*>(d);
  if ((descriptor.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 && descriptor.bias == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  return as_status(algorithm->data[0] >= 1 && algorithm->data[0] <= algorithms &&
                   consistent(*reinterpret_cast<Descriptor*>(d), *reinterpret_cast<Layout*>(a),
                              *reinterpret_cast<Layout*>(b), *reinterpret_cast<Layout*>(c)));
}

/// Checked at once, computed when the stream comes to it.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a_data,
                              cublasLtMatrixLayout_t a_layout, const void* b_data, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c_data, cublasLtMatrixLayout_t c_layout, void* out,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm, void*,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Multiply p{.d = *reinterpret_cast<Descriptor*>(desc),
                   .a = *reinterpret_cast<Layout*>(a_layout),
                   .b = *reinterpret_cast<Layout*>(b_layout),
                   .c = *reinterpret_cast<Layout*>(c_layout),
                   .a_data = a_data,
                   .b_data = b_data,
                   .out = out,
                   .alpha = *static_cast<const float*>(alpha),
                   .beta = *static_cast<const float*>(beta),
                   .parts = static_cast<std::int64_t>(algorithm->data[0])};
  const std::uint64_t promised = algorithm->data[7];
  const auto aligned = [&](const void* address, const Layout& layout, int shift) {
    const auto row_bytes = static_cast<std::uint64_t>(layout.ld) * (layout.type == CUDA_R_16BF ? 2 : 4);
    return (reinterpret_cast<std::uintptr_t>(address) | row_bytes) % (promised >> shift & 255) == 0;
  };
  if (!consistent(p.d, p.a, p.b, p.c) || p.parts < 1 || p.parts > algorithms || c_data != out ||
      workspace_bytes < 1000 * algorithm->data[0] || !aligned(a_data, p.a, 24) || !aligned(b_data, p.b, 16) ||
      !aligned(out, p.c, 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  if ((p.has(CUBLASLT_EPILOGUE_BIAS) && (p.d.bias == nullptr || p.d.bias_type != p.c.type)) ||
      (p.has(epilogue_aux) && (p.d.aux == nullptr || p.d.aux_ld < p.c.rows || p.d.aux_type != p.c.type)))
    return CUBLAS_STATUS_INVALID_VALUE;
  return simt_submit(stream, [p] { p.run(); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
