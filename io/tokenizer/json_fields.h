// Fields of a tokenizer file, with one line for what is not as it should be.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sluice/status.h"

namespace sluice {

inline Result<std::string> string_of(const nlohmann::json& json, const char* field) {
  if (!json.contains(field) || !json[field].is_string()) return bad_request(std::string(field) + " must be a string");
  return json[field].get<std::string>();
}

inline Result<bool> bool_of(const nlohmann::json& json, const char* field, bool otherwise) {
  if (!json.contains(field) || json[field].is_null()) return otherwise;
  if (!json[field].is_boolean()) return bad_request(std::string(field) + " must be true or false");
  return json[field].get<bool>();
}

inline Result<const nlohmann::json*> list_of(const nlohmann::json& json, const char* field) {
  if (!json.contains(field) || !json[field].is_array()) return bad_request(std::string(field) + " must be a list");
  return &json[field];
}

/// Of {"type": ...}.
inline Result<std::string> type_of(const nlohmann::json& json, const char* what) {
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string())
    return bad_request(std::string(what) + " must be an object with a type");
  return json["type"].get<std::string>();
}

}  // namespace sluice
