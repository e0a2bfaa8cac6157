// What the tests of attention share, on every device: cases, their operands, and a double-precision oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/attention.h"
#include "tests/kernels_gemm/tensors.h"

namespace sluice::kernels {

using Doubles = std::vector<double>;

/// Attention of dense [batch, tokens, heads, head_dim] tensors as a plain loop in double precision.
struct AttentionOracle {
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

struct AttentionCase {
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim, window = 0;
  Dtype dtype = Dtype::f32;
  std::int64_t padding = 0, shift_bytes = 0;
  int threads = 2;
  float spread = 2;                       ///< size of queries and keys: larger makes the softmax sharper
  std::vector<std::int64_t> documents{};  ///< lengths in a row, again and again to the end of the batch

  std::string name() const {
    std::ostringstream out;
    out << "b" << batch << " q" << queries << " k" << keys << " h" << heads << "/" << kv_heads << "x" << head_dim
        << " window " << window << " " << dtype_name(dtype) << " padding " << padding << " documents";
    for (const std::int64_t n : documents) out << " " << n;
    return out.str();
  }
};

/// Inputs of a case and room for the results of the kernels under test, in strided tensors whose padding keeps a
/// canary.
struct AttentionTrial {
  explicit AttentionTrial(const AttentionCase& t)
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
  /// Of what the kernels wrote.
  Doubles queries(const Tensor& x) const { return dense(x, q_width, q_ld, true); }
  Doubles keys(const Tensor& x) const { return dense(x, k_width, k_ld, true); }
  std::vector<Doubles> results() const { return {queries(out), queries(dq), keys(dk), keys(dv)}; }

  AttentionOracle oracle() const {
    AttentionOracle o{shape,
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
  AttentionCase c;
  AttentionShape shape;
  std::vector<std::int32_t> positions;
  std::int64_t q_width, k_width, q_ld, k_ld;
  Tensor q, k, v, out, d_out, dq, dk, dv, lse;
};

/// Largest difference relative to the largest expected magnitude.
inline double relative_error(const Doubles& got, const Doubles& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double worst = 0, size = 0.5;  // of gradients that vanish, rounding errors remain
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(got[i] - expected[i]) : 1e30);
    size = std::max(size, std::fabs(expected[i]));
  }
  return worst / size;
}

/// Of the results of a trial that has run.
inline void expect_agreement(const AttentionTrial& t) {
  const AttentionOracle o = t.oracle();
  const double tolerance = t.c.dtype == Dtype::f32 ? 3e-6 : 0x1p-7;
  const auto lse = t.lse.floats();
  EXPECT_LE(relative_error({lse.begin(), lse.end()}, o.lse), 1e-5) << t.c.name();
  EXPECT_LE(relative_error(t.queries(t.out), o.out), tolerance) << t.c.name() << " out";
  EXPECT_LE(relative_error(t.queries(t.dq), o.dq), tolerance) << t.c.name() << " dq";
  EXPECT_LE(relative_error(t.keys(t.dk), o.dk), tolerance) << t.c.name() << " dk";
  EXPECT_LE(relative_error(t.keys(t.dv), o.dv), tolerance) << t.c.name() << " dv";
}

}  // namespace sluice::kernels
