#include "kernels/cuda/gemm.h"

#include "tests/kernels_cuda/device_copy.h"
#include "tests/kernels_gemm/gemm_trial.h"

namespace sluice::test {
namespace {

using kernels::GemmCase;
using kernels::GemmTrial;

/// The model of the library has plain loops: there, sizes are divided by this.
#ifdef SLUICE_SIMT
constexpr std::int64_t smaller = 8;
#else
constexpr std::int64_t smaller = 1;
#endif

class GemmTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!stream) return;
    Result<std::unique_ptr<cuda::Gemm>> made = cuda::Gemm::create({});
    if (!made) GTEST_SKIP() << made.error().message;
    gemm = std::move(*made);
  }

  /// `how` is called with the operands on the device, and with a workspace of poison.
  template <class F>
  void on_device(GemmTrial& t, const F& how) {
    const GemmCase& c = t.c;
    DeviceCopy a(t.a, c.shift_bytes), b(t.b, c.shift_bytes), result(t.result, c.shift_bytes);
    cuda::GemmCall call{t.left(), t.right(), t.product(), c.m, c.n, c.k, c.accumulate};
    call.a.data = a.data(), call.b.data = b.data(), call.c.data = result.data();
    const std::uint64_t bytes = cuda::gemm_workspace_bytes(c.m, c.n, c.k, c.operands, c.result);
    if (workspace == nullptr || workspace_bytes < bytes) {
      workspace = std::make_unique<DeviceArray<std::byte>>(static_cast<std::int64_t>(bytes));
      workspace_bytes = bytes;
    }
    how(call, std::span<std::byte>(workspace->data(), bytes));
    result.download();
  }
  void multiply(cuda::Gemm& by, GemmTrial& t) {
    on_device(t, [&](const cuda::GemmCall& call, std::span<std::byte> scratch) {
      const Status status = by.multiply(call, scratch, *stream);
      EXPECT_TRUE(status.ok()) << status.error().message;
    });
  }
  std::vector<float> result_of(cuda::Gemm& by, const GemmCase& c) {
    GemmTrial t(c);
    multiply(by, t);
    EXPECT_LE(t.worst(7), 1.0) << c.name();
    return t.result.floats();
  }

  std::unique_ptr<cuda::Gemm> gemm;
  std::unique_ptr<DeviceArray<std::byte>> workspace;
  std::uint64_t workspace_bytes = 0;
};

TEST_F(GemmTest, AgreesWithADoublePrecisionLoop) {
  for (const GemmCase& c : kernels::gemm_sweep()) {
    GemmTrial t(c);
    multiply(*gemm, t);
    EXPECT_LE(t.worst(), 1.0) << c.name();
  }
}

TEST_F(GemmTest, AgreesOnLargeOperands) {
  for (const int transposes : {0, 1, 2, 3})
    for (const Dtype operands : {Dtype::f32, Dtype::bf16})
      for (const Dtype result : {Dtype::f32, Dtype::bf16})
        for (const std::int64_t padding : {0, 3, 8}) {
          GemmTrial t({1032 / smaller, 776 / smaller, 2048 / smaller, operands, result, transposes % 2 == 1,
                       transposes / 2 == 1, result == Dtype::f32 && padding == 8, padding});
          multiply(*gemm, t);
          EXPECT_LE(t.worst(97), 1.0) << t.c.name();
        }
}

TEST_F(GemmTest, AgreesWhereAddressesAreMisaligned) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const std::int64_t shift_bytes : {4, 12, 16}) {
      GemmTrial t({64, 128, 96, dtype, dtype, false, true, false, 0, shift_bytes});
      multiply(*gemm, t);
      EXPECT_LE(t.worst(), 1.0) << t.c.name() << " shift " << shift_bytes;
    }
}

/// Few outputs of long sums: where sums are split.
TEST_F(GemmTest, BitsDoNotChangeFromRunToRunOrHandleToHandle) {
  Result<std::unique_ptr<cuda::Gemm>> other = cuda::Gemm::create({});
  ASSERT_TRUE(other.ok()) << other.error().message;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const bool accumulate : {false, true}) {
      const GemmCase c{128 / smaller, 64 / smaller, 16384 / smaller, dtype, Dtype::f32, true, false, accumulate};
      const std::vector<float> expected = result_of(*gemm, c);
      for (int run = 0; run < 10; ++run) EXPECT_TRUE(result_of(*gemm, c) == expected) << c.name();
      EXPECT_TRUE(result_of(**other, c) == expected) << c.name();
    }
}

