#include "kernels/cuda/elementwise.h"

#include "device.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::test {
namespace {

class ConvertTest : public DeviceTest {};
template <class T>
class ElementwiseTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(ElementwiseTest, Storage);

TEST_F(ConvertTest, RoundsAsTheScalarFunctionDoes) {
  std::vector<float> x;
  for (std::uint32_t i = 0; i < (1u << 18); ++i) x.push_back(std::bit_cast<float>(i * 16411u));
  for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7fc00000u, 0x7f7fffffu, 0x80000000u,
                             0x00000001u, 0x3f808000u, 0x3f818000u, 0x3f808001u})
    x.push_back(std::bit_cast<float>(bits));
  const auto n = static_cast<std::int64_t>(x.size());
  for (const std::int64_t shift : {0, 1}) {
    DeviceArray<float> wide(x, shift), back(n, shift);
    DeviceArray<bf16> half(n, shift);
    cuda::narrow(wide.data(), half.data(), n, *stream);
    cuda::widen(half.data(), back.data(), n, *stream);
    const auto narrowed = half.read();
    const auto widened = back.read();
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]), std::uint32_t{narrowed[i].bits} << 16);
      if (std::isnan(x[i]))
        ASSERT_TRUE(std::isnan(widened[i]));
      else
        ASSERT_EQ(narrowed[i].bits, to_bf16(x[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
    }
  }
}

TEST_F(ConvertTest, EveryLengthAndMisalignment) {
  for (const std::int64_t n : lengths())
    for (const std::int64_t from : {0, 1, 3})
      for (const std::int64_t to : {0, 2}) {
        const auto x = normal<float>(n, 1);
        DeviceArray<float> wide(x, from), back(n, from);
        DeviceArray<bf16> half(n, to);
        cuda::narrow(wide.data(), half.data(), n, *stream);
        cuda::widen(half.data(), back.data(), n, *stream);
        const auto narrowed = half.read();
        const auto widened = back.read();
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(narrowed[i].bits, to_bf16(x[i]).bits);
          ASSERT_EQ(widened[i], to_float(narrowed[i]));
        }
      }
}

TEST_F(ConvertTest, F32ToF32CopiesTheBits) {
  for (const std::int64_t n : lengths())
    for (const std::int64_t from : {0, 1}) {
      auto x = normal<float>(n, 1);
      if (n > 0) x[static_cast<std::size_t>(n / 2)] = std::bit_cast<float>(0xffa00001u);  // a NaN that signals
      DeviceArray<float> in(x, from), wide(n), narrow(n, from);
      cuda::widen(in.data(), wide.data(), n, *stream);
      cuda::narrow(in.data(), narrow.data(), n, *stream);
      ASSERT_TRUE(same_bytes(x, wide.read()));
      ASSERT_TRUE(same_bytes(x, narrow.read()));
    }
}

TYPED_TEST(ElementwiseTest, AddAtEveryLengthAndMisalignment) {
  using T = TypeParam;
  for (const std::int64_t n : lengths())
    for (const std::int64_t shift : {0, 1, 3}) {
      const auto a = normal<T>(n, 1), b = normal<T>(n, 2);
      DeviceArray<T> left(a, shift), right(b), out(n, shift);
      cuda::add(left.data(), right.data(), out.data(), n, *this->stream);
      const auto sum = out.read();
      for (std::size_t i = 0; i < a.size(); ++i)
        ASSERT_EQ(value(sum[i]), value(stored<T>(static_cast<float>(value(a[i])) + static_cast<float>(value(b[i])))));
      cuda::add(left.data(), right.data(), left.data(), n, *this->stream);
      ASSERT_TRUE(same_bytes(left.read(), sum));
      left.write(a);
      cuda::add(left.data(), right.data(), right.data(), n, *this->stream);
      ASSERT_TRUE(same_bytes(right.read(), sum));
    }
}

TEST_F(ConvertTest, AddF32IsExactAddition) {
  for (const std::int64_t n : lengths()) {
    const auto x = normal<float>(n, 4), y = normal<float>(n, 5);
    DeviceArray<float> from(x, 1), sum(y, 1);
    cuda::add_f32(from.data(), sum.data(), n, *stream);
    const auto got = sum.read();
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], x[i] + y[i]);
  }
}

TYPED_TEST(ElementwiseTest, AddWidenedIsExactAddition) {
  using T = TypeParam;
  for (const std::int64_t n : lengths())
    for (const std::int64_t shift : {0, 1}) {
      const auto x = normal<T>(n, 4);
      const auto y = normal<float>(n, 5);
      DeviceArray<T> from(x, shift);
      DeviceArray<float> sum(y, shift);
      cuda::add_widened(from.data(), sum.data(), n, *this->stream);
      const auto got = sum.read();
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], y[i] + static_cast<float>(value(x[i])));
    }
}

