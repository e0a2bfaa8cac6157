#include "src/device/doubts.h"

#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "src/device/profile.h"

namespace sluice {
namespace {

using nlohmann::json;

/// The file's object; discarded where it cannot be read.
json profile_json(const std::string& path) {
  const auto text = read_file(path, largest_profile_bytes);
  if (!text.ok() || !check_json(*text).ok()) return json(json::value_t::discarded);
  return json::parse(*text, nullptr, false);
}

}  // namespace

bool Doubts::has(const std::string& name) const {
  const auto found = all_.find(name);
  return found != all_.end() && !found->second.reason.empty();
}

bool Doubts::to_measure(const std::string& name) const {
  return has(name) && all_.at(name).measured_again < measured_again_max;
}

void Doubts::contradict(const std::string& name, const std::string& reason) {
  all_[name].reason = reason;
  all_[name].disturbed = false;
}

void Doubts::measured(const std::string& name, const std::string& disturbance) {
  const bool again = all_.contains(name);
  if (!again && disturbance.empty()) return;
  Doubt& of = all_[name];
  of.measured_again += again;
  of.disturbed = !disturbance.empty();
  of.reason = disturbance.empty() ? "" : disturbance + " while it was measured";
}

std::string Doubts::describe(const std::vector<std::string>& names) const {
  std::string text, reason;
  int more = -1;
  for (const std::string& name : names) {
    if (!has(name)) continue;
    if (++more == 0) text = name, reason = all_.at(name).reason;
  }
  if (more < 0) return "";
  return text + (more > 0 ? " and " + std::to_string(more) + " more" : "") + " (" + reason + ")";
}

std::string drive_doubt(const std::string& drive_key) { return "drive " + drive_key; }
std::string device_doubt(const std::string& device_kind) { return "device " + device_kind; }

Doubts load_doubts(const std::string& profile_path) {
  Doubts doubts;
  const json object = profile_json(profile_path);
  if (!object.is_object() || !object.contains("doubts") || !object["doubts"].is_object()) return doubts;
  for (const auto& [name, of] : object["doubts"].items()) {
    if (!of.is_object()) continue;
    const auto reason = of.find("reason"), disturbed = of.find("disturbed"), again = of.find("measured_again");
    if (reason == of.end() || !reason->is_string()) continue;
    Doubt& doubt = doubts.all()[name];
    doubt.reason = reason->get<std::string>();
    doubt.disturbed = disturbed != of.end() && disturbed->is_boolean() && disturbed->get<bool>();
    if (again != of.end() && again->is_number_unsigned() && *again < 1000) doubt.measured_again = again->get<int>();
  }
  return doubts;
}

Status save_doubts(const std::string& profile_path, const Doubts& doubts) {
  json object = profile_json(profile_path);
  if (!object.is_object()) return bad_request("profile " + profile_path + ": cannot be read; is it still there?");
  json& all = object["doubts"] = json::object();
  for (const auto& [name, of] : doubts.all())
    all[name] = {{"reason", of.reason}, {"disturbed", of.disturbed}, {"measured_again", of.measured_again}};
  return publish_file(profile_path, object.dump(2) + "\n");
}

}  // namespace sluice
