#include "kernels/cpu/quantize.h"

#include "kernels/cpu/elementwise.h"
#include "quantize_support.h"
#include "support.h"

namespace sluice::test {
namespace {

template <class T>
class Quantize : public Kernel<T> {};
TYPED_TEST_SUITE(Quantize, Storage);

/// n elements, `shift` of them behind an aligned address, with guards on both sides. What is not written is poison.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t n, std::size_t shift)
      : begin_(guard + shift * sizeof(T)), end_(begin_ + n * sizeof(T)), all_(end_ + guard, poison) {}
  Guarded(const std::vector<T>& values, std::size_t shift) : Guarded(values.size(), shift) {
    if (!values.empty()) std::memcpy(data(), values.data(), end_ - begin_);
  }
  T* data() { return reinterpret_cast<T*>(all_.data() + begin_); }
  std::vector<T> read() const {
    for (std::size_t i = 0; i < all_.size(); ++i)
      if ((i < begin_ || i >= end_) && all_[i] != poison) {
        ADD_FAILURE() << "written " << static_cast<std::int64_t>(i) - static_cast<std::int64_t>(begin_)
                      << " bytes from "
                      << "the beginning of " << end_ - begin_;
        break;
      }
    std::vector<T> out((end_ - begin_) / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), all_.data() + begin_, end_ - begin_);
    return out;
  }

 private:
  static constexpr std::size_t guard = 128;
  static constexpr std::byte poison{0xa5};
  std::size_t begin_, end_;
  std::vector<std::byte> all_;
};

/// The kernel's, from and to shifted addresses.
template <class T>
Quantized quantize(const std::vector<T>& x, const Quantization& q, std::size_t shift = 0) {
  Guarded<T> from(x, shift);
  Guarded<std::uint8_t> codes(quantized_code_bytes(std::ssize(x), q), 3 * shift);
  Guarded<float> scales(static_cast<std::size_t>(quantized_blocks(std::ssize(x), q)), shift);
  kernels::quantize(from.data(), std::ssize(x), q, codes.data(), scales.data());
  return {codes.read(), scales.read()};
}

template <class T>
std::vector<T> dequantize(const Quantized& from, std::size_t n, const Quantization& q, std::size_t shift = 0) {
  Guarded<std::uint8_t> codes(from.codes, 3 * shift);
  Guarded<T> x(n, shift);
  kernels::dequantize(codes.data(), from.scales.data(), static_cast<std::int64_t>(n), q, x.data());
  return x.read();
}

TEST(Quantization, SizesCountCodesAndScales) {
  constexpr Quantization eight{8, 256}, four{4, 32};
  static_assert(eight.is_valid() && four.is_valid());
  static_assert(!Quantization{2, 32}.is_valid() && !Quantization{8, 16}.is_valid() && !Quantization{8, 96}.is_valid() &&
                !Quantization{4, 4096}.is_valid() && !Quantization{4, 32, CodeFormat::e4m3}.is_valid());
  EXPECT_EQ(quantized_bytes(0, eight), 0u);
  EXPECT_EQ(quantized_bytes(1, eight), 4u + 4);
  EXPECT_EQ(quantized_bytes(257, eight), 260u + 2 * 4);
  EXPECT_EQ(quantized_bytes(64, four), 32u + 2 * 4);
  EXPECT_EQ(quantized_code_bytes(67, four), 34u);
  EXPECT_EQ(quantized_bytes(67, four), 36u + 3 * 4);
}

