#include "src/train/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "sluice/random.h"

namespace sluice {
namespace {

constexpr std::uint64_t sampling_stream = 0x73616d706c65;  // apart from weights and data order under the same seed

std::vector<float> penalized(std::span<const float> logits, double penalty, std::span<const std::int32_t> before) {
  std::vector<float> made(logits.begin(), logits.end());
  if (penalty == 1) return made;
  for (const std::int32_t token : before) {
    if (token < 0 || static_cast<std::size_t>(token) >= made.size()) continue;
    const auto i = static_cast<std::size_t>(token);
    // from the logit as it came: a token that came twice is not punished twice
    const double logit = logits[i];
    made[i] = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
  }
  return made;
}

}  // namespace

Result<std::int32_t> sample_token(std::span<const float> all, const Sampling& sampling, std::uint64_t position,
                                  std::span<const std::int32_t> before) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!std::isfinite(all[i]))
      return fault("the logit of token " + std::to_string(i) + " at position " + std::to_string(position) +
                   " is not finite; the weights are damaged or overflow this --dtype");
  const std::vector<float> logits = penalized(all, sampling.repetition_penalty, before);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (sampling.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < order.size()) {
    std::nth_element(order.begin(), order.begin() + sampling.top_k, order.end(), likelier);
    order.resize(static_cast<std::size_t>(sampling.top_k));
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  const auto weight = [&](std::int32_t token) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) - largest) / sampling.temperature);
  };
  if (sampling.top_p < 1) {
    std::sort(order.begin(), order.end(), likelier);
    double sum = 0, kept = 0;
    for (const std::int32_t token : order) sum += weight(token);
    std::size_t count = 0;
    while (count < order.size() && (count == 0 || kept < sampling.top_p * sum)) kept += weight(order[count++]);
    order.resize(count);
  }
  std::sort(order.begin(), order.end());
  std::vector<double> until(order.size());
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) until[i] = sum += weight(order[i]);
  const double drawn = philox_uniform(sampling.seed, position, sampling_stream) * sum;
  const auto at = std::upper_bound(until.begin(), until.end() - 1, drawn);
  return order[static_cast<std::size_t>(at - until.begin())];
}

}  // namespace sluice
