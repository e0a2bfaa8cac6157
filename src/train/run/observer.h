// Who is told how a run goes.
#pragma once

#include <cstdint>
#include <string>

#include "src/train/run/step_record.h"

namespace sluice {

/// Told on the thread that called Trainer::run().
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void note(const std::string&) {}
  virtual void progress(const std::string&, double) {}  ///< fraction of what takes long before the first step
  virtual void step(const StepRecord&) {}
  virtual void evaluated(std::int64_t, const SetLoss&) {}
};

}  // namespace sluice