/// Written down once: codes are a contract between devices and versions.
TEST(Quantization, CodesAreWhatTheyWere) {
  const std::vector<float> x = {1, -1, 0.5f, -0.25f, 0.1f, 0, -0.93f, 0.0039f, -0.072f};
  with_targets([&] {
    const Quantized eight = quantize(x, {8, 32}), four = quantize(x, {4, 32}),
                    floats = quantize(x, {8, 32, CodeFormat::e4m3});
    EXPECT_EQ(eight.scales, std::vector<float>{1.0f / 127});
    EXPECT_EQ(eight.codes, (std::vector<std::uint8_t>{0x7f, 0x81, 0x40, 0xe0, 0x0d, 0, 0x8a, 0, 0xf7}));
    EXPECT_EQ(four.scales, std::vector<float>{1.0f / 7});
    EXPECT_EQ(four.codes, (std::vector<std::uint8_t>{0x97, 0xe4, 0x01, 0x09, 0x0f}));
    EXPECT_EQ(floats.scales, std::vector<float>{1.0f / 448});
    EXPECT_EQ(floats.codes, (std::vector<std::uint8_t>{0x7e, 0xfe, 0x76, 0xee, 0x63, 0, 0xfd, 0x3e, 0xe0}));
  });
}

/// All codes and what lies between two of them: just below the middle, in it, and just above.
TEST(Quantization, E4m3RoundsToTheNearestOfAllNumbers) {
  const auto check = [](float x) {
    ASSERT_EQ(e4m3_code(x), nearest_e4m3(x)) << x;
    ASSERT_EQ(e4m3_code(-x), nearest_e4m3(-x)) << -x;
  };
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f) {
      const auto c = static_cast<std::uint8_t>(code);
      EXPECT_EQ(e4m3_value(c), e4m3(c)) << code;
      EXPECT_EQ(std::signbit(e4m3_value(c)), code >= 0x80) << code;
      EXPECT_EQ(e4m3_code(e4m3_value(c)), c);
    }
  for (std::uint8_t code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((e4m3(code) + e4m3(static_cast<std::uint8_t>(code + 1))) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 500.0f)}) check(x);
  }
  for (const float x : {0.0f, 1e-30f, 0x1p-149f, 448.0f, 463.9f, 464.0f, 480.0f, 1e30f}) check(x);
  std::uint64_t seed = 7;
  for (const float x : normal<float>(2'000, seed)) check(100 * x);
}

TYPED_TEST(Quantize, EveryBlockLengthAndAddress) {
  using T = TypeParam;
  for (const Quantization& q : quantizations()) {
    SCOPED_TRACE(name(q));
    for (const std::int64_t n : lengths(q)) {
      const std::vector<T> x = numbers<T>(n, q.block, static_cast<std::uint64_t>(n));
      const Quantized want = quantized(x, q);
      std::vector<T> values;
      for (std::size_t i = 0; i < x.size(); ++i) values.push_back(stored<T>(want.value(i, q)));
      with_targets([&] {
        for (const std::size_t shift : {0, 1, 3}) {
          const Quantized got = quantize(x, q, shift);
          ASSERT_TRUE(same_bytes(want.codes, got.codes)) << n << " elements, shift " << shift;
          ASSERT_TRUE(same_bytes(want.scales, got.scales)) << n << " elements, shift " << shift;
          expect_same_numbers(values, dequantize<T>(got, x.size(), q, shift));
        }
      });
    }
  }
}

TYPED_TEST(Quantize, ThreadsChangeNothing) {
  using T = TypeParam;
  for (const Quantization& q : {Quantization{8, 64}, Quantization{4, 2048}, Quantization{8, 128, CodeFormat::e4m3}}) {
    const auto x = numbers<T>(200'003, q.block, 5);
    const Quantized want = quantized(x, q);
    with_thread_counts([&] {
      const Quantized got = quantize(x, q);
      ASSERT_TRUE(same_bytes(want.codes, got.codes));
      ASSERT_TRUE(same_bytes(want.scales, got.scales));
      const auto values = dequantize<T>(got, x.size(), q);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same_number(values[i], stored<T>(want.value(i, q)))) << i;
    });
  }
}

TEST(Quantization, AddingIsDequantisingAndAdding) {
  for (const Quantization& q : quantizations()) {
    SCOPED_TRACE(name(q));
    for (const std::int64_t n : lengths(q)) {
      const Quantized from = quantized(numbers<float>(n, q.block, 9), q);
      const auto before = normal<float>(n, 10);
      with_targets([&] {
        const auto values = dequantize<float>(from, before.size(), q);
        auto want = before;
        kernels::add_f32(values.data(), want.data(), n);
        Guarded<float> sum(before, 1);
        kernels::dequantize_add(from.codes.data(), from.scales.data(), n, q, sum.data());
        expect_same_numbers(want, sum.read());
      });
    }
  }
}

TYPED_TEST(Quantize, ErrorsAreHalfACodeAndCodesStay) {
  using T = TypeParam;
  for (const Quantization& q : quantizations()) {
    SCOPED_TRACE(name(q));
    const bool floats = q.format == CodeFormat::e4m3;
    const double most = q.most();
    std::vector<T> x = normal<T>(20'000, 11);
    for (std::size_t i = 0; i < x.size(); ++i)  // sizes over all that there are
      x[i] = stored<T>(std::ldexp(value(x[i]), static_cast<int>(i / 2048) * 28 - 140));
    const Quantized got = quantize(x, q);
    const std::vector<float> values = dequantize<float>(got, x.size(), q);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double scale = got.scales[i / static_cast<std::size_t>(q.block)];
      ASSERT_LE(std::abs(got.code(i, q)), most);
      // Neighbours of a number of E4M3 are an eighth to a sixteenth of it apart, and those of 0 2^-9.
      const double apart = floats ? std::max(std::abs(value(x[i])) / 8, scale * 0x1p-9) : scale;
      ASSERT_LE(std::abs(value(x[i]) - double{values[i]}), apart * (0.5 + 0x1p-14)) << i;
    }
    // But for the sign of zeros, of which there is none in a block that has nothing else.
    const Quantized again = quantize(values, q);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got.code(i, q), again.code(i, q)) << i;
  }
}

