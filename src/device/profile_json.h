// Reading numbers of profiles and of cluster files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "sluice/profile.h"
#include "sluice/status.h"

namespace sluice {

/// bad_request, without the file's name, for what is missing, no number, infinite, negative, or 0 where it may not be.
Status read_number(const nlohmann::json& object, const std::string& name, bool may_be_zero, double& out);
/// The same of a whole number from 1.
Status read_count(const nlohmann::json& object, const std::string& name, std::uint32_t largest, std::uint32_t& out);
/// The rates in an object of the name; unchanged where there is none.
Status read_messages(const nlohmann::json& object, const std::string& name, std::optional<MessageRates>& out);

}  // namespace sluice
