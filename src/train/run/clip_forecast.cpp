#include "src/train/run/clip_forecast.h"

#include <algorithm>

namespace sluice {

void ClipForecast::add(bool clipped) {
  last_[next_] = clipped;
  next_ = (next_ + 1) % steps_max;
  count_ = std::min(count_ + 1, steps_max);
}

std::size_t ClipForecast::clipped() const {
  return static_cast<std::size_t>(std::count(last_.begin(), last_.end(), true));
}

bool ClipForecast::waits(bool waits_now) const {
  if (!may_wait_) return false;
  if (count_ == 0) return true;
  constexpr double worth_it = 1.01;
  const double share = static_cast<double>(clipped()) / static_cast<double>(count_);
  const double speculative = costs_.speculative + share * (costs_.repaired - costs_.speculative);
  const double change = costs_.changing / static_cast<double>(steps_max);
  return waits_now ? speculative * worth_it + change >= costs_.ahead : costs_.ahead * worth_it + change < speculative;
}

}  // namespace sluice
