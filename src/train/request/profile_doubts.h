// Profiles that are doubted (src/device/doubts.h): measured again before a run, and doubted after one that they did not
// foresee.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/device/doubts.h"
#include "src/device/profile_measure.h"
#include "src/train/request/prepare.h"

namespace sluice {

struct MeasuredAgain {
  bool changed = false;  ///< the profile is not what it was
  bool device = false;   ///< the GPU in use is to be measured again, by who has it
};
/// Where something that this workload is predicted with is doubted, and the machine is quiet: measures rates and the
/// drives again, where these have room for it, and forgets seconds of ops, which calibrate then measures. `clock` null:
/// the system's.
Result<MeasuredAgain> settle_doubts(HardwareProfile& profile, const Workload& workload,
                                    const std::vector<std::string>& drives, Doubts& doubts, const Tell& progress,
                                    CpuClock* clock = nullptr);

/// One line, where predictions rest on what is doubted.
void say_doubts(const Workload& workload, const std::vector<std::string>& drives, const Doubts& doubts,
                const Tell& progress);

/// measure_drive, again where others keep the cores busy meanwhile.
Result<DriveProfile> measure_drive_quietly(const DriveOptions& options, Doubts& doubts, CpuClock* clock = nullptr);

/// What a run has shown of steady steps.
struct ObservedSteps {
  double step_seconds = 0;         ///< median
  std::vector<double> op_seconds;  ///< by cost key of the main plan: of all its ops in one step; empty: not observed
  bool disturbed = false;          ///< others used the machine: what took long proves nothing
};

struct Contradiction {
  std::vector<std::string> names;  ///< what to doubt
  std::string text;                ///< what was found, for people
};
/// Bounds that steps beat, and ops that take far from their calibrated time. Steps of less than 20 ms tell nothing.
std::vector<Contradiction> contradictions(const Prepared& run, const ObservedSteps& steps);

/// Sums of an iteration's ops by cost key.
std::vector<double> seconds_by_key(const StepPlan& plan, const Timeline& timeline);

/// Doubt these in the profile that the run was planned with.
Status doubt_profile(const RunConfig& config, const std::vector<Contradiction>& found);

}  // namespace sluice
