// Runs of a model of six units, embedding, two layers of two sublayers and head, that is cut over ranks.
#pragma once

#include <utility>

#include "resume.h"

namespace sluice::test {

struct Places {
  Place home = Place::nvme, accumulator = Place::host, boundary = Place::device;
  bool resident = false, held = false;
  Saved saved = Saved::recompute;
};

class CutRuns : public Resume {
 protected:
  Schedule schedule(const RunConfig& c, std::vector<UnitId> cut, int group, const Places& places = {},
                    bool ahead = true) const {
    Schedule s = Resume::schedule(ahead, places.home);
    s.pipeline = c.pipeline;
    s.cut = std::move(cut);
    s.group = group;
    s.prefetch = 1;
    s.units.assign(6, s.units.front());
    for (UnitChoice& unit : s.units) {
      unit.accumulator = places.accumulator;
      unit.boundary = places.boundary;
      unit.resident = places.resident;
      unit.held = places.held;
      unit.saved = places.saved;
    }
    return s;
  }
  Finished whole(const RunConfig& c, const Schedule& s) {
    const std::string path = fresh_directory();
    return finished(path, attempt(c, path, s));
  }
};

}  // namespace sluice::test
