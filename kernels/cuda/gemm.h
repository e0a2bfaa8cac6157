// Row-major matrix multiply with fp32 accumulation on a device, through cuBLASLt: kernels/cpu/gemm.h with a handle.
//
// Which algorithm multiplies is decided once for each problem and kept: the first that cuBLASLt's heuristics name, or
// one that was timed and chosen. Algorithms that add up parts of a sum in an order that could change are left out (of
// split-K those remain that add parts from the workspace in a second pass), so that for one device, library and choice
// the result is a pure function of the operands' values. Multiplies of fp32 are fp32, and not TF32, unless asked for.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

using kernels::ConstMatrix;
using kernels::Matrix;

/// What is done to C's elements before they are written, instead of by a pass of its own. The library has it for bf16
/// results; for f32 there may be no algorithm, which is an error.
struct GemmEpilogue {
  const void* bias = nullptr;   ///< [n], of C's dtype, added to every row
  bool gelu = false;            ///< GELU, tanh form, after the bias
  void* before_gelu = nullptr;  ///< with gelu, may be null: its argument, [m, n] of C's dtype, for the backward pass
  std::int64_t before_gelu_ld = 0;  ///< a multiple of 8
};

/// C[m,n] = A[m,k] B[k,n] on the device, or C += with `accumulate` (C f32 only). A and B have the same dtype; each of
/// them and C is f32 or bf16.
struct GemmCall {
  ConstMatrix a, b;
  Matrix c;
  std::int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  GemmEpilogue epilogue{};
};

/// All that an algorithm is chosen by.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0, a_ld = 0, b_ld = 0, c_ld = 0, before_gelu_ld = 0;
  Dtype operands = Dtype::f32, result = Dtype::f32;
  bool a_transposed = false, b_transposed = false, accumulate = false, bias = false, gelu = false;
  bool a_aligned = false, b_aligned = false, c_aligned = false;  ///< address and rows to 16 bytes; else to an element

  explicit GemmProblem(const GemmCall& call);
  GemmProblem() = default;
  auto operator<=>(const GemmProblem&) const = default;
  std::string name() const;  ///< for messages: "bf16 4096 x 11008 x 4096 NT -> bf16"
};

/// An algorithm for a problem, to be kept from run to run: means something to the same library on the same kind of
/// device alone, and is refused by others.
struct GemmChoice {
  GemmProblem problem;
  std::uint64_t library_version = 0;         ///< cublasLtGetVersion
  std::array<std::uint64_t, 8> algorithm{};  ///< cublasLtMatmulAlgo_t
  std::uint64_t workspace_bytes = 0;         ///< that it needs
  double seconds = 0;                        ///< of one multiply, where it was timed

  /// The problem and the rest as words, to be stored: "gemm 4096 ...", "130100 1f 0 ...".
  std::pair<std::string, std::string> to_words() const;
  /// Words of before, when operands had one alignment together, are read as they were meant.
  static bool is_named_by(const std::string& problem);
  /// bad_request where they are not what to_words made.
  static Result<GemmChoice> from_words(const std::string& problem, const std::string& algorithm);
};

/// Workspace of any algorithm that may be chosen for a multiply of these sizes: what NVIDIA recommends for Hopper, and
/// for fp32 operands with a bf16 result the fp32 one. A function of the sizes alone, since the choice depends on it.
std::uint64_t gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result);

/// The library's handle, and the algorithms chosen so far. For one device and one thread at a time; the workspace given
/// must not be used by two streams at once. Create it once: it opens a library of several hundred megabytes.
class Gemm {
 public:
  struct Options {
    bool tf32 = false;  ///< fp32 operands are rounded to 11 significant bits, for tensor cores
    /// Algorithms that are timed when a problem is first met, on its operands; the quickest is taken. Results that are
    /// added to are then wrong, and the stream is waited for: for measuring.
    int timed = 0;
  };
  /// Of the device that is current. Fails where cuBLASLt of the version compiled for is not installed.
  static Result<std::unique_ptr<Gemm>> create(const Options& options);
  virtual ~Gemm() = default;

  /// In the order of the stream, which keeps no error of it. `workspace`: aligned to 256 bytes, of
  /// gemm_workspace_bytes. Chooses an algorithm, and allocates, if that problem was not met before. Errors
  /// name the problem.
  virtual Status multiply(const GemmCall& call, std::span<std::byte> workspace, Stream& stream) = 0;

  /// Times up to `most` algorithms in the order of the heuristics, `repetitions` multiplies each after one to warm up;
  /// the quickest comes first. C's values are lost. Waits for the stream.
  virtual Result<std::vector<GemmChoice>> time(const GemmCall& call, std::span<std::byte> workspace, Stream& stream,
                                               int most, int repetitions) = 0;
  /// From now on this algorithm multiplies that problem. Refused if it was made by another version of the library or
  /// cannot run on this device.
  virtual Status adopt(const GemmChoice& choice) = 0;
  /// All that have been chosen, by heuristics or by adopt, in an order that does not depend on theirs.
  virtual std::vector<GemmChoice> choices() const = 0;
  /// Of those, what multiplied since this was last asked.
  virtual std::vector<GemmChoice> used() = 0;
};

}  // namespace sluice::kernels::cuda
