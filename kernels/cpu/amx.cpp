#include "kernels/cpu/amx.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace sluice::kernels::amx {

bool available() {
  static const bool permitted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __builtin_cpu_supports("amx-bf16") != 0 && bf16_units::available() &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return permitted;
}

}  // namespace sluice::kernels::amx
