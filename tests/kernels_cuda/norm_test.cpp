#include "kernels/cuda/norm.h"

#include "device.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::test {
namespace {

constexpr float eps = 1e-5f;

/// What goes into one shape.
template <class T>
struct Input {
  std::int64_t rows, width, ld;
  bool centred;
  std::vector<T> x, w, b, dy, dx;
  std::vector<float> d_weight, d_bias;

  Input(std::int64_t rows_, std::int64_t width_, std::int64_t gap, bool centred_)
      : rows(rows_), width(width_), ld(width_ + gap), centred(centred_) {
    x = normal<T>(rows * ld, 1, 2);
    for (auto& v : x) v = stored<T>(value(v) + 0.5);
    w = normal<T>(width, 2);
    b = centred ? normal<T>(width, 3) : std::vector<T>(static_cast<std::size_t>(width));
    dy = normal<T>(rows * ld, 4);
    dx = normal<T>(rows * ld, 5);
    d_weight = normal<float>(width, 6);
    d_bias = normal<float>(width, 7);
  }
};

/// And what comes out.
template <class T>
struct Output {
  std::vector<T> y, dx;
  std::vector<float> mean, rstd, d_weight, d_bias;
  bool operator==(const Output& o) const {
    return same_bytes(y, o.y) && same_bytes(dx, o.dx) && same_bytes(mean, o.mean) && same_bytes(rstd, o.rstd) &&
           same_bytes(d_weight, o.d_weight) && same_bytes(d_bias, o.d_bias);
  }
};

template <class T>
Output<T> run(const Input<T>& in, bool add, std::int64_t shift, bool in_place, cuda::Stream& stream) {
  DeviceArray<T> x(in.x, shift), w(in.w, shift), b(in.b, shift), dy(in.dy, shift), dx(in.dx, shift);
  DeviceArray<T> y(in.x, shift), again(in.x, shift);
  DeviceArray<float> mean(in.rows), rstd(in.rows), d_weight(in.d_weight, shift), d_bias(in.d_bias);
  DeviceArray<float> work(cuda::norm_workspace_floats(in.rows, in.width), shift);
  T* const to_y = in_place ? again.data() : y.data();
  T* const from_x = in_place ? again.data() : x.data();
  T* const to_dx = in_place ? dy.data() : dx.data();
  if (in.centred) {
    cuda::layernorm_forward(from_x, w.data(), b.data(), eps, in.rows, in.width, to_y, mean.data(), rstd.data(), stream);
    cuda::layernorm_backward(x.data(), w.data(), mean.data(), rstd.data(), dy.data(), in.rows, in.width, to_dx, add,
                             d_weight.data(), d_bias.data(), work.data(), stream);
  } else {
    cuda::rmsnorm_forward(from_x, in.ld, w.data(), eps, in.rows, in.width, to_y, in.ld, rstd.data(), stream);
    cuda::rmsnorm_backward(x.data(), in.ld, w.data(), rstd.data(), dy.data(), in.ld, in.rows, in.width, to_dx, in.ld,
                           add, d_weight.data(), work.data(), stream);
  }
  work.read();
  EXPECT_TRUE(same_bytes(x.read(), in.x));
  return {(in_place ? again : y).read(),
          (in_place ? dy : dx).read(),
          in.centred ? mean.read() : std::vector<float>(static_cast<std::size_t>(in.rows)),
          rstd.read(),
          d_weight.read(),
          d_bias.read()};
}

template <class T>
void check(const Input<T>& in, const Output<T>& got, bool add) {
  const Row w = doubles(in.w.data(), in.width), b = doubles(in.b.data(), in.width);
  Row d_weight(in.d_weight.begin(), in.d_weight.end()), d_bias(in.d_bias.begin(), in.d_bias.end());
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const std::int64_t first = r * in.ld;
    const Row x = doubles(&in.x[first], in.width), dy = doubles(&in.dy[first], in.width);
    double mean = 0, rstd = 0;
    const Row y = norm(x, w, b, in.centred, eps, &mean, &rstd);
    expect_near(rstd, got.rstd[r], 3e-6, 0, "rstd", r);
    if (in.centred) expect_near(mean, got.mean[r], 1e-6, 1e-6, "mean", r);
    // Where a row's values are close together, what rounding did to their mean grows with rstd.
    const double rounding = 2e-7 * (in.centred ? std::abs(mean) * rstd : 0);
    for (std::int64_t i = 0; i < in.width; ++i) {
      expect_near(y[i], got.y[first + i], 4e-6, 4e-6 + rounding * std::abs(w[i]), "y", i);
      d_weight[i] += dy[i] * (x[i] - mean) * rstd;
      d_bias[i] += dy[i];
    }
    for (std::int64_t i = in.width; i < in.ld; ++i) {
      ASSERT_EQ(value(got.y[first + i]), value(in.x[first + i])) << "touched the gap between rows";
      ASSERT_EQ(value(got.dx[first + i]), value(in.dx[first + i])) << "touched the gap between rows";
    }
    if (r % 61 != 0) continue;
    const std::int64_t stride = 1 + in.width / 9;
    const Row dx = norm_gradient(x, w, b, dy, in.centred, eps, static_cast<std::size_t>(stride));
    for (std::int64_t i = 0; i < in.width; i += stride)
      expect_near(dx[i] + (add ? value(in.dx[first + i]) : 0), got.dx[first + i], 1e-5, 3e-5, "dx", i);
  }
  for (std::int64_t i = 0; i < in.width; ++i) {
    expect_near(d_weight[i], got.d_weight[i], 1e-5, 1e-4, "d_weight", i);
    if (in.centred) expect_near(d_bias[i], got.d_bias[i], 1e-5, 1e-4, "d_bias", i);
  }
}

