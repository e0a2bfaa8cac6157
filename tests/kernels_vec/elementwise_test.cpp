#include "kernels/cpu/elementwise.h"

#include <cmath>

#include "oracles.h"
#include "support.h"

namespace sluice::test {
namespace {

template <class T>
class Elementwise : public Kernel<T> {};
TYPED_TEST_SUITE(Elementwise, Storage);

TEST(Convert, RoundsAsTheScalarFunctionDoes) {
  std::vector<float> x;
  for (std::uint32_t i = 0; i < (1u << 20); ++i) x.push_back(std::bit_cast<float>(i * 4099u));
  for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7fc00000u, 0x7f7fffffu, 0x80000000u,
                             0x00000001u, 0x3f808000u, 0x3f818000u, 0x3f808001u})
    x.push_back(std::bit_cast<float>(bits));
  const auto n = static_cast<std::int64_t>(x.size());
  with_targets([&] {
    std::vector<bf16> half(x.size());
    std::vector<float> back(x.size());
    kernels::narrow(x.data(), half.data(), n);
    kernels::widen(half.data(), back.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(half[i].bits, to_bf16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{half[i].bits} << 16);
    }
  });
}

TEST(Convert, F32ToF32CopiesTheBits) {
  for (const std::int64_t n : lengths())
    for (const std::int64_t shift : {0, 1, 3}) {
      std::vector<float> x = normal<float>(n + shift + 1, 1);
      if (n > 0) x[static_cast<std::size_t>(shift + n / 2)] = std::bit_cast<float>(0xffa00001u);  // a NaN that signals
      std::vector<float> wide(x.size(), 5), narrow = wide;
      kernels::widen(x.data() + shift, wide.data() + shift, n);
      kernels::narrow(x.data() + shift, narrow.data() + shift, n);
      ASSERT_EQ(std::memcmp(wide.data() + shift, x.data() + shift, static_cast<std::size_t>(n) * sizeof(float)), 0);
      ASSERT_EQ(wide.back(), 5) << "wrote behind the end";
      ASSERT_TRUE(same_bytes(wide, narrow));
    }
}

TYPED_TEST(Elementwise, AddAtEveryLengthAndMisalignment) {
  using T = TypeParam;
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      for (std::int64_t shift : {0, 1, 3}) {
        const auto a = normal<T>(n + shift, 1), b = normal<T>(n + shift, 2);
        std::vector<T> out = normal<T>(n + shift + 1, 3);
        const T guard = out.back();
        kernels::add(a.data() + shift, b.data() + shift, out.data() + shift, n);
        for (std::int64_t i = shift; i < n + shift; ++i)
          expect_near(value(a[i]) + value(b[i]), out[i], 0, 1e-30, "add", i);
        ASSERT_EQ(std::memcmp(&guard, &out.back(), sizeof(T)), 0) << "wrote behind the end";
      }
    }
  });
}

TYPED_TEST(Elementwise, AddInPlace) {
  using T = TypeParam;
  const auto a = normal<T>(1003, 1), b = normal<T>(1003, 2);
  std::vector<T> apart(1003), left = a, right = b;
  kernels::add(a.data(), b.data(), apart.data(), 1003);
  kernels::add(left.data(), b.data(), left.data(), 1003);
  kernels::add(a.data(), right.data(), right.data(), 1003);
  EXPECT_TRUE(same_bytes(apart, left));
  EXPECT_TRUE(same_bytes(apart, right));
}

TEST(Elementwise, AddF32IsExactAddition) {
  for (std::int64_t n : lengths()) {
    const auto x = normal<float>(n, 4), y = normal<float>(n, 5);
    auto sum = y;
    kernels::add_f32(x.data(), sum.data(), n);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], x[i] + y[i]);
  }
}

