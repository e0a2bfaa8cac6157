// JSON as commands print it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::tools {

/// On one line. Text need not be UTF-8 (what a model says, names of files): bytes that are none become the sign for
/// that.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace sluice::tools