TEST_F(GemmTest, AChoiceThatWasKeptGivesTheSameBits) {
  const GemmCase c{512 / smaller, 256 / smaller, 4096 / smaller, Dtype::bf16, Dtype::bf16, false, true};
  GemmTrial t(c);
  std::vector<cuda::GemmChoice> timed;
  on_device(t, [&](const cuda::GemmCall& call, std::span<std::byte> scratch) {
    Result<std::vector<cuda::GemmChoice>> all = gemm->time(call, scratch, *stream, 8, 3);
    ASSERT_TRUE(all.ok()) << all.error().message;
    timed = std::move(*all);
  });
  ASSERT_FALSE(timed.empty());
  for (const cuda::GemmChoice& choice : timed) {
    EXPECT_GT(choice.seconds, 0);
    EXPECT_GE(choice.seconds, timed[0].seconds);
    ASSERT_TRUE(gemm->adopt(choice).ok());
    const std::vector<float> expected = result_of(*gemm, c);
    ASSERT_EQ(gemm->choices().size(), 1u);
    Result<std::unique_ptr<cuda::Gemm>> later = cuda::Gemm::create({});
    ASSERT_TRUE(later.ok()) << later.error().message;
    ASSERT_TRUE((*later)->adopt(gemm->choices()[0]).ok());
    EXPECT_TRUE(result_of(**later, c) == expected);
  }
  timed[0].library_version -= 1;
  const Status status = gemm->adopt(timed[0]);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(timed[0].problem.name()), std::string::npos) << status.error().message;
}

TEST_F(GemmTest, ChoicesAreWords) {
  const GemmCase c{512 / smaller, 256 / smaller, 4096 / smaller, Dtype::bf16, Dtype::f32, true, false};
  static_cast<void>(result_of(*gemm, c));
  const std::vector<cuda::GemmChoice> used = gemm->used();
  ASSERT_EQ(used.size(), 1u);
  EXPECT_TRUE(gemm->used().empty());
  const auto [problem, algorithm] = used[0].to_words();
  EXPECT_TRUE(cuda::GemmChoice::is_named_by(problem)) << problem;
  EXPECT_FALSE(cuda::GemmChoice::is_named_by("attention 1 2"));
  const auto back = cuda::GemmChoice::from_words(problem, algorithm);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->problem, used[0].problem);
  EXPECT_EQ(back->algorithm, used[0].algorithm);
  EXPECT_EQ(back->library_version, used[0].library_version);
  EXPECT_EQ(back->workspace_bytes, used[0].workspace_bytes);
  for (const auto& [p, a] : {std::pair<std::string, std::string>{problem + " 1", algorithm},
                             {problem.substr(0, problem.size() - 2), algorithm},
                             {"x" + problem, algorithm},
                             {problem, algorithm + " 0"},
                             {problem, ""},
                             {problem, "g" + algorithm},
                             {problem, "11111111111111111 " + algorithm}})
    EXPECT_FALSE(cuda::GemmChoice::from_words(p, a).ok()) << p << " = " << a;
}

/// As logits of a vocabulary of odd size are: what the others are promised to be, they are.
TEST_F(GemmTest, AMisalignedOperandIsSoAlone) {
  static_cast<void>(result_of(*gemm, {64, 65, 96, Dtype::bf16, Dtype::f32, false, true}));
  std::vector<cuda::GemmChoice> used = gemm->used();
  ASSERT_EQ(used.size(), 1u);
  const cuda::GemmProblem& p = used[0].problem;
  EXPECT_TRUE(p.a_aligned && p.b_aligned && !p.c_aligned) << p.name();
  EXPECT_NE(p.name().find(", C misaligned"), std::string::npos) << p.name();
#ifdef SLUICE_SIMT
  EXPECT_EQ(used[0].algorithm[7], 0x10100404u) << "the model of the library keeps what it was promised";
#endif
  const auto [problem, algorithm] = used[0].to_words();
  const auto back = cuda::GemmChoice::from_words(problem, algorithm);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->problem, p);
  const std::string before = problem.substr(0, problem.rfind(' '));
  for (const auto& [number, aligned] : {std::pair{" 1", true}, {" 0", false}}) {
    const auto old = cuda::GemmChoice::from_words(before + number, algorithm);
    ASSERT_TRUE(old.ok()) << old.error().message;
    for (const bool of : {old->problem.a_aligned, old->problem.b_aligned, old->problem.c_aligned})
      EXPECT_EQ(of, aligned);
  }
  for (const char* number : {" 2", " 7", " 8", " f", " 1b"})
    EXPECT_FALSE(cuda::GemmChoice::from_words(before + number, algorithm).ok()) << number;
}

