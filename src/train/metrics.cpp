#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/train/export.h"
#include "src/train/trainer.h"

namespace sluice {

// nlohmann writes the shortest digits that read back to the same double.
std::string to_json_line(const StepRecord& r) {
  nlohmann::ordered_json j;
  j["step"] = r.step;
  // JSON has no NaN; nlohmann writes null.
  j["loss"] = r.loss;
  j["grad_norm"] = r.grad_norm;
  if (r.skipped) j["skipped"] = true;
  j["lr"] = r.lr;
  j["tokens"] = r.tokens;
  j["step_seconds"] = r.step_seconds;
  j["tokens_per_second"] = r.tokens_per_second;
  j["mfu"] = r.mfu;
  j["bound_seconds"] = r.bound_seconds;
  j["predicted_seconds"] = r.predicted_seconds;
  j["efficiency"] = r.efficiency;
  j["device_peak_bytes"] = r.device_peak_bytes;
  j["host_peak_bytes"] = r.host_peak_bytes;
  j["nvme_peak_bytes"] = r.nvme_peak_bytes;
  j["nvme_read_bytes"] = r.moved.nvme_read;
  j["nvme_write_bytes"] = r.moved.nvme_write;
  j["h2d_bytes"] = r.moved.h2d;
  j["d2h_bytes"] = r.moved.d2h;
  j["collective_bytes"] = r.moved.collective;
  j["rss_bytes"] = r.rss_bytes;
  if (r.state_hash) {
    char text[32];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(*r.state_hash));
    j["state_hash"] = text;
  }
  if (r.eval_loss) j["eval_loss"] = *r.eval_loss;
  return j.dump();
}

nlohmann::ordered_json to_json(const TrainResult& result) {
  nlohmann::ordered_json j;
  j["steps"] = result.steps;
  j["loss"] = result.loss;
  j["eval_loss"] = result.eval_loss;
  if (result.state_hash) {
    char text[32];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(*result.state_hash));
    j["state_hash"] = text;
  }
  return j;
}

std::uint64_t resident_set_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace sluice
