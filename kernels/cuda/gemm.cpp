#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "kernels/cuda/library.h"
#include "kernels/cuda/narrow_rows.h"
#include "kernels/cuda/stopwatch.h"

namespace sluice::kernels::cuda {
namespace {

constexpr std::uint64_t algorithm_workspace_bytes = std::uint64_t{32} << 20;

/// The functions of cuBLASLt that are used here.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) descriptor_create;
  decltype(&cublasLtMatmulDescDestroy) descriptor_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) descriptor_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) matmul;

  static Result<CublasLt> open() {
    const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    SLUICE_ASSIGN(const Library library, Library::open({file, SLUICE_CUDA_LIBRARIES "/" + file}));
    CublasLt f{};
    SLUICE_TRY(library.find("cublasLtCreate", f.create));
    SLUICE_TRY(library.find("cublasLtDestroy", f.destroy));
    SLUICE_TRY(library.find("cublasLtGetVersion", f.version));
    SLUICE_TRY(library.find("cublasLtGetStatusString", f.status_string));
    SLUICE_TRY(library.find("cublasLtMatmulDescCreate", f.descriptor_create));
    SLUICE_TRY(library.find("cublasLtMatmulDescDestroy", f.descriptor_destroy));
    SLUICE_TRY(library.find("cublasLtMatmulDescSetAttribute", f.descriptor_set));
    SLUICE_TRY(library.find("cublasLtMatrixLayoutCreate", f.layout_create));
    SLUICE_TRY(library.find("cublasLtMatrixLayoutDestroy", f.layout_destroy));
    SLUICE_TRY(library.find("cublasLtMatmulPreferenceCreate", f.preference_create));
    SLUICE_TRY(library.find("cublasLtMatmulPreferenceDestroy", f.preference_destroy));
    SLUICE_TRY(library.find("cublasLtMatmulPreferenceSetAttribute", f.preference_set));
    SLUICE_TRY(library.find("cublasLtMatmulAlgoGetHeuristic", f.heuristic));
    SLUICE_TRY(library.find("cublasLtMatmulAlgoCheck", f.check));
    SLUICE_TRY(library.find("cublasLtMatmul", f.matmul));
    return f;
  }
};

/// Owner of one of the library's objects.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
using Descriptor = Owned<cublasLtMatmulDesc_t>;
using Layout = Owned<cublasLtMatrixLayout_t>;
using Preference = Owned<cublasLtMatmulPreference_t>;

cudaDataType type_of(Dtype t) { return t == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

bool is_aligned(const void* p, std::int64_t ld, Dtype t) {
  return (reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uint64_t>(ld) * dtype_bytes(t)) % 16 == 0;
}

/// What the library is told of a problem, and what it chose.
struct Plan {
  Descriptor descriptor;
  Layout left, right, result;
  cublasLtMatmulAlgo_t algorithm{};
  std::uint64_t workspace_bytes = 0;
  double seconds = 0;
  bool used = false;  ///< since used() was last asked
};

/// The library's matrices are column-major, and row-major memory is the transpose of one: C^T = B^T A^T, so that B is
/// the left operand. What is transposed for us is transposed for it too.
class CublasGemm final : public Gemm {
 public:
  CublasGemm(const CublasLt& lt, const Options& options) : lt_(lt), options_(options) {}
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;
  ~CublasGemm() override {
    plans_.clear();
    if (handle_ != nullptr) static_cast<void>(lt_.destroy(handle_));
  }
  Status start() { return as_status(lt_.create(&handle_), "cannot start"); }

  Status multiply(const GemmCall& call, std::span<std::byte> workspace, Stream& stream) override;
  Result<std::vector<GemmChoice>> time(const GemmCall& call, std::span<std::byte> workspace, Stream& stream, int most,
                                       int repetitions) override;
  Status adopt(const GemmChoice& choice) override;
  std::vector<GemmChoice> choices() const override;
  std::vector<GemmChoice> used() override;

 private:
  using Heuristics = std::vector<cublasLtMatmulHeuristicResult_t>;

  Status as_status(cublasStatus_t code, const std::string& what) const {
    if (code == CUBLAS_STATUS_SUCCESS) return success();
    // A device that has failed says why to whoever asks next; the library does not.
    const cudaError_t device = cudaStreamSynchronize(cudaStreamPerThread);
    return fault("cuBLASLt: " + what + ": " +
                 (device == cudaSuccess ? lt_.status_string(code) : cudaGetErrorString(device)));
  }
  template <class T>
  Status set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    return as_status(lt_.descriptor_set(plan.descriptor.get(), attribute, &value, sizeof value), "descriptor");
  }
  Result<Layout> layout(Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld) const;
  Result<Plan> describe(const GemmProblem& problem) const;
  /// Pointers of the epilogue, of which algorithms want to know the alignment before they are chosen.
  Status point(const Plan& plan, const GemmProblem& problem, const GemmEpilogue& epilogue) const;
  Result<Heuristics> candidates(const Plan& plan, const GemmProblem& problem, int most) const;
  Result<Plan*> plan_of(const GemmProblem& problem, const GemmEpilogue& epilogue);
  Status run(const Plan& plan, const GemmProblem& problem, const GemmCall& call, std::span<std::byte> workspace,
             Stream& stream) const;
  GemmChoice choice_of(const GemmProblem& problem, const Plan& plan) const;
  Status multiply_and_narrow(const GemmCall& call, std::span<std::byte> workspace, Stream& stream);

  CublasLt lt_;
  Options options_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmProblem, Plan> plans_;
};

