#include "device.h"
#include "kernels/cuda/elementwise.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::test {
namespace {

template <class T>
class ActivationTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(ActivationTest, Storage);

TYPED_TEST(ActivationTest, SwigluForwardAndBackward) {
  using T = TypeParam;
  auto& on = *this->stream;
  for (const std::int64_t width : {1, 8, 31, 67, 304, 2049})
    for (const std::int64_t gap : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "width " << width << " gap " << gap);
      const std::int64_t rows = 37, ld = 2 * width + gap, h_ld = width + 2 * gap;
      const auto packed = normal<T>(rows * ld, 1, 3), up_gradient = normal<T>(rows * h_ld, 2);
      DeviceArray<T> in(packed), h(up_gradient), dh(up_gradient), d(packed);
      cuda::swiglu_forward(in.data(), in.data() + width, ld, rows, width, h.data(), h_ld, on);
      cuda::swiglu_backward(in.data(), in.data() + width, ld, dh.data(), h_ld, rows, width, d.data(), d.data() + width,
                            ld, on);
      const auto made = h.read(), turned = dh.read(), gradient = d.read();
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < width; ++c) {
          const double g = value(packed[r * ld + c]), u = value(packed[r * ld + width + c]), s = logistic(g);
          const double to = value(up_gradient[r * h_ld + c]);
          expect_near(g * s * u, made[r * h_ld + c], 1e-6, 1e-30, "h", c);
          expect_near(to * g * s, gradient[r * ld + width + c], 1e-6, 1e-30, "d_up", c);
          expect_near(to * u * silu_slope(g), gradient[r * ld + c], 1e-6, std::abs(to * u) * 1e-6, "d_gate", c);
        }
        ASSERT_EQ(std::memcmp(&turned[r * h_ld], &made[r * h_ld], width * sizeof(T)), 0);
        for (std::int64_t c = width; c < h_ld; ++c)  // gaps between rows are left alone
          ASSERT_EQ(value(made[r * h_ld + c]), value(up_gradient[r * h_ld + c]));
      }
      dh.write(up_gradient);
      cuda::swiglu_backward(in.data(), in.data() + width, ld, dh.data(), h_ld, rows, width, in.data(),
                            in.data() + width, ld, on);
      EXPECT_TRUE(same_bytes(in.read(), gradient)) << "in place";
      EXPECT_TRUE(same_bytes(dh.read(), turned));
    }
}

TYPED_TEST(ActivationTest, GeluForwardAndBackward) {
  using T = TypeParam;
  for (const std::int64_t n : lengths())
    for (const std::int64_t shift : {0, 1}) {
      const auto x = normal<T>(n, 1, 3), dy = normal<T>(n, 2);
      DeviceArray<T> in(x, shift), y(n, shift), d(dy, shift), dx(n);
      cuda::gelu_forward(in.data(), y.data(), n, *this->stream);
      cuda::gelu_backward(in.data(), d.data(), dx.data(), n, *this->stream);
      const auto made = y.read(), slope = dx.read();
      ASSERT_TRUE(same_bytes(d.read(), made));
      for (std::int64_t i = 0; i < n; ++i) {
        const double v = value(x[i]);
        // The exponent's own rounding grows with its size: relative error where exp(-2u) is large.
        expect_near(gelu(v), made[i], 1e-6 + 5e-7 * v * v, 1e-30, "gelu", i);
        expect_near(value(dy[i]) * gelu_slope(v), slope[i], 3e-6, 3e-6 * std::abs(value(dy[i])), "gelu slope", i);
      }
    }
}

TYPED_TEST(ActivationTest, AtTheEdges) {
  using T = TypeParam;
  auto& on = *this->stream;
  std::vector<T> x, ones;
  for (double v : {-3e38, -1e19, -1e4, -200.0, -100.0, -88.0, -0.0, 0.0, 88.0, 100.0, 200.0, 1e4, 1e12, 1e19, 3e38,
                   std::nan("")}) {
    x.push_back(stored<T>(v));
    ones.push_back(stored<T>(1));
  }
  const auto n = static_cast<std::int64_t>(x.size());
  DeviceArray<T> in(x), one(ones), silu(n), d_gate(n), d_up(n), y(n), dx(n), dh(ones), dy(ones);
  cuda::swiglu_forward(in.data(), one.data(), n, 1, n, silu.data(), n, on);
  cuda::swiglu_backward(in.data(), one.data(), n, dh.data(), n, 1, n, d_gate.data(), d_up.data(), n, on);
  cuda::gelu_forward(in.data(), y.data(), n, on);
  cuda::gelu_backward(in.data(), dy.data(), dx.data(), n, on);
  const auto silus = silu.read(), gates = d_gate.read(), gelus = y.read(), slopes = dx.read();
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = value(x[i]);
    if (std::isnan(v)) {
      EXPECT_TRUE(std::isnan(value(gelus[i])) && std::isnan(value(slopes[i])));
      continue;
    }
    const double want = v > 0 ? v : 0, slope = v > 0 ? 1 : v < 0 ? 0 : 0.5;
    expect_near(want, silus[i], 1e-6, 1e-30, "silu", i);
    expect_near(slope, gates[i], 1e-6, 1e-30, "silu slope", i);
    expect_near(want, gelus[i], 1e-6, 1e-30, "gelu", i);
    expect_near(slope, slopes[i], 1e-6, 1e-20, "gelu slope", i);
  }
}

}  // namespace
}  // namespace sluice::test
