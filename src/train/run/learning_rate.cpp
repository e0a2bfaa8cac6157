#include <algorithm>
#include <cmath>

#include "src/train/request/run_config.h"

namespace sluice {

double learning_rate(const OptimizerConfig& c, std::int64_t step, std::int64_t steps) {
  if (step <= c.warmup_steps) return c.lr * static_cast<double>(step) / static_cast<double>(c.warmup_steps);
  if (c.schedule == LrSchedule::constant || steps <= c.warmup_steps) return c.lr;
  const double done =
      std::min(1.0, static_cast<double>(step - c.warmup_steps) / static_cast<double>(steps - c.warmup_steps));
  if (c.schedule == LrSchedule::linear) return c.lr + (c.lr_end - c.lr) * done;
  return c.lr_end + (c.lr - c.lr_end) * 0.5 * (1.0 + std::cos(3.14159265358979323846 * done));
}

}  // namespace sluice
