// sluice bench device: what a GPU reaches, and its part of the hardware profile.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/size.h"
#include "src/device/device.h"
#include "src/device/efficiency.h"
#include "src/device/profile.h"
#include "src/device/profile_device.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;
using Way = DeviceBench::Way;

struct DeviceArguments {
  std::string device = "cuda", profile;
  bool json = false;
};

struct Measured {
  std::string name;
  double rate = 0;
};

struct Results {
  std::vector<Measured> copies, matmuls, attention;
};

constexpr int passes = 5;

/// Median of several passes after one to warm up.
template <class F>
Result<double> median_seconds(F pass) {
  std::array<double, passes> all{};
  SLUICE_TRY(pass());
  for (double& seconds : all) {
    SLUICE_ASSIGN(seconds, pass());
  }
  std::sort(all.begin(), all.end());
  return all[passes / 2];
}

std::vector<std::uint64_t> sizes_up_to(std::uint64_t most) {
  std::vector<std::uint64_t> list;
  for (std::uint64_t bytes = 64u << 10; bytes < most; bytes *= 8) list.push_back(bytes);
  list.push_back(most);
  return list;
}

Status bench_copies(DeviceBench& bench, const DeviceSizes& sizes, std::vector<Measured>& out) {
  constexpr std::array ways{std::pair{Way::down, "host to device"}, std::pair{Way::up, "device to host"},
                            std::pair{Way::both, "both at once"}, std::pair{Way::within, "within the device"}};
  for (const auto& [way, name] : ways)
    for (const std::uint64_t bytes : sizes_up_to(sizes.copy_bytes)) {
      SLUICE_ASSIGN(const double seconds, median_seconds([&, way = way] { return bench.copy_seconds(way, bytes, 4); }));
      out.push_back({fmt::format("copy, {}, {}", name, format_bytes(bytes)),
                     static_cast<double>(bytes) * (way == Way::both ? 2 : 1) / seconds});
    }
  return success();
}

/// Those of llama-7b at 16,384 tokens where the memory is as large as that asks for, else smaller ones alike.
Status bench_matmuls(DeviceBench& bench, const DeviceSizes& sizes, std::vector<Measured>& out) {
  const auto scaled = [&](std::int64_t n) { return std::max<std::int64_t>(n * sizes.gemm / 8192 / 8 * 8, 16); };
  const std::int64_t tokens = scaled(16384), hidden = scaled(4096), ffn = scaled(11008);
  const auto measure = [&](const char* what, const GemmShape& s, Dtype dtype, Dtype result) -> Status {
    SLUICE_ASSIGN(const double seconds, median_seconds([&] { return bench.gemm_seconds(s, dtype, result); }));
    out.push_back({fmt::format("matmul {}, {} {} x {} x {}", dtype_name(dtype), what, s.m, s.n, s.k),
                   2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / seconds});
    return success();
  };
  for (const std::int64_t width : {hidden, ffn}) {
    SLUICE_TRY(measure("forward", {tokens, width, hidden, false, true}, Dtype::bf16, Dtype::bf16));
    SLUICE_TRY(measure("input gradient", {tokens, hidden, width, false, false}, Dtype::bf16, Dtype::bf16));
    SLUICE_TRY(measure("weight gradient", {width, hidden, tokens, true, false}, Dtype::bf16, Dtype::f32));
  }
  return measure("forward", {hidden, hidden, hidden, false, true}, Dtype::f32, Dtype::f32);
}

Status bench_attention(DeviceBench& bench, const DeviceSizes& sizes, std::vector<Measured>& out) {
  for (const std::int64_t longest : {2048, 4096})
    for (const bool backward : {false, true}) {
      const std::int64_t sequence = std::max<std::int64_t>(longest * sizes.gemm / 8192, 32), heads = 32, width = 128;
      SLUICE_ASSIGN(const double seconds, median_seconds([&] {
                      return bench.attention_seconds({1, sequence, heads, heads, width}, backward);
                    }));
      // Two multiplies of half a square of scores forward, five backward.
      const double flop = (backward ? 5.0 : 2.0) * static_cast<double>(sequence * sequence * heads * width);
      out.push_back({fmt::format("attention {}, {} tokens, {} heads of {}", backward ? "backward" : "forward", sequence,
                                 heads, width),
                     flop / seconds});
    }
  return success();
}

Json as_json(const std::vector<Measured>& list) {
  Json j = Json::object();
  for (const Measured& m : list) j[m.name] = m.rate;
  return j;
}

