#include "kernels/cpu/norm.h"

#include "oracles.h"
#include "support.h"

namespace sluice::test {
namespace {

/// One shape: what goes in, and what the kernels made of it.
template <class T>
struct Case {
  std::int64_t rows, width, ld;
  bool centred;
  std::vector<T> x, w, b, dy, y, dx;
  std::vector<float> mean, rstd, d_weight, d_bias;
  static constexpr float eps = 1e-5f;

  Case(std::int64_t rows_, std::int64_t width_, std::int64_t gap, bool centred_)
      : rows(rows_), width(width_), ld(width_ + gap), centred(centred_) {
    x = normal<T>(rows * ld, 1, 2);
    for (auto& v : x) v = stored<T>(value(v) + 0.5);
    w = normal<T>(width, 2);
    b = centred ? normal<T>(width, 3) : std::vector<T>(static_cast<std::size_t>(width));
    dy = normal<T>(rows * ld, 4);
    y.resize(x.size());
    mean.resize(static_cast<std::size_t>(rows));
    rstd.resize(mean.size());
  }

  void forward() {
    if (centred)
      kernels::layernorm_forward(x.data(), w.data(), b.data(), eps, rows, width, y.data(), mean.data(), rstd.data());
    else
      kernels::rmsnorm_forward(x.data(), ld, w.data(), eps, rows, width, y.data(), ld, rstd.data());
  }

  void backward(bool add) {
    dx = normal<T>(rows * ld, 5);
    d_weight = normal<float>(width, 6);
    d_bias = normal<float>(width, 7);
    std::vector<float> work(static_cast<std::size_t>(kernels::norm_workspace_floats(rows, width)));
    if (centred)
      kernels::layernorm_backward(x.data(), w.data(), mean.data(), rstd.data(), dy.data(), rows, width, dx.data(), add,
                                  d_weight.data(), d_bias.data(), work.data());
    else
      kernels::rmsnorm_backward(x.data(), ld, w.data(), rstd.data(), dy.data(), ld, rows, width, dx.data(), ld, add,
                                d_weight.data(), work.data());
  }
};

template <class T>
void check_forward(const Case<T>& c) {
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double mean = 0, rstd = 0;
    const Row want = norm(doubles(&c.x[r * c.ld], c.width), doubles(c.w.data(), c.width), doubles(c.b.data(), c.width),
                          c.centred, c.eps, &mean, &rstd);
    expect_near(rstd, c.rstd[r], 3e-6, 0, "rstd", r);
    if (c.centred) expect_near(mean, c.mean[r], 1e-6, 1e-6, "mean", r);
    // Where a row's values are close together, what rounding did to their mean grows with rstd.
    const double rounding = 2e-7 * (c.centred ? std::abs(mean) * rstd : 0);
    for (std::int64_t i = 0; i < c.width; ++i)
      expect_near(want[i], c.y[r * c.ld + i], 4e-6, 4e-6 + rounding * std::abs(value(c.w[i])), "y", i);
  }
}

/// Gradients by central differences of L = sum dy * norm(x), in double.
template <class T>
void check_backward(const Case<T>& c, bool add) {
  const auto dx0 = normal<T>(c.rows * c.ld, 5);
  const auto d_weight0 = normal<float>(c.width, 6), d_bias0 = normal<float>(c.width, 7);
  Row d_weight(d_weight0.begin(), d_weight0.end()), d_bias(d_bias0.begin(), d_bias0.end());
  const Row w = doubles(c.w.data(), c.width), b = doubles(c.b.data(), c.width);
  double mean = 0, rstd = 0;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const Row x = doubles(&c.x[r * c.ld], c.width), dy = doubles(&c.dy[r * c.ld], c.width);
    norm(x, w, b, c.centred, c.eps, &mean, &rstd);
    for (std::int64_t i = 0; i < c.width; ++i) {
      d_weight[i] += dy[i] * (x[i] - mean) * rstd;
      d_bias[i] += dy[i];
    }
    if (r % 64 != 0) continue;
    const Row dx = norm_gradient(x, w, b, dy, c.centred, c.eps, static_cast<std::size_t>(1 + c.width / 9));
    for (std::int64_t i = 0; i < c.width; i += 1 + c.width / 9)
      expect_near(dx[i] + (add ? value(dx0[r * c.ld + i]) : 0), c.dx[r * c.ld + i], 1e-5, 2e-5, "dx", i);
  }
  for (std::int64_t i = 0; i < c.width; ++i) {
    expect_near(d_weight[i], c.d_weight[i], 1e-5, 1e-4, "d_weight", i);
    if (c.centred) expect_near(d_bias[i], c.d_bias[i], 1e-5, 1e-4, "d_bias", i);
  }
}

