// Ranges that NVIDIA's profilers show over the work of each compute op: "forward L3.mlp". Without a profiler a range is
// a test of a pointer.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SLUICE_HAS_NVTX 1
#endif

#include <array>
#include <string>
#include <vector>

#include "sluice/plan.h"
#include "src/model/model.h"

namespace sluice {

/// The names, made once: running an op allocates nothing.
class OpRanges {
 public:
  explicit OpRanges(const ModelSpec& model) {
    for (const char* op : op_names)
      for (const UnitSpec& unit : model.units) names_.push_back(std::string(op) + " " + unit.name);
    units_ = model.units.size();
  }
  const char* name(const Op& op) const {
    if (op.unit < 0) return op_names[static_cast<std::size_t>(op.kind)];
    return names_[static_cast<std::size_t>(op.kind) * units_ + static_cast<std::size_t>(op.unit)].c_str();
  }

  /// As long as it lives, what the thread asks of the device belongs to the op.
  class Range {
   public:
#ifdef SLUICE_HAS_NVTX
    Range(const OpRanges& ranges, const Op& op) { nvtxRangePushA(ranges.name(op)); }
    ~Range() { nvtxRangePop(); }
#else
    Range(const OpRanges&, const Op&) {}
    ~Range() = default;
#endif
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
  };

 private:
  std::vector<std::string> names_;
  std::size_t units_ = 0;
};

}  // namespace sluice