Result<Layout> CublasGemm::layout(Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld) const {
  cublasLtMatrixLayout_t made = nullptr;
  SLUICE_TRY(as_status(lt_.layout_create(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), ld),
                       "layout"));
  return Layout(made, lt_.layout_destroy);
}

Result<Plan> CublasGemm::describe(const GemmProblem& p) const {
  cublasLtMatmulDesc_t made = nullptr;
  const cublasComputeType_t arithmetic =
      p.operands == Dtype::f32 && options_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  SLUICE_TRY(as_status(lt_.descriptor_create(&made, arithmetic, CUDA_R_32F), "descriptor"));
  Descriptor descriptor(made, lt_.descriptor_destroy);
  // In memory, rows of ours are columns of its.
  SLUICE_ASSIGN(Layout left, layout(p.operands, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.b_ld));
  SLUICE_ASSIGN(Layout right, layout(p.operands, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.a_ld));
  SLUICE_ASSIGN(Layout result, layout(p.result, p.n, p.m, p.c_ld));
  Plan plan{std::move(descriptor), std::move(left), std::move(right), std::move(result), {}, 0, 0, false};
  SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  if (p.gelu)
    epilogue = p.before_gelu_ld > 0 ? (p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                                    : (p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
  else if (p.bias)
    epilogue = CUBLASLT_EPILOGUE_BIAS;
  SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue)));
  if (p.bias) SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(p.result))));
  if (p.before_gelu_ld > 0) {
    SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.before_gelu_ld));
    SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<std::int32_t>(type_of(p.result))));
  }
  return plan;
}

Status CublasGemm::point(const Plan& plan, const GemmProblem& problem, const GemmEpilogue& epilogue) const {
  if (problem.bias) SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias));
  if (problem.before_gelu_ld > 0)
    SLUICE_TRY(set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.before_gelu));
  return success();
}

