// What kernels have to make, in double, for the sweeps of every device.
#pragma once

#include <cmath>
#include <vector>

#include "values.h"

namespace sluice::test {

inline double logistic(double z) { return 1 / (1 + std::exp(-z)); }
inline double gelu(double x) { return x * logistic(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
/// By a central difference.
inline double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }
inline double silu_slope(double x) { return logistic(x) * (1 + x * (1 - logistic(x))); }

using Row = std::vector<double>;

template <class T>
Row doubles(const T* p, std::int64_t n) {
  Row out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(value(p[i]));
  return out;
}

/// y = (x - mean) / sqrt(var + eps) * w + b, or without mean and b.
inline Row norm(const Row& x, const Row& w, const Row& b, bool centred, double eps, double* mean_out,
                double* rstd_out) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, var = 0;
  if (centred)
    for (double v : x) mean += v / n;
  for (double v : x) var += (v - mean) * (v - mean) / n;
  const double rstd = 1 / std::sqrt(var + eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
  *mean_out = mean;
  *rstd_out = rstd;
  return y;
}

/// The gradient of sum dy * norm(x) for x, by central differences at every `stride`th element; NaN elsewhere.
inline Row norm_gradient(Row x, const Row& w, const Row& b, const Row& dy, bool centred, double eps,
                         std::size_t stride) {
  double mean = 0, rstd = 0;
  const auto loss = [&] {
    const Row y = norm(x, w, b, centred, eps, &mean, &rstd);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  Row dx(x.size(), std::nan(""));
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double step = 1e-5, at = x[i];
    x[i] = at + step;
    const double above = loss();
    x[i] = at - step;
    dx[i] = (above - loss()) / (2 * step);
    x[i] = at;
  }
  return dx;
}

/// x + sum + bias, of which x and bias may be null: as fp32 adds them from left to right, and exactly (but for double's
/// rounding). `slack`: what two roundings of fp32 may make of it.
struct AddSum {
  double exact;
  float in_order;
  double slack;
  template <class T>
  AddSum(const T* x, float sum, const T* bias) : exact(sum), in_order(sum), slack(std::abs(exact)) {
    if (x != nullptr) {
      exact += value(*x);
      in_order = static_cast<float>(value(*x)) + in_order;
      slack += std::abs(value(*x));
    }
    if (bias != nullptr) {
      exact += value(*bias);
      in_order = in_order + static_cast<float>(value(*bias));
      slack += std::abs(value(*bias));
    }
    slack *= 0x1p-22;
  }
};

/// One token's loss and the gradient of its logits, by the definition.
struct CrossEntropy {
  double loss = 0;
  Row gradient;
  double largest = 0;
  CrossEntropy(const float* logits, std::int64_t vocabulary, std::int32_t target, double grad_scale)
      : gradient(static_cast<std::size_t>(vocabulary)) {
    double sum = 0;
    largest = logits[0];
    for (std::int64_t i = 0; i < vocabulary; ++i) largest = std::max<double>(largest, logits[i]);
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[i] - largest);
    if (target < 0) return;
    loss = largest + std::log(sum) - logits[target];
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const double p = std::exp(logits[i] - largest) / sum;
      gradient[static_cast<std::size_t>(i)] = grad_scale * (i == target ? p - 1 : p);
    }
  }
};

}  // namespace sluice::test
