#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "tests/kernels_gemm/attention_trial.h"
#include "tests/kernels_vec/support.h"

namespace sluice::kernels {
namespace {

using Case = AttentionCase;

struct Trial : AttentionTrial {
  using AttentionTrial::AttentionTrial;
  template <class T>
  void run_typed() {
    set_compute_threads(c.threads);
    Tensor workspace(Dtype::f32, static_cast<std::int64_t>(attention_workspace_bytes(shape, c.dtype) / sizeof(float)),
                     0);
    workspace.fill(std::nanf(""));  // nothing may be read that was not written
    attention_forward(shape, q.as<T>(), k.as<T>(), v.as<T>(), out.as<T>(), lse.as<float>(), workspace.bytes());
    workspace.fill(std::nanf(""));
    attention_backward(shape, q.as<T>(), k.as<T>(), v.as<T>(), out.as<T>(), d_out.as<T>(), lse.as<float>(), dq.as<T>(),
                       dk.as<T>(), dv.as<T>(), workspace.bytes());
  }
  void run() { c.dtype == Dtype::f32 ? run_typed<float>() : run_typed<bf16>(); }
};

void expect_agreement(const Case& c) {
  Trial t(c);
  t.run();
  kernels::expect_agreement(t);
}

std::vector<Doubles> results_of(const Case& c) {
  Trial t(c);
  t.run();
  return t.results();
}

TEST(attention, agrees_with_a_double_precision_loop) {
  const std::vector<Case> cases{
      {1, 1, 1, 1, 1, 64},         {1, 1, 300, 4, 2, 64},        {2, 5, 5, 2, 1, 16},
      {1, 64, 64, 2, 2, 64},       {1, 65, 65, 3, 1, 48},        {2, 129, 129, 4, 2, 128},
      {1, 300, 300, 2, 1, 80},     {1, 37, 293, 6, 3, 24},       {3, 70, 71, 1, 1, 7},
      {1, 130, 513, 2, 2, 33},     {1, 257, 257, 3, 3, 1},       {1, 300, 300, 2, 1, 32, 1},
      {1, 300, 300, 2, 1, 32, 50}, {1, 300, 450, 2, 2, 64, 129}, {1, 200, 600, 4, 1, 16, 1000},
  };
  for (Case c : cases)
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const std::int64_t padding : {0, 11}) {
        c.dtype = dtype;
        c.padding = padding;
        expect_agreement(c);
      }
}

TEST(attention, stays_inside_documents) {
  std::vector<Case> cases;
  const std::vector<std::vector<std::int64_t>> lengths{{1},          {1000},      {64}, {7, 130, 1, 2, 61},
                                                       {33, 300, 5}, {31, 32, 33}};
  for (const auto& documents : lengths) {
    cases.push_back({.batch = 2, .queries = 300, .keys = 300, .heads = 4, .kv_heads = 2, .head_dim = 64});
    cases.back().documents = documents;
    cases.push_back({.batch = 3, .queries = 257, .keys = 257, .heads = 2, .kv_heads = 1, .head_dim = 40, .window = 50});
    cases.back().documents = documents;
    cases.push_back({.batch = 1, .queries = 1100, .keys = 1100, .heads = 1, .kv_heads = 1, .head_dim = 16});
    cases.back().documents = documents;
  }
  for (Case c : cases)
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      c.dtype = dtype;
      c.padding = 11;
      expect_agreement(c);
    }
}

TEST(attention, one_document_has_the_bits_of_a_row_without_documents) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Case c{2, 300, 300, 2, 1, 64, 0, dtype};
    const auto expected = results_of(c);
    c.documents = {300};
    EXPECT_EQ(results_of(c), expected) << c.name();
  }
}

TEST(attention, sharp_softmax_neither_overflows_nor_loses_keys) {
  Case c{1, 280, 280, 2, 2, 64};
  c.spread = 12;  // scores of up to several hundred
  Trial t(c);
  t.run();
  const AttentionOracle o = t.oracle();
  EXPECT_LE(relative_error(t.queries(t.out), o.out), 1e-4);
  EXPECT_LE(relative_error(t.queries(t.dq), o.dq), 1e-4);
}

