// The scalars of one AdamW update (sluice/adamw.h) as every device's loops want them: computed in double on the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "sluice/adamw.h"

namespace sluice::kernels {

/// Each rounded once from double.
struct AdamwConstants {
  float gradient_scale, one_minus_beta1, beta1, beta2, one_minus_beta2;
  float gradient_to_m;       ///< (1 - beta1) gradient_scale
  float gradient_to_root_v;  ///< sqrt(1 - beta2) gradient_scale
  float root_correction2;    ///< 1 / sqrt(1 - beta2^step)
  float eps, keep;           ///< keep: 1 - lr * weight_decay
  float minus_rate;          ///< -lr / (1 - beta1^step)
  std::uint64_t rounding_key;
};

inline AdamwConstants adamw_constants(const AdamwStep& s) {
  const auto steps = static_cast<double>(s.step);
  const double lr = s.lr, beta1 = s.beta1, beta2 = s.beta2;
  AdamwConstants c{};
  c.gradient_scale = s.gradient_scale;
  c.one_minus_beta1 = static_cast<float>(1 - beta1);
  c.beta1 = s.beta1;
  c.beta2 = s.beta2;
  c.one_minus_beta2 = static_cast<float>(1 - beta2);
  c.gradient_to_m = static_cast<float>((1 - beta1) * s.gradient_scale);
  c.gradient_to_root_v = static_cast<float>(std::sqrt(1 - beta2) * s.gradient_scale);
  c.root_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
  c.eps = s.eps;
  c.keep = static_cast<float>(1 - lr * s.weight_decay);
  c.minus_rate = static_cast<float>(-lr / (1 - std::pow(beta1, steps)));
  c.rounding_key = s.rounding_key;
  return c;
}

}  // namespace sluice::kernels