Result<CublasGemm::Heuristics> CublasGemm::candidates(const Plan& plan, const GemmProblem& problem, int most) const {
  cublasLtMatmulPreference_t made = nullptr;
  SLUICE_TRY(as_status(lt_.preference_create(&made), "preference"));
  const Preference preference(made, lt_.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return as_status(lt_.preference_set(made, attribute, &value, sizeof value), "preference");
  };
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, algorithm_workspace_bytes));
  // No split-K that meets in the output: parts would be added in the order in which they are ready, or rounded.
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  const auto alignment = [](bool aligned, Dtype t) {
    return static_cast<std::uint32_t>(aligned ? 16 : dtype_bytes(t));
  };
  const std::uint32_t result = alignment(problem.c_aligned, problem.result);
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(problem.b_aligned, problem.operands)));
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(problem.a_aligned, problem.operands)));
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result));
  SLUICE_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result));
  Heuristics found(static_cast<std::size_t>(most));
  int count = 0;
  SLUICE_TRY(as_status(lt_.heuristic(handle_, plan.descriptor.get(), plan.left.get(), plan.right.get(),
                                     plan.result.get(), plan.result.get(), made, most, found.data(), &count),
                       "no algorithm for " + problem.name()));
  found.resize(static_cast<std::size_t>(count));
  std::erase_if(found, [](const cublasLtMatmulHeuristicResult_t& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  if (found.empty()) return fault("cuBLASLt: no algorithm for " + problem.name());
  return found;
}

Result<Plan*> CublasGemm::plan_of(const GemmProblem& problem, const GemmEpilogue& epilogue) {
  if (const auto at = plans_.find(problem); at != plans_.end()) {
    SLUICE_TRY(point(at->second, problem, epilogue));
    return &at->second;
  }
  SLUICE_ASSIGN(Plan plan, describe(problem));
  SLUICE_TRY(point(plan, problem, epilogue));
  SLUICE_ASSIGN(const Heuristics found, candidates(plan, problem, 1));
  plan.algorithm = found[0].algo;
  plan.workspace_bytes = found[0].workspaceSize;
  return &plans_.emplace(problem, std::move(plan)).first->second;
}

Status CublasGemm::run(const Plan& plan, const GemmProblem& problem, const GemmCall& call,
                       std::span<std::byte> workspace, Stream& stream) const {
  if (workspace.size() < plan.workspace_bytes)
    return fault("cuBLASLt: " + problem.name() + " needs " + std::to_string(plan.workspace_bytes) +
                 " bytes of workspace and was given " + std::to_string(workspace.size()));
  const float one = 1, before = problem.accumulate ? 1 : 0;
  const cublasStatus_t code =
      lt_.matmul(handle_, plan.descriptor.get(), &one, call.b.data, plan.left.get(), call.a.data, plan.right.get(),
                 &before, call.c.data, plan.result.get(), call.c.data, plan.result.get(), &plan.algorithm,
                 workspace.data(), plan.workspace_bytes, stream.handle());
  // Steps multiply thousands of times: a name is made for those that fail.
  return code == CUBLAS_STATUS_SUCCESS ? success() : as_status(code, problem.name());
}

Status refuse(const GemmProblem& problem, const char* why) {
  return bad_request("matrix multiply of " + problem.name() + ": " + why);
}

Status check(const GemmCall& call, const GemmProblem& problem) {
  const auto float_like = [](Dtype t) { return t == Dtype::f32 || t == Dtype::bf16; };
  if (call.a.dtype != call.b.dtype) return refuse(problem, "A and B have different dtypes");
  if (!float_like(call.a.dtype) || !float_like(call.c.dtype))
    return refuse(problem, "only f32 and bf16 are multiplied");
  if (call.accumulate && call.c.dtype != Dtype::f32) return refuse(problem, "only an f32 C can be added to");
  const GemmEpilogue& e = call.epilogue;
  if (call.accumulate && (e.bias != nullptr || e.gelu)) return refuse(problem, "adding to C leaves no epilogue");
  if (e.before_gelu != nullptr && (!e.gelu || e.before_gelu_ld < call.n || e.before_gelu_ld % 8 != 0))
    return refuse(problem, "GELU's argument needs GELU and rows of a multiple of 8 elements");
  return success();
}

Status CublasGemm::multiply(const GemmCall& call, std::span<std::byte> workspace, Stream& stream) {
  const GemmProblem problem(call);
  SLUICE_TRY(check(call, problem));
  if (!stream.status()) return stream.status();
  if (call.m <= 0 || call.n <= 0) return success();
  if (call.a.dtype == Dtype::f32 && call.c.dtype == Dtype::bf16) return multiply_and_narrow(call, workspace, stream);
  if (call.k <= 0) {
    if (call.epilogue.bias != nullptr || call.epilogue.gelu) return refuse(problem, "an empty sum has no epilogue");
    if (call.accumulate) return success();
    const std::uint64_t element = dtype_bytes(call.c.dtype);
    const cudaError_t error = cudaMemset2DAsync(call.c.data, static_cast<std::size_t>(call.c.ld) * element, 0,
                                                static_cast<std::size_t>(call.n) * element,
                                                static_cast<std::size_t>(call.m), stream.handle());
    if (error != cudaSuccess) return fault(problem.name() + ": " + cudaGetErrorString(error));
    return success();
  }
  if (options_.timed > 0 && !plans_.contains(problem)) {
    SLUICE_ASSIGN(const std::vector<GemmChoice> timed, time(call, workspace, stream, options_.timed, 3));
    Status adopted;
    for (const GemmChoice& choice : timed)
      if (adopted = adopt(choice); adopted.ok()) break;
    SLUICE_TRY(adopted);
  }
  SLUICE_ASSIGN(Plan* const plan, plan_of(problem, call.epilogue));
  plan->used = true;
  return run(*plan, problem, call, workspace, stream);
}

/// cuBLASLt has no bf16 result of fp32 operands: fp32 first, behind the algorithm's part of the workspace.
Status CublasGemm::multiply_and_narrow(const GemmCall& call, std::span<std::byte> workspace, Stream& stream) {
  const GemmProblem problem(call);
  if (call.epilogue.bias != nullptr || call.epilogue.gelu)
    return refuse(problem, "a bf16 result of f32 operands has no epilogue");
  const auto numel = static_cast<std::uint64_t>(call.m * call.n);
  if (workspace.size() < algorithm_workspace_bytes + numel * sizeof(float))
    return refuse(problem, "the workspace is smaller than gemm_workspace_bytes");
  auto* const wide = reinterpret_cast<float*>(workspace.data() + algorithm_workspace_bytes);
  GemmCall to_f32 = call;
  to_f32.c = {wide, Dtype::f32, call.n};
  SLUICE_TRY(multiply(to_f32, workspace.first(algorithm_workspace_bytes), stream));
  narrow_rows(wide, call.n, static_cast<bf16*>(call.c.data), call.c.ld, call.m, call.n, stream);
  return stream.status();
}

GemmChoice CublasGemm::choice_of(const GemmProblem& problem, const Plan& plan) const {
  GemmChoice choice{problem, lt_.version(), {}, plan.workspace_bytes, plan.seconds};
  static_assert(sizeof choice.algorithm == sizeof plan.algorithm);
  std::memcpy(choice.algorithm.data(), &plan.algorithm, sizeof plan.algorithm);
  return choice;
}

Result<std::vector<GemmChoice>> CublasGemm::time(const GemmCall& call, std::span<std::byte> workspace, Stream& stream,
                                                 int most, int repetitions) {
  const GemmProblem problem(call);
  if (Status status = check(call, problem); !status) return status.error();
  if (call.m <= 0 || call.n <= 0 || call.k <= 0 || (call.a.dtype == Dtype::f32 && call.c.dtype == Dtype::bf16))
    return refuse(problem, "there is no single algorithm to time").error();
  SLUICE_ASSIGN(Plan plan, describe(problem));
  SLUICE_TRY(point(plan, problem, call.epilogue));
  SLUICE_ASSIGN(const Heuristics found, candidates(plan, problem, most));
  std::vector<GemmChoice> all;
  Stopwatch watch;
  for (const cublasLtMatmulHeuristicResult_t& candidate : found) {
    plan.algorithm = candidate.algo;
    plan.workspace_bytes = candidate.workspaceSize;
    // One that the library names and then declines is no candidate.
    if (!run(plan, problem, call, workspace, stream).ok()) continue;
    bool ok = watch.begin(stream);
    for (int i = 0; i < repetitions; ++i) SLUICE_TRY(run(plan, problem, call, workspace, stream));
    const double seconds = watch.seconds(stream);
    ok = ok && seconds >= 0;
    if (!ok) return fault("cuBLASLt: " + problem.name() + ": " + cudaGetErrorString(cudaGetLastError()));
    plan.seconds = seconds / repetitions;
    all.push_back(choice_of(problem, plan));
  }
  if (all.empty()) return fault("cuBLASLt: no algorithm for " + problem.name() + " runs");
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return all;
}

Status CublasGemm::adopt(const GemmChoice& choice) {
  if (choice.library_version != lt_.version())
    return bad_request("cuBLASLt: the algorithm for " + choice.problem.name() + " was chosen by version " +
                       std::to_string(choice.library_version) + ", this is " + std::to_string(lt_.version()));
  SLUICE_ASSIGN(Plan plan, describe(choice.problem));
  alignas(256) static std::byte somewhere[1];  // is not accessed: each multiply says where
  SLUICE_TRY(point(plan, choice.problem, {somewhere, choice.problem.gelu, somewhere, choice.problem.before_gelu_ld}));
  std::memcpy(&plan.algorithm, choice.algorithm.data(), sizeof plan.algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  SLUICE_TRY(as_status(lt_.check(handle_, plan.descriptor.get(), plan.left.get(), plan.right.get(), plan.result.get(),
                                 plan.result.get(), &plan.algorithm, &result),
                       "the algorithm for " + choice.problem.name() + " does not run here"));
  if (result.workspaceSize > algorithm_workspace_bytes)
    return bad_request("cuBLASLt: the algorithm for " + choice.problem.name() + " needs too much workspace");
  plan.workspace_bytes = result.workspaceSize;
  plan.seconds = choice.seconds;
  plans_.insert_or_assign(choice.problem, std::move(plan));
  return success();
}

std::vector<GemmChoice> CublasGemm::choices() const {
  std::vector<GemmChoice> all;
  for (const auto& [problem, plan] : plans_) all.push_back(choice_of(problem, plan));
  return all;
}

std::vector<GemmChoice> CublasGemm::used() {
  std::vector<GemmChoice> all;
  for (auto& [problem, plan] : plans_)
    if (std::exchange(plan.used, false)) all.push_back(choice_of(problem, plan));
  return all;
}

/// The numbers of a choice in the order in which they are written.
template <class Choice, class F>
void each_number_of_problem(Choice& c, F&& f) {
  auto& p = c.problem;
  for (auto* n : {&p.m, &p.n, &p.k, &p.a_ld, &p.b_ld, &p.c_ld, &p.before_gelu_ld}) f(*n);
  for (auto* t : {&p.operands, &p.result}) f(*t);
  for (auto* b : {&p.a_transposed, &p.b_transposed, &p.accumulate, &p.bias, &p.gelu}) f(*b);
}
/// All three alignments as one number, which was 1 or 0 before each operand had its own.
unsigned alignments(const GemmProblem& p) {
  const unsigned each = (p.a_aligned ? 1u : 0u) | (p.b_aligned ? 2u : 0u) | (p.c_aligned ? 4u : 0u);
  return each == 7 ? 1 : each == 0 ? 0 : 8 | each;
}
bool set_alignments(GemmProblem& p, unsigned number) {
  const unsigned each = number == 1 ? 7 : number & 7;
  p.a_aligned = (each & 1) != 0, p.b_aligned = (each & 2) != 0, p.c_aligned = (each & 4) != 0;
  return alignments(p) == number;
}
template <class Choice, class F>
void each_number_of_algorithm(Choice& c, F&& f) {
  f(c.library_version);
  for (auto& word : c.algorithm) f(word);
  f(c.workspace_bytes);
}

/// Reads hexadecimal words until one is none.
class Words {
 public:
  explicit Words(const std::string& text) : in_(text) { in_ >> std::hex; }
  template <class T>
  void operator()(T& number) {
    std::uint64_t word = 0;
    good_ = good_ && static_cast<bool>(in_ >> word);
    number = static_cast<T>(word);
    good_ = good_ && static_cast<std::uint64_t>(number) == word;
  }
  bool starts_with(const char* name) {
    std::string first;
    in_ >> first;
    return first == name;
  }
  bool end() {
    std::string more;
    return good_ && !(in_ >> more);
  }

 private:
  std::istringstream in_;
  bool good_ = true;
};

constexpr const char* words_begin = "gemm";

}  // namespace

std::pair<std::string, std::string> GemmChoice::to_words() const {
  std::ostringstream name, chosen;
  name << words_begin << std::hex;
  chosen << std::hex;
  each_number_of_problem(*this, [&](const auto& n) { name << ' ' << static_cast<std::uint64_t>(n); });
  name << ' ' << alignments(problem);
  const char* between = "";
  each_number_of_algorithm(*this, [&](const auto& n) { chosen << std::exchange(between, " ") << n; });
  return {name.str(), chosen.str()};
}

bool GemmChoice::is_named_by(const std::string& problem) { return Words(problem).starts_with(words_begin); }

Result<GemmChoice> GemmChoice::from_words(const std::string& problem, const std::string& algorithm) {
  GemmChoice choice;
  Words name(problem), chosen(algorithm);
  const bool is_gemm = name.starts_with(words_begin);
  unsigned aligned = 0;
  each_number_of_problem(choice, name);
  name(aligned);
  each_number_of_algorithm(choice, chosen);
  const auto known = [](Dtype t) { return t == Dtype::f32 || t == Dtype::bf16; };
  if (is_gemm && name.end() && chosen.end() && known(choice.problem.operands) && known(choice.problem.result) &&
      set_alignments(choice.problem, aligned))
    return choice;
  return bad_request("'" + problem + "' is no choice of a matrix multiply");
}

GemmProblem::GemmProblem(const GemmCall& call)
    : m(call.m),
      n(call.n),
      k(call.k),
      a_ld(call.a.ld),
      b_ld(call.b.ld),
      c_ld(call.c.ld),
      before_gelu_ld(call.epilogue.before_gelu != nullptr ? call.epilogue.before_gelu_ld : 0),
      operands(call.a.dtype),
      result(call.c.dtype),
      a_transposed(call.a.transposed),
      b_transposed(call.b.transposed),
      accumulate(call.accumulate),
      bias(call.epilogue.bias != nullptr),
      gelu(call.epilogue.gelu),
      a_aligned(is_aligned(call.a.data, call.a.ld, call.a.dtype)),
      b_aligned(is_aligned(call.b.data, call.b.ld, call.b.dtype)),
      c_aligned(is_aligned(call.c.data, call.c.ld, call.c.dtype) && is_aligned(call.epilogue.bias, 0, call.c.dtype) &&
                is_aligned(call.epilogue.before_gelu, before_gelu_ld, call.c.dtype)) {}

std::string GemmProblem::name() const {
  const auto misaligned = [this] {
    const std::string which = std::string(a_aligned ? "" : "A") + (b_aligned ? "" : "B") + (c_aligned ? "" : "C");
    return which.empty() ? "" : ", " + which + " misaligned";
  };
  return std::string(dtype_name(operands)) + " " + std::to_string(m) + " x " + std::to_string(n) + " x " +
         std::to_string(k) + " " + (a_transposed ? "T" : "N") + (b_transposed ? "T" : "N") + " -> " +
         dtype_name(result) + (accumulate ? ", added" : "") + (bias ? ", bias" : "") + (gelu ? ", GELU" : "") +
         misaligned() + " (rows " + std::to_string(a_ld) + ", " + std::to_string(b_ld) + ", " + std::to_string(c_ld) +
         " apart)";
}

std::uint64_t gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t, Dtype operands, Dtype result) {
  const bool narrowed = operands == Dtype::f32 && result == Dtype::bf16;
  return algorithm_workspace_bytes + (narrowed ? static_cast<std::uint64_t>(m * n) * sizeof(float) : 0);
}

Result<std::unique_ptr<Gemm>> Gemm::create(const Options& options) {
  SLUICE_ASSIGN(const CublasLt lt, CublasLt::open());
  auto gemm = std::make_unique<CublasGemm>(lt, options);
  SLUICE_TRY(gemm->start());
  return std::unique_ptr<Gemm>(std::move(gemm));
}

}  // namespace sluice::kernels::cuda
