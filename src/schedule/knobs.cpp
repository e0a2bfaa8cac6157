#include "src/schedule/knobs.h"

#include <cstdint>

namespace sluice {
namespace {

Change shifted(int Schedule::*field, int by, int least, int most) {
  return [=](Schedule& s) {
    const int value = s.*field + by;
    if (value < least || value > most) return false;
    s.*field = value;
    return true;
  };
}

}  // namespace

Change prefetch_changed(int by) { return shifted(&Schedule::prefetch, by, 0, 4); }
Change lag_changed(int by) { return shifted(&Schedule::lag, by, 0, 4); }
Change tiles_in_flight_changed(int by) { return shifted(&Schedule::tiles_in_flight, by, 1, 8); }
Change activations_ahead_changed(int by) { return shifted(&Schedule::activations_ahead, by, 1, 8); }

Change tiles_scaled(const Workload& workload, int doublings) {
  return [&workload, doublings](Schedule& s) {
    const std::uint64_t least = tile_for(workload, 1u << 12, 16384);
    const std::uint64_t numel = doublings > 0 ? s.tile_numel << static_cast<unsigned>(doublings)
                                              : s.tile_numel >> static_cast<unsigned>(-doublings);
    if (numel < least || numel > tile_limit(workload)) return false;
    s.tile_numel = numel;
    return true;
  };
}

bool make_room(Schedule& schedule, std::size_t count, const std::function<Schedule(std::size_t moves)>& moved,
               const std::function<bool(const Schedule&)>& fits) {
  if (fits(schedule)) return true;
  if (count == 0 || !fits(moved(count))) return false;
  std::size_t few = 0, enough = count;
  while (enough - few > 1) {
    const std::size_t some = (few + enough) / 2;
    (fits(moved(some)) ? enough : few) = some;
  }
  schedule = moved(enough);
  return true;
}

}  // namespace sluice