TEST(attention, oracle_gradient_agrees_with_finite_differences) {
  Trial t({1, 9, 12, 4, 2, 5, 6});
  AttentionOracle o = t.oracle();
  const auto loss = [](const AttentionOracle& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.out.size(); ++i) sum += x.out[i] * x.d_out[i];
    return sum;
  };
  constexpr double step = 1e-5;
  for (const auto& [input, gradient] : {std::pair{&AttentionOracle::q, &AttentionOracle::dq},
                                        {&AttentionOracle::k, &AttentionOracle::dk},
                                        {&AttentionOracle::v, &AttentionOracle::dv}})
    for (std::size_t i = 0; i < (o.*input).size(); i += 3) {
      AttentionOracle above = o, below = o;
      (above.*input)[i] += step;
      (below.*input)[i] -= step;
      above.run();
      below.run();
      EXPECT_NEAR((loss(above) - loss(below)) / (2 * step), (o.*gradient)[i], 1e-7);
    }
}

TEST(attention, bits_do_not_depend_on_threads_addresses_or_strides) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Case c{3, 150, 200, 6, 3, 40, 0, dtype};
    const auto expected = results_of(c);
    for (const int threads : {1, 2, 3})
      for (const std::int64_t shift_bytes : {0, 4, 4096})
        for (const std::int64_t padding : {0, 9}) {
          c.threads = threads, c.shift_bytes = shift_bytes, c.padding = padding;
          EXPECT_EQ(results_of(c), expected) << c.name() << " threads " << threads << " shift " << shift_bytes;
        }
  }
}

TEST(attention, nan_in_any_operand_reaches_the_results) {
  Trial key({1, 70, 70, 1, 1, 32}), query({1, 70, 70, 1, 1, 32});
  key.k.set(5 * 32 + 3, std::nanf(""));
  query.q.set(66 * 32 + 1, std::nanf(""));
  key.run();
  query.run();
  EXPECT_TRUE(std::isfinite(key.out.floats()[4 * 32]));  // query 4 does not see key 5
  EXPECT_TRUE(std::isnan(key.out.floats()[69 * 32]));
  EXPECT_TRUE(std::isnan(query.out.floats()[66 * 32]));
  EXPECT_TRUE(std::isnan(query.dv.floats()[0]));
}

/// The last query against a cache of keys must see exactly what it saw as part of the whole sequence.
TEST(attention, decoding_equals_the_last_row_of_the_whole_sequence) {
  Trial whole({1, 90, 90, 2, 1, 32}), last({1, 1, 90, 2, 1, 32});
  for (std::size_t i = 0; i < 64; ++i) last.q.set(i, whole.q.floats()[89 * 64 + i]);
  whole.run();
  last.run();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(last.out.floats()[i], whole.out.floats()[89 * 64 + i]);
}

TEST(attention, blocks_at_any_places_agree_with_a_double_precision_loop) {
  test::with_targets([] {
    for (const Case& c : cases_of_places(1, 60, 300)) expect_agreement(c);
  });
}

TEST(attention, the_place_of_the_last_key_has_the_bits_of_no_shift) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const std::int64_t window : {0, 70}) {
      Case c{2, 150, 290, 4, 2, 40, window, dtype};
      const auto expected = results_of(c);
      c.shift = 140;
      EXPECT_EQ(results_of(c), expected) << c.name();
    }
}

struct CpuCalls {
  template <class T>
  void forward(const AttentionShape& s, const T* q, const T* k, const T* v, T* out, float* lse) const {
    Tensor room = workspace(s);
    attention_forward(s, q, k, v, out, lse, room.bytes());
  }
  template <class T>
  void backward(const AttentionShape& s, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                const float* lse, T* dq, T* dk, T* dv) const {
    Tensor room = workspace(s);
    attention_backward(s, q, k, v, out, d_out, lse, dq, dk, dv, room.bytes());
  }
  void merge(const auto&... a) const { attention_merge(a...); }
  void add_widened(const auto&... a) const { kernels::add_widened(a...); }
  void narrow(const auto&... a) const { kernels::narrow(a...); }

  static Tensor workspace(const AttentionShape& s) {
    return {Dtype::f32, static_cast<std::int64_t>(attention_workspace_bytes(s, Dtype::f32) / sizeof(float)), 0};
  }
};

