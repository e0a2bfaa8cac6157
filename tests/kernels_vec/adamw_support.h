// The contracts of sluice/adamw.h and sluice/moments.h one element at a time, and a tensor with all that AdamW keeps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "sluice/adamw.h"
#include "values.h"

namespace sluice::test {

inline std::uint32_t bits_of(float v) { return std::bit_cast<std::uint32_t>(v); }

/// The same bits, or NaN in both: which NaN an operation gives is the target's.
inline bool same_value(float x, float y) { return bits_of(x) == bits_of(y) || (std::isnan(x) && std::isnan(y)); }

/// The update of one element.
class Scalar {
 public:
  Scalar(float exp_avg, float exp_avg_sq, float master) : m(exp_avg), v(exp_avg_sq), w(master) {}
  float m, v, w;
  void update(const AdamwStep& s, float gradient) {
    const float g = gradient * s.gradient_scale;
    const float one_minus_b1 = static_cast<float>(1 - double{s.beta1});
    const float one_minus_b2 = static_cast<float>(1 - double{s.beta2});
    m = std::fma(one_minus_b1, g - m, m);
    v = std::fma(one_minus_b2 * g, g, s.beta2 * v);
    apply(s);
  }
  /// Of 8-bit moments, which have been decoded with their decay.
  void update_decayed(const AdamwStep& s, float gradient) {
    m = std::fma(static_cast<float>((1 - double{s.beta1}) * s.gradient_scale), gradient, m);
    const float h = static_cast<float>(std::sqrt(1 - double{s.beta2}) * s.gradient_scale) * gradient;
    v = std::fma(h, h, v);
    apply(s);
  }

 private:
  void apply(const AdamwStep& s) {
    const double lr = s.lr, b1 = s.beta1, b2 = s.beta2, t = static_cast<double>(s.step);
    const float denominator = std::fma(std::sqrt(v), static_cast<float>(1 / std::sqrt(1 - std::pow(b2, t))), s.eps);
    const float keep = static_cast<float>(1 - lr * s.weight_decay);
    w = std::fma(static_cast<float>(-lr / (1 - std::pow(b1, t))), m / denominator, w * keep);
  }
};

/// fp32 to bf16 with 16 random bits.
inline std::uint16_t round_bf16(float x, std::uint32_t random) {
  const std::uint32_t bits = bits_of(x);
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<std::uint16_t>(((bits & 0x7fffffffu) < 0x7f7f0000u ? bits + random : bits) >> 16);
}

/// Of int8 codes: the largest |x| / scale.
constexpr float signed_codes = 493.999f, unsigned_codes = 126973.5f;

/// Scale of a block and the code of each element's magnitude.
struct EncodedBlock {
  float scale = 0;
  std::vector<std::uint32_t> code;
};
inline EncodedBlock encode_block(const std::vector<float>& x, const std::vector<std::uint32_t>& random, float range) {
  EncodedBlock out{0, std::vector<std::uint32_t>(x.size())};
  float most = 0;
  for (const float e : x) most = std::isnan(e) || std::isnan(most) ? std::nanf("") : std::max(most, std::abs(e));
  if (most == 0) return out;
  if (!std::isfinite(most)) {
    out.scale = std::nanf("");
    return out;
  }
  most = std::max(most, 0x1p-100f);
  out.scale = most / range;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float y = std::fma(std::abs(x[i]), range / most, 2.0f);
    out.code[i] = (bits_of(y) + random[i] - bits_of(2.0f)) >> 19;
    if (range == unsigned_codes) out.code[i] = std::max(out.code[i], 1u);
  }
  return out;
}
inline float decode(std::uint32_t code, float scale) {
  return std::fma(std::bit_cast<float>(bits_of(2.0f) + (code << 19)), scale, -2 * scale);
}

struct Formats {
  Dtype dtype, gradient;
  MomentFormat moments;
  std::string name() const {
    return std::string(dtype_name(dtype)) + ", " + moment_format_name(moments) + " moments, " + dtype_name(gradient) +
           " gradient";
  }
};
inline std::vector<Formats> all_formats() {
  std::vector<Formats> all;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const Dtype gradient : {Dtype::f32, Dtype::bf16})
      for (const MomentFormat moments : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8})
        all.push_back({dtype, gradient, moments});
  return all;
}

