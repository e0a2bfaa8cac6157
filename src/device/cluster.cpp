#include "src/device/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/device/profile_json.h"
#include "src/device/published_peaks.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::uint64_t largest_cluster_bytes = 1u << 20;
constexpr std::uint32_t ranks_of_machine_max = 4096, cores_max = 4096, drives_max = 64;

// Of AdamW with bf16 parameters, their remainders, and gradients and moments of fp32: read 16, written 12.
constexpr double adamw_bytes = 28;
/// A thread that slept is woken; measured on hosts of GPUs it takes 10 to 50 us.
constexpr double assumed_handoff_seconds = 2e-5;
/// Of a small collective between GPUs; NCCL's take 10 to 20 us inside a machine.
constexpr double assumed_latency_seconds = 1.5e-5;

/// Those that mean something.
Status check_keys(const json& object, const std::string& where, std::initializer_list<const char*> known) {
  for (const auto& [key, value] : object.items())
    if (std::ranges::none_of(known, [&](const char* name) { return key == name; }))
      return bad_request(fmt::format("{}has '{}', which means nothing", where, shown(key)));
  return success();
}

/// An object of that name; null where there is none.
Result<const json*> object_of(const json& file, const char* name) {
  const auto found = file.find(name);
  if (found == file.end()) return static_cast<const json*>(nullptr);
  if (!found->is_object()) return bad_request(fmt::format("has '{}', which is no object", name));
  return &*found;
}

/// A given number counts; `known`, where it is not 0, where none is given.
Status read_figure(const json& object, const std::string& where, const char* name, double known, double& out) {
  out = known;
  if (known > 0 && !object.contains(name)) return success();
  const Status read = read_number(object, name, false, out);
  return read.ok() ? read : Status(bad_request(where + read.error().message));
}

Status read_share(const json& object, const char* name, double known, double& out) {
  SLUICE_TRY(read_figure(object, "the device ", name, known, out));
  return out <= 1 ? success() : Status(bad_request(fmt::format("the device has '{}' {}, a share above 1", name, out)));
}

Status read_bytes(const json& object, const std::string& where, const char* name, double known, std::uint64_t& out) {
  double bytes = 0;
  SLUICE_TRY(read_figure(object, where, name, known, bytes));
  if (bytes < 1 || bytes > 1e18)
    return bad_request(fmt::format("{}has '{}' {}, no number of bytes", where, name, bytes));
  out = static_cast<std::uint64_t>(bytes);
  return success();
}

Status read_device(const json& object, ClusterDevice& d) {
  const std::string where = "the device ";
  SLUICE_TRY(
      check_keys(object, where,
                 {"name", "memory_bytes", "flops_bf16", "flops_f32", "memory_bytes_per_second", "link_bytes_per_second",
                  "efficiency", "memory_efficiency", "link_efficiency", "meets_in_host"}));
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get<std::string>().empty())
    return bad_request("the device has no 'name'");
  d.name = name->get<std::string>();
  const PublishedDevice known = published_device(d.name).value_or(PublishedDevice());
  const bool needs_more = known.memory_bytes == 0 && !object.contains("memory_bytes");
  if (needs_more)
    return bad_request(
        fmt::format("the device '{}' is not known by its data sheet, as {} are, and has no "
                    "'memory_bytes'",
                    shown(d.name), published_device_names()));
  SLUICE_TRY(read_bytes(object, where, "memory_bytes", static_cast<double>(known.memory_bytes), d.memory_bytes));
  SLUICE_TRY(read_figure(object, where, "flops_bf16", published_peak_flops(d.name, Dtype::bf16), d.flops_bf16));
  SLUICE_TRY(read_figure(object, where, "flops_f32", published_peak_flops(d.name, Dtype::f32), d.flops_f32));
  SLUICE_TRY(
      read_figure(object, where, "memory_bytes_per_second", known.memory_bytes_per_second, d.memory_bytes_per_second));
  SLUICE_TRY(read_figure(object, where, "link_bytes_per_second", known.host_bytes_per_second, d.link_bytes_per_second));
  SLUICE_TRY(read_share(object, "efficiency", known.multiply_efficiency, d.efficiency));
  SLUICE_TRY(read_share(object, "memory_efficiency", d.memory_efficiency, d.memory_efficiency));
  SLUICE_TRY(read_share(object, "link_efficiency", d.link_efficiency, d.link_efficiency));
  const auto meets = object.find("meets_in_host");
  if (meets != object.end() && !meets->is_boolean())
    return bad_request("the device has a 'meets_in_host' that is neither true nor false");
  d.meets_in_host = meets != object.end() && meets->get<bool>();
  return success();
}

