// Checked access to the fields of a JSON object; every refusal names the file, the field and what is wrong with it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice {

/// A view of one JSON object. `null` counts as absent. Bounds are inclusive. All errors are bad_request.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string origin) : object_(&object), origin_(std::move(origin)) {}

  bool has(const char* key) const { return find(key) != nullptr; }
  Error refuse(const char* key, const std::string& why) const;

  Result<std::int64_t> required_integer(const char* key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  /// `fallback` where the key is missing, 0 where it is null.
  Result<std::int64_t> nullable_integer(const char* key, std::int64_t fallback, std::int64_t low,
                                        std::int64_t high) const;
  Result<double> required_number(const char* key, double low, double high) const;
  Result<double> number(const char* key, double fallback, double low, double high) const;
  Result<bool> flag(const char* key, bool fallback) const;
  Result<std::string> required_text(const char* key) const;
  Result<std::string> text(const char* key, const std::string& fallback) const;
  Result<std::vector<std::string>> texts(const char* key) const;
  Result<Fields> object(const char* key) const;

 private:
  const nlohmann::json* find(const char* key) const;

  const nlohmann::json* object_;
  std::string origin_;
};

}  // namespace sluice