template <class T>
class NormTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(NormTest, Storage);

/// The last widths are more than a block's threads have packs for.
TYPED_TEST(NormTest, AgainstTheDefinitionAndFiniteDifferences) {
  for (const bool centred : {false, true})
    for (const std::int64_t width : {2, 3, 8, 15, 64, 67, 257, 1031, 4096, 9000})
      for (const std::int64_t rows : {0, 1, 5, 130}) {
        if (rows * width > 300000) continue;
        SCOPED_TRACE(testing::Message() << (centred ? "layer" : "rms") << " norm " << rows << " x " << width);
        const Input<TypeParam> in(rows, width, centred ? 0 : width % 8 == 0 ? 8 : 3, centred);
        for (const bool add : {false, true}) check(in, run(in, add, 0, false, *this->stream), add);
      }
}

/// More than the largest grid of a large device takes at once.
TYPED_TEST(NormTest, ManyRows) {
  for (const bool centred : {false, true}) {
    const Input<TypeParam> in(5000, 16, 0, centred);
    check(in, run(in, false, 0, false, *this->stream), false);
  }
}

TYPED_TEST(NormTest, SameBitsAgainFromOtherAddressesAndInPlace) {
  for (const bool centred : {false, true})
    for (const std::int64_t width : {131, 520, 9000}) {
      SCOPED_TRACE(testing::Message() << (centred ? "layer" : "rms") << " norm of width " << width);
      const Input<TypeParam> in(width > 1000 ? 9 : 300, width, 0, centred);
      const auto first = run(in, false, 0, false, *this->stream);
      EXPECT_TRUE(first == run(in, false, 0, false, *this->stream));
      EXPECT_TRUE(first == run(in, false, 1, false, *this->stream));
      EXPECT_TRUE(first == run(in, false, 0, true, *this->stream));
      EXPECT_TRUE(run(in, true, 0, false, *this->stream) == run(in, true, 3, false, *this->stream));
    }
}

}  // namespace
}  // namespace sluice::test
