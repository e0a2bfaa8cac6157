// The sum over the ranks of a group, in the order of src/schedule/lots.h: their tree goes on over the ranks. Every
// transport sums with this, so that none changes a bit.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "src/schedule/lots.h"

namespace sluice {

class TreeSum {
 public:
  /// out[i] = sum over members m of term(m)[i]. `out` may be one of the terms: each block of it is read before it is
  /// written.
  template <class Term>
  void add_up(std::size_t members, std::span<float> out, Term term) {
    for (std::size_t begin = 0; begin < out.size(); begin += block_numel) {
      const std::size_t count = std::min(block_numel, out.size() - begin);
      add_block(members, begin, count, term);
      std::memcpy(out.data() + begin, sums_.front().data(), count * sizeof(float));
    }
  }

 private:
  template <class Term>
  void add_block(std::size_t members, std::size_t begin, std::size_t count, Term term) {
    const LotSums lots(static_cast<int>(members), 1);
    std::size_t depth = 0;
    for (std::size_t m = 0; m < members; ++m) {
      const float* const own = term(m) + begin;
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
  std::array<std::array<float, block_numel>, 18> sums_;  ///< as many as a tree over 65,536 ranks has levels, and one
};

}  // namespace sluice