TYPED_TEST(ElementwiseTest, BiasAndItsGradient) {
  using T = TypeParam;
  for (const std::int64_t rows : {0, 1, 5, 64, 65, 700})
    for (const std::int64_t width : {1, 7, 64, 131, 520})
      for (const std::int64_t gap : {0, 3, 8}) {
        const std::int64_t ld = width + gap;
        const auto x = normal<T>(rows * ld, 1), bias = normal<T>(width, 2);
        DeviceArray<T> y(x), b(bias);
        cuda::add_bias(y.data(), ld, b.data(), rows, width, *this->stream);
        const auto sums = y.read();
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < ld; ++c)
            expect_near(value(x[r * ld + c]) + (c < width ? value(bias[c]) : 0), sums[r * ld + c], 0, 1e-30, "bias", c);
        std::vector<float> first;
        const auto start = normal<float>(width, 3);
        for (const std::int64_t shift : {0, 0, 1}) {  // also from elsewhere: the order is the same
          DeviceArray<T> dy(x, shift);
          DeviceArray<float> d_bias(start), workspace(cuda::bias_gradient_workspace_floats(rows, width));
          cuda::bias_gradient(dy.data(), ld, rows, width, d_bias.data(), workspace.data(), *this->stream);
          const auto got = d_bias.read();
          workspace.read();
          for (std::int64_t c = 0; c < width; ++c) {
            double want = start[c];
            for (std::int64_t r = 0; r < rows; ++r) want += value(x[r * ld + c]);
            expect_near(want, got[c], 1e-6, 6e-5, "d_bias", c);
          }
          if (first.empty()) first = got;
          ASSERT_TRUE(same_bytes(first, got));
        }
      }
}

TYPED_TEST(ElementwiseTest, AddSumRoundsOnce) {
  using T = TypeParam;
  for (const std::int64_t rows : {0, 1, 5, 700})
    for (const std::int64_t width : {1, 7, 64, 131, 520})
      for (const auto& [with_x, with_bias] : {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
        const std::int64_t n = rows * width;
        const auto x = normal<T>(n, 1), bias = normal<T>(width, 2);
        const auto sum = normal<float>(n, 3, 100);
        std::vector<T> first;
        for (const std::int64_t shift : {0, 1}) {
          DeviceArray<T> from(x), b(bias, shift), out(n);
          DeviceArray<float> s(sum, shift);
          cuda::add_sum(with_x ? from.data() : nullptr, s.data(), with_bias ? b.data() : nullptr, out.data(), rows,
                        width, *this->stream);
          const auto got = out.read();
          if (first.empty()) first = got;
          ASSERT_TRUE(same_bytes(first, got)) << "from another address";
          if (!with_x) continue;
          cuda::add_sum(from.data(), s.data(), with_bias ? b.data() : nullptr, from.data(), rows, width, *this->stream);
          ASSERT_TRUE(same_bytes(from.read(), got)) << "in place";
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const AddSum want(with_x ? &x[i] : nullptr, sum[i], with_bias ? &bias[i % width] : nullptr);
          ASSERT_EQ(value(first[i]), value(stored<T>(want.in_order))) << i;
          expect_near(want.exact, first[i], 0, want.slack, "add_sum", i);
        }
      }
}

TEST_F(ConvertTest, AddSumLeavesOutWhatIsNotThere) {
  DeviceArray<float> sum(std::vector<float>{-0.0f});  // + 0 would make it positive
  DeviceArray<bf16> out(1);
  cuda::add_sum<bf16>(nullptr, sum.data(), nullptr, out.data(), 1, 1, *stream);
  EXPECT_EQ(out.read()[0].bits, 0x8000);
}

/// More than the largest grid of a large device takes at once.
TYPED_TEST(ElementwiseTest, LongArraysAndManyRows) {
  using T = TypeParam;
  const auto pattern = normal<T>(9973, 1), other = normal<T>(5, 2);
  const std::int64_t n = 20'000'003, rows = 1'200'000, width = 5;
  const auto wide = [](T a, T b) {
    return value(stored<T>(static_cast<float>(value(a)) + static_cast<float>(value(b))));
  };
  std::vector<T> a(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = pattern[i % pattern.size()];
  DeviceArray<T> x(a), bias(other);
  cuda::add_bias(x.data(), width, bias.data(), rows, width, *this->stream);
  auto want = a;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * width); ++i)
    want[i] = stored<T>(wide(a[i], other[i % 5]));
  ASSERT_TRUE(same_bytes(want, x.read()));
  cuda::add(x.data(), x.data(), x.data(), n, *this->stream);
  for (auto& v : want) v = stored<T>(wide(v, v));
  ASSERT_TRUE(same_bytes(want, x.read()));
}

}  // namespace
}  // namespace sluice::test