template <class T>
class Norm : public Kernel<T> {};
TYPED_TEST_SUITE(Norm, Storage);

TYPED_TEST(Norm, AgainstTheDefinitionAndFiniteDifferences) {
  for (bool centred : {false, true}) {
    for (std::int64_t width : {2, 3, 8, 15, 64, 67, 257}) {
      for (std::int64_t rows : {0, 1, 63, 65, 130}) {
        SCOPED_TRACE(testing::Message() << (centred ? "layer" : "rms") << " norm " << rows << " x " << width);
        with_targets([&] {
          Case<TypeParam> c(rows, width, centred ? 0 : 3, centred);
          c.forward();
          check_forward(c);
          for (bool add : {false, true}) {
            c.backward(add);
            check_backward(c, add);
          }
        });
      }
    }
  }
}

TYPED_TEST(Norm, SameBitsForEveryThreadCount) {
  for (bool centred : {false, true}) {
    Case<TypeParam> first(300, 515, 0, centred);
    first.forward();
    first.backward(true);
    with_thread_counts([&] {
      Case<TypeParam> c(300, 515, 0, centred);
      c.forward();
      c.backward(true);
      EXPECT_TRUE(same_bytes(first.y, c.y));
      EXPECT_TRUE(same_bytes(first.dx, c.dx));
      EXPECT_TRUE(same_bytes(first.d_weight, c.d_weight));
      EXPECT_TRUE(same_bytes(first.d_bias, c.d_bias));
    });
  }
}

TYPED_TEST(Norm, InPlace) {
  for (bool centred : {false, true}) {
    Case<TypeParam> apart(70, 131, 0, centred);
    apart.forward();
    apart.backward(false);
    auto y = apart.x;
    auto dx = apart.dy;
    std::vector<float> mean(70), rstd(70), d_weight = normal<float>(131, 6), d_bias = normal<float>(131, 7);
    std::vector<float> work(static_cast<std::size_t>(kernels::norm_workspace_floats(70, 131)));
    if (centred) {
      kernels::layernorm_forward(y.data(), apart.w.data(), apart.b.data(), apart.eps, 70, 131, y.data(), mean.data(),
                                 rstd.data());
      kernels::layernorm_backward(apart.x.data(), apart.w.data(), mean.data(), rstd.data(), dx.data(), 70, 131,
                                  dx.data(), false, d_weight.data(), d_bias.data(), work.data());
    } else {
      kernels::rmsnorm_forward(y.data(), 131, apart.w.data(), apart.eps, 70, 131, y.data(), 131, rstd.data());
      kernels::rmsnorm_backward(apart.x.data(), 131, apart.w.data(), rstd.data(), dx.data(), 131, 70, 131, dx.data(),
                                131, false, d_weight.data(), work.data());
    }
    EXPECT_TRUE(same_bytes(apart.y, y));
    EXPECT_TRUE(same_bytes(apart.dx, dx));
    EXPECT_TRUE(same_bytes(apart.d_weight, d_weight));
  }
}

}  // namespace
}  // namespace sluice::test