/// A tensor of some formats as bytes. `shift` elements of nothing lie before each array, and guards around it: offsets
/// of elements misalign what they are times the element's size.
class Tensor {
 public:
  Tensor(const Formats& formats, std::int64_t numel, std::int64_t shift = 0) : f_(formats), n_(numel), shift_(shift) {
    const std::uint64_t p = dtype_bytes(f_.dtype), m = moment_bytes(f_.moments), g = dtype_bytes(f_.gradient);
    arrays_ = {array(p), array(p == 2 ? 2 : 0), array(m), array(m), array(g)};
    const std::uint64_t scales = moment_scales(f_.moments, static_cast<std::uint64_t>(n_));
    scale_m.resize(scales);
    scale_v.resize(scales);
  }

  std::int64_t numel() const { return n_; }
  const Formats& formats() const { return f_; }
  void set_master(std::int64_t i, float w) {
    if (f_.dtype == Dtype::f32)
      at<float>(0)[i] = w;
    else
      split_master(&w, at<bf16>(0) + i, at<std::int16_t>(1) + i, 1);
  }
  float master(std::int64_t i) const {
    float w = 0;
    if (f_.dtype == Dtype::f32) return at<float>(0)[i];
    join_master(at<bf16>(0) + i, at<std::int16_t>(1) + i, &w, 1);
    return w;
  }
  void set_gradient(std::int64_t i, float g) {
    if (f_.gradient == Dtype::f32)
      at<float>(4)[i] = g;
    else
      at<bf16>(4)[i] = to_bf16(g);
  }
  float gradient(std::int64_t i) const {
    return f_.gradient == Dtype::f32 ? at<float>(4)[i] : to_float(at<bf16>(4)[i]);
  }
  /// Decoded with the scale times `decay` where there is one.
  float exp_avg(std::int64_t i, float decay = 1) const {
    if (f_.moments == MomentFormat::f32) return at<float>(2)[i];
    if (f_.moments == MomentFormat::bf16) return to_float(at<bf16>(2)[i]);
    const std::uint32_t code = at<std::uint8_t>(2)[i];
    const float x = decode(code & 0x7fu, decay * scale_m[static_cast<std::size_t>(i / 256)]);
    return code > 0x80u ? -x : x;
  }
  float exp_avg_sq(std::int64_t i, float decay = 1) const {
    if (f_.moments == MomentFormat::f32) return at<float>(3)[i];
    if (f_.moments == MomentFormat::bf16) return to_float(at<bf16>(3)[i]);
    return decode(at<std::uint8_t>(3)[i], decay * scale_v[static_cast<std::size_t>(i / 256)]);
  }
  void set_exp_avg(std::int64_t i, float x) {
    if (f_.moments == MomentFormat::f32) at<float>(2)[i] = x;
    if (f_.moments == MomentFormat::bf16) at<bf16>(2)[i] = to_bf16(x);
  }
  void set_exp_avg_sq(std::int64_t i, float x) {
    if (f_.moments == MomentFormat::f32) at<float>(3)[i] = x;
    if (f_.moments == MomentFormat::bf16) at<bf16>(3)[i] = to_bf16(x);
  }
  std::uint8_t code_sq(std::int64_t i) const { return at<std::uint8_t>(3)[i]; }

  /// Where the arrays of all_arrays and the scales begin, here or on a device.
  struct Memory {
    std::array<std::uint8_t*, 5> array{};
    float *scale_m = nullptr, *scale_v = nullptr;
  };
  /// Parameter, remainder, exp_avg, exp_avg_sq, gradient, each with the guards around it.
  std::array<std::vector<std::uint8_t>, 5>& all_arrays() { return arrays_; }
  /// Elements from to to.
  AdamwRange range(const Memory& memory, std::int64_t from, std::int64_t to) const {
    AdamwRange r;
    r.dtype = f_.dtype;
    r.gradient_dtype = f_.gradient;
    r.moments = f_.moments;
    r.parameter = memory.array[0] + place(from, dtype_bytes(f_.dtype));
    if (f_.dtype == Dtype::bf16) r.remainder = reinterpret_cast<std::int16_t*>(memory.array[1] + place(from, 2));
    r.exp_avg = memory.array[2] + place(from, moment_bytes(f_.moments));
    r.exp_avg_sq = memory.array[3] + place(from, moment_bytes(f_.moments));
    r.exp_avg_scales = memory.scale_m + from / 256;
    r.exp_avg_sq_scales = memory.scale_v + from / 256;
    r.gradient = memory.array[4] + place(from, dtype_bytes(f_.gradient));
    r.numel = to - from;
    r.first_index = static_cast<std::uint64_t>(from);
    return r;
  }
  /// Updates elements from to to.
  AdamwReport update(const AdamwStep& s, std::int64_t from, std::int64_t to) {
    Memory memory{{}, scale_m.data(), scale_v.data()};
    for (std::size_t k = 0; k < arrays_.size(); ++k) memory.array[k] = arrays_[k].data();
    return adamw(s, range(memory, from, to));
  }
  AdamwReport update(const AdamwStep& s) { return update(s, 0, n_); }

