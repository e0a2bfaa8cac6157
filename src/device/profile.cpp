#include "src/device/profile.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/drives/queue.h"
#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "io/files/user_cache.h"
#include "src/device/profile_json.h"

namespace sluice {
namespace {

using nlohmann::json;

template <class Of>
struct Rate {
  const char* name;
  double Of::*field;
  bool may_be_zero;  ///< unknown
};
constexpr Rate<HardwareProfile> machine_rates[] = {
    {"gemm_flops_f32", &HardwareProfile::gemm_flops_f32, false},
    {"gemm_flops_bf16", &HardwareProfile::gemm_flops_bf16, false},
    {"peak_flops_f32", &HardwareProfile::peak_flops_f32, true},
    {"peak_flops_bf16", &HardwareProfile::peak_flops_bf16, true},
    {"h2d_bytes_per_second", &HardwareProfile::h2d_bytes_per_second, false},
    {"d2h_bytes_per_second", &HardwareProfile::d2h_bytes_per_second, false},
    {"memory_bytes_per_second", &HardwareProfile::memory_bytes_per_second, false},
    {"adamw_parameters_per_second", &HardwareProfile::adamw_parameters_per_second, false},
    {"norm_bytes_per_second", &HardwareProfile::norm_bytes_per_second, false},
    {"checksum_bytes_per_second", &HardwareProfile::checksum_bytes_per_second, false},
    {"op_overhead_seconds", &HardwareProfile::op_overhead_seconds, false},
    {"handoff_seconds", &HardwareProfile::handoff_seconds, true},
};

constexpr Rate<DriveProfile> drive_rates[] = {
    {"read_bytes_per_second", &DriveProfile::read_bytes_per_second, false},
    {"write_bytes_per_second", &DriveProfile::write_bytes_per_second, false},
    {"mixed_bytes_per_second", &DriveProfile::mixed_bytes_per_second, false},
    {"request_seconds", &DriveProfile::request_seconds, true},
    {"read_latency_seconds", &DriveProfile::read_latency_seconds, true},
    {"write_latency_seconds", &DriveProfile::write_latency_seconds, true},
    {"sync_seconds_per_byte", &DriveProfile::sync_seconds_per_byte, true},
};

constexpr Rate<DeviceProfile> device_rates[] = {
    {"gemm_flops_f32", &DeviceProfile::gemm_flops_f32, false},
    {"gemm_flops_bf16", &DeviceProfile::gemm_flops_bf16, false},
    {"memory_bytes_per_second", &DeviceProfile::memory_bytes_per_second, false},
    {"adamw_parameters_per_second", &DeviceProfile::adamw_parameters_per_second, false},
    {"h2d_bytes_per_second", &DeviceProfile::h2d_bytes_per_second, false},
    {"d2h_bytes_per_second", &DeviceProfile::d2h_bytes_per_second, false},
    {"both_bytes_per_second", &DeviceProfile::both_bytes_per_second, false},
    {"op_overhead_seconds", &DeviceProfile::op_overhead_seconds, true},
    {"host_adamw_parameters_per_second", &DeviceProfile::host_adamw_parameters_per_second, false},
    {"host_norm_bytes_per_second", &DeviceProfile::host_norm_bytes_per_second, false},
    {"handoff_seconds", &DeviceProfile::handoff_seconds, true},
};

constexpr Rate<MessageRates> message_rates[] = {
    {"latency_seconds", &MessageRates::latency_seconds, true},
    {"gather_bytes_per_second", &MessageRates::gather_bytes_per_second, false},
    {"reduce_bytes_per_second", &MessageRates::reduce_bytes_per_second, false},
};
/// An object that need not be there.
struct MessagesOf {
  const char* name;
  std::optional<MessageRates> HardwareProfile::*field;
};
constexpr MessagesOf all_messages[] = {{"messages_inside", &HardwareProfile::messages_inside},
                                       {"messages_between", &HardwareProfile::messages_between}};

struct Count {
  const char* name;
  int HardwareProfile::*field;
};
constexpr Count counts[] = {{"cores", &HardwareProfile::cores},
                            {"compute_threads", &HardwareProfile::compute_threads},
                            {"optimizer_threads", &HardwareProfile::optimizer_threads}};

}  // namespace

Status read_number(const json& object, const std::string& name, bool may_be_zero, double& out) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return bad_request(fmt::format("has no number '{}'", name));
  const double value = found->get<double>();
  if (!std::isfinite(value) || value < 0 || (value == 0 && !may_be_zero))
    return bad_request(fmt::format("'{}' is {}, which is no rate", name, value));
  out = value;
  return success();
}

