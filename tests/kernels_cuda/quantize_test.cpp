#include "kernels/cuda/quantize.h"

#include "device.h"
#include "kernels/cpu/quantize.h"
#include "tests/kernels_vec/quantize_support.h"

namespace sluice::test {
namespace {

template <class T>
class QuantizeTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(QuantizeTest, Storage);

template <class T>
Quantized on_cpu(const std::vector<T>& x, const Quantization& q) {
  Quantized out;
  out.codes.resize(quantized_code_bytes(std::ssize(x), q));
  out.scales.resize(static_cast<std::size_t>(quantized_blocks(std::ssize(x), q)));
  kernels::quantize(x.data(), std::ssize(x), q, out.codes.data(), out.scales.data());
  return out;
}

template <class T>
std::vector<T> values_on_cpu(const Quantized& from, std::int64_t n, const Quantization& q) {
  std::vector<T> x(static_cast<std::size_t>(n));
  kernels::dequantize(from.codes.data(), from.scales.data(), n, q, x.data());
  return x;
}

/// At every block, length and address: what the CPU makes, to the bit.
TYPED_TEST(QuantizeTest, CodesScalesAndValuesAreTheCpus) {
  using T = TypeParam;
  for (const Quantization& q : quantizations()) {
    SCOPED_TRACE(name(q));
    for (const std::int64_t n : lengths(q))
      for (const std::int64_t shift : {0, 1, 8}) {
        SCOPED_TRACE(testing::Message() << n << " elements, shift " << shift);
        const auto x = numbers<T>(n, q.block, static_cast<std::uint64_t>(n));
        const Quantized want = on_cpu(x, q);
        DeviceArray<T> from(x, shift), back(n, shift);
        DeviceArray<std::uint8_t> codes(std::ssize(want.codes), 3 * shift);
        DeviceArray<float> scales(std::ssize(want.scales), shift);
        cuda::quantize(from.data(), n, q, codes.data(), scales.data(), *this->stream);
        ASSERT_TRUE(same_bytes(want.codes, codes.read()));
        ASSERT_TRUE(same_bytes(want.scales, scales.read()));
        cuda::dequantize(codes.data(), scales.data(), n, q, back.data(), *this->stream);
        expect_same_numbers(values_on_cpu<T>(want, n, q), back.read());
      }
  }
}

using QuantizeAddTest = DeviceTest;

TEST_F(QuantizeAddTest, SumsAreTheCpus) {
  for (const Quantization& q : quantizations()) {
    SCOPED_TRACE(name(q));
    for (const std::int64_t n : lengths(q))
      for (const std::int64_t shift : {0, 1}) {
        const Quantized added = on_cpu(numbers<float>(n, q.block, 9), q);
        auto want = normal<float>(n, 10);
        DeviceArray<float> sum(want, shift), scales(added.scales);
        DeviceArray<std::uint8_t> codes(added.codes, shift);
        cuda::dequantize_add(codes.data(), scales.data(), n, q, sum.data(), *stream);
        kernels::dequantize_add(added.codes.data(), added.scales.data(), n, q, want.data());
        expect_same_numbers(want, sum.read());
      }
  }
}

/// More than the largest grid of a large device takes at once.
TYPED_TEST(QuantizeTest, LongArrays) {
  using T = TypeParam;
  const auto pattern = numbers<T>(99'991, 256, 4);
  std::vector<T> x(20'000'003);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = pattern[i % pattern.size()];
  const std::int64_t n = std::ssize(x);
  for (const Quantization& q : {Quantization{8, 64}, Quantization{4, 1024}, Quantization{8, 128, CodeFormat::e4m3}}) {
    const Quantized want = on_cpu(x, q);
    DeviceArray<T> from(x);
    DeviceArray<std::uint8_t> codes(std::ssize(want.codes));
    DeviceArray<float> scales(std::ssize(want.scales));
    cuda::quantize(from.data(), n, q, codes.data(), scales.data(), *this->stream);
    ASSERT_TRUE(same_bytes(want.codes, codes.read()));
    ASSERT_TRUE(same_bytes(want.scales, scales.read()));
    cuda::dequantize(codes.data(), scales.data(), n, q, from.data(), *this->stream);
    const auto values = values_on_cpu<T>(want, n, q);
    const auto got = from.read();
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(same_number(values[i], got[i])) << i;
  }
}

}  // namespace
}  // namespace sluice::test