  bool operator==(const Tensor& o) const {
    return arrays_ == o.arrays_ && same_bytes(scale_m, o.scale_m) && same_bytes(scale_v, o.scale_v);
  }
  /// Whether every element and scale is that of a tensor with another shift.
  bool same_elements(const Tensor& o) const {
    if (!same_bytes(scale_m, o.scale_m) || !same_bytes(scale_v, o.scale_v)) return false;
    for (std::int64_t i = 0; i < n_; ++i)
      if (!same_value(master(i), o.master(i)) || !same_value(exp_avg(i), o.exp_avg(i)) ||
          !same_value(exp_avg_sq(i), o.exp_avg_sq(i)))
        return false;
    return true;
  }
  /// Whether nothing was written around the arrays.
  bool guards_hold() const {
    for (const auto& a : arrays_)
      for (std::size_t i = 0; i < guard; ++i)
        if (a[i] != 0xa5 || a[a.size() - 1 - i] != 0xa5) return false;
    return true;
  }

  std::vector<float> scale_m, scale_v;

 private:
  static constexpr std::size_t guard = 64;
  std::vector<std::uint8_t> array(std::uint64_t bytes) const {
    std::vector<std::uint8_t> a(2 * guard + static_cast<std::size_t>(n_ + shift_) * bytes, 0xa5);
    std::fill(a.begin() + guard, a.end() - guard, std::uint8_t{0});
    return a;
  }
  std::size_t place(std::int64_t i, std::uint64_t bytes) const {
    return guard + static_cast<std::size_t>(i + shift_) * bytes;
  }
  template <class T>
  T* at(std::size_t array) {
    return reinterpret_cast<T*>(arrays_[array].data() + place(0, sizeof(T)));
  }
  template <class T>
  const T* at(std::size_t array) const {
    return reinterpret_cast<const T*>(arrays_[array].data() + place(0, sizeof(T)));
  }

  Formats f_;
  std::int64_t n_, shift_;
  std::array<std::vector<std::uint8_t>, 5> arrays_;
};

inline AdamwStep some_step(std::uint64_t step, float scale = 0.37f) {
  AdamwStep s;
  s.step = step;
  s.lr = 3e-3f;
  s.weight_decay = 0.1f;
  s.gradient_scale = scale;
  s.rounding_key = 0x123456789abcdefull * step;
  return s;
}

/// Any float, from denormal on, whose magnitude has bits below `end`.
inline float wild(std::uint64_t key, std::uint64_t i, std::uint32_t end) {
  for (std::uint64_t stream = 0;; ++stream)
    if (const std::uint32_t bits = philox(key, i, stream)[0]; (bits & 0x7fffffffu) < end)
      return std::bit_cast<float>(bits);
}
/// Wild masters, and gradients whose magnitudes have bits below `end`: from denormal to huge, also where squares
/// underflow, overflow, and blocks hold all of it.
inline Tensor wild_tensor(const Formats& formats, std::int64_t numel, std::uint32_t end) {
  Tensor t(formats, numel);
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    t.set_master(i, wild(1, at, 0x7e000000u));
    t.set_gradient(i, wild(2, at, end));
  }
  return t;
}

/// Normal masters and gradients; moments are zero.
inline Tensor some_tensor(const Formats& formats, std::int64_t numel, std::int64_t shift = 0) {
  Tensor t(formats, numel, shift);
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    t.set_master(i, static_cast<float>(0.02 * philox_normal(1, at, 0)));
    t.set_gradient(i, static_cast<float>(0.1 * philox_normal(2, at, 0)));
  }
  return t;
}

}  // namespace sluice::test