Status read_count(const json& object, const std::string& name, std::uint32_t largest, std::uint32_t& out) {
  double value = 0;
  SLUICE_TRY(read_number(object, name, false, value));
  if (value != std::floor(value) || value > largest) return bad_request(fmt::format("'{}' is {}", name, value));
  out = static_cast<std::uint32_t>(value);
  return success();
}

Status read_messages(const json& object, const std::string& name, std::optional<MessageRates>& out) {
  const auto found = object.find(name);
  if (found == object.end()) return success();
  if (!found->is_object()) return bad_request(fmt::format("has '{}', which is no object", name));
  MessageRates messages;
  for (const Rate<MessageRates>& r : message_rates)
    SLUICE_TRY(read_number(*found, r.name, r.may_be_zero, messages.*r.field));
  out = messages;
  return success();
}

namespace {

Status read_drive(const json& object, DriveProfile& d) {
  if (!object.is_object()) return bad_request("has a drive that is no object");
  for (const Rate<DriveProfile>& r : drive_rates) SLUICE_TRY(read_number(object, r.name, r.may_be_zero, d.*r.field));
  SLUICE_TRY(read_count(object, "depth", 4096, d.depth));
  SLUICE_TRY(read_count(object, "block_bytes", drive_block_bytes_max, d.block_bytes));
  if (d.block_bytes < 4096 || !std::has_single_bit(d.block_bytes))
    return bad_request(fmt::format("'block_bytes' is {}, which is no power of two from 4096", d.block_bytes));
  const auto backend = object.find("backend");
  if (backend == object.end() || !backend->is_string()) return bad_request("has a drive without 'backend'");
  d.backend = backend->get<std::string>();
  SLUICE_TRY(parse_io_backend(d.backend));
  const auto weights = object.find("stripe_weights");
  if (weights == object.end() || !weights->is_array()) return bad_request("has a drive without 'stripe_weights'");
  for (const json& weight : *weights) {
    SLUICE_TRY(read_number({{"weight", weight}}, "weight", false, d.stripe_weights.emplace_back()));
  }
  return success();
}

Status read_choices(const json& device, std::map<std::string, KernelChoices>& out) {
  const auto choices = device.find("choices");
  const auto refuse = [] { return bad_request("has a device whose 'choices' are not words"); };
  if (choices == device.end() || !choices->is_object()) return refuse();
  for (const auto& [key, of_op] : choices->items()) {
    if (!of_op.is_object()) return refuse();
    for (const auto& [problem, chosen] : of_op.items()) {
      if (!chosen.is_string()) return refuse();
      out[key][problem] = chosen.get<std::string>();
    }
    out.try_emplace(key);
  }
  return success();
}

json drive_json(const DriveProfile& d) {
  json object{{"backend", d.backend}, {"block_bytes", d.block_bytes}, {"depth", d.depth}};
  object["stripe_weights"] = d.stripe_weights;
  for (const Rate<DriveProfile>& r : drive_rates) object[r.name] = d.*r.field;
  return object;
}

Status read_profile(const json& object, HardwareProfile& p) {
  if (!object.is_object() || !object.contains("schema_version") || !object["schema_version"].is_number_unsigned())
    return bad_request("is not a sluice profile");
  if (object["schema_version"] != profile_schema_version)
    return bad_request(fmt::format("has schema version {}, this program reads {}", object["schema_version"].dump(),
                                   profile_schema_version));
  if (!object.contains("machine") || !object["machine"].is_string()) return bad_request("does not name its machine");
  p.machine = object["machine"].get<std::string>();
  for (const Count& c : counts) {
    std::uint32_t value = 0;
    SLUICE_TRY(read_count(object, c.name, 65536, value));
    p.*c.field = static_cast<int>(value);
  }
  for (const Rate<HardwareProfile>& r : machine_rates)
    SLUICE_TRY(read_number(object, r.name, r.may_be_zero, p.*r.field));
  for (const MessagesOf& of : all_messages) SLUICE_TRY(read_messages(object, of.name, p.*of.field));
  const auto drives = object.find("drives");
  if (drives == object.end() || !drives->is_object()) return bad_request("has no object 'drives'");
  for (const auto& [key, drive] : drives->items()) SLUICE_TRY(read_drive(drive, p.drives[key]));
  const auto devices = object.find("devices");
  if (devices == object.end() || !devices->is_object()) return bad_request("has no object 'devices'");
  for (const auto& [key, device] : devices->items()) {
    if (!device.is_object()) return bad_request("has a device that is no object");
    for (const Rate<DeviceProfile>& r : device_rates)
      SLUICE_TRY(read_number(device, r.name, r.may_be_zero, p.devices[key].*r.field));
    std::uint32_t threads = 0;
    SLUICE_TRY(read_count(device, "optimizer_threads", 65536, threads));
    p.devices[key].optimizer_threads = static_cast<int>(threads);
    SLUICE_TRY(read_choices(device, p.devices[key].choices));
  }
  const auto ops = object.find("op_seconds");
  if (ops == object.end() || !ops->is_object()) return bad_request("has no object 'op_seconds'");
  for (const auto& [key, unused] : ops->items()) SLUICE_TRY(read_number(*ops, key, false, p.op_seconds[key]));
  if (const auto measures = object.find("measures_ops"); measures != object.end()) {
    if (!measures->is_boolean()) return bad_request("has 'measures_ops', which is neither true nor false");
    p.measures_ops = measures->get<bool>();
  }
  return success();
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0 && line.find(':') != std::string::npos)
      return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown CPU";
}

}  // namespace

