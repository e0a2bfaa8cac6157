#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/device/efficiency.h"
#include "src/train/run/trainer.h"
#include "src/train/states/export.h"

namespace sluice {

// nlohmann writes the shortest digits that read back to the same double.
std::string to_json_line(const StepRecord& r) {
  nlohmann::ordered_json j;
  j["step"] = r.step;
  if (!r.run.empty()) j["run"] = r.run;
  // JSON has no NaN; nlohmann writes null.
  j["loss"] = r.loss;
  j["grad_norm"] = r.grad_norm;
  if (r.skipped) j["skipped"] = true;
  if (r.repaired) j["repaired"] = true;
  if (r.saved_step > 0) j["saved_step"] = r.saved_step;
  j["lr"] = r.lr;
  j["tokens"] = r.tokens;
  j["step_seconds"] = r.step_seconds;
  j["tokens_per_second"] = r.tokens_per_second;
  j["mfu"] = r.mfu;
  j["bound_seconds"] = r.bound_seconds;
  j["predicted_seconds"] = r.predicted_seconds;
  j["efficiency"] = r.efficiency;
  if (beats_bound(r.efficiency)) j["bound_beaten"] = true;  // the profile is wrong
  j["device_peak_bytes"] = r.device_peak_bytes;
  j["host_peak_bytes"] = r.host_peak_bytes;
  j["nvme_peak_bytes"] = r.nvme_peak_bytes;
  j["nvme_read_bytes"] = r.moved.nvme_read;
  j["nvme_write_bytes"] = r.moved.nvme_write;
  j["h2d_bytes"] = r.moved.h2d;
  j["d2h_bytes"] = r.moved.d2h;
  j["collective_bytes"] = r.moved.collective;
  if (r.moved.message > 0) j["message_bytes"] = r.moved.message;
  j["rss_bytes"] = r.rss_bytes;
  if (r.state_hash) {
    char text[32];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(*r.state_hash));
    j["state_hash"] = text;
  }
  if (r.eval.empty()) return j.dump();
  if (const std::optional<double> loss = eval_loss_of(r.eval)) j["eval_loss"] = *loss;
  j["eval"] = to_json(r.eval);
  return j.dump();
}

nlohmann::ordered_json to_json(const std::vector<SetLoss>& losses) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  for (const SetLoss& loss : losses) j[loss.set] = loss.loss;
  return j;
}

std::optional<double> eval_loss_of(const std::vector<SetLoss>& losses) {
  for (const SetLoss& loss : losses)
    if (loss.set == held_out_name || losses.size() == 1) return loss.loss;
  return std::nullopt;
}

nlohmann::ordered_json to_json(const TrainResult& result) {
  nlohmann::ordered_json j;
  j["steps"] = result.steps;
  j["loss"] = result.loss;
  const std::optional<double> eval_loss = result.eval_loss();
  j["eval_loss"] = eval_loss ? nlohmann::ordered_json(*eval_loss) : nlohmann::ordered_json();
  j["eval"] = to_json(result.eval);
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
