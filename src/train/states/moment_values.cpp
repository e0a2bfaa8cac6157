#include "src/train/states/moment_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr std::uint32_t bits_of_two = 0x40000000u;
constexpr int code_shift = 19;
constexpr float smallest = 0x1p-100f;  // a block's largest magnitude is taken for at least this

constexpr float range_of(StateKind kind) { return kind == StateKind::exp_avg ? 493.999f : 126973.5f; }

}  // namespace

float decoded_moment(StateKind kind, std::uint8_t code, float scale) {
  const bool is_signed = kind == StateKind::exp_avg;
  const std::uint32_t magnitude = is_signed ? code & 0x7fu : code;
  const float y = std::bit_cast<float>(bits_of_two + (magnitude << code_shift));
  const float value = std::fma(y, scale, -2 * scale);
  return is_signed && (code & 0x80u) != 0 ? -value : value;
}

float encode_moments(StateKind kind, std::span<const float> values, std::uint8_t* codes) {
  float largest = 0;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    largest = std::max(largest, std::fabs(value));
  }
  if (!finite || largest == 0) {
    std::fill_n(codes, values.size(), std::uint8_t{0});
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  largest = std::max(largest, smallest);
  const bool is_signed = kind == StateKind::exp_avg;
  const std::uint32_t least = is_signed ? 0 : 1, most = is_signed ? 0x7fu : 0xffu;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float y = std::fma(std::fabs(values[i]), range_of(kind) / largest, 2.0f);
    const std::uint32_t code = (std::bit_cast<std::uint32_t>(y) + (1u << (code_shift - 1)) - bits_of_two) >> code_shift;
    codes[i] =
        static_cast<std::uint8_t>(std::clamp(code, least, most) | (is_signed && std::signbit(values[i]) ? 0x80u : 0));
  }
  return largest / range_of(kind);
}

}  // namespace sluice
