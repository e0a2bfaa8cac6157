#include "src/schedule/schedule.h"

#include <algorithm>

namespace sluice {

Schedule frugal_schedule(const Workload& workload) {
  Schedule s;
  s.group = 1;
  s.prefetch = 0;
  s.lag = 0;
  s.tiles_in_flight = 1;
  s.hold = false;
  s.tile_numel = 1u << 16;
  UnitChoice c;
  c.parameter_home = c.state_home = c.gradient = c.accumulator = c.boundary = Place::nvme;
  c.saved = Saved::recompute;
  s.units.assign(workload.model->units.size(), c);
  return s;
}

}  // namespace sluice
