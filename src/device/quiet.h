// Whether a measurement had the machine for itself, and what to do where it had not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// What has happened on the cores that this process may use, so far: seconds.
struct CpuReading {
  double wall = 0;
  double own = 0;  ///< of cores, by this process
  double all = 0;  ///< of cores, by anyone: what a hypervisor took away included
};

/// A seam: tests play machines that others use.
class CpuClock {
 public:
  virtual ~CpuClock() = default;
  virtual CpuReading read() = 0;
  virtual void sleep(double seconds) = 0;
  virtual int cores() const = 0;
};

/// By /proc/stat and getrusage. Where the kernel does not tell what others do, nobody does anything.
class SystemCpuClock final : public CpuClock {
 public:
  CpuReading read() override;
  void sleep(double seconds) override;
  int cores() const override;
};

/// Of all cores: timers, a shell and a browser at rest stay below.
constexpr double tolerated_share = 0.08;
/// While a drive works for us: so do threads of the kernel.
constexpr double tolerated_share_of_drives = 0.3;

/// "other programs used 1.4 of 2 cores" between two readings; empty where they used no more than `tolerated` of all.
std::string disturbance(const CpuReading& before, const CpuReading& after, int cores,
                        double tolerated = tolerated_share);

/// What others do now, by looking for a tenth of a second in which this process sleeps.
std::string disturbance_now(CpuClock& clock);

/// Measures until nothing disturbs: at most three times each, and not beyond `patience_seconds` of repetitions in all.
class QuietMeasurer {
 public:
  /// `clock` null: the system's.
  explicit QuietMeasurer(CpuClock* clock, double patience_seconds = 15)
      : clock_(clock != nullptr ? *clock : system_), patience_(patience_seconds) {}

  enum class Better : std::uint8_t { more, less };
  struct Measured {
    double value = 0;
    std::string disturbance;  ///< of the last repetition; empty: it was quiet
  };
  /// The best of all repetitions: what disturbs only makes things slower.
  Result<Measured> measure(Better better, const std::function<Result<double>()>& once,
                           double tolerated = tolerated_share);

  CpuClock& clock() { return clock_; }

 private:
  SystemCpuClock system_;
  CpuClock& clock_;
  double patience_;
};

}  // namespace sluice
