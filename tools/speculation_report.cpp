#include "tools/speculation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sluice/size.h"
#include "src/train/request/repair.h"

namespace sluice::tools {

std::string speculation_text(const Prepared& run) {
  const Repair repair = predict_repair(run);
  std::string text = fmt::format("speculative updates: a step that clips is {}, and takes {} instead of {}",
                                 repair.from_gradients ? "updated again from its gradients" : "made again",
                                 format_seconds(repair.seconds), format_seconds(run.step_seconds()));
  if (repair.loaded_bytes > 0)
    text += fmt::format(", with {} of copies loaded anew", format_bytes(repair.loaded_bytes));
  if (run.changes_order()) {
    text += fmt::format("; where steps clip often, updates wait for the norm, at {} a step",
                        format_seconds(run.predicted(true).step_seconds));
    const std::vector<UnitChoice>& waiting = run.search.schedule.waiting;
    const auto on_device = std::ranges::count(waiting, Place::device, &UnitChoice::gradient);
    return on_device == 0 ? text
                          : text + fmt::format(", with gradients of {} of {} units on the device", on_device,
                                               waiting.size());
  }
  return text + "; the budgets have no room for gradients that wait, so that steps which clip often are all made twice";
}

}  // namespace sluice::tools
