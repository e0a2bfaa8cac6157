// How plan and train tell what becomes of parked activations with --activation-dtype.
#pragma once

#include <string>

#include "src/train/request/prepare.h"

namespace sluice::tools {

/// Bytes that ranks park in few bits in a step, one of each stage, or that the plan has nothing for it. Empty where
/// activations are exact.
std::string packing_text(const Prepared& run);

}  // namespace sluice::tools
