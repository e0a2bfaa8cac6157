#include "kernels/cuda/attention.h"

#include "kernels/cuda/elementwise.h"
#include "tests/kernels_cuda/device_copy.h"
#include "tests/kernels_gemm/attention_trial.h"

namespace sluice::test {
namespace {

using kernels::AttentionCase;
using kernels::AttentionTrial;
using kernels::Doubles;
using kernels::Tensor;

template <class T>
void run(AttentionTrial& t, cuda::Stream& stream) {
  const std::int64_t shift = t.c.shift_bytes;
  DeviceCopy q(t.q, shift), k(t.k, shift), v(t.v, shift), out(t.out, shift), d_out(t.d_out, shift);
  DeviceCopy dq(t.dq, shift), dk(t.dk, shift), dv(t.dv, shift);
  DeviceCopy lse(t.lse);
  DeviceArray<std::int32_t> positions(t.positions);
  kernels::AttentionShape shape = t.shape;
  if (shape.positions != nullptr) shape.positions = positions.data();
  ASSERT_TRUE(cuda::attention_supports(shape)) << t.c.name();
  DeviceArray<std::byte> workspace(
      static_cast<std::int64_t>(cuda::attention_workspace_bytes(shape, t.c.dtype)));  // poison
  const std::span<std::byte> scratch(workspace.data(), cuda::attention_workspace_bytes(shape, t.c.dtype));
  cuda::attention_forward(shape, q.as<T>(), k.as<T>(), v.as<T>(), out.as<T>(), lse.as<float>(), scratch, stream);
  cuda::attention_backward(shape, q.as<T>(), k.as<T>(), v.as<T>(), out.as<T>(), d_out.as<T>(), lse.as<float>(),
                           dq.as<T>(), dk.as<T>(), dv.as<T>(), scratch, stream);
  for (DeviceCopy* x : {&out, &dq, &dk, &dv}) x->download();
  lse.download();
  workspace.read();
}

class AttentionTest : public DeviceTest {
 protected:
  void run(AttentionTrial& t) { t.c.dtype == Dtype::f32 ? test::run<float>(t, *stream) : test::run<bf16>(t, *stream); }
  void expect_agreement(const AttentionCase& c) {
    AttentionTrial t(c);
    run(t);
    kernels::expect_agreement(t);
  }
  std::vector<Doubles> results_of(const AttentionCase& c) {
    AttentionTrial t(c);
    run(t);
    return t.results();
  }
};

constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16};

TEST_F(AttentionTest, AgreesWithADoublePrecisionLoop) {
  const std::vector<AttentionCase> cases{
      {1, 1, 1, 1, 1, 64},          {1, 1, 200, 4, 2, 64},       {2, 5, 5, 2, 1, 16},
      {1, 64, 64, 2, 2, 128},       {1, 65, 65, 3, 1, 48},       {2, 129, 129, 2, 1, 96},
      {1, 150, 150, 2, 1, 80},      {1, 37, 203, 6, 3, 24},      {3, 70, 71, 1, 1, 7},
      {1, 130, 213, 1, 1, 33},      {1, 300, 300, 1, 1, 128},    {1, 140, 140, 2, 2, 1},
      {1, 150, 150, 2, 1, 32, 1},   {1, 200, 200, 2, 1, 72, 50}, {1, 150, 300, 2, 2, 104, 129},
      {1, 90, 200, 4, 1, 64, 1000}, {1, 20, 300, 2, 1, 64, 30},
  };
  for (AttentionCase c : cases)
    for (const Dtype dtype : dtypes)
      for (const std::int64_t padding : {0, 11}) {
        c.dtype = dtype;
        c.padding = padding;
        expect_agreement(c);
      }
}

TEST_F(AttentionTest, StaysInsideDocuments) {
  const std::vector<std::vector<std::int64_t>> lengths{{1},          {1000},      {64}, {7, 130, 1, 2, 61},
                                                       {33, 200, 5}, {31, 32, 33}};
  for (const auto& documents : lengths)
    for (AttentionCase c :
         {AttentionCase{.batch = 2, .queries = 200, .keys = 200, .heads = 2, .kv_heads = 1, .head_dim = 64},
          {.batch = 1, .queries = 257, .keys = 257, .heads = 2, .kv_heads = 2, .head_dim = 40, .window = 50},
          {.batch = 1, .queries = 170, .keys = 170, .heads = 1, .kv_heads = 1, .head_dim = 128}})
      for (const Dtype dtype : dtypes) {
        c.documents = documents;
        c.dtype = dtype;
        c.padding = c.head_dim == 64 ? 8 : 11;
        expect_agreement(c);
      }
}

TEST_F(AttentionTest, OneDocumentHasTheBitsOfARowWithoutDocuments) {
  for (const Dtype dtype : dtypes) {
    AttentionCase c{2, 200, 200, 2, 1, 64, 0, dtype};
    const auto expected = results_of(c);
    c.documents = {200};
    EXPECT_EQ(results_of(c), expected) << c.name();
  }
}

TEST_F(AttentionTest, SharpSoftmaxNeitherOverflowsNorLosesKeys) {
  AttentionCase c{1, 200, 200, 2, 2, 64};
  c.spread = 12;  // scores of up to several hundred
  AttentionTrial t(c);
  run(t);
  const kernels::AttentionOracle o = t.oracle();
  EXPECT_LE(kernels::relative_error(t.queries(t.out), o.out), 1e-4);
  EXPECT_LE(kernels::relative_error(t.queries(t.dq), o.dq), 1e-4);
  c.dtype = Dtype::bf16;
  expect_agreement(c);
}

/// Runs, addresses and strides: rows that cannot be copied 16 bytes at once take another way to the same bits.
TEST_F(AttentionTest, BitsDoNotDependOnRunsAddressesOrStrides) {
  for (const std::int64_t head_dim : {64, 80})
    for (const Dtype dtype : dtypes) {
      AttentionCase c{2, 70, 90, 2, 1, head_dim, 0, dtype};
      const auto expected = results_of(c);
      for (const std::int64_t shift_bytes : {0, 4, 16})
        for (const std::int64_t padding : {0, 8, 9}) {
          c.shift_bytes = shift_bytes, c.padding = padding;
          EXPECT_EQ(results_of(c), expected) << c.name() << " shift " << shift_bytes;
        }
    }
}

TEST_F(AttentionTest, NanInAnyOperandReachesTheResults) {
  for (const Dtype dtype : dtypes) {
    const AttentionCase c{1, 70, 70, 1, 1, 32, 0, dtype};
    AttentionTrial key(c), query(c);
    key.k.set(5 * 32 + 3, std::nanf(""));
    query.q.set(66 * 32 + 1, std::nanf(""));
    run(key);
    run(query);
    EXPECT_TRUE(std::isfinite(key.out.floats()[4 * 32]));  // query 4 does not see key 5
    EXPECT_TRUE(std::isnan(key.out.floats()[69 * 32]));
    EXPECT_TRUE(std::isnan(query.out.floats()[66 * 32]));
    EXPECT_TRUE(std::isnan(query.dv.floats()[0]));
  }
}

TEST_F(AttentionTest, RefusesWhatItHasNoKernelFor) {
  kernels::AttentionShape shape{.queries = 8, .keys = 8, .head_dim = 160};
  EXPECT_FALSE(cuda::attention_supports(shape));
  shape.head_dim = 128;
  EXPECT_TRUE(cuda::attention_supports(shape));
  shape.shift = 1 << 30;
  EXPECT_FALSE(cuda::attention_supports(shape));
  shape.shift = -3;
  EXPECT_TRUE(cuda::attention_supports(shape));
  shape.shift.reset();
  shape.keys = 7;
  EXPECT_FALSE(cuda::attention_supports(shape));
  cuda::Stream other(nullptr);
  cuda::attention_forward<float>(shape, nullptr, nullptr, nullptr, nullptr, nullptr, {}, other);
  ASSERT_FALSE(other.status().ok());
  EXPECT_NE(other.status().error().message.find("8 queries, 7 keys"), std::string::npos);
}

TEST_F(AttentionTest, BlocksAtAnyPlacesAgreeWithADoublePrecisionLoop) {
  for (AttentionCase c : kernels::cases_of_places(2, 60, 260)) {
    expect_agreement(c);
    c.dtype = c.dtype == Dtype::f32 ? Dtype::bf16 : Dtype::f32;
    expect_agreement(c);
  }
}

TEST_F(AttentionTest, ThePlaceOfTheLastKeyHasTheBitsOfNoShift) {
  for (const Dtype dtype : dtypes)
    for (const std::int64_t window : {0, 70}) {
      AttentionCase c{1, 100, 190, 2, 1, 40, window, dtype};
      const auto expected = results_of(c);
      c.shift = 90;
      EXPECT_EQ(results_of(c), expected) << c.name();
    }
}

struct CudaCalls {
  cuda::Stream& stream;
  template <class T>
  void forward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, T* out, float* lse) const {
    cuda::attention_forward(s, q, k, v, out, lse, {}, stream);
  }
  template <class T>
  void backward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                const float* lse, T* dq, T* dk, T* dv) const {
    DeviceArray<std::byte> room(static_cast<std::int64_t>(cuda::attention_workspace_bytes(s, Dtype::f32)));
    cuda::attention_backward(s, q, k, v, out, d_out, lse, dq, dk, dv,
                             {room.data(), cuda::attention_workspace_bytes(s, Dtype::f32)}, stream);
    room.read();
  }
  void merge(const auto&... a) const { cuda::attention_merge(a..., stream); }
  void add_widened(const auto&... a) const { cuda::add_widened(a..., stream); }
  void narrow(const auto&... a) const { cuda::narrow(a..., stream); }
};

