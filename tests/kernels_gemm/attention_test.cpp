#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "tests/kernels_gemm/tensors.h"

namespace sluice::kernels {
namespace {

using Doubles = std::vector<double>;

/// Attention of dense [batch, tokens, heads, head_dim] tensors as a plain loop in double precision.
struct Oracle {
  AttentionShape s;
  Doubles q, k, v, d_out;
  Doubles out, lse, dq, dk, dv;

  std::size_t query_at(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return static_cast<std::size_t>(((b * s.queries + i) * s.heads + h) * s.head_dim);
  }
  std::size_t key_at(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return static_cast<std::size_t>(((b * s.keys + j) * s.kv_heads + h / (s.heads / s.kv_heads)) * s.head_dim);
  }
  static double dot(const Doubles& x, std::size_t i, const Doubles& y, std::size_t j, std::int64_t n) {
    double sum = 0;
    for (std::int64_t c = 0; c < n; ++c) sum += x[i + static_cast<std::size_t>(c)] * y[j + static_cast<std::size_t>(c)];
    return sum;
  }
  static void add_scaled(Doubles& x, std::size_t i, const Doubles& y, std::size_t j, double f, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) x[i + static_cast<std::size_t>(c)] += f * y[j + static_cast<std::size_t>(c)];
  }

  void run() {
    out.assign(q.size(), 0), dq.assign(q.size(), 0), dk.assign(k.size(), 0), dv.assign(k.size(), 0);
    lse.assign(static_cast<std::size_t>(s.batch * s.heads * s.queries), 0);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < s.queries; ++i) one_query(b, h, i);
  }
  void one_query(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t last = i + s.keys - s.queries, dim = s.head_dim;
    const std::int64_t begin = s.positions != nullptr ? last - s.positions[b * s.queries + i] : 0;
    const std::int64_t first = s.window > 0 ? std::max(begin, last - s.window + 1) : begin;
    const std::size_t at = query_at(b, i, h);
    Doubles p;
    double largest = -1e300, sum = 0, delta = 0;
    for (std::int64_t j = first; j <= last; ++j) {
      p.push_back(s.scale * dot(q, at, k, key_at(b, j, h), dim));
      largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    lse[static_cast<std::size_t>((b * s.heads + h) * s.queries + i)] = largest + std::log(sum);
    for (std::int64_t j = first; j <= last; ++j) {
      double& x = p[static_cast<std::size_t>(j - first)];
      x /= sum;
      add_scaled(out, at, v, key_at(b, j, h), x, dim);
      delta += x * dot(d_out, at, v, key_at(b, j, h), dim);
    }
    for (std::int64_t j = first; j <= last; ++j) {
      const double x = p[static_cast<std::size_t>(j - first)];
      const double ds = s.scale * x * (dot(d_out, at, v, key_at(b, j, h), dim) - delta);
      add_scaled(dv, key_at(b, j, h), d_out, at, x, dim);
      add_scaled(dq, at, k, key_at(b, j, h), ds, dim);
      add_scaled(dk, key_at(b, j, h), q, at, ds, dim);
    }
  }
};

struct Case {
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim, window = 0;
  Dtype dtype = Dtype::f32;
  std::int64_t padding = 0, shift_bytes = 0;
  int threads = 2;
  float spread = 2;                     ///< size of queries and keys: larger makes the softmax sharper
  std::vector<std::int64_t> documents{};  ///< lengths in a row, again and again to the end of the batch

  std::string name() const {
    std::ostringstream out;
    out << "b" << batch << " q" << queries << " k" << keys << " h" << heads << "/" << kv_heads << "x" << head_dim
        << " window " << window << " " << dtype_name(dtype) << " padding " << padding << " documents";
    for (const std::int64_t n : documents) out << " " << n;
    return out.str();
  }
};

/// Inputs of a case and the results of the kernels, in strided tensors whose padding keeps a canary.
struct Trial {
  explicit Trial(const Case& t)
      : c(t),
        q_width(t.heads * t.head_dim),
        k_width(t.kv_heads * t.head_dim),
        q_ld(q_width + t.padding),
        k_ld(k_width + t.padding),
        q(make(t.batch * t.queries * q_ld)),
        k(make(t.batch * t.keys * k_ld)),
        v(make(t.batch * t.keys * k_ld)),
        out(make(t.batch * t.queries * q_ld)),
        d_out(make(t.batch * t.queries * q_ld)),
        dq(make(t.batch * t.queries * q_ld)),
        dk(make(t.batch * t.keys * k_ld)),
        dv(make(t.batch * t.keys * k_ld)),
        lse(Dtype::f32, t.batch * t.heads * t.queries, 0) {
    shape = {t.batch, t.queries, t.keys, t.heads, t.kv_heads, t.head_dim,
             q_ld,    k_ld,      k_ld,   q_ld,    t.window,   1.0f / std::sqrt(static_cast<float>(t.head_dim))};
    const std::int64_t q_rows = t.batch * t.queries, k_rows = t.batch * t.keys;
    q.fill_random_rows(1, q_rows, q_width, q_ld, t.spread);
    k.fill_random_rows(2, k_rows, k_width, k_ld, t.spread);
    v.fill_random_rows(3, k_rows, k_width, k_ld);
    d_out.fill_random_rows(4, q_rows, q_width, q_ld);
    for (Tensor* x : {&out, &dq, &dk, &dv}) x->fill(canary);
    place_documents();
  }
  void place_documents() {
    if (c.documents.empty()) return;
    std::int64_t left = 0;
    std::size_t next = 0;
    for (std::int64_t i = 0; i < c.batch * c.queries; ++i, --left) {
      const bool begins = left == 0 || i % c.queries == 0;
      if (left == 0) left = c.documents[next++ % c.documents.size()];
      positions.push_back(begins ? 0 : positions.back() + 1);
    }
    shape.positions = positions.data();
  }
  Tensor make(std::int64_t numel) const { return {c.dtype, numel, c.shift_bytes}; }

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

