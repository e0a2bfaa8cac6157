// How plan and train tell what saving beside steps takes.
#pragma once

#include <string>

#include "src/train/request/prepare.h"

namespace sluice::tools {

/// "every 100 steps one writes 1.2 GiB beside its work, ..."; empty where steps do not save beside their work.
std::string saving_text(const Prepared& run);

}  // namespace sluice::tools
