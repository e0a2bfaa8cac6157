// How plan and train tell that updates do not wait for the norm.
#pragma once

#include <string>

#include "src/train/request/prepare.h"

namespace sluice::tools {

/// Of a run that speculates and fits.
std::string speculation_text(const Prepared& run);

}  // namespace sluice::tools
