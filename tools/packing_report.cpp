#include "tools/packing_report.h"

#include <fmt/format.h>

#include "sluice/size.h"

namespace sluice::tools {

std::string packing_text(const Prepared& run) {
  if (run.workload.activation_dtype == ActivationDtype::exact) return "";
  const char* name = activation_dtype_names[static_cast<std::size_t>(run.workload.activation_dtype)];
  std::uint64_t whole = 0, packed = 0;
  for (const StagePlans& stage : run.stages)
    for (const Op& op : stage.main.ops)
      if (op.kind == OpKind::quantize && op.micro_batch >= 0)
        for (const Access& a : op.accesses) (a.mode == Mode::read ? whole : packed) += a.bytes;
  if (whole == 0)
    return fmt::format(
        "--activation-dtype {} changes nothing: no activation waits away from the device for a backward pass alone",
        name);
  return fmt::format("parked activations in blocks of {}: {} a step instead of {}{}", name, format_bytes(packed),
                     format_bytes(whole), run.stages.size() > 1 ? ", of a rank of each stage" : "");
}

}  // namespace sluice::tools
