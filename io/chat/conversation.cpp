#include "io/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/files/json_guard.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// For messages: names come from the line, and may be anything.
std::string shown(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return name.size() > 40 ? name.substr(0, 40) + "..." : name;
}

std::optional<ChatRole> role_named(const std::string& name) {
  static constexpr std::pair<const char*, ChatRole> known[] = {
      {"system", ChatRole::system},       {"user", ChatRole::user},     {"human", ChatRole::user},
      {"assistant", ChatRole::assistant}, {"gpt", ChatRole::assistant}, {"tool", ChatRole::tool}};
  for (const auto& [as, role] : known)
    if (name == as) return role;
  return std::nullopt;
}

/// Whether there is something under the name: tools that are null or an empty list are none.
bool holds(const Json& object, const char* name) {
  return object.contains(name) && !object[name].is_null() && !(object[name].is_structured() && object[name].empty());
}

Result<std::string> text_of(const Json& message, const char* field) {
  if (!message.contains(field)) return bad_request(fmt::format("has no \"{}\"", field));
  if (!message[field].is_string())
    return bad_request(fmt::format("has {} as \"{}\" and not a string", message[field].type_name(), field));
  return message[field].get<std::string>();
}

Result<ChatMessage> message_of(const Json& json) {
  if (!json.is_object()) return bad_request(fmt::format("is {} and not an object", json.type_name()));
  if (holds(json, "tool_calls")) return bad_request("has tool_calls, which are not supported");
  const bool share_gpt = !json.contains("role") && json.contains("from");
  SLUICE_ASSIGN(const std::string role, text_of(json, share_gpt ? "from" : "role"));
  const auto known = role_named(role);
  if (!known)
    return bad_request(
        fmt::format("is of '{}'; system, user (human), assistant (gpt) and tool are known", shown(role)));
  ChatMessage message;
  message.role = *known;
  SLUICE_ASSIGN(message.content, text_of(json, share_gpt ? "value" : "content"));
  if (!holds(json, "weight")) return message;
  const Json& weight = json["weight"];
  if (!weight.is_number() || (weight.get<double>() != 0 && weight.get<double>() != 1))
    return bad_request("has a weight that is neither 0 nor 1");
  message.learned = weight.get<double>() == 1;
  return message;
}

Result<Json> object_of(std::string_view line) {
  SLUICE_TRY(check_json(line));
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return bad_request(fmt::format("the line is {} and not an object", json.type_name()));
  return json;
}

}  // namespace

const char* role_name(ChatRole role) {
  switch (role) {
    case ChatRole::system: return "system";
    case ChatRole::user: return "user";
    case ChatRole::assistant: return "assistant";
    case ChatRole::tool: return "tool";
  }
  return "";
}

Result<Completion> parse_completion(std::string_view line) {
  SLUICE_ASSIGN(const Json json, object_of(line));
  Completion made;
  for (const auto& [field, text] : {std::pair("prompt", &made.prompt), std::pair("completion", &made.completion)}) {
    auto found = text_of(json, field);
    if (!found.ok()) return bad_request("the line " + found.error().message);
    *text = std::move(*found);
  }
  return made;
}

Result<Conversation> parse_conversation(std::string_view line, const std::string& field) {
  SLUICE_ASSIGN(const Json json, object_of(line));
  if (holds(json, "tools")) return bad_request("the line has tools, which are not supported");
  std::string name = field;
  if (name.empty()) name = json.contains("messages") || !json.contains("conversations") ? "messages" : "conversations";
  if (!json.contains(name))
    return bad_request(
        field.empty() ? "the line has neither \"messages\" nor \"conversations\"; --jsonl-field names another field"
                      : fmt::format("the line has no \"{}\"", shown(name)));
  const Json& list = json[name];
  if (!list.is_array())
    return bad_request(
        fmt::format("the line has {} as \"{}\" and not a list of messages", list.type_name(), shown(name)));
  if (list.empty()) return bad_request(fmt::format("the line has no message in \"{}\"", shown(name)));
  Conversation conversation;
  conversation.reserve(list.size());
  for (const Json& each : list) {
    auto message = message_of(each);
    if (!message.ok())
      return bad_request(fmt::format("message {} {}", conversation.size() + 1, message.error().message));
    conversation.push_back(std::move(*message));
  }
  return conversation;
}

}  // namespace sluice