  /// Elements without the padding; checks that the padding still holds the canary where the kernel wrote.
  static Doubles dense(const Tensor& x, std::int64_t width, std::int64_t ld, bool written) {
    const auto all = x.floats();
    Doubles values;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_padding = static_cast<std::int64_t>(i) % ld >= width;
      if (!is_padding) values.push_back(all[i]);
      EXPECT_TRUE(!is_padding || !written || all[i] == canary) << i;
    }
    return values;
  }
  Oracle oracle() const {
    Oracle o{shape,
             dense(q, q_width, q_ld, false),
             dense(k, k_width, k_ld, false),
             dense(v, k_width, k_ld, false),
             dense(d_out, q_width, q_ld, false),
             {},
             {},
             {},
             {},
             {}};
    o.run();
    return o;
  }

  static constexpr float canary = 768;
  Case c;
  AttentionShape shape;
  std::vector<std::int32_t> positions;
  std::int64_t q_width, k_width, q_ld, k_ld;
  Tensor q, k, v, out, d_out, dq, dk, dv, lse;
};

/// Largest difference relative to the largest expected magnitude.
double relative_error(const Doubles& got, const Doubles& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double worst = 0, size = 0.5;  // of gradients that vanish, rounding errors remain
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(got[i] - expected[i]) : 1e30);
    size = std::max(size, std::fabs(expected[i]));
  }
  return worst / size;
}

void expect_agreement(const Case& c) {
  Trial t(c);
  t.run();
  const Oracle o = t.oracle();
  const double tolerance = c.dtype == Dtype::f32 ? 3e-6 : 0x1p-7;
  const auto queries = [&](const Tensor& x) { return Trial::dense(x, t.q_width, t.q_ld, true); };
  const auto keys = [&](const Tensor& x) { return Trial::dense(x, t.k_width, t.k_ld, true); };
  const auto lse = t.lse.floats();
  EXPECT_LE(relative_error({lse.begin(), lse.end()}, o.lse), 1e-5) << c.name();
  EXPECT_LE(relative_error(queries(t.out), o.out), tolerance) << c.name() << " out";
  EXPECT_LE(relative_error(queries(t.dq), o.dq), tolerance) << c.name() << " dq";
  EXPECT_LE(relative_error(keys(t.dk), o.dk), tolerance) << c.name() << " dk";
  EXPECT_LE(relative_error(keys(t.dv), o.dv), tolerance) << c.name() << " dv";
}

std::vector<Doubles> results_of(const Case& c) {
  Trial t(c);
  t.run();
  std::vector<Doubles> all;
  for (const Tensor* x : {&t.out, &t.dq}) all.push_back(Trial::dense(*x, t.q_width, t.q_ld, true));
  for (const Tensor* x : {&t.dk, &t.dv}) all.push_back(Trial::dense(*x, t.k_width, t.k_ld, true));
  return all;
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
  const Oracle o = t.oracle();
  EXPECT_LE(relative_error(Trial::dense(t.out, t.q_width, t.q_ld, true), o.out), 1e-4);
  EXPECT_LE(relative_error(Trial::dense(t.dq, t.q_width, t.q_ld, true), o.dq), 1e-4);
}

TEST(attention, oracle_gradient_agrees_with_finite_differences) {
  Trial t({1, 9, 12, 4, 2, 5, 6});
  Oracle o = t.oracle();
  const auto loss = [](const Oracle& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.out.size(); ++i) sum += x.out[i] * x.d_out[i];
    return sum;
  };
  constexpr double step = 1e-5;
  for (const auto& [input, gradient] :
       {std::pair{&Oracle::q, &Oracle::dq}, {&Oracle::k, &Oracle::dk}, {&Oracle::v, &Oracle::dv}})
    for (std::size_t i = 0; i < (o.*input).size(); i += 3) {
      Oracle above = o, below = o;
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

}  // namespace
}  // namespace sluice::kernels