TEST_F(GemmTest, TheQuickestIsTakenWhereItIsAskedFor) {
  const GemmCase c{512 / smaller, 256 / smaller, 4096 / smaller, Dtype::bf16, Dtype::bf16, false, true};
  Result<std::unique_ptr<cuda::Gemm>> measuring = cuda::Gemm::create({.timed = 4});
  ASSERT_TRUE(measuring.ok()) << measuring.error().message;
  const std::vector<float> result = result_of(**measuring, c);
  const std::vector<cuda::GemmChoice> used = (*measuring)->used();
  ASSERT_EQ(used.size(), 1u);
  EXPECT_GT(used[0].seconds, 0);
  ASSERT_TRUE(gemm->adopt(used[0]).ok());
  EXPECT_TRUE(result_of(*gemm, c) == result);
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST_F(GemmTest, BiasAndGelu) {
  const std::int64_t m = 72, n = 136, k = 64;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const bool with_gelu : {false, true})
      for (const bool with_before : {false, true}) {
        if (with_before && !with_gelu) continue;
        GemmTrial plain({m, n, k, dtype, dtype, false, true}), t({m, n, k, dtype, dtype, false, true});
        kernels::Tensor bias(dtype, n, 0), before(dtype, m * n, 0);
        bias.fill_random_rows(9, 1, n, n);
        DeviceCopy device_bias(bias), device_before(before);
        bool has_algorithm = false;
        on_device(t, [&](cuda::GemmCall call, std::span<std::byte> scratch) {
          call.epilogue.bias = device_bias.data();
          call.epilogue.gelu = with_gelu;
          if (with_before) call.epilogue.before_gelu = device_before.data(), call.epilogue.before_gelu_ld = n;
          const Status status = gemm->multiply(call, scratch, *stream);
          has_algorithm = status.ok();
          EXPECT_TRUE(has_algorithm || (dtype == Dtype::f32 && with_gelu)) << status.error().message;
        });
        for (const cuda::GemmChoice& choice : gemm->choices()) {
          const Status adopted = gemm->adopt(choice);
          EXPECT_TRUE(adopted.ok()) << adopted.error().message;
        }
        if (!has_algorithm) continue;  // the library promises GELU of bf16 results alone
        device_before.download();
        const auto a = t.a.floats(), b = t.b.floats(), add = bias.floats(), got = t.result.floats();
        const auto argument = before.floats();
        const double unit = dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-20;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            double x = add[static_cast<std::size_t>(j)];
            for (std::int64_t p = 0; p < k; ++p)
              x += static_cast<double>(a[static_cast<std::size_t>(i * k + p)]) * b[static_cast<std::size_t>(j * k + p)];
            const auto at = static_cast<std::size_t>(i * n + j);
            const double want = with_gelu ? gelu(x) : x;
            // GELU may be of the rounded argument
            ASSERT_NEAR(got[at], want, (std::fabs(want) + std::fabs(x)) * unit + (with_gelu ? 2e-3 : 1e-5)) << i << j;
            if (with_before) {
              ASSERT_NEAR(argument[at], x, std::fabs(x) * unit + 1e-5) << i << j;
            }
          }
      }
}

TEST_F(GemmTest, AnEmptySumIsZeroAndWrongRequestsAreNamed) {
  GemmTrial t({5, 7, 3, Dtype::f32, Dtype::f32, false, false, false, 2});
  on_device(t, [&](cuda::GemmCall call, std::span<std::byte> scratch) {
    call.k = 0;
    const Status status = gemm->multiply(call, scratch, *stream);
    ASSERT_TRUE(status.ok()) << status.error().message;
  });
  const auto got = t.result.floats();
  for (std::int64_t i = 0; i < 5 * t.c_ld; ++i)
    EXPECT_EQ(got[static_cast<std::size_t>(i)], i % t.c_ld < 7 ? 0 : t.before[static_cast<std::size_t>(i)]);
  GemmTrial wrong({5, 7, 3, Dtype::bf16, Dtype::bf16, false, false, true});
  on_device(wrong, [&](const cuda::GemmCall& call, std::span<std::byte> scratch) {
    const Status status = gemm->multiply(call, scratch, *stream);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("bf16 5 x 7 x 3 NN -> bf16"), std::string::npos) << status.error().message;
  });
}

}  // namespace
}  // namespace sluice::test