TYPED_TEST(Elementwise, AddWidenedIsExactAddition) {
  using T = TypeParam;
  with_targets([&] {
    for (const std::int64_t n : lengths())
      for (const std::int64_t shift : {0, 1, 3}) {
        const auto x = normal<T>(n + shift, 4);
        const auto y = normal<float>(n + shift + 1, 5);
        std::vector<float> sum = y;
        kernels::add_widened(x.data() + shift, sum.data() + shift, n);
        for (std::int64_t i = shift; i < n + shift; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(sum[at], y[at] + static_cast<float>(value(x[at])));
        }
        ASSERT_EQ(sum.back(), y.back()) << "wrote behind the end";
      }
  });
}

TYPED_TEST(Elementwise, BiasAndItsGradient) {
  using T = TypeParam;
  for (std::int64_t rows : {0, 1, 5, 64, 65, 200}) {
    for (std::int64_t width : {1, 7, 64, 131}) {
      const std::int64_t ld = width + 3;
      const auto x = normal<T>(rows * ld, 1), bias = normal<T>(width, 2);
      auto y = x;
      kernels::add_bias(y.data(), ld, bias.data(), rows, width);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < ld; ++c)
          expect_near(value(x[r * ld + c]) + (c < width ? value(bias[c]) : 0), y[r * ld + c], 0, 1e-30, "bias", c);
      std::vector<float> first;
      with_thread_counts([&] {
        auto d_bias = normal<float>(width, 3);
        const auto start = d_bias;
        std::vector<float> workspace(static_cast<std::size_t>((rows + 63) / 64 * width));
        kernels::bias_gradient(x.data(), ld, rows, width, d_bias.data(), workspace.data());
        for (std::int64_t c = 0; c < width; ++c) {
          double want = start[c];
          for (std::int64_t r = 0; r < rows; ++r) want += value(x[r * ld + c]);
          expect_near(want, d_bias[c], 1e-6, 3e-5, "d_bias", c);
        }
        if (first.empty()) first = d_bias;
        ASSERT_TRUE(same_bytes(first, d_bias));
      });
    }
  }
}

