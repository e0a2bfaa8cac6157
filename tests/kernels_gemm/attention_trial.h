// What the tests of attention share, on every device: cases, their operands, and a double-precision oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <span>
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
  Doubles out{}, lse{}, dq{}, dk{}, dv{};
  Doubles sees{}, seen{};  ///< like q and k: 1 where a query sees any key, and a key is seen by any query

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
    for (Doubles* x : {&out, &dq, &sees}) x->assign(q.size(), 0);
    for (Doubles* x : {&dk, &dv, &seen}) x->assign(k.size(), 0);
    lse.assign(static_cast<std::size_t>(s.batch * s.heads * s.queries), 0);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < s.queries; ++i) one_query(b, h, i);
  }
  void one_query(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t place = i + s.offset(), last = std::min(place, s.keys - 1), dim = s.head_dim;
    const std::int64_t begin =
        s.positions != nullptr ? std::max<std::int64_t>(place - s.positions[b * s.queries + i], 0) : 0;
    const std::int64_t first = s.window > 0 ? std::max(begin, place - s.window + 1) : begin;
    const std::size_t at = query_at(b, i, h);
    double& row_lse = lse[static_cast<std::size_t>((b * s.heads + h) * s.queries + i)];
    row_lse = -std::numeric_limits<double>::infinity();
    if (first > last) return;
    std::fill_n(sees.begin() + static_cast<std::ptrdiff_t>(at), dim, 1);
    for (std::int64_t j = first; j <= last; ++j)
      std::fill_n(seen.begin() + static_cast<std::ptrdiff_t>(key_at(b, j, h)), dim, 1);
    Doubles p;
    double largest = -1e300, sum = 0, delta = 0;
    for (std::int64_t j = first; j <= last; ++j) {
      p.push_back(s.scale * dot(q, at, k, key_at(b, j, h), dim));
      largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    row_lse = largest + std::log(sum);
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
  std::int64_t before = 0;                ///< tokens that each row's first document has before the row
  std::optional<std::int64_t> shift{};

  std::string name() const {
    std::ostringstream out;
    out << "b" << batch << " q" << queries << " k" << keys << " h" << heads << "/" << kv_heads << "x" << head_dim
        << " window " << window << " " << dtype_name(dtype) << " padding " << padding << " documents";
    for (const std::int64_t n : documents) out << " " << n;
    if (shift) out << " before " << before << " shift " << *shift;
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
    shape.shift = t.shift;
    place_documents();
  }
  void place_documents() {
    if (c.documents.empty()) return;
    std::int64_t left = 0;
    std::size_t next = 0;
    for (std::int64_t i = 0; i < c.batch * c.queries; ++i, --left) {
      const bool begins = left == 0 || i % c.queries == 0;
      if (left == 0) left = c.documents[next++ % c.documents.size()];
      const std::int64_t first = i % c.queries == 0 ? c.before : 0;
      positions.push_back(begins ? static_cast<std::int32_t>(first) : positions.back() + 1);
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
    AttentionOracle o{shape, dense(q, q_width, q_ld, false), dense(k, k_width, k_ld, false),
                      dense(v, k_width, k_ld, false), dense(d_out, q_width, q_ld, false)};
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
    if (got[i] != expected[i]) worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(got[i] - expected[i]) : 1e30);
    if (std::isfinite(expected[i])) size = std::max(size, std::fabs(expected[i]));
  }
  return worst / size;
}

/// What nothing reached is exactly zero.
inline void expect_zeros(const Doubles& reached, const std::vector<Doubles>& got, const std::string& what) {
  for (std::size_t i = 0; i < reached.size(); ++i)
    for (const Doubles& x : got) ASSERT_TRUE(reached[i] != 0 || x[i] == 0) << what << " at " << i << ": " << x[i];
}

/// Of the results of a trial that has run.
inline void expect_agreement(const AttentionTrial& t) {
  const AttentionOracle o = t.oracle();
  // Where many queries see one key, all that is in its gradient is rounding errors.
  const double f32_tolerance = t.c.shift ? 6e-6 : 3e-6, tolerance = t.c.dtype == Dtype::f32 ? f32_tolerance : 0x1p-7;
  const auto lse = t.lse.floats();
  EXPECT_LE(relative_error({lse.begin(), lse.end()}, o.lse), 1e-5) << t.c.name();
  EXPECT_LE(relative_error(t.queries(t.out), o.out), tolerance) << t.c.name() << " out";
  EXPECT_LE(relative_error(t.queries(t.dq), o.dq), tolerance) << t.c.name() << " dq";
  EXPECT_LE(relative_error(t.keys(t.dk), o.dk), tolerance) << t.c.name() << " dk";
  EXPECT_LE(relative_error(t.keys(t.dv), o.dv), tolerance) << t.c.name() << " dv";
  expect_zeros(o.sees, {t.queries(t.out), t.queries(t.dq)}, t.c.name() + " queries");
  expect_zeros(o.seen, {t.keys(t.dk), t.keys(t.dv)}, t.c.name() + " keys");
}

/// Random shapes of blocks of queries and keys at random places: before all keys, behind them, across either end.
inline std::vector<AttentionCase> cases_of_places(std::uint64_t seed, int count, std::int64_t most_tokens) {
  std::uint64_t drawn = 0;
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(philox_uniform(seed, drawn++, 0) * static_cast<double>(last - first + 1));
  };
  constexpr std::int64_t head_dims[] = {64, 128, 64, 80, 96, 33, 7, 1};
  std::vector<AttentionCase> cases;
  for (int i = 0; i < count; ++i) {
    AttentionCase c{.batch = draw(1, 2),
                    .queries = draw(1, most_tokens / 2),
                    .keys = draw(1, most_tokens),
                    .heads = 0,
                    .kv_heads = draw(1, 2),
                    .head_dim = head_dims[draw(0, 7)]};
    c.heads = c.kv_heads * draw(1, 3);
    if (draw(0, 2) == 0) c.window = draw(1, c.keys + c.queries);
    if (draw(0, 2) == 0) {
      c.documents = {draw(1, c.queries), draw(1, 40), draw(1, c.queries)};
      c.before = draw(0, c.keys + 10);
    }
    const std::int64_t q = c.queries, k = c.keys;
    const std::int64_t shifts[] = {-q - draw(0, 300), -q,    1 - q, -draw(0, q),     0, k - q,
                                   draw(0, k),        k - 1, k,     k + draw(0, 300)};
    c.shift = shifts[i % 10];
    c.padding = 8 * draw(0, 1) + 3 * draw(0, 1);
    c.dtype = draw(0, 1) == 0 ? Dtype::f32 : Dtype::bf16;
    cases.push_back(c);
  }
  return cases;
}

