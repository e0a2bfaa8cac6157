#include "kernels/cpu/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/gemm_peak.h"

namespace sluice::kernels::amx {
namespace {

/// CPUID leaf 7, EDX: bit 22 is AMX-BF16, bit 24 is AMX-TILE. clang 14 knows neither by name.
bool cpu_has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned both = 1u << 22 | 1u << 24;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & both) == both;
}

}  // namespace

bool available() {
  static const bool permitted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return cpu_has_tiles() && bf16_units::available() && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return permitted;
}

}  // namespace sluice::kernels::amx

HWY_PUSH_ATTRIBUTES(SLUICE_AMX)
namespace sluice::kernels {

double tile_multiply_burst() {
  using namespace amx;  // NOLINT(google-build-using-namespace)
  if (!available()) return 0;
  constexpr int rounds = 4096;
  const Tiles tiles;
  alignas(64) bf16 operand[16 * step_depth];
  for (std::int64_t i = 0; i < 16 * step_depth; ++i) operand[i] = to_bf16(static_cast<float>(i % 37) / 64 - 0.25f);
  asm volatile("" ::: "memory");
  _tile_loadd(4, operand, 64);
  _tile_loadd(5, operand, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  return 4.0 * rounds * 2 * 16 * 16 * step_depth;
}

}  // namespace sluice::kernels
HWY_POP_ATTRIBUTES