TYPED_TEST(Quantize, NothingFiniteBecomesInfinite) {
  using T = TypeParam;
  constexpr std::uint32_t least = 1, most = 0x7f7fffff;
  for (const Quantization& q : {Quantization{8, 32}, Quantization{4, 32}, Quantization{8, 32, CodeFormat::e4m3}})
    for (std::uint32_t k = 0; k < 2000; ++k) {
      for (const std::uint32_t largest : {least + k, most - k, 0x04000000u - 1000 + k, 0x05000000u - 1000 + k}) {
        const T top = stored<T>(std::bit_cast<float>(largest));
        if (!std::isfinite(value(top))) continue;
        const std::vector<T> x = {top, stored<T>(-value(top)), stored<T>(value(top) / 2)};
        const Quantized got = quantize(x, q);
        for (const T v : dequantize<T>(got, x.size(), q)) ASSERT_TRUE(std::isfinite(value(v))) << std::hex << largest;
        ASSERT_TRUE(value(top) == 0 || std::isnormal(got.scales[0])) << std::hex << largest;
      }
    }
}

TYPED_TEST(Quantize, NanAndInfinityTakeTheirBlockAndNoOther) {
  using T = TypeParam;
  for (const Quantization& q : quantizations())
    for (const double bad : {std::nan(""), -std::nan(""), 1.0 / 0.0, -1.0 / 0.0}) {
      std::vector<T> x = normal<T>(3 * q.block, 12);
      x[static_cast<std::size_t>(q.block + q.block / 2)] = stored<T>(bad);
      const auto values = dequantize<T>(quantize(x, q), x.size(), q);
      for (std::int64_t i = 0; i < std::ssize(x); ++i)
        ASSERT_EQ(std::isnan(value(values[static_cast<std::size_t>(i)])), i / q.block == 1) << i;
    }
}

TEST(QuantizationDeathTest, ABlockThatIsNoneStopsTheProgram) {
  float x = 0, scale = 0;
  std::uint8_t code = 0;
  EXPECT_DEATH(kernels::quantize(&x, 1, {8, 48}, &code, &scale), "8 bits, blocks of 48");
}

}  // namespace
}  // namespace sluice::test
