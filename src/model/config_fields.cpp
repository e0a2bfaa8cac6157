#include "src/model/config_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sluice {

const nlohmann::json* Fields::find(const char* key) const {
  const auto at = object_->find(key);
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

Error Fields::refuse(const char* key, const std::string& why) const {
  return bad_request(fmt::format("{}: {} {}", origin_, key, why));
}

Result<std::int64_t> Fields::required_integer(const char* key, std::int64_t low, std::int64_t high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return refuse(key, "is missing");
  // Values beyond int64 are kept as unsigned or floating point and fail here or at the bounds.
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
    return refuse(key, "must be a whole number");
  const auto n = value->get<std::int64_t>();
  if (n < low || n > high) return refuse(key, fmt::format("{} is not between {} and {}", n, low, high));
  return n;
}

Result<std::int64_t> Fields::integer(const char* key, std::int64_t fallback, std::int64_t low,
                                     std::int64_t high) const {
  return has(key) ? required_integer(key, low, high) : Result<std::int64_t>(fallback);
}

Result<std::int64_t> Fields::nullable_integer(const char* key, std::int64_t fallback, std::int64_t low,
                                              std::int64_t high) const {
  if (has(key)) return required_integer(key, low, high);
  return object_->contains(key) ? 0 : fallback;
}

Result<double> Fields::required_number(const char* key, double low, double high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return refuse(key, "is missing");
  if (!value->is_number()) return refuse(key, "must be a number");
  const auto x = value->get<double>();
  if (!(x >= low && x <= high)) return refuse(key, fmt::format("{} is not between {} and {}", x, low, high));
  return x;
}

Result<double> Fields::number(const char* key, double fallback, double low, double high) const {
  return has(key) ? required_number(key, low, high) : Result<double>(fallback);
}

Result<bool> Fields::flag(const char* key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return refuse(key, "must be true or false");
  return value->get<bool>();
}

Result<std::string> Fields::required_text(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return refuse(key, "is missing");
  if (!value->is_string()) return refuse(key, "must be a string");
  return value->get<std::string>();
}

Result<std::string> Fields::text(const char* key, const std::string& fallback) const {
  return has(key) ? required_text(key) : Result<std::string>(fallback);
}

Result<std::vector<std::string>> Fields::texts(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return refuse(key, "is missing");
  std::vector<std::string> all;
  if (!value->is_array()) return refuse(key, "must be a list");
  for (const auto& item : *value) {
    if (!item.is_string()) return refuse(key, "must be a list of strings");
    all.push_back(item.get<std::string>());
  }
  return all;
}

Result<Fields> Fields::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return refuse(key, "is missing");
  if (!value->is_object()) return refuse(key, "must be an object");
  return Fields(*value, origin_ + ": " + key);
}

}  // namespace sluice