Json as_json(const DeviceProfile& p) {
  return {{"gemm_flops_f32", p.gemm_flops_f32},
          {"gemm_flops_bf16", p.gemm_flops_bf16},
          {"memory_bytes_per_second", p.memory_bytes_per_second},
          {"adamw_parameters_per_second", p.adamw_parameters_per_second},
          {"h2d_bytes_per_second", p.h2d_bytes_per_second},
          {"d2h_bytes_per_second", p.d2h_bytes_per_second},
          {"both_bytes_per_second", p.both_bytes_per_second},
          {"op_overhead_seconds", p.op_overhead_seconds}};
}

void print(const std::string& name, const Results& r, const DeviceProfile& p, const std::string& path) {
  Table table({name, "", "share of the most"});
  const auto add = [&](const std::vector<Measured>& list, const char* unit, double most) {
    for (const Measured& m : list)
      table.add({m.name, format_count(m.rate) + unit, format_efficiency(m.rate / most, "most")});
  };
  for (const auto& [way, most] : {std::pair{"host to", p.h2d_bytes_per_second},
                                  {"device to", p.d2h_bytes_per_second},
                                  {"both", p.both_bytes_per_second},
                                  {"within", p.memory_bytes_per_second}}) {
    std::vector<Measured> of_way;
    for (const Measured& m : r.copies)
      if (m.name.starts_with(std::string("copy, ") + way)) of_way.push_back(m);
    add(of_way, "B/s", most);
  }
  table.add({"AdamW", format_count(p.adamw_parameters_per_second) + "parameters/s",
             format_efficiency(
                 p.adamw_parameters_per_second * adamw_bytes_per_parameter / 2 / p.memory_bytes_per_second, "most")});
  add(r.matmuls, "FLOP/s", p.gemm_flops_bf16);
  add(r.attention, "FLOP/s", p.gemm_flops_bf16);
  table.add({"an op more", format_seconds(p.op_overhead_seconds), ""});
  fmt::print("{}written to {}\n", table.text(), path);
}

/// The profile of this machine as far as it was measured before, or its host's part now.
Result<HardwareProfile> profile_so_far(const std::string& path, ProgressLine& progress) {
  if (std::filesystem::exists(path))
    if (auto loaded = load_profile(path); loaded.ok() && profile_is_of_this_machine(*loaded)) return *std::move(loaded);
  MeasureOptions options;
  options.progress = [&progress](const std::string& what) { progress.update("measuring: " + what); };
  return measure_profile(options);
}

Status bench_device(const DeviceArguments& o) {
  std::string path = o.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  SLUICE_ASSIGN(const std::unique_ptr<Device> device, Device::open(o.device));
  if (device->kind().empty())
    return bad_request("--device " + o.device + " is the host; 'sluice bench all' measures it");
  ProgressLine progress(0, !o.json && stderr_is_terminal());
  SLUICE_ASSIGN(HardwareProfile profile, profile_so_far(path, progress));
  SLUICE_ASSIGN(const std::uint64_t free, device->free_bytes());
  const DeviceSizes sizes(free);
  SLUICE_ASSIGN(const std::unique_ptr<DeviceBench> bench, device->make_bench(1, {}));
  progress.update("measuring: the device's rates");
  SLUICE_ASSIGN(const DeviceProfile measured, measure_device(*bench, sizes));
  Results results;
  progress.update("measuring: copies");
  SLUICE_TRY(bench_copies(*bench, sizes, results.copies));
  progress.update("measuring: multiplies");
  SLUICE_TRY(bench_matmuls(*bench, sizes, results.matmuls));
  progress.update("measuring: attention");
  SLUICE_TRY(bench_attention(*bench, sizes, results.attention));
  progress.finish();
  // What ops took, and which kernels were quickest, is measured again by the runs that need it.
  profile.devices[device->kind()] = measured;
  std::erase_if(profile.op_seconds, [&](const auto& op) { return op.first.find(device->kind()) != std::string::npos; });
  SLUICE_TRY(save_profile(path, profile));
  if (!o.json) {
    print(device->description(), results, measured, path);
    return success();
  }
  fmt::print("{}\n", Json{{"profile", path},
                          {"device", device->description()},
                          {"rates", as_json(measured)},
                          {"copies", as_json(results.copies)},
                          {"matmuls", as_json(results.matmuls)},
                          {"attention", as_json(results.attention)}}
                         .dump());
  return success();
}

}  // namespace

void add_bench_device(Command& bench, Outcome& outcome) {
  Command* command = add_command(
      bench, "device", "measure a GPU: copies by size, multiplies, attention, memory; and write it into the profile",
      "  sluice bench device\n  sluice bench device --device cuda:1 --json");
  auto options = std::make_shared<DeviceArguments>();
  command->add_option("--device", options->device, "cuda (the first GPU) or cuda:N")->capture_default_str();
  command->add_option("--profile", options->profile, "file to write (default: ~/.cache/sluice/profile.json)");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &outcome] { outcome.finish("bench device", bench_device(*options)); });
}

}  // namespace sluice::tools