TYPED_TEST(Elementwise, AddSumRoundsOnce) {
  using T = TypeParam;
  with_targets([&] {
    for (const std::int64_t rows : {0, 1, 5, 65})
      for (const std::int64_t width : {1, 7, 16, 67, 1000})
        for (const auto& [with_x, with_bias] : {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
          const std::int64_t n = rows * width;
          const auto x = normal<T>(n, 1), bias = normal<T>(width, 2);
          const auto sum = normal<float>(n, 3, 100);
          auto out = normal<T>(n + 1, 4);
          const T guard = out.back();
          kernels::add_sum(with_x ? x.data() : nullptr, sum.data(), with_bias ? bias.data() : nullptr, out.data(), rows,
                           width);
          for (std::int64_t i = 0; i < n; ++i) {
            const AddSum want(with_x ? &x[i] : nullptr, sum[i], with_bias ? &bias[i % width] : nullptr);
            ASSERT_EQ(value(out[i]), value(stored<T>(want.in_order))) << i;
            expect_near(want.exact, out[i], 0, want.slack, "add_sum", i);
          }
          ASSERT_EQ(std::memcmp(&guard, &out.back(), sizeof(T)), 0) << "wrote behind the end";
        }
  });
}

TYPED_TEST(Elementwise, AddSumInPlaceOnAnyThreads) {
  using T = TypeParam;
  const std::int64_t rows = 70, width = 503;
  const auto x = normal<T>(rows * width, 1), bias = normal<T>(width, 2);
  const auto sum = normal<float>(rows * width, 3);
  std::vector<T> apart(x.size());
  kernels::add_sum(x.data(), sum.data(), bias.data(), apart.data(), rows, width);
  with_thread_counts([&] {
    auto in_place = x;
    kernels::add_sum(in_place.data(), sum.data(), bias.data(), in_place.data(), rows, width);
    ASSERT_TRUE(same_bytes(apart, in_place));
  });
}

TEST(Elementwise, AddSumLeavesOutWhatIsNotThere) {
  const float sum = -0.0f;  // + 0 would make it positive
  bf16 out{};
  kernels::add_sum<bf16>(nullptr, &sum, nullptr, &out, 1, 1);
  EXPECT_EQ(out.bits, 0x8000);
}

TYPED_TEST(Elementwise, SwigluForwardAndBackward) {
  using T = TypeParam;
  with_targets([&] {
    for (std::int64_t width : {1, 8, 31, 67, 300}) {
      const std::int64_t rows = 70, ld = 2 * width + 1, h_ld = width + 2;
      auto packed = normal<T>(rows * ld, 1, 3);
      const auto dh = normal<T>(rows * h_ld, 2);
      std::vector<T> h(static_cast<std::size_t>(rows * h_ld)), d_packed(packed.size());
      kernels::swiglu_forward(packed.data(), packed.data() + width, ld, rows, width, h.data(), h_ld);
      auto turned = dh;
      kernels::swiglu_backward(packed.data(), packed.data() + width, ld, turned.data(), h_ld, rows, width,
                               d_packed.data(), d_packed.data() + width, ld);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < width; ++c) {
          const double g = value(packed[r * ld + c]), u = value(packed[r * ld + width + c]), s = logistic(g);
          const double d = value(dh[r * h_ld + c]);
          expect_near(g * s * u, h[r * h_ld + c], 5e-7, 1e-30, "h", c);
          expect_near(d * g * s, d_packed[r * ld + width + c], 5e-7, 1e-30, "d_up", c);
          expect_near(d * u * silu_slope(g), d_packed[r * ld + c], 1e-6, std::abs(d * u) * 1e-6, "d_gate", c);
        }
        ASSERT_EQ(std::memcmp(&turned[r * h_ld], &h[r * h_ld], width * sizeof(T)), 0);
      }
      auto in_place = packed;
      turned = dh;
      kernels::swiglu_backward(in_place.data(), in_place.data() + width, ld, turned.data(), h_ld, rows, width,
                               in_place.data(), in_place.data() + width, ld);
      for (std::int64_t r = 0; r < rows; ++r)
        ASSERT_EQ(std::memcmp(&in_place[r * ld], &d_packed[r * ld], 2 * width * sizeof(T)), 0);
    }
  });
}

TYPED_TEST(Elementwise, GeluForwardAndBackward) {
  using T = TypeParam;
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      const auto x = normal<T>(n, 1, 3), dy = normal<T>(n, 2);
      std::vector<T> y(x.size()), dx(x.size());
      kernels::gelu_forward(x.data(), y.data(), n);
      auto turned = dy;
      kernels::gelu_backward(x.data(), turned.data(), dx.data(), n);
      ASSERT_TRUE(same_bytes(turned, y));
      for (std::int64_t i = 0; i < n; ++i) {
        const double v = value(x[i]);
        // The exponent's own rounding grows with its size: relative error where exp(-2u) is large.
        expect_near(gelu(v), y[i], 1e-6 + 4e-7 * v * v, 1e-30, "gelu", i);
        expect_near(value(dy[i]) * gelu_slope(v), dx[i], 3e-6, 3e-6 * std::abs(value(dy[i])), "gelu slope", i);
      }
    }
  });
}

