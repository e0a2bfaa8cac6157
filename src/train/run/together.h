// What the processes of a run decide together. Each of these is called by all of them, and gives all the same answer.
#pragma once

#include <cstdint>
#include <functional>

#include "src/comm/world.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/step_record.h"

namespace sluice {

class Together {
 public:
  /// Both outlive it; `directory` may be null.
  Together(World& world, RunDirectory* directory) : world_(world), directory_(directory) {}

  /// The leader does it; then the others look at the directory again, which must be the same one.
  Status lead(const std::function<Status()>& work);
  /// The others do not even look: a file system over a network would show them later what there was then.
  Result<bool> leader_says(const std::function<bool()>& own);
  Result<bool> any_says(bool own);
  Result<std::int64_t> largest(std::int64_t own);
  Result<std::int64_t> smallest(std::int64_t own);
  /// From what a step was for the ranks of here to what it was for all.
  Status share(StepRecord& record);

 private:
  World& world_;
  RunDirectory* directory_;
};

}  // namespace sluice