Status read_host(const json& object, ClusterHost& h) {
  const std::string where = "the host ";
  SLUICE_TRY(check_keys(object, where, {"memory_bytes", "cores", "memory_bytes_per_second"}));
  SLUICE_TRY(read_bytes(object, where, "memory_bytes", 0, h.memory_bytes));
  SLUICE_TRY(read_figure(object, where, "memory_bytes_per_second", 0, h.memory_bytes_per_second));
  std::uint32_t cores = 0;
  if (const Status read = read_count(object, "cores", cores_max, cores); !read.ok())
    return bad_request(where + read.error().message);
  h.cores = static_cast<int>(cores);
  return success();
}

Status read_drives(const json& object, ClusterDrives& d) {
  const std::string where = "drives: ";
  SLUICE_TRY(check_keys(object, where, {"count", "bytes", "read_bytes_per_second", "write_bytes_per_second"}));
  std::uint32_t count = 0;
  if (const Status read = read_count(object, "count", drives_max, count); !read.ok())
    return bad_request(where + read.error().message);
  d.count = static_cast<int>(count);
  SLUICE_TRY(read_bytes(object, where, "bytes", 0, d.bytes));
  SLUICE_TRY(read_figure(object, where, "read_bytes_per_second", 0, d.read_bytes_per_second));
  return read_figure(object, where, "write_bytes_per_second", 0, d.write_bytes_per_second);
}

Status read_machines(const json& file, Cluster& c) {
  if (!file.is_object()) return bad_request("is no object");
  SLUICE_TRY(
      check_keys(file, "", {"ranks_of_machine", "messages_inside", "messages_between", "device", "host", "drives"}));
  std::uint32_t ranks = 0;
  SLUICE_TRY(read_count(file, "ranks_of_machine", ranks_of_machine_max, ranks));
  c.ranks_of_machine = static_cast<int>(ranks);
  SLUICE_ASSIGN(const json* const device, object_of(file, "device"));
  SLUICE_ASSIGN(const json* const host, object_of(file, "host"));
  SLUICE_ASSIGN(const json* const drives, object_of(file, "drives"));
  if (device != nullptr) {
    SLUICE_TRY(read_device(*device, c.device.emplace()));
    if (host == nullptr) return bad_request("has a 'device' and no 'host' that it is in");
    SLUICE_TRY(read_host(*host, c.host));
    if (drives != nullptr) SLUICE_TRY(read_drives(*drives, c.drives.emplace()));
  } else if (host != nullptr || drives != nullptr) {
    return bad_request(fmt::format("has '{}' and no 'device' beside it", host != nullptr ? "host" : "drives"));
  }
  SLUICE_TRY(read_messages(file, "messages_inside", c.messages_inside));
  SLUICE_TRY(read_messages(file, "messages_between", c.messages_between));
  const PublishedDevice known =
      c.device ? published_device(c.device->name).value_or(PublishedDevice()) : PublishedDevice();
  if (!c.messages_inside && known.fabric_bytes_per_second > 0) {
    const double rate = known.fabric_bytes_per_second * c.device->link_efficiency;
    c.messages_inside = MessageRates{assumed_latency_seconds, rate, rate};
  }
  if (!c.messages_inside) return bad_request("has no 'messages_inside'");
  if (!c.messages_between) return bad_request("has no 'messages_between'");
  return success();
}

}  // namespace