TYPED_TEST(Elementwise, ActivationsAtTheEdges) {
  using T = TypeParam;
  std::vector<T> x, one;
  for (double v : {-3e38, -1e19, -1e4, -200.0, -100.0, -88.0, -0.0, 0.0, 88.0, 100.0, 200.0, 1e4, 1e12, 1e19, 3e38,
                   std::nan("")}) {
    x.push_back(stored<T>(v));
    one.push_back(stored<T>(1));
  }
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<T> silu(x.size()), d_gate(x.size()), d_up(x.size()), y(x.size()), dx(x.size());
  kernels::swiglu_forward(x.data(), one.data(), n, 1, n, silu.data(), n);
  auto dh = one, dy = one;
  kernels::swiglu_backward(x.data(), one.data(), n, dh.data(), n, 1, n, d_gate.data(), d_up.data(), n);
  kernels::gelu_forward(x.data(), y.data(), n);
  kernels::gelu_backward(x.data(), dy.data(), dx.data(), n);
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = value(x[i]);
    if (std::isnan(v)) {
      EXPECT_TRUE(std::isnan(value(y[i])) && std::isnan(value(dx[i])));
      continue;
    }
    const double want = v > 0 ? v : 0, slope = v > 0 ? 1 : v < 0 ? 0 : 0.5;
    expect_near(want, silu[i], 1e-6, 1e-30, "silu", i);
    expect_near(slope, d_gate[i], 1e-6, 1e-30, "silu slope", i);
    expect_near(want, y[i], 1e-6, 1e-30, "gelu", i);
    expect_near(slope, dx[i], 1e-6, 1e-20, "gelu slope", i);
  }
}

/// Any places below `limit`, as packed documents would have them and worse.
std::vector<std::int32_t> some_positions(std::int64_t tokens, std::int64_t limit) {
  std::vector<std::int32_t> each;
  for (std::int64_t t = 0; t < tokens; ++t)
    each.push_back(
        static_cast<std::int32_t>(philox(8, static_cast<std::uint64_t>(t), 0)[0] % static_cast<std::uint64_t>(limit)));
  return each;
}

TYPED_TEST(Elementwise, RopeTurnsAndTurnsBack) {
  using T = TypeParam;
  for (std::int64_t head_dim : {2, 6, 64, 128}) {
    const std::int64_t half = head_dim / 2, tokens = 38, sequence = 19, heads = 3, position0 = 4;
    const std::int64_t stride = heads * head_dim + 5;
    std::vector<float> cos, sin;
    for (std::int64_t p = 0; p < sequence + position0; ++p)
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) / std::pow(1e4, static_cast<double>(i) / static_cast<double>(half));
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    const std::vector<std::int32_t> each = some_positions(tokens, sequence + position0);
    const auto check = [&](const kernels::Positions& positions) {
      const auto x = normal<T>(tokens * stride, 1);
      for (bool inverse : {false, true}) {
        auto y = x;
        kernels::rope(y.data(), stride, tokens, positions, heads, head_dim, cos.data(), sin.data(), inverse);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t c = 0; c < heads * head_dim; ++c) {
            const std::int64_t i = c % half, head = t * stride + c / head_dim * head_dim;
            const double co = cos[positions(t) * half + i];
            const double si = (inverse ? -1.0 : 1.0) * sin[positions(t) * half + i];
            const double a = value(x[head + i]), b = value(x[head + half + i]);
            const double want = c % head_dim < half ? a * co - b * si : b * co + a * si;
            expect_near(want, y[t * stride + c], 3e-7, 3e-7, "rope", c);
          }
          for (std::int64_t c = heads * head_dim; c < stride; ++c)
            ASSERT_EQ(value(x[t * stride + c]), value(y[t * stride + c])) << "touched the gap between tokens";
        }
      }
    };
    with_targets([&] {
      check({sequence, position0});
      check({sequence, position0, each.data()});
    });
  }
}