template <class T>
void run_in_blocks(AttentionTrial& t, const std::vector<std::int64_t>& query_ends,
                   const std::vector<std::int64_t>& key_ends, cuda::Stream& stream) {
  const std::int64_t q_numel = t.c.batch * t.c.queries * t.q_ld, k_numel = t.c.batch * t.c.keys * t.k_ld;
  const auto zeros = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
  DeviceCopy q(t.q), k(t.k), v(t.v), d_out(t.d_out), out(t.out), dq(t.dq), dk(t.dk), dv(t.dv), lse(t.lse);
  DeviceArray<T> part_q(q_numel), part_k(k_numel), part_v(k_numel);
  DeviceArray<float> part_lse(t.c.heads * t.c.queries), sum_out(q_numel), sum_dq(zeros(q_numel));
  DeviceArray<float> sum_dk(zeros(k_numel)), sum_dv(zeros(k_numel));
  DeviceArray<std::int32_t> positions(t.positions);
  kernels::AttentionShape shape = t.shape;
  if (shape.positions != nullptr) shape.positions = positions.data();
  kernels::run_in_blocks(
      shape, query_ends, key_ends,
      kernels::BlockOperands<T>{q.as<T>(), k.as<T>(), v.as<T>(), d_out.as<T>(), out.as<T>(), dq.as<T>(), dk.as<T>(),
                                dv.as<T>(), lse.as<float>(), part_q.data(), part_k.data(), part_v.data(),
                                part_lse.data(), sum_out.data(), sum_dq.data(), sum_dk.data(), sum_dv.data()},
      CudaCalls{stream});
  for (DeviceCopy* x : {&out, &dq, &dk, &dv}) x->download();
  for (DeviceArray<T>* x : {&part_q, &part_k, &part_v}) x->read();
  for (DeviceArray<float>* x : {&part_lse, &sum_out, &sum_dq, &sum_dk, &sum_dv}) x->read();
}