Result<Cluster> read_cluster(const std::string& path) {
  const auto refuse = [&path](const Error& why) {
    return bad_request(fmt::format("--cluster {}: {}; see sluice plan --help", path, why.message));
  };
  const auto text = read_file(path, largest_cluster_bytes);
  if (!text.ok()) return refuse(text.error());
  if (const Status json_ok = check_json(*text); !json_ok.ok()) return refuse(json_ok.error());
  Cluster cluster;
  cluster.path = path;
  if (const Status read = read_machines(json::parse(*text, nullptr, false), cluster); !read.ok())
    return refuse(read.error());
  return cluster;
}

HardwareProfile profile_of(const Cluster& c) {
  const ClusterDevice& d = *c.device;
  HardwareProfile p;
  p.machine = d.name;
  p.messages_inside = c.messages_inside;
  p.messages_between = c.messages_between;
  p.messages_of_devices = !d.meets_in_host;
  p.cores = c.host.cores;
  p.memory_bytes_per_second = c.host.memory_bytes_per_second * d.memory_efficiency / 2;
  p.h2d_bytes_per_second = p.d2h_bytes_per_second = p.memory_bytes_per_second;
  DeviceProfile& of = p.device.emplace();
  of.gemm_flops_bf16 = d.flops_bf16 * d.efficiency;
  of.gemm_flops_f32 = d.flops_f32 * d.efficiency;
  p.gemm_flops_bf16 = p.peak_flops_bf16 = of.gemm_flops_bf16;
  p.gemm_flops_f32 = p.peak_flops_f32 = of.gemm_flops_f32;
  of.memory_bytes_per_second = d.memory_bytes_per_second * d.memory_efficiency / 2;
  of.adamw_parameters_per_second = d.memory_bytes_per_second * d.memory_efficiency / adamw_bytes;
  of.h2d_bytes_per_second = of.d2h_bytes_per_second = d.link_bytes_per_second * d.link_efficiency;
  of.both_bytes_per_second = 2 * of.h2d_bytes_per_second;
  // Ranks run alike: each has its part of the cores and of the memory's bandwidth. Lanes that move data need cores too.
  of.optimizer_threads = std::max(1, (c.host.cores - c.host.cores / 8) / c.ranks_of_machine);
  const double of_rank = c.host.memory_bytes_per_second * d.memory_efficiency / c.ranks_of_machine;
  of.host_adamw_parameters_per_second = of_rank / adamw_bytes;
  of.host_norm_bytes_per_second = of_rank;
  of.handoff_seconds = p.handoff_seconds = assumed_handoff_seconds;
  p.devices[d.name] = of;
  if (!c.drives) return p;
  const double count = c.drives->count;
  p.drive.read_bytes_per_second = count * c.drives->read_bytes_per_second;
  p.drive.write_bytes_per_second = count * c.drives->write_bytes_per_second;
  p.drive.mixed_bytes_per_second = (p.drive.read_bytes_per_second + p.drive.write_bytes_per_second) / 2;
  p.drive.stripe_weights.assign(static_cast<std::size_t>(c.drives->count), 1);
  return p;
}

std::string assumed_text(const Cluster& c) {
  const ClusterDevice& d = *c.device;
  std::string text = fmt::format(
      "{} x {} a machine with {} each at {}, multiplying bf16 at {:.3g} of {:.4g} TFLOP/s; {} to the host and back; "
      "hosts with {} at {} and {} cores",
      c.ranks_of_machine, d.name, format_bytes(d.memory_bytes),
      format_rate(d.memory_bytes_per_second * d.memory_efficiency), d.efficiency, d.flops_bf16 / 1e12,
      format_rate(d.link_bytes_per_second * d.link_efficiency), format_bytes(c.host.memory_bytes),
      format_rate(c.host.memory_bytes_per_second * d.memory_efficiency), c.host.cores);
  if (c.drives)
    text += fmt::format(", {} drives of {} that read {} and write {}", c.drives->count, format_bytes(c.drives->bytes),
                        format_rate(c.drives->read_bytes_per_second), format_rate(c.drives->write_bytes_per_second));
  return text + fmt::format("; messages {}: {} a device inside a machine, {} a machine between",
                            d.meets_in_host ? "through host memory" : "from device to device",
                            format_rate(c.messages_inside->gather_bytes_per_second),
                            format_rate(c.messages_between->gather_bytes_per_second));
}

}  // namespace sluice
