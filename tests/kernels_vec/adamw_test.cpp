#include "sluice/adamw.h"

#include <cmath>
#include <limits>

#include "adamw_support.h"
#include "support.h"

namespace sluice::test {
namespace {

AdamwStep some_step(std::uint64_t step, float scale = 0.37f) {
  AdamwStep s;
  s.step = step;
  s.lr = 3e-3f;
  s.weight_decay = 0.1f;
  s.gradient_scale = scale;
  return s;
}

/// Everything that one range holds.
struct State {
  std::vector<float> w, m, v, g;
  std::vector<bf16> p, g16;
  std::vector<std::int16_t> r;
  explicit State(std::int64_t n)
      : w(normal<float>(n, 1, 0.02)),
        m(normal<float>(n, 2, 0.01)),
        v(normal<float>(n, 3, 0.01)),
        g(normal<float>(n, 4, 0.1)),
        p(w.size()),
        g16(normal<bf16>(n, 5, 0.1)),
        r(w.size()) {
    for (auto& x : v) x = x * x;
    split_master(w.data(), p.data(), r.data(), n);
  }
  AdamwReport f32(const AdamwStep& s, std::int64_t from, std::int64_t to) {
    return adamw_f32(s, w.data() + from, m.data() + from, v.data() + from, g.data() + from, to - from);
  }
  AdamwReport bf16_f32(const AdamwStep& s, std::int64_t from, std::int64_t to) {
    return adamw_bf16(s, p.data() + from, r.data() + from, m.data() + from, v.data() + from, g.data() + from,
                      to - from);
  }
  AdamwReport bf16_bf16(const AdamwStep& s, std::int64_t from, std::int64_t to) {
    return adamw_bf16(s, p.data() + from, r.data() + from, m.data() + from, v.data() + from, g16.data() + from,
                      to - from);
  }
  bool operator==(const State& o) const {
    return same_bytes(w, o.w) && same_bytes(m, o.m) && same_bytes(v, o.v) && same_bytes(p, o.p) && same_bytes(r, o.r);
  }
};

TEST(Adamw, EveryTargetFollowsTheContractToTheBit) {
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      State f32(n), half(n), half16(n);
      for (std::uint64_t step : {1ull, 2ull, 1000ull}) {
        State before32 = f32, before = half, before16 = half16;
        const AdamwStep s = some_step(step);
        ASSERT_EQ(f32.f32(s, 0, n).diverged, 0u);
        ASSERT_EQ(half.bf16_f32(s, 0, n).diverged, 0u);
        ASSERT_EQ(half16.bf16_bf16(s, 0, n).diverged, 0u);
        std::vector<float> w(static_cast<std::size_t>(n)), w16 = w;
        join_master(half.p.data(), half.r.data(), w.data(), n);
        join_master(half16.p.data(), half16.r.data(), w16.data(), n);
        std::vector<float> old = w, old16 = w16;
        join_master(before.p.data(), before.r.data(), old.data(), n);
        join_master(before16.p.data(), before16.r.data(), old16.data(), n);
        for (std::size_t i = 0; i < w.size(); ++i) {
          Scalar a{before32.m[i], before32.v[i], before32.w[i]}, b{before.m[i], before.v[i], old[i]};
          Scalar c{before16.m[i], before16.v[i], old16[i]};
          a.update(s, before32.g[i]);
          b.update(s, before.g[i]);
          c.update(s, to_float(before16.g16[i]));
          ASSERT_EQ(bits_of(a.m), bits_of(f32.m[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(a.v), bits_of(f32.v[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(a.w), bits_of(f32.w[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(b.w), bits_of(w[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(b.m), bits_of(half.m[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(c.w), bits_of(w16[i])) << n << " at " << i;
          ASSERT_EQ(bits_of(c.v), bits_of(half16.v[i])) << n << " at " << i;
        }
      }
    }
  });
}

/// Magnitudes from denormal to huge, where an emulated fma would show.
TEST(Adamw, ExtremeMagnitudesAgreeToTheBit) {
  constexpr std::int64_t n = 20000;
  const auto wild = [](std::uint64_t key, std::uint64_t i, bool positive) {
    for (std::uint64_t stream = 0;; ++stream) {
      const std::uint32_t bits = philox(key, i, stream)[0] & (positive ? 0x7fffffffu : 0xffffffffu);
      if ((bits & 0x7fffffffu) < 0x7e000000u) return std::bit_cast<float>(bits);
    }
  };
  with_targets([&] {
    State state(n);
    for (std::size_t i = 0; i < n; ++i) {
      state.w[i] = wild(1, i, false);
      state.m[i] = wild(2, i, false);
      state.v[i] = wild(3, i, true);
      state.g[i] = wild(4, i, false);
    }
    State before = state;
    const AdamwStep s = some_step(7, 1);
    state.f32(s, 0, n);
    for (std::size_t i = 0; i < n; ++i) {
      Scalar a{before.m[i], before.v[i], before.w[i]};
      a.update(s, before.g[i]);
      const auto same = [](float x, float y) { return bits_of(x) == bits_of(y) || (std::isnan(x) && std::isnan(y)); };
      ASSERT_TRUE(same(a.m, state.m[i]) && same(a.v, state.v[i]) && same(a.w, state.w[i]))
          << i << ": m " << a.m << " " << state.m[i] << " v " << a.v << " " << state.v[i] << " w " << a.w << " "
          << state.w[i];
    }
  });
}

/// The update lands 2^-70 beside the middle of two floats: an fma by way of double that rounds twice falls on the wrong
/// side.
TEST(Adamw, RoundsOnceBesideATie) {
  AdamwStep s;
  s.beta1 = 0;
  s.beta2 = 0.5f;
  s.eps = 0x1p26f;            // swallows sqrt(v), so that the denominator is 2^26
  s.lr = 4 * (1 + 0x1p-23f);  // lr m / 2^26 = 2^-24 (1 - 2^-46)
  with_targets([&] {
    std::vector<float> w(11, 1 + 0x1p-23f), m(11), v(11), g(11);
    for (std::size_t i = 0; i < 11; ++i) g[i] = (i % 2 == 0 ? -1.0f : 1.0f) * (1 - 0x1p-23f);
    adamw_f32(s, w.data(), m.data(), v.data(), g.data(), 11);
    for (std::size_t i = 0; i < 11; ++i) ASSERT_EQ(bits_of(w[i]), bits_of(1 + 0x1p-23f)) << i;
  });
}

TEST(Adamw, FollowsTheFormulasInDouble) {
  constexpr std::int64_t n = 501;
  State state(n);
  std::vector<double> w(state.w.begin(), state.w.end()), m(n), v(n);
  std::fill(state.m.begin(), state.m.end(), 0.0f);
  std::fill(state.v.begin(), state.v.end(), 0.0f);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    const AdamwStep s = some_step(step);
    state.g = normal<float>(n, 100 + step, 0.1);
    state.f32(s, 0, n);
    const double b1 = s.beta1, b2 = s.beta2, lr = s.lr;
    for (std::size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(state.g[i]) * s.gradient_scale;
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(b1, static_cast<double>(step)));
      const double v_hat = v[i] / (1 - std::pow(b2, static_cast<double>(step)));
      w[i] -= lr * s.weight_decay * w[i];
      w[i] -= lr * m_hat / (std::sqrt(v_hat) + s.eps);
    }
  }
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(w[i], state.w[i], 2e-7) << i;
}

TEST(Adamw, SplitAtEveryCutGivesTheSameBits) {
  constexpr std::int64_t n = 133;
  const AdamwStep s = some_step(3);
  with_targets([&] {
    State whole(n), whole16(n), whole32(n);
    whole.bf16_f32(s, 0, n);
    whole16.bf16_bf16(s, 0, n);
    whole32.f32(s, 0, n);
    for (std::int64_t cut = 0; cut <= n; ++cut) {
      State a(n), b(n), c(n);
      a.bf16_f32(s, cut, n);
      a.bf16_f32(s, 0, cut);
      b.bf16_bf16(s, 0, cut);
      b.bf16_bf16(s, cut, n);
      c.f32(s, 0, cut);
      c.f32(s, cut, n);
      ASSERT_TRUE(a == whole && b == whole16 && c == whole32) << "cut at " << cut;
    }
  });
}

TEST(Adamw, ScaleOfOneChangesNothingAndZeroGradientOnlyDecays) {
  State with(100), without(100);
  AdamwStep s = some_step(1, 1);
  for (auto& g : with.g) g = 2 * g;
  s.gradient_scale = 0.5f;
  with.f32(s, 0, 100);
  s.gradient_scale = 1;
  without.f32(s, 0, 100);
  EXPECT_TRUE(same_bytes(with.w, without.w));

  State still(100);
  const auto before = still.w;
  std::fill(still.m.begin(), still.m.end(), 0.0f);
  std::fill(still.v.begin(), still.v.end(), 0.0f);
  std::fill(still.g.begin(), still.g.end(), 0.0f);
  still.f32(s, 0, 100);
  for (std::size_t i = 0; i < 100; ++i)
    ASSERT_EQ(still.w[i], before[i] * static_cast<float>(1 - static_cast<double>(s.lr) * s.weight_decay));
}

TEST(Adamw, CountsDivergedParametersWhereverTheyLie) {
  with_targets([&] {
    for (std::int64_t n : {1, 5, 31, 64, 67}) {
      for (std::int64_t at = 0; at < n; ++at) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
          State a(n), b(n), c(n);
          a.g[at] = b.g[at] = bad;
          c.g16[at] = to_bf16(bad);
          ASSERT_EQ(a.f32(some_step(1), 0, n).diverged, 1u);
          ASSERT_EQ(b.bf16_f32(some_step(1), 0, n).diverged, 1u);
          ASSERT_EQ(c.bf16_bf16(some_step(1), 0, n).diverged, 1u);
        }
      }
    }
  });
}

TEST(Adamw, DivergesExactlyWhereTheParameterWouldRoundToInfinity) {
  AdamwStep s;
  s.lr = 0;  // the master stays what it is
  with_targets([&] {
    for (const auto& [bits, bad] : std::vector<std::pair<std::uint32_t, bool>>{{0x7f7f7fffu, false},
                                                                               {0xff7f7fffu, false},
                                                                               {0x7f7f8000u, true},
                                                                               {0xff7f8000u, true},
                                                                               {0x7f7fffffu, true}}) {
      std::vector<float> w(9, 1.0f), m(9), v(9), g(9);
      w[4] = std::bit_cast<float>(bits);
      std::vector<bf16> p(9);
      std::vector<std::int16_t> r(9);
      split_master(w.data(), p.data(), r.data(), 9);
      EXPECT_EQ(adamw_bf16(s, p.data(), r.data(), m.data(), v.data(), g.data(), 9).diverged, bad ? 1u : 0u);
      EXPECT_EQ(adamw_f32(s, w.data(), m.data(), v.data(), g.data(), 9).diverged, bad ? 1u : 0u);
      EXPECT_EQ((p[4].bits & 0x7fffu) == 0x7f80u, bad) << std::hex << bits;
    }
  });
}

/// Round half away from zero by comparing with both neighbours, the slow and obvious way.
std::uint16_t nearest_bf16(std::uint32_t bits) {
  const std::uint32_t down = bits >> 16, rest = bits & 0xffffu;
  return static_cast<std::uint16_t>(rest >= 0x8000u ? down + 1 : down);
}

TEST(Master, SplitAndJoinRoundTrip) {
  std::vector<float> x;
  for (std::uint32_t i = 0; i < (1u << 21); ++i) x.push_back(std::bit_cast<float>(i * 2053u));
  for (std::uint32_t high = 0; high < 0x10000u; ++high)
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  const auto n = static_cast<std::int64_t>(x.size());
  with_targets([&] {
    std::vector<bf16> p(x.size());
    std::vector<std::int16_t> r(x.size());
    std::vector<float> back(x.size());
    split_master(x.data(), p.data(), r.data(), n);
    join_master(p.data(), r.data(), back.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint32_t bits = bits_of(x[i]);
      if (std::isnan(x[i])) {
        ASSERT_EQ(p[i].bits, 0x7fc0u) << std::hex << bits;
        ASSERT_EQ(r[i], 0) << std::hex << bits;
        continue;
      }
      ASSERT_EQ(p[i].bits, nearest_bf16(bits)) << std::hex << bits;
      ASSERT_EQ(bits_of(back[i]), bits) << std::hex << bits;
    }
  });
}

TEST(Master, EveryLengthAndNothingBehindTheEnd) {
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      const auto x = normal<float>(n, 9);
      std::vector<bf16> p(x.size() + 1, bf16{0x1234});
      std::vector<std::int16_t> r(x.size() + 1, 77);
      std::vector<float> back(x.size() + 1, 5.0f);
      split_master(x.data(), p.data(), r.data(), n);
      join_master(p.data(), r.data(), back.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(bits_of(x[i]), bits_of(back[i]));
      ASSERT_TRUE(p.back().bits == 0x1234 && r.back() == 77 && back.back() == 5.0f);
    }
  });
}

TEST(SquaredNorm, OneValueForEveryTargetAndCut) {
  for (std::int64_t n : {0, 1, 31, 32, 33, 4095, 4096, 4097, 50000}) {
    const auto x = normal<float>(n + 3, 11);
    for (std::int64_t shift : {0, 3}) {
      long double want = 0;
      for (std::int64_t i = 0; i < n; ++i) want += static_cast<long double>(x[i + shift]) * x[i + shift];
      double first = -1;
      with_targets([&] {
        double sum = 0;
        add_squared_norm(x.data() + shift, n, &sum);
        ASSERT_NEAR(static_cast<double>(want), sum, 1e-14 * sum);
        if (first < 0) first = sum;
        ASSERT_EQ(first, sum);
        for (std::int64_t cut = 4096; cut < n; cut += 3 * 4096) {
          double parts = 0;
          add_squared_norm(x.data() + shift, cut, &parts);
          add_squared_norm(x.data() + shift + cut, n - cut, &parts);
          ASSERT_EQ(first, parts) << "cut at " << cut;
        }
      });
    }
  }
}

TEST(SquaredNorm, NonFiniteShows) {
  std::vector<float> x(5000, 1.0f);
  x[4999] = std::numeric_limits<float>::infinity();
  double sum = 0;
  add_squared_norm(x.data(), 5000, &sum);
  EXPECT_TRUE(std::isinf(sum));
  x[17] = std::numeric_limits<float>::quiet_NaN();
  sum = 0;
  add_squared_norm(x.data(), 5000, &sum);
  EXPECT_TRUE(std::isnan(sum));
}

}  // namespace
}  // namespace sluice::test