std::string machine_id() {
  utsname system{};
  uname(&system);
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return fmt::format("{}, {} cores, {} {}", cpu_model(), cores, system.sysname, system.release);
}

Result<std::string> default_profile_path() {
  const auto cache = user_cache_directory();
  if (!cache.ok()) return bad_request(cache.error().message + "; name the hardware profile with --profile FILE");
  return *cache + "/profile.json";
}

Result<HardwareProfile> profile_from_text(const std::string& text) {
  SLUICE_TRY(check_json(text));
  const json object = json::parse(text, nullptr, false);
  HardwareProfile profile;
  SLUICE_TRY(read_profile(object, profile));
  return profile;
}

Result<HardwareProfile> load_profile(const std::string& path) {
  const auto refuse = [&path](const Error& why) {
    return bad_request(fmt::format("profile {}: {}; make it anew with 'sluice bench all'", path, why.message));
  };
  auto text = read_file(path, largest_profile_bytes);
  if (!text.ok()) return refuse(text.error());
  auto profile = profile_from_text(*text);
  if (!profile.ok()) return refuse(profile.error());
  return profile;
}

bool select_drive(HardwareProfile& profile, std::span<const std::string> directories) {
  const auto found = profile.drives.find(drive_key(directories));
  if (found == profile.drives.end()) return false;
  profile.drive = found->second;
  return true;
}

bool select_device(HardwareProfile& profile, const std::string& kind) {
  const auto found = profile.devices.find(kind);
  profile.device.reset();
  if (found != profile.devices.end()) profile.device = found->second;
  return profile.device.has_value() || kind.empty();
}

namespace {

json profile_json(const HardwareProfile& profile) {
  json object{{"schema_version", profile.schema_version}, {"machine", profile.machine}};
  for (const Count& c : counts) object[c.name] = profile.*c.field;
  for (const Rate<HardwareProfile>& r : machine_rates) object[r.name] = profile.*r.field;
  for (const MessagesOf& of : all_messages) {
    if (!(profile.*of.field)) continue;
    for (const Rate<MessageRates>& r : message_rates) object[of.name][r.name] = (*(profile.*of.field)).*r.field;
  }
  object["drives"] = json::object();
  for (const auto& [key, drive] : profile.drives) object["drives"][key] = drive_json(drive);
  object["devices"] = json::object();
  for (const auto& [key, device] : profile.devices) {
    json& of = object["devices"][key];
    for (const Rate<DeviceProfile>& r : device_rates) of[r.name] = device.*r.field;
    of["optimizer_threads"] = device.optimizer_threads;
    of["choices"] = device.choices.empty() ? json::object() : json(device.choices);
  }
  object["op_seconds"] = profile.op_seconds;
  if (profile.op_seconds.empty()) object["op_seconds"] = json::object();
  if (!profile.measures_ops) object["measures_ops"] = false;
  return object;
}

}  // namespace

std::string to_text(const HardwareProfile& profile) { return profile_json(profile).dump(); }

Status save_profile(const std::string& path, const HardwareProfile& profile) {
  json object = profile_json(profile);
  // They are of the file (doubts.h).
  if (auto old = read_file(path, largest_profile_bytes); old.ok() && check_json(*old).ok())
    if (const json before = json::parse(*old, nullptr, false); before.is_object() && before.contains("doubts"))
      object["doubts"] = before["doubts"];
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  if (failed) return fault(fmt::format("cannot make folder {}: {}", folder.string(), failed.message()));
  return publish_file(path, object.dump(2) + "\n");
}

}  // namespace sluice
