#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm_native.h"
#include "tests/kernels_gemm/gemm_trial.h"

namespace sluice::kernels {
namespace {

using Case = GemmCase;

using Multiply = bool (*)(const ConstMatrix&, const ConstMatrix&, const Matrix&, std::int64_t, std::int64_t,
                          std::int64_t, bool, std::span<std::byte>);
bool by_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
             std::int64_t k, bool accumulate, std::span<std::byte> workspace) {
  gemm(a, b, c, m, n, k, accumulate, workspace);
  return true;
}

struct Trial : GemmTrial {
  using GemmTrial::GemmTrial;
  bool multiply(Multiply how = by_gemm) {
    set_compute_threads(c.threads);
    Tensor workspace(
        Dtype::f32,
        static_cast<std::int64_t>(gemm_workspace_bytes(c.m, c.n, c.k, c.operands, c.result) / sizeof(float)), 0);
    workspace.fill(std::nanf(""));  // nothing may be read that was not written
    return how(left(), right(), product(), c.m, c.n, c.k, c.accumulate, workspace.bytes());
  }
};

TEST(gemm, agrees_with_a_double_precision_loop) {
  for (const Case& c : gemm_sweep()) {
    Trial run(c);
    run.multiply();
    EXPECT_LE(run.worst(), 1.0) << c.name();
  }
}

TEST(gemm, crosses_block_borders) {
  for (const bool transposed : {false, true})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      Trial run({1100, 1090, 335, dtype, dtype, transposed, !transposed});
      run.multiply();
      EXPECT_LE(run.worst(7), 1.0) << run.c.name();
    }
  // More than one block of rows, columns and depth of the AMX tiles', with tails in all three.
  for (const int transposes : {0, 1, 2})
    for (const Dtype result : {Dtype::f32, Dtype::bf16}) {
      Trial run({290, 2085, 2090, Dtype::bf16, result, transposes == 1, transposes == 2});
      run.multiply();
      EXPECT_LE(run.worst(97), 1.0) << run.c.name();
    }
}

TEST(gemm, oracle_notices_one_wrong_element) {
  Trial run({33, 40, 50});
  run.multiply();
  float* wrong = static_cast<float*>(run.result.data()) + 7 * run.c_ld + 39;
  *wrong *= 1.0f + 0x1p-12f;
  EXPECT_GT(run.worst(), 1.0);
}

/// Bits of the result's m x n elements.
std::vector<float> result_of(Case c) {
  Trial run(c);
  run.multiply();
  std::vector<float> out;
  const auto all = run.result.floats();
  for (std::int64_t i = 0; i < c.m; ++i)
    out.insert(out.end(), all.begin() + i * run.c_ld, all.begin() + i * run.c_ld + c.n);
  return out;
}

/// oneDNN chooses its code by team and leading dimensions; our own panels compute the same bits with any.
TEST(gemm, bits_do_not_depend_on_threads_addresses_or_leading_dimensions) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int transposes : {0, 1, 2}) {
      const bool native = dtype == Dtype::bf16 && gemm_bf16_is_native();
      const Case base{150, 211, 777, dtype, dtype, transposes == 1, transposes == 2};
      for (const std::int64_t padding : {0, 5, 64}) {
        Case like = base;
        like.padding = native ? padding : 0;
        const std::vector<float> expected = result_of(like);
        for (const int threads : {1, 2, 3})
          for (const std::int64_t shift_bytes : {0, 4, 4096}) {
            Case other = base;
            other.threads = native ? base.threads : threads;
            other.shift_bytes = shift_bytes;
            other.padding = padding;
            EXPECT_TRUE(result_of(other) == expected) << other.name() << " threads " << threads;
          }
      }
    }
}

TEST(gemm, callers_on_several_threads_get_the_same_bits) {
  const Case c{140, 150, 400, Dtype::bf16, Dtype::f32, false, true};
  const std::vector<float> expected = result_of(c);
  std::vector<std::vector<float>> got(4);
  std::vector<std::thread> callers;
  for (auto& g : got) callers.emplace_back([&] { g = result_of(c); });
  for (auto& t : callers) t.join();
  for (const auto& g : got) EXPECT_EQ(g, expected);
}

TEST(gemm, workspace_suffices_for_every_smaller_problem) {
  for (std::int64_t m = 1; m < 5000; m += 131) {
    EXPECT_LE(gemm_workspace_bytes(m, m, m, Dtype::f32, Dtype::bf16),
              gemm_workspace_bytes(m + 131, m + 131, m + 131, Dtype::f32, Dtype::bf16));
    EXPECT_LE(gemm_workspace_bytes(m, m, m, Dtype::f32, Dtype::bf16),
              gemm_workspace_bytes(m, m, m, Dtype::bf16, Dtype::bf16));
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    EXPECT_LE(gemm_workspace_bytes(1 << 20, 1 << 20, 1 << 20, dtype, Dtype::bf16), std::uint64_t{40} << 20);
}

/// The oneDNN path is taken for bf16 on CPUs that have it; in fp32 it runs on every CPU that oneDNN has code for.
TEST(native_gemm, agrees_with_a_double_precision_loop) {
  int ran = 0;
  for (const Case& c : gemm_sweep()) {
    if (c.operands == Dtype::bf16 ? !gemm_bf16_is_native() : c.result != Dtype::f32) continue;
    Trial run(c);
    if (!run.multiply(native_gemm)) continue;
    ++ran;
    EXPECT_LE(run.worst(), 1.0) << c.name();
  }
  if (ran == 0) GTEST_SKIP() << "oneDNN has no optimised matmul for this CPU";
}

}  // namespace
}  // namespace sluice::kernels
