// A look at untrusted JSON before anything builds a tree of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sluice/status.h"

namespace sluice {

struct JsonLimits {
  std::uint32_t depth_max = 32;
  std::uint64_t values_max = 4u << 20;
};

/// At most so much of a text from a file as a line can bear, without control characters.
std::string shown(std::string_view text, std::size_t bytes_max = 120);

/// bad_request unless `text` is one JSON value within the limits without duplicate keys. After it,
/// nlohmann::json::parse(text, nullptr, false) succeeds.
Status check_json(std::string_view text, const JsonLimits& limits = {});

/// The text of a small file of one JSON value, checked. bad_request, naming the file, when it is missing, larger than
/// `bytes_max`, or not one.
Result<std::string> read_json_file(const std::string& path, std::uint64_t bytes_max);

}  // namespace sluice
