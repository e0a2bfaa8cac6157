// What `sluice plan --json` prints, kept in a file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sluice/status.h"

namespace sluice::tools {

constexpr const char* plan_format = "sluice-plan";
constexpr int plan_version = 1;

/// bad_request, saying what the file is where that is known, for anything else.
Result<nlohmann::ordered_json> read_plan_file(const std::string& path);

}  // namespace sluice::tools
