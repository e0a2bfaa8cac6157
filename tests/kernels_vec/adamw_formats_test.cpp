// Every format of parameter, moments and gradient against the contract, to the bit, on every SIMD target.
#include "adamw_support.h"
#include "support.h"

namespace sluice::test {
namespace {

/// One step by the contract, element by element.
struct Expected {
  std::vector<float> w, m, v;
};
Expected expected(const Tensor& t, const AdamwStep& s) {
  Expected out;
  for (std::int64_t first = 0; first < t.numel(); first += 256) {
    std::vector<float> ms, vs;
    std::vector<std::uint32_t> low, high, low19, high19;
    for (std::int64_t i = first; i < std::min(t.numel(), first + 256); ++i) {
      const bool decays = t.formats().moments == MomentFormat::int8;
      Scalar e(t.exp_avg(i, s.beta1), t.exp_avg_sq(i, s.beta2), t.master(i));
      decays ? e.update_decayed(s, t.gradient(i)) : e.update(s, t.gradient(i));
      const std::uint32_t random = rounding_bits(s.rounding_key, static_cast<std::uint64_t>(i));
      out.w.push_back(e.w);
      ms.push_back(e.m);
      vs.push_back(e.v);
      low.push_back(random & 0xffffu);
      high.push_back(random >> 16);
      low19.push_back(random & 0x7ffffu);
      high19.push_back(random >> 13);
    }
    const EncodedBlock m8 = encode_block(ms, low19, signed_codes), v8 = encode_block(vs, high19, unsigned_codes);
    for (std::size_t k = 0; k < ms.size(); ++k) {
      float m = ms[k], v = vs[k];
      if (t.formats().moments == MomentFormat::bf16) {
        m = to_float({round_bf16(m, low[k])});
        v = to_float({round_bf16(v, high[k])});
      } else if (t.formats().moments == MomentFormat::int8) {
        m = std::signbit(m) && m8.code[k] > 0 ? -decode(m8.code[k], m8.scale) : decode(m8.code[k], m8.scale);
        v = decode(v8.code[k], v8.scale);
      }
      out.m.push_back(m);
      out.v.push_back(v);
    }
  }
  return out;
}

void expect_follows(Tensor& t, const AdamwStep& s) {
  const Expected want = expected(t, s);
  t.update(s);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    ASSERT_TRUE(same_value(want.w[k], t.master(i)) && same_value(want.m[k], t.exp_avg(i)) &&
                same_value(want.v[k], t.exp_avg_sq(i)))
        << t.formats().name() << ", step " << s.step << ", " << t.numel() << " elements, at " << i << ": w "
        << want.w[k] << " " << t.master(i) << " m " << want.m[k] << " " << t.exp_avg(i) << " v " << want.v[k] << " "
        << t.exp_avg_sq(i);
  }
  ASSERT_TRUE(t.guards_hold()) << t.formats().name() << ", " << t.numel() << " elements";
}

std::vector<std::int64_t> some_lengths() { return {0, 1, 3, 4, 5, 15, 16, 17, 31, 33, 67, 255, 256, 257, 1000, 4101}; }

TEST(AdamwFormats, FollowTheContractToTheBit) {
  with_targets([&] {
    for (const Formats& f : all_formats())
      for (const std::int64_t n : some_lengths()) {
        Tensor t = some_tensor(f, n);
        for (const std::uint64_t step : {1ull, 2ull, 1000ull})
          ASSERT_NO_FATAL_FAILURE(expect_follows(t, some_step(step)));
      }
  });
}

TEST(AdamwFormats, ExtremeMagnitudesFollowTheContract) {
  with_targets([&] {
    for (const Formats& f : all_formats())
      for (const std::uint32_t end : {0x04000000u, 0x20000000u, 0x5e000000u, 0x7f000000u}) {
        Tensor t = wild_tensor(f, 3000, end);
        for (const std::uint64_t step : {1ull, 2ull, 3ull})
          ASSERT_NO_FATAL_FAILURE(expect_follows(t, some_step(step, 1)));
      }
  });
}

TEST(AdamwFormats, CutsAndAlignmentChangeNoBit) {
  with_targets([&] {
    for (const Formats& f : all_formats()) {
      const std::int64_t n = 1100, grain = f.moments == MomentFormat::int8 ? 256 : 1;
      Tensor whole = some_tensor(f, n);
      for (std::uint64_t step = 1; step <= 3; ++step) whole.update(some_step(step));
      for (std::int64_t shift = 1; shift < 18; shift += 5) {
        Tensor shifted = some_tensor(f, n, shift);
        for (std::uint64_t step = 1; step <= 3; ++step) shifted.update(some_step(step));
        ASSERT_TRUE(shifted.same_elements(whole) && shifted.guards_hold()) << f.name() << ", shift " << shift;
      }
      for (std::int64_t cut = grain; cut < n; cut += grain == 1 ? 97 : grain) {
        Tensor parts = some_tensor(f, n);
        for (std::uint64_t step = 1; step <= 3; ++step) {
          parts.update(some_step(step), cut, n);
          parts.update(some_step(step), 0, cut);
        }
        ASSERT_TRUE(parts == whole) << f.name() << ", cut at " << cut;
      }
    }
  });
}

/// Two indices far apart in a large tensor: the words of blocks are of 64-bit numbers.
TEST(AdamwFormats, IndicesBeyond32BitsCount) {
  with_targets([&] {
    for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 40) - 256}) {
      std::vector<float> w(512), g(512, 0.1f);
      std::vector<bf16> m(512), v(512);
      AdamwRange r;
      r.dtype = Dtype::f32;
      r.moments = MomentFormat::bf16;
      r.parameter = w.data();
      r.exp_avg = m.data();
      r.exp_avg_sq = v.data();
      r.gradient = g.data();
      r.numel = 512;
      r.first_index = first;
      const AdamwStep s = some_step(1);
      adamw(s, r);
      for (std::size_t i = 0; i < 512; ++i) {
        Scalar e(0, 0, 0);
        e.update(s, 0.1f);
        const std::uint32_t random = rounding_bits(s.rounding_key, first + i);
        ASSERT_EQ(m[i].bits, round_bf16(e.m, random & 0xffffu)) << first << " + " << i;
        ASSERT_EQ(v[i].bits, round_bf16(e.v, random >> 16)) << first << " + " << i;
      }
    }
  });
}

