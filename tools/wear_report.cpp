#include "tools/wear_report.h"

#include "src/train/request/saving.h"

namespace sluice::tools {

Wear predicted_wear(const Prepared& run) {
  const auto every = static_cast<std::uint64_t>(run.config.save_every);
  const std::uint64_t saved = every > 0 ? saved_to_drives(run, 1) / every : 0;
  return drive_wear(machine_link_bytes(run).nvme_write + saved, run.step_seconds(), run.config.drive_tbw);
}

nlohmann::ordered_json wear_json(const Wear& wear) {
  nlohmann::ordered_json j;
  j["bytes_per_step"] = wear.bytes_per_step;
  j["bytes_per_day"] = wear.bytes_per_day;
  j["tbw_bytes"] = nullptr;
  if (wear.tbw_bytes > 0) j["tbw_bytes"] = wear.tbw_bytes;
  j["days"] = nullptr;
  if (wear.days) j["days"] = *wear.days;
  return j;
}

}  // namespace sluice::tools