TEST_F(AttentionTest, OfBlocksMergedIsThatOfTheWhole) {
  std::vector<AttentionCase> cases{
      {1, 150, 200, 2, 1, 64}, {2, 70, 160, 2, 1, 33}, {1, 160, 160, 1, 1, 128, 70}, {2, 120, 120, 2, 1, 80}};
  cases.back().documents = {40, 3, 110, 60};
  for (AttentionCase c : cases)
    for (const Dtype dtype : dtypes)
      for (const std::int64_t blocks : {1, 2, 3, 4}) {
        c.dtype = dtype;
        AttentionTrial t(c);
        const auto queries = kernels::random_ends(1, c.queries, blocks == 3 ? 3 : 1);
        const auto keys = kernels::random_ends(2, c.keys, blocks);
        dtype == Dtype::f32 ? run_in_blocks<float>(t, queries, keys, *stream)
                            : run_in_blocks<bf16>(t, queries, keys, *stream);
        kernels::expect_agreement_of_blocks(t, " in " + std::to_string(blocks) + " blocks");
      }
}

template <class T>
void expect_merged(kernels::MergeTrial& t, cuda::Stream& stream) {
  DeviceCopy first(t.parts[0]), second(t.parts[1]);
  DeviceArray<float> first_lse(t.lse[0]), second_lse(t.lse[1]);
  DeviceArray<float> sum(t.rows * t.width), lse(static_cast<std::int64_t>(t.lse[0].size()));  // poison
  cuda::attention_merge(t.shape, first.as<T>(), first_lse.data(), true, sum.data(), lse.data(), stream);
  cuda::attention_merge(t.shape, second.as<T>(), second_lse.data(), false, sum.data(), lse.data(), stream);
  t.expect_merged(sum.read(), lse.read());
}

TEST_F(AttentionTest, MergeIsTheSumByLogSumExp) {
  for (const std::int64_t head_dim : {1, 7, 33, 64, 128})
    for (const std::int64_t padding : {0, 5, 8}) {
      kernels::MergeTrial f32(Dtype::f32, head_dim, padding), half(Dtype::bf16, head_dim, padding);
      expect_merged<float>(f32, *stream);
      expect_merged<bf16>(half, *stream);
    }
}

#ifdef SLUICE_SIMT
/// On a device with less shared memory blocks have fewer keys.
TEST_F(AttentionTest, AgreesOnSmallerDevices) {
  simt::shared_bytes_max = 99 << 10;
  stream.emplace(nullptr);  // asks anew
  for (const std::int64_t head_dim : {64, 80, 96, 128})
    for (const std::int64_t window : {0, 100}) {
      AttentionCase c{1, 150, 170, 2, 1, head_dim, window, Dtype::bf16, 8};
      expect_agreement(c);
      c.shift = 60;
      expect_agreement(c);
    }
  simt::shared_bytes_max = 227 << 10;
}
#endif

}  // namespace
}  // namespace sluice::test