TEST(AdamwFormats, NothingNotFiniteIsLost) {
  with_targets([&] {
    for (const Formats& f : all_formats())
      for (const std::int64_t n : {1, 5, 31, 256, 300})
        for (std::int64_t at = 0; at < n; at += 1 + n / 7)
          for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity()}) {
            Tensor t = some_tensor(f, n);
            t.set_gradient(at, bad);
            ASSERT_EQ(t.update(some_step(1)).diverged, 1u) << f.name() << ", " << n << " elements, at " << at;
            t.set_gradient(at, 0);
            ASSERT_GE(t.update(some_step(2)).diverged, 1u) << f.name() << ", " << n << " elements, at " << at;
            ASSERT_FALSE(std::isfinite(t.exp_avg_sq(at)));
          }
  });
}

/// A block's scale is NaN when a moment is not finite, also where the parameter still is.
TEST(AdamwFormats, ASquareThatOverflowsDivergesInTheNextStep) {
  Tensor t = some_tensor({Dtype::bf16, Dtype::f32, MomentFormat::int8}, 300);
  t.set_gradient(7, 1e30f);
  EXPECT_EQ(t.update(some_step(1)).diverged, 0u);
  EXPECT_EQ(t.update(some_step(2)).diverged, 256u);
}

TEST(AdamwFormats, ZeroBytesAreZeroMomentsAndZeroGradientsLeaveThem) {
  with_targets([&] {
    for (const Formats& f : all_formats()) {
      Tensor t = some_tensor(f, 700);
      const Tensor before = t;
      for (std::int64_t i = 0; i < 700; ++i) {
        ASSERT_EQ(bits_of(t.exp_avg(i)), 0u);
        ASSERT_EQ(bits_of(t.exp_avg_sq(i)), 0u);
        t.set_gradient(i, 0);
      }
      AdamwStep s = some_step(1);
      s.weight_decay = 0;
      Tensor still = t;
      still.update(s);
      ASSERT_TRUE(still == t) << f.name();
    }
  });
}

}  // namespace
}  // namespace sluice::test
