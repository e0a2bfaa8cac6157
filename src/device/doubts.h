// What of a profile is not to be relied on: it was measured while others used the machine, or a run has contradicted
// it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sluice/status.h"
#include "src/device/quiet.h"

namespace sluice {

struct Doubt {
  std::string reason;      ///< "other programs used 1.4 of 2 cores while it was measured"; empty: no longer doubted
  bool disturbed = false;  ///< that was it; else a run has found it wrong
  int measured_again = 0;  ///< times, since it was first doubted
};

/// By what is doubted: a rate of the profile ("gemm_flops_bf16"), "drive KEY", "device KIND", or a key of op_seconds.
class Doubts {
 public:
  /// More does not help: what differs then is not the measurement's fault.
  static constexpr int measured_again_max = 2;

  const std::map<std::string, Doubt>& all() const { return all_; }
  std::map<std::string, Doubt>& all() { return all_; }

  bool has(const std::string& name) const;
  /// Doubted, and not measured again too often.
  bool to_measure(const std::string& name) const;
  /// A run has found that it is wrong.
  void contradict(const std::string& name, const std::string& reason);
  /// It has been measured; `disturbance` is empty where it can be relied on.
  void measured(const std::string& name, const std::string& disturbance);
  /// Of these names: "gemm_flops_bf16 and 3 more (other programs used 1.4 of 2 cores while it was measured)"; empty
  /// where none is doubted.
  std::string describe(const std::vector<std::string>& names) const;

 private:
  std::map<std::string, Doubt> all_;
};

std::string drive_doubt(const std::string& drive_key);
std::string device_doubt(const std::string& device_kind);

/// A profile's file has its doubts as an object "doubts", which save_profile keeps. None where there is no file, and
/// none where it has none or others.
Doubts load_doubts(const std::string& profile_path);
/// Into a file that is there. Atomically.
Status save_doubts(const std::string& profile_path, const Doubts& doubts);

}  // namespace sluice