TYPED_TEST(Elementwise, EmbeddingGathersAndScatters) {
  using T = TypeParam;
  const std::int64_t words = 11, count = 75, sequence = 25, position0 = 3;
  std::vector<std::int32_t> tokens;
  for (std::int64_t t = 0; t < count; ++t)
    tokens.push_back(static_cast<std::int32_t>(philox(7, static_cast<std::uint64_t>(t), 0)[0] % words));
  const std::vector<std::int32_t> each = some_positions(count, sequence + position0);
  for (std::int64_t width : {1, 7, 64, 130, 700}) {
    const auto table = normal<T>(words * width, 1), places = normal<T>((sequence + position0) * width, 2);
    const auto d_out = normal<T>(count * width, 3);
    std::vector<T> out(static_cast<std::size_t>(count * width));
    for (const T* where : {static_cast<const T*>(nullptr), places.data()})
      for (const kernels::Positions& positions :
           {kernels::Positions{sequence, position0}, {sequence, 0, each.data()}}) {
        kernels::embed_forward(tokens.data(), count, positions, table.data(), where, width, out.data());
        for (std::int64_t t = 0; t < count; ++t)
          for (std::int64_t c = 0; c < width; ++c) {
            const double p = where == nullptr ? 0 : value(where[positions(t) * width + c]);
            expect_near(value(table[tokens[t] * width + c]) + p, out[t * width + c], 0, 1e-30, "embed", c);
          }
      }
    with_thread_counts([&] {
      for (const kernels::Positions& positions : {kernels::Positions{sequence}, {sequence, 0, each.data()}}) {
        auto d_table = normal<float>(words * width, 4), d_places = normal<float>((sequence + position0) * width, 5);
        auto want_table = d_table, want_places = d_places, alone = d_table;
        for (std::int64_t t = 0; t < count; ++t)  // the order is part of the contract, so equality is exact
          for (std::int64_t c = 0; c < width; ++c) {
            want_table[tokens[t] * width + c] += static_cast<float>(value(d_out[t * width + c]));
            want_places[positions(t) * width + c] += static_cast<float>(value(d_out[t * width + c]));
          }
        kernels::embed_backward(tokens.data(), count, positions, d_out.data(), width, d_table.data(), d_places.data());
        ASSERT_TRUE(same_bytes(want_table, d_table));
        ASSERT_TRUE(same_bytes(want_places, d_places));
        kernels::embed_backward<T>(tokens.data(), count, positions, d_out.data(), width, alone.data(), nullptr);
        ASSERT_TRUE(same_bytes(want_table, alone));
      }
    });
  }
}

/// Before the table lies what a row -1 would be: not a number to read, and not to be written.
TYPED_TEST(Elementwise, EmbeddingOfPaddingIsZeroAndLearnsNothing) {
  using T = TypeParam;
  const std::int64_t words = 3, count = 6, sequence = 3;
  const std::vector<std::int32_t> tokens{2, -1, 0, -1, -1, 1};
  const auto row = [](auto& all, std::int64_t r, std::int64_t width) { return all.data() + r * width; };
  for (std::int64_t width : {1, 7, 700}) {
    auto rows = normal<T>((1 + words) * width, 1);
    std::fill_n(rows.data(), width, stored<T>(std::nan("")));
    const auto positions = normal<T>(sequence * width, 2), d_out = normal<T>(count * width, 3);
    std::vector<T> out(static_cast<std::size_t>(count * width));
    for (const T* where : {static_cast<const T*>(nullptr), positions.data()}) {
      kernels::embed_forward(tokens.data(), count, {sequence}, row(rows, 1, width), where, width, out.data());
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t c = 0; c < width; ++c) {
          const double word = tokens[t] < 0 ? 0 : value(row(rows, 1 + tokens[t], width)[c]);
          const double p = where == nullptr ? 0 : value(where[t % sequence * width + c]);
          expect_near(word + p, out[t * width + c], 0, 1e-30, "embed", c);
        }
    }
    auto d_rows = normal<float>((1 + words) * width, 4), d_positions = normal<float>(sequence * width, 5);
    auto want_rows = d_rows, want_positions = d_positions;
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        const auto d = static_cast<float>(value(d_out[t * width + c]));
        if (tokens[t] >= 0) row(want_rows, 1 + tokens[t], width)[c] += d;
        row(want_positions, t % sequence, width)[c] += d;
      }
    kernels::embed_backward(tokens.data(), count, {sequence}, d_out.data(), width, row(d_rows, 1, width),
                            d_positions.data());
    EXPECT_TRUE(same_bytes(want_rows, d_rows));
    EXPECT_TRUE(same_bytes(want_positions, d_positions));
  }
}

}  // namespace
}  // namespace sluice::test
