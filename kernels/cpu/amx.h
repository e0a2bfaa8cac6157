// The CPU's AMX tiles (internal to matmul and attention): a tile is 16 rows of 64 bytes; one instruction adds the
// product of a tile of 16 x 32 bf16 and one of 16 pair rows x 16 columns to a tile of 16 x 16 fp32.
#pragma once

#include "kernels/cpu/bf16_pairs.h"

#define SLUICE_AMX SLUICE_BF16_UNITS ",amx-tile,amx-bf16"

namespace sluice::kernels::amx {

/// True if the CPU has AMX for bf16 and the kernel lets this process use it (asked once; Linux 5.16 and later).
bool available();

/// Depth that one instruction multiplies, in elements and in pairs.
constexpr std::int64_t step_depth = 32, step_pairs = step_depth / 2;
/// A block of the result: 2 x 2 tiles. Each tile of an operand is then used twice from its register.
constexpr std::int64_t block_rows = 32, block_columns = bf16_units::panel_columns;

}  // namespace sluice::kernels::amx

HWY_PUSH_ATTRIBUTES(SLUICE_AMX)
namespace sluice::kernels::amx {

/// All eight tiles of the calling thread at their full size, for as long as this lives.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Configuration full{};
    _tile_loadconfig(&full);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// 32 rows of a left operand: rows `row_pairs` apart, the next step `step_pairs` on.
struct Left {
  const bf16_units::Pair* data;
  std::int64_t row_pairs, step_pairs;
};
/// 32 columns of a right operand, rows of pairs `row_pairs` apart: a panel, or part of a wider block.
struct Right {
  const bf16_units::Pair* data;
  std::int64_t row_pairs = bf16_units::panel_columns;
};

/// Work done beside a multiplication, whose tiles leave the rest of the core idle: step() at each step, rest() before
/// the sums are stored.
struct NoErrand {
  void step() {}
  void rest() {}
};

/// sum = left x right over `steps` steps, or sum += . `sum`: 32 rows, `ld` floats apart.
/// Left operands pass by the L1 cache: the panel of the right one, used again and again, stays in it.
template <bool add, class Errand = NoErrand>
HWY_INLINE void multiply(const Left& left, const Right& right, std::int64_t steps, float* sum, std::int64_t ld,
                         Errand errand = {}) {
  asm volatile("" ::: "memory");  // g++ 12's tile loads do not say that they read memory
  const std::int64_t sum_bytes = ld * 4, left_bytes = left.row_pairs * 4, right_bytes = right.row_pairs * 4;
  float* lower_sum = sum + 16 * ld;
  if constexpr (add) {
    _tile_loadd(0, sum, sum_bytes);
    _tile_loadd(1, sum + 16, sum_bytes);
    _tile_loadd(2, lower_sum, sum_bytes);
    _tile_loadd(3, lower_sum + 16, sum_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bf16_units::Pair *upper = left.data, *lower = left.data + 16 * left.row_pairs, *panel = right.data;
  for (std::int64_t i = 0; i < steps; ++i) {
    _tile_stream_loadd(4, upper, left_bytes);
    _tile_loadd(6, panel, right_bytes);
    _tile_dpbf16ps(0, 4, 6);
    errand.step();
    _tile_loadd(7, panel + 16, right_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, lower, left_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    upper += left.step_pairs;
    lower += left.step_pairs;
    panel += step_pairs * right.row_pairs;
  }
  errand.rest();
  _tile_stored(0, sum, sum_bytes);
  _tile_stored(1, sum + 16, sum_bytes);
  _tile_stored(2, lower_sum, sum_bytes);
  _tile_stored(3, lower_sum + 16, sum_bytes);
}

}  // namespace sluice::kernels::amx
HWY_POP_ATTRIBUTES
