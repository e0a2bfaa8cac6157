// Rotary frequencies and their scaling for long contexts, by the formulas that published models were trained with
// (transformers' modeling_rope_utils; YaRN: arXiv 2309.00071; Llama 3.1's: arXiv 2407.21783).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/elementwise.h"
#include "src/model/sublayer.h"

namespace sluice {
namespace {

using std::numbers::pi;

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double yarn_attention_factor(const RopeScaling& s) {
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.mscale > 0 && s.mscale_all_dim > 0)
    return yarn_scale(s.factor, s.mscale) / yarn_scale(s.factor, s.mscale_all_dim);
  return yarn_scale(s.factor, 1);
}

/// Between the dimensions that turn beta_fast and beta_slow times over the original context, interpolate.
double yarn_frequency(const ModelConfig& c, std::int64_t i, double frequency) {
  const RopeScaling& s = c.rope_scaling;
  const double dim = static_cast<double>(c.head_dim);
  const auto dimension_of = [&](double turns) {
    return dim * std::log(s.original_max_positions / (turns * 2 * pi)) / (2 * std::log(c.rope_theta));
  };
  double low = dimension_of(s.beta_fast), high = dimension_of(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return frequency / s.factor * ramp + frequency * (1 - ramp);
}

double llama3_frequency(const RopeScaling& s, double frequency) {
  const double wavelength = 2 * pi / frequency;
  if (wavelength < s.original_max_positions / s.high_freq_factor) return frequency;
  if (wavelength > s.original_max_positions / s.low_freq_factor) return frequency / s.factor;
  const double smooth =
      (s.original_max_positions / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

/// Dynamic NTK stretches the base once sequences are longer than the model was trained for.
double base_of(const ModelConfig& c, std::int64_t positions) {
  const RopeScaling& s = c.rope_scaling;
  if (s.kind != RopeScaling::Kind::dynamic || c.head_dim <= 2) return c.rope_theta;
  const double dim = static_cast<double>(c.head_dim), most = static_cast<double>(c.max_positions);
  const double length = std::max(static_cast<double>(positions), most);
  return c.rope_theta * std::pow(s.factor * length / most - (s.factor - 1), dim / (dim - 2));
}

double frequency_of(const ModelConfig& c, std::int64_t i, double base) {
  const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
  using Kind = RopeScaling::Kind;
  switch (c.rope_scaling.kind) {
    case Kind::linear: return frequency / c.rope_scaling.factor;
    case Kind::llama3: return llama3_frequency(c.rope_scaling, frequency);
    case Kind::yarn: return yarn_frequency(c, i, frequency);
    case Kind::none:
    case Kind::dynamic: break;
  }
  return frequency;
}

}  // namespace

std::uint64_t rope_bytes(const ModelConfig& config, BatchShape shape, std::int64_t positions) {
  if (config.family == Family::gpt2) return 0;
  const std::int64_t half = config.head_dim / 2;
  return sizeof(float) * static_cast<std::uint64_t>(shape.in_blocks() ? half : 2 * positions * half);
}

Rope make_rope(const ModelConfig& config, BatchShape shape, std::int64_t positions) {
  Rope rope;
  if (config.family == Family::gpt2) return rope;
  if (config.rope_scaling.kind == RopeScaling::Kind::yarn) rope.scale = yarn_attention_factor(config.rope_scaling);
  const double base = base_of(config, positions);
  const std::int64_t half = config.head_dim / 2;
  // Frequencies are rounded to fp32 as in the programs that trained the published weights.
  for (std::int64_t i = 0; i < half; ++i) rope.frequencies.push_back(static_cast<float>(frequency_of(config, i, base)));
  if (shape.in_blocks()) return rope;
  rope.cos.resize(static_cast<std::size_t>(positions * half));
  rope.sin.resize(rope.cos.size());
  kernels::rope_rows(rope.frequencies.data(), half, rope.scale, {positions}, positions, rope.cos.data(),
                     rope.sin.data());
  return rope;
}

}  // namespace sluice
