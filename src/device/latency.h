// Latencies of many requests in fixed memory: counts per bucket, 64 buckets to an octave, so that a quantile is off by
// less than 1.6%.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace sluice {

class LatencyHistogram {
 public:
  void add(std::uint64_t nanoseconds) {
    ++counts_[bucket_of(nanoseconds)];
    ++count_;
    max_ = std::max(max_, nanoseconds);
  }
  void add(const LatencyHistogram& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
  }

  std::uint64_t count() const { return count_; }
  double max_seconds() const { return static_cast<double>(max_) * 1e-9; }
  /// The least latency, in seconds, that this share (0 to 1) of all requests did not exceed; 0 where there are none.
  double quantile_seconds(double share) const {
    const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > 0 && seen >= wanted) return static_cast<double>(std::min(last_of(i), max_)) * 1e-9;
    }
    return 0;
  }

 private:
  static constexpr int sub_bits = 6;
  static constexpr std::size_t sub = std::size_t{1} << sub_bits;

  static std::size_t bucket_of(std::uint64_t v) {
    if (v < sub) return static_cast<std::size_t>(v);
    const int shift = std::bit_width(v) - 1 - sub_bits;
    return static_cast<std::size_t>(shift + 1) * sub + static_cast<std::size_t>((v >> shift) - sub);
  }
  /// The largest value of a bucket.
  static std::uint64_t last_of(std::size_t i) {
    if (i < sub) return i;
    const std::size_t shift = i / sub - 1;
    return ((static_cast<std::uint64_t>(sub + i % sub) + 1) << shift) - 1;
  }

  std::array<std::uint64_t, (64 - sub_bits + 1) * sub> counts_{};
  std::uint64_t count_ = 0, max_ = 0;
};

}  // namespace sluice
