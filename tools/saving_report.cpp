#include "tools/saving_report.h"

#include <fmt/format.h>

#include "sluice/size.h"
#include "src/train/request/saving.h"

namespace sluice::tools {

std::string saving_text(const Prepared& run) {
  if (!run.workload.saves) return {};
  const long long every = run.config.save_every;
  const std::optional<SavingStep> saving = predict_saving(run);
  if (!saving && run.config.cluster)
    return fmt::format("every {} steps one writes the states beside its work; --cluster does not tell where to", every);
  if (!saving)
    return fmt::format("every {} steps one writes the states beside its work; their drive can not be measured", every);
  if (saving->shares_blocks)
    return fmt::format(
        "every {} steps one shares the blocks of {} with the swap file, writes nothing, and takes {}, bound {}", every,
        format_bytes(saving->bytes), format_seconds(saving->seconds), format_seconds(saving->bound_seconds));
  const char* const drive = saving->to_swap_drive     ? " to the same drive,"
                            : run.config.nvme.empty() ? ""
                                                      : " to another drive,";
  return fmt::format("every {} steps one writes {} beside its work,{} and takes {}, bound {}", every,
                     format_bytes(saving->bytes), drive, format_seconds(saving->seconds),
                     format_seconds(saving->bound_seconds));
}

}  // namespace sluice::tools