/// What attention in blocks works on: q to lse as in a trial without padding, and room for the parts of one block (like
/// q, k and v, and lse) and for sums in fp32 (zeros).
template <class T>
struct BlockOperands {
  const T *q, *k, *v, *d_out;
  T *out, *dq, *dk, *dv;
  float* lse;
  T *part_q, *part_k, *part_v;
  float *part_lse, *sum_out, *sum_dq, *sum_dk, *sum_dv;
};

/// Attention and its gradients as ring attention has them: queries and keys in blocks that end at `query_ends` and
/// `key_ends`, results merged in the order of the keys, gradients from the log-sum-exp and output over all keys.
/// kernels: a device's, with addresses there.
template <class T, class Kernels>
void run_in_blocks(const AttentionShape& whole, const std::vector<std::int64_t>& query_ends,
                   const std::vector<std::int64_t>& key_ends, const BlockOperands<T>& o, const Kernels& kernels) {
  const auto blocks =
      [&](const auto& f) {  // f(shape, first query row, first key row, where its lse is, first of its row)
        for (std::int64_t b = 0; b < whole.batch; ++b)
          for (std::size_t i = 0; i < query_ends.size(); ++i)
            for (std::size_t j = 0; j < key_ends.size(); ++j) {
              const std::int64_t query0 = i > 0 ? query_ends[i - 1] : 0, key0 = j > 0 ? key_ends[j - 1] : 0;
              AttentionShape s = whole;
              s.batch = 1, s.queries = query_ends[i] - query0, s.keys = key_ends[j] - key0;
              s.shift = whole.offset() + query0 - key0;
              if (s.positions != nullptr) s.positions += b * whole.queries + query0;
              const std::int64_t row = b * whole.queries + query0;
              f(s, row, b * whole.keys + key0, o.lse + row * whole.heads, j == 0);
            }
      };
  const std::int64_t q_ld = whole.q_stride, k_ld = whole.k_stride;
  blocks([&](const AttentionShape& s, std::int64_t query, std::int64_t key, float* lse, bool first) {
    kernels.forward(s, o.q + query * q_ld, o.k + key * k_ld, o.v + key * k_ld, o.part_q, o.part_lse);
    kernels.merge(s, o.part_q, o.part_lse, first, o.sum_out + query * q_ld, lse);
  });
  const std::int64_t q_numel = whole.batch * whole.queries * q_ld, k_numel = whole.batch * whole.keys * k_ld;
  kernels.narrow(o.sum_out, o.out, q_numel);
  blocks([&](const AttentionShape& s, std::int64_t query, std::int64_t key, const float* lse, bool) {
    const std::int64_t q_at = query * q_ld, k_at = key * k_ld;
    kernels.backward(s, o.q + q_at, o.k + k_at, o.v + k_at, o.out + q_at, o.d_out + q_at, lse, o.part_q, o.part_k,
                     o.part_v);
    kernels.add_widened(o.part_q, o.sum_dq + q_at, s.queries * q_ld);
    kernels.add_widened(o.part_k, o.sum_dk + k_at, s.keys * k_ld);
    kernels.add_widened(o.part_v, o.sum_dv + k_at, s.keys * k_ld);
  });
  kernels.narrow(o.sum_dq, o.dq, q_numel);
  kernels.narrow(o.sum_dk, o.dk, k_numel);
  kernels.narrow(o.sum_dv, o.dv, k_numel);
}