template <class T>
void run_in_blocks(Trial& t, const std::vector<std::int64_t>& query_ends, const std::vector<std::int64_t>& key_ends) {
  const std::int64_t q_numel = t.c.batch * t.c.queries * t.q_ld, k_numel = t.c.batch * t.c.keys * t.k_ld;
  Tensor part_q = t.make(q_numel), part_k = t.make(k_numel), part_v = t.make(k_numel);
  Tensor part_lse(Dtype::f32, t.c.heads * t.c.queries, 0);
  Tensor sum_out(Dtype::f32, q_numel, 0), sum_dq(Dtype::f32, q_numel, 0);
  Tensor sum_dk(Dtype::f32, k_numel, 0), sum_dv(Dtype::f32, k_numel, 0);
  const auto floats = [](Tensor& x) { return x.as<float>(); };
  kernels::run_in_blocks(
      t.shape, query_ends, key_ends,
      BlockOperands<T>{t.q.as<T>(), t.k.as<T>(), t.v.as<T>(), t.d_out.as<T>(), t.out.as<T>(), t.dq.as<T>(),
                       t.dk.as<T>(), t.dv.as<T>(), floats(t.lse), part_q.as<T>(), part_k.as<T>(), part_v.as<T>(),
                       floats(part_lse), floats(sum_out), floats(sum_dq), floats(sum_dk), floats(sum_dv)},
      CpuCalls{});
}

TEST(attention, of_blocks_merged_is_that_of_the_whole) {
  std::vector<Case> cases{
      {1, 150, 300, 2, 1, 64}, {2, 70, 260, 2, 1, 33}, {1, 200, 200, 1, 1, 128, 70}, {2, 120, 120, 2, 1, 80}};
  cases.back().documents = {40, 3, 110, 60};
  test::with_targets([&] {
    for (Case c : cases)
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
        for (const std::int64_t blocks : {1, 2, 3, 4}) {
          c.dtype = dtype;
          Trial t(c);
          const auto queries = random_ends(1, c.queries, blocks == 3 ? 3 : 1), keys = random_ends(2, c.keys, blocks);
          dtype == Dtype::f32 ? run_in_blocks<float>(t, queries, keys) : run_in_blocks<bf16>(t, queries, keys);
          expect_agreement_of_blocks(t, " in " + std::to_string(blocks) + " blocks");
        }
  });
}

template <class T>
void expect_merged(const MergeTrial& t, const T* first, const T* second) {
  std::vector<float> sum(static_cast<std::size_t>(t.rows * t.width), std::nanf("")),
      lse(t.lse[0].size(), std::nanf(""));
  attention_merge(t.shape, first, t.lse[0].data(), true, sum.data(), lse.data());
  attention_merge(t.shape, second, t.lse[1].data(), false, sum.data(), lse.data());
  t.expect_merged(sum, lse);
}

TEST(attention, merge_is_the_sum_by_log_sum_exp) {
  test::with_targets([] {
    for (const std::int64_t head_dim : {1, 7, 33, 64, 128})
      for (const std::int64_t padding : {0, 5, 8}) {
        MergeTrial f32(Dtype::f32, head_dim, padding), half(Dtype::bf16, head_dim, padding);
        expect_merged(f32, f32.parts[0].as<float>(), f32.parts[1].as<float>());
        expect_merged(half, half.parts[0].as<bf16>(), half.parts[1].as<bf16>());
      }
  });
}

TEST(attention, merge_keeps_nan_and_does_not_depend_on_threads) {
  const AttentionShape shape{.batch = 3, .queries = 200, .keys = 1, .heads = 4, .head_dim = 40, .out_stride = 160};
  constexpr std::size_t numel = 600 * 160, rows = 2400;
  std::vector<float> part(numel, 0.5f), part_lse(rows), expected;
  for (std::size_t i = 0; i < rows; ++i) part_lse[i] = static_cast<float>(i % 37);
  for (const int threads : {1, 2, 3}) {
    set_compute_threads(threads);
    std::vector<float> sum(numel, 0.25f), lse(rows, 18);
    lse[7] = std::nanf("");
    attention_merge(shape, part.data(), part_lse.data(), false, sum.data(), lse.data());
    EXPECT_TRUE(std::isnan(lse[7]) && std::isnan(sum[7 * 160])) << "head 0 of query 7";
    lse[7] = 0;
    std::fill_n(sum.begin() + 7 * 160, 40, 0.0f);
    if (expected.empty()) expected = sum;
    EXPECT_EQ(sum, expected);
  }
}

}  // namespace
}  // namespace sluice::kernels
