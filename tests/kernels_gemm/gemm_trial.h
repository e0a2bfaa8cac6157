// What the tests of matrix multiply share, on every device: cases, their operands, and a double-precision oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "tests/kernels_gemm/tensors.h"

namespace sluice::kernels {

struct GemmCase {
  std::int64_t m, n, k;
  Dtype operands = Dtype::f32, result = Dtype::f32;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  std::int64_t padding = 0;      ///< added to every leading dimension
  std::int64_t shift_bytes = 0;  ///< of every operand's address
  int threads = 2;

  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " + dtype_name(operands) + "->" +
           dtype_name(result) + (a_transposed ? " T" : " N") + (b_transposed ? "T" : "N") +
           (accumulate ? " accumulate" : "") + " padding " + std::to_string(padding);
  }
};

/// Operands of a case and what the multiply under test made of them. Padding between rows keeps a canary.
struct GemmTrial {
  explicit GemmTrial(const GemmCase& t)
      : c(t),
        a_rows(t.a_transposed ? t.k : t.m),
        b_rows(t.b_transposed ? t.n : t.k),
        a_ld((t.a_transposed ? t.m : t.k) + t.padding),
        b_ld((t.b_transposed ? t.k : t.n) + t.padding),
        c_ld(t.n + t.padding),
        a(t.operands, a_rows * a_ld, t.shift_bytes),
        b(t.operands, b_rows * b_ld, t.shift_bytes),
        result(t.result, t.m * c_ld, t.shift_bytes) {
    a.fill_random_rows(1, a_rows, a_ld - t.padding, a_ld);
    b.fill_random_rows(2, b_rows, b_ld - t.padding, b_ld);
    result.fill_random_rows(3, t.m, t.n, c_ld);
    before = result.floats();
  }

  ConstMatrix left() { return {a.data(), c.operands, a_ld, c.a_transposed}; }
  ConstMatrix right() { return {b.data(), c.operands, b_ld, c.b_transposed}; }
  Matrix product() { return {result.data(), c.result, c_ld}; }

  /// Largest error over the oracle's rounding bound (1 = the bound), canaries included, in every row_step-th row.
  double worst(std::int64_t row_step = 1) const {
    const auto av = a.floats(), bv = b.floats(), got = result.floats();
    const double unit = c.result == Dtype::f32 ? 0 : 0x1p-8;
    double ratio = 0;
    for (std::int64_t i = 0; i < c.m; i += row_step)
      for (std::int64_t j = 0; j < c_ld; ++j) {
        const std::size_t at = static_cast<std::size_t>(i * c_ld + j);
        if (j >= c.n) {
          if (got[at] != before[at]) return 1e30;
          continue;
        }
        double sum = c.accumulate ? before[at] : 0, size = std::fabs(sum);
        for (std::int64_t p = 0; p < c.k; ++p) {
          const double product =
              static_cast<double>(av[static_cast<std::size_t>(c.a_transposed ? p * a_ld + i : i * a_ld + p)]) *
              bv[static_cast<std::size_t>(c.b_transposed ? j * b_ld + p : p * b_ld + j)];
          sum += product;
          size += std::fabs(product);
        }
        const double bound = size * 0x1p-24 * (4 + std::sqrt(static_cast<double>(c.k))) + std::fabs(sum) * unit;
        ratio = std::max(ratio, std::isfinite(got[at]) ? std::fabs(got[at] - sum) / bound : 1e30);
      }
    return ratio;
  }

  GemmCase c;
  std::int64_t a_rows, b_rows, a_ld, b_ld, c_ld;
  Tensor a, b, result;
  std::vector<float> before;
};

inline std::vector<GemmCase> gemm_sweep() {
  std::vector<GemmCase> cases;
  const std::int64_t sizes[][3] = {{1, 1, 1},     {1, 64, 33},    {3, 5, 7},      {4, 24, 16},
                                   {17, 31, 1},   {37, 29, 19},   {64, 100, 320}, {129, 8, 321},
                                   {5, 257, 700}, {130, 193, 65}, {8, 48, 1300}};
  for (const auto& s : sizes)
    for (const int transposes : {0, 1, 2, 3})
      for (const Dtype operands : {Dtype::f32, Dtype::bf16})
        for (const Dtype result : {Dtype::f32, Dtype::bf16})
          for (const bool accumulate : {false, true}) {
            if (accumulate && result == Dtype::bf16) continue;
            for (const std::int64_t padding : {0, 13})
              cases.push_back({s[0], s[1], s[2], operands, result, (transposes & 1) != 0, (transposes & 2) != 0,
                               accumulate, padding});
          }
  return cases;
}

}  // namespace sluice::kernels
