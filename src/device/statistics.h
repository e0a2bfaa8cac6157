// Medians of few noisy measurements, and how far they can be trusted.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {

/// Of at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Interval {
  double low = 0, high = 0;
};
/// Confidence interval of the median, at least 95%, from order statistics: it assumes nothing about how the values are
/// distributed. With fewer than 6 values it is their range, which is less than 95%.
inline Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  // P(fewer than k of n values lie below the median) for k = 1, 2, ...; each side may have 2.5%.
  double binomial = std::pow(0.5, static_cast<double>(n)), below = 0;
  std::size_t k = 0;
  while (k < n / 2 && below + binomial <= 0.025) {
    below += binomial;
    binomial *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  const std::size_t cut = k > 0 ? k - 1 : 0;
  return {values[cut], values[n - 1 - cut]};
}

}  // namespace sluice
