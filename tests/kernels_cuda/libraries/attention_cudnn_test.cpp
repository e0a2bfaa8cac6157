#include "kernels/cuda/attention_cudnn.h"

#include "tests/kernels_cuda/device_copy.h"
#include "tests/kernels_gemm/attention_trial.h"

namespace sluice::test {
namespace {

using kernels::AttentionCase;
using kernels::AttentionTrial;

class CudnnAttentionTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!stream) return;
    Result<std::unique_ptr<cuda::CudnnAttention>> made = cuda::CudnnAttention::create();
    if (!made) GTEST_SKIP() << made.error().message;
    attention = std::move(*made);
  }

  void run(AttentionTrial& t) {
    DeviceCopy q(t.q), k(t.k), v(t.v), out(t.out), d_out(t.d_out), dq(t.dq), dk(t.dk), dv(t.dv), lse(t.lse);
    const Result<cuda::CudnnAttention::Workspace> bytes = attention->prepare(t.shape);
    ASSERT_TRUE(bytes.ok()) << t.c.name() << ": " << bytes.error().message;
    DeviceArray<std::byte> scratch(static_cast<std::int64_t>(std::max(bytes->forward, bytes->backward)));  // poison
    Status status = attention->forward(t.shape, q.as<bf16>(), k.as<bf16>(), v.as<bf16>(), out.as<bf16>(),
                                       lse.as<float>(), {scratch.data(), bytes->forward}, *stream);
    ASSERT_TRUE(status.ok()) << t.c.name() << ": " << status.error().message;
    status = attention->backward(t.shape, q.as<bf16>(), k.as<bf16>(), v.as<bf16>(), out.as<bf16>(), d_out.as<bf16>(),
                                 lse.as<float>(), dq.as<bf16>(), dk.as<bf16>(), dv.as<bf16>(),
                                 {scratch.data(), bytes->backward}, *stream);
    ASSERT_TRUE(status.ok()) << t.c.name() << ": " << status.error().message;
    for (DeviceCopy* x : {&out, &dq, &dk, &dv, &lse}) x->download();
    scratch.read();
  }

  std::unique_ptr<cuda::CudnnAttention> attention;
};

TEST_F(CudnnAttentionTest, AgreesWithADoublePrecisionLoopAndWithItself) {
  if (std::stoul(attention->version()) < 91600)
    GTEST_SKIP() << "cuDNN " << attention->version() << " has errors in attention of these shapes: 9.16 is needed";
  const std::vector<AttentionCase> cases{{2, 128, 128, 4, 4, 64},       {1, 300, 300, 4, 2, 128},
                                         {2, 257, 257, 2, 1, 80},       {1, 64, 64, 2, 2, 96},
                                         {1, 300, 300, 2, 1, 64, 50},   {1, 1000, 1000, 2, 2, 128, 129},
                                         {1, 200, 200, 4, 1, 64, 1000}, {1, 37, 37, 2, 2, 64}};
  for (AttentionCase c : cases)
    for (const std::int64_t padding : {0, 8}) {
      c.dtype = Dtype::bf16;
      c.padding = padding;
      AttentionTrial t(c), again(c);
      run(t);
      kernels::expect_agreement(t);
      run(again);
      EXPECT_EQ(t.results(), again.results()) << c.name();
    }
}

TEST_F(CudnnAttentionTest, DeclinesWhatItDoesNotTake) {
  AttentionCase c{1, 100, 200, 2, 2, 64};
  EXPECT_FALSE(attention->prepare(AttentionTrial(c).shape).ok());  // more keys than queries
  c = {1, 100, 100, 2, 2, 64};
  c.documents = {40};
  const AttentionTrial documents(c);
  EXPECT_FALSE(attention->prepare(documents.shape).ok());
  c = {1, 100, 100, 2, 2, 64};
  c.shift = 100;
  EXPECT_FALSE(attention->prepare(AttentionTrial(c).shape).ok());
  c = {1, 100, 100, 2, 2, 60};
  EXPECT_FALSE(attention->prepare(AttentionTrial(c).shape).ok());
}

}  // namespace
}  // namespace sluice::test
