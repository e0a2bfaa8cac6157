// The lines of a run's metrics as curves of a size that does not grow with the run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sluice/status.h"

namespace sluice::tools {

/// A curve is drawn with at most twice as many points.
constexpr std::size_t curve_points = 1000;

/// Mean, least and most of the numbers of several lines. Lines that have none, as those of skipped steps, are left out.
class Curve {
 public:
  void add(std::int64_t step, double value);
  /// [[last step, mean, least, most], ...]
  nlohmann::ordered_json json() const;

 private:
  struct Point {
    std::int64_t step = 0;
    double sum = 0, least = 0, most = 0;
    std::uint64_t lines = 0;
  };
  std::vector<Point> points_;
  std::uint64_t lines_of_point_ = 1;
};

/// What a report tells of the steps of a run.
struct RunCurves {
  enum Kind { loss, tokens_per_second, step_seconds, lr, grad_norm, kinds };
  std::array<Curve, kinds> curves;
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> eval;  ///< by set; "" where it has no name
  std::vector<std::int64_t> skipped, saved;
  std::int64_t repaired = 0;  ///< steps that clipped where that was not expected
  std::int64_t lines = 0, last_step = 0;
  std::int64_t others = 0;  ///< lines that are not of a step of the run
  double last_loss = 0, timed_seconds = 0;
  std::int64_t timed_steps = 0;                    ///< with a duration
  std::uint64_t nvme_write_bytes = 0, tokens = 0;  ///< written in those; seen
  std::map<std::int64_t, double> last_seconds;     ///< of the last steps
  nlohmann::ordered_json json() const;
};
/// Lines of another run, and those that are no JSON or of no step, are counted as `others`. bad_request where the file
/// can not be read.
Result<RunCurves> read_curves(const std::string& path, const std::string& run_name);

}  // namespace sluice::tools