/// Where blocks end that cut `tokens` into n, at random places.
inline std::vector<std::int64_t> random_ends(std::uint64_t seed, std::int64_t tokens, std::int64_t n) {
  std::vector<std::int64_t> ends{tokens};
  for (std::uint64_t i = 0; static_cast<std::int64_t>(ends.size()) < n; ++i) {
    const auto end = 1 + static_cast<std::int64_t>(philox_uniform(seed, i, 0) * static_cast<double>(tokens - 1));
    if (std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

/// Of a trial that ran in blocks: its lse lies block by block.
inline void expect_agreement_of_blocks(const AttentionTrial& t, const std::string& what) {
  const AttentionOracle o = t.oracle();
  const double tolerance = t.c.dtype == Dtype::f32 ? 3e-6 : 0x1p-7;
  EXPECT_LE(relative_error(t.queries(t.out), o.out), tolerance) << t.c.name() << " out" << what;
  EXPECT_LE(relative_error(t.queries(t.dq), o.dq), tolerance) << t.c.name() << " dq" << what;
  EXPECT_LE(relative_error(t.keys(t.dk), o.dk), tolerance) << t.c.name() << " dk" << what;
  EXPECT_LE(relative_error(t.keys(t.dv), o.dv), tolerance) << t.c.name() << " dv" << what;
}

/// Two results of attention for the same queries, in rows that are padded, some of which saw nothing, and their sum by
/// the definition.
struct MergeTrial {
  AttentionShape shape{.batch = 2, .queries = 37, .keys = 1, .heads = 3};
  std::deque<Tensor> parts;
  std::vector<std::vector<float>> lse;
  std::int64_t rows, width;

  MergeTrial(Dtype dtype, std::int64_t head_dim, std::int64_t padding) {
    shape.head_dim = head_dim;
    rows = shape.batch * shape.queries, width = shape.heads * head_dim;
    shape.out_stride = width + padding;
    for (std::uint64_t i = 0; i < 2; ++i) {
      Tensor& part = parts.emplace_back(dtype, rows * shape.out_stride, 0);
      part.fill_random_rows(i, rows, width, shape.out_stride);
      auto& of_rows = lse.emplace_back();
      for (std::int64_t r = 0; r < rows * shape.heads; ++r) {
        const bool sees = (r >> i) % 2 == 0;
        of_rows.push_back(sees ? static_cast<float>(20 * philox_uniform(7 + i, static_cast<std::uint64_t>(r), 0))
                               : -std::numeric_limits<float>::infinity());
      }
    }
    for (std::uint64_t i = 0; i < 2; ++i)  // attention of nothing is zero
      for (std::int64_t c = 0; c < rows * width; ++c)
        if (std::isinf(lse[i][lse_at(c)])) parts[i].set(part_at(c), 0);
  }
  std::size_t part_at(std::int64_t c) const {
    return static_cast<std::size_t>(c / width * shape.out_stride + c % width);
  }
  std::size_t lse_at(std::int64_t c) const {
    const std::int64_t row = c / width, head = c % width / shape.head_dim;
    return static_cast<std::size_t>((row / shape.queries * shape.heads + head) * shape.queries + row % shape.queries);
  }
  void expect_merged(const std::vector<float>& sum, const std::vector<float>& merged) const {
    const std::vector<float> first = parts[0].floats(), second = parts[1].floats();
    for (std::int64_t c = 0; c < rows * width; ++c) {
      const double a = lse[0][lse_at(c)], b = lse[1][lse_at(c)];
      const double x = first[part_at(c)], y = second[part_at(c)];
      const double both = std::log(std::exp(a) + std::exp(b));
      if (std::isinf(both)) {
        ASSERT_EQ(merged[lse_at(c)], both);
        ASSERT_EQ(sum[static_cast<std::size_t>(c)], 0);
      } else {
        ASSERT_NEAR(merged[lse_at(c)], both, 4e-6);
        ASSERT_NEAR(sum[static_cast<std::size_t>(c)], x * std::exp(a - both) + y * std::exp(b - both), 1e-6);
      }
    }
  }
};

}  // namespace sluice::kernels
