#include "kernels/cuda/norm.h"

#include <array>

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

/// A norm for every head is what it is for one, wherever that lies in a row; the last heads have more packs than a
/// warp.
TYPED_TEST(NormTest, OfEveryHead) {
  using T = TypeParam;
  for (const auto& [rows, queries, keys, dim, gap] :
       {std::array{1, 2, 1, 16, 0}, std::array{70, 3, 2, 64, 64}, std::array{37, 4, 1, 128, 128},
        std::array{9, 1, 1, 6, 5}, std::array{1000, 2, 1, 80, 8}, std::array{5, 1, 2, 300, 1}})
    for (const std::int64_t shift : {0, 1}) {
      const std::int64_t heads = queries + keys, ld = heads * dim + gap;
      SCOPED_TRACE(testing::Message() << rows << " rows of " << queries << " + " << keys << " heads of " << dim);
      const auto x_in = normal<T>(rows * ld, 1), dy_in = normal<T>(rows * ld, 2), y_in = normal<T>(rows * ld, 3);
      const auto weights = normal<T>(dim, 4), key_weights = normal<T>(dim, 5);
      DeviceArray<T> x(x_in, shift), dy(dy_in, shift), w(weights, shift), kw(key_weights, shift);
      std::vector<T> y[2], dx[2];
      std::vector<float> rstd[2], dw[2], dkw[2];
      for (const int one_by_one : {0, 1}) {
        DeviceArray<T> to_y(y_in, shift), to_dx(y_in, shift);
        DeviceArray<float> to_rstd(heads * rows), to_dw(normal<float>(dim, 6)), to_dkw(normal<float>(dim, 7));
        DeviceArray<float> work(cuda::norm_workspace_floats(rows, heads * dim));
        const cuda::HeadNorms<T> norms{w.data(), kw.data(), queries, keys, dim};
        if (one_by_one == 0) {
          cuda::rmsnorm_heads_forward<T>(norms, x.data(), ld, eps, rows, to_y.data(), to_rstd.data(), *this->stream);
          cuda::rmsnorm_heads_backward<T>(norms, x.data(), ld, to_rstd.data(), dy.data(), rows, to_dx.data(),
                                          to_dw.data(), to_dkw.data(), work.data(), *this->stream);
        }
        for (std::int64_t head = 0; one_by_one == 1 && head < heads; ++head) {
          cuda::rmsnorm_forward<T>(x.data() + head * dim, ld, norms.weight(head), eps, rows, dim,
                                   to_y.data() + head * dim, ld, to_rstd.data() + head * rows, *this->stream);
          cuda::rmsnorm_backward<T>(x.data() + head * dim, ld, norms.weight(head), to_rstd.data() + head * rows,
                                    dy.data() + head * dim, ld, rows, dim, to_dx.data() + head * dim, ld, false,
                                    (head < queries ? to_dw : to_dkw).data(), work.data(), *this->stream);
        }
        work.read();
        y[one_by_one] = to_y.read(), dx[one_by_one] = to_dx.read(), rstd[one_by_one] = to_rstd.read();
        dw[one_by_one] = to_dw.read(), dkw[one_by_one] = to_dkw.read();
      }
      for (std::size_t i = 0; i < y[0].size(); ++i) {
        expect_near(value(y[1][i]), y[0][i], 1e-6, 1e-6, "y", static_cast<std::int64_t>(i));
        expect_near(value(dx[1][i]), dx[0][i], 2e-6, 4e-6, "dx", static_cast<std::int64_t>(i));
      }
      for (std::size_t i = 0; i < rstd[0].size(); ++i)
        expect_near(rstd[1][i], rstd[0][i], 1e-6, 0, "rstd", static_cast<std::int64_t>(i));
      for (std::size_t i = 0; i < dw[0].size(); ++i) {
        expect_near(dw[1][i], dw[0][i], 1e-5, 1e-4, "d_query_weight", static_cast<std::int64_t>(i));
        expect_near(dkw[1][i], dkw[0][i], 1e-5, 1e-4, "d_key_weight", static_cast<std::int64_t>(i));
      }
    }
}

}  // namespace
}  // namespace sluice::test
