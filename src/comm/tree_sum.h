// The sum over the ranks of a group, in the order of src/schedule/lots.h: their tree goes on over the ranks. Every
// transport sums with this, so that none changes a bit, unless sums are asked to be the transport's own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "sluice/dtype.h"
#include "src/schedule/lots.h"

namespace sluice {

class TreeSum {
 public:
  /// out[i] = sum over members m of term(m)[i]. `out` may be one of the terms: each block of it is read before it is
  /// written.
  template <class Term>
  void add_up(std::size_t members, std::span<float> out, Term term) {
    add_up_loaded(members, out, [&](std::size_t m, std::size_t begin, std::size_t) { return term(m) + begin; });
  }
  /// `load(m, begin, count)` has so many terms of member m from `begin` on, until the next call.
  template <class Load>
  void add_up_loaded(std::size_t members, std::span<float> out, Load load) {
    for (std::size_t begin = 0; begin < out.size(); begin += block_numel) {
      const std::size_t count = std::min(block_numel, out.size() - begin);
      add_block(members, begin, count, load);
      std::memcpy(out.data() + begin, sums_.front().data(), count * sizeof(float));
    }
  }
  /// Terms as they are in bf16, for such a load; of floats or bf16.
  template <class T>
  const float* rounded(const T* terms, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) rounded_[i] = in_bf16(terms[i]);
    return rounded_.data();
  }

  /// One after the other, as they come.
  template <class Term>
  static void add_up_in_turn(std::size_t members, std::span<float> out, Term term) {
    for (std::size_t begin = 0; begin < out.size(); begin += block_numel) {
      const std::size_t count = std::min(block_numel, out.size() - begin);
      std::array<float, block_numel> sum;
      std::memcpy(sum.data(), term(0) + begin, count * sizeof(float));
      for (std::size_t m = 1; m < members; ++m) add(term(m) + begin, sum.data(), count);
      std::memcpy(out.data() + begin, sum.data(), count * sizeof(float));
    }
  }

 private:
  static float in_bf16(float f) { return to_float(to_bf16(f)); }
  static float in_bf16(bf16 b) { return to_float(b); }

  template <class Load>
  void add_block(std::size_t members, std::size_t begin, std::size_t count, Load load) {
    const LotSums lots(static_cast<int>(members), 1);
    std::size_t depth = 0;
    for (std::size_t m = 0; m < members; ++m) {
      const float* const own = load(m, begin, count);
      int left = lots.additions_after(static_cast<int>(m));
      if (left == 0) {
        std::memcpy(sums_[depth++].data(), own, count * sizeof(float));
        continue;
      }
      add(own, sums_[depth - 1].data(), count);
      for (--left; left > 0; --left, --depth) add(sums_[depth - 1].data(), sums_[depth - 2].data(), count);
    }
  }

  static void add(const float* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
  }

  static constexpr std::size_t block_numel = 1024;
  std::array<float, block_numel> rounded_;
  std::array<std::array<float, block_numel>, 18> sums_;  ///< as many as a tree over 65,536 ranks has levels, and one
};

}  // namespace sluice
