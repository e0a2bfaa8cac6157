// sluice bench: what this machine reaches, held against its physical bounds.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "sluice/size.h"
#include "src/device/efficiency.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "src/device/profile_rates.h"
#include "src/train/request/profile_doubts.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

struct RateArguments {
  std::string nvme, profile;
  int threads = 0;
  double seconds = 1;
  bool json = false;

  int team() const { return threads > 0 ? threads : usable_cores(); }
  /// More threads than cores share them: no bound would be one.
  Status check() const {
    const int cores = usable_cores();
    if (threads <= cores) return success();
    return bad_request(
        fmt::format("--threads {}: this process may run on {} cores; give at most as many", threads, cores));
  }
};

/// One line of a bench: what was reached, and what the machine allows.
struct Row {
  std::string name, unit;
  double achieved, bound;  ///< bound 0: unknown
  std::string bound_is;
};

void print_rows(const std::vector<Row>& rows, bool json) {
  if (json) {
    nlohmann::json results = nlohmann::json::array();
    for (const Row& r : rows) {
      results.push_back({{"name", r.name},
                         {"unit", r.unit},
                         {"achieved", r.achieved},
                         {"bound", r.bound},
                         {"ratio", r.bound > 0 ? r.achieved / r.bound : 0},
                         {"bound_is", r.bound_is}});
      if (r.bound > 0 && beats_bound(r.achieved / r.bound)) results.back()["bound_beaten"] = true;
    }
    fmt::print("{}\n", nlohmann::json{{"machine", machine_id()}, {"results", results}}.dump());
    return;
  }
  Table table({"", "achieved", "bound", "ratio", "the bound is"});
  for (const Row& r : rows)
    table.add({r.name, format_count(r.achieved) + r.unit, r.bound > 0 ? format_count(r.bound) + r.unit : "unknown",
               r.bound > 0 ? format_efficiency(r.achieved / r.bound, "bound") : "", r.bound_is});
  fmt::print("{}", table.text());
}

Status bench_matmul(const RateArguments& o, std::vector<Row>& rows) {
  kernels::set_compute_threads(o.team());
  const double peak = measure_peak_flops_f32(o.team(), 0.5), peak_bf16 = measure_peak_flops_bf16(o.team(), 0.5);
  const bool native = kernels::gemm_bf16_is_native() && peak_bf16 > 0;
  rows.push_back({"matmul f32", "FLOP/s", measure_gemm_flops(usual_gemm_shapes(), Dtype::f32, o.seconds * 3), peak,
                  "fused multiply-add on registers"});
  rows.push_back({"matmul bf16", "FLOP/s", measure_gemm_flops(usual_gemm_shapes(), Dtype::bf16, o.seconds * 3),
                  native ? peak_bf16 : peak, native ? "bf16 units" : "fp32 units: this CPU has none for bf16"});
  return success();
}

Status bench_norm(const RateArguments& o, std::vector<Row>& rows) {
  rows.push_back({"gradient norm", "B/s", measure_norm_bytes_per_second(o.team(), o.seconds),
                  2 * measure_stream_bytes_per_second(o.team(), o.seconds), "memory read and written in place"});
  return success();
}

nlohmann::json as_json(const HardwareProfile& p, const std::string& path) {
  return {{"profile", path},
          {"machine", p.machine},
          {"cores", p.cores},
          {"compute_threads", p.compute_threads},
          {"optimizer_threads", p.optimizer_threads},
          {"gemm_flops_f32", p.gemm_flops_f32},
          {"gemm_flops_bf16", p.gemm_flops_bf16},
          {"peak_flops_f32", p.peak_flops_f32},
          {"peak_flops_bf16", p.peak_flops_bf16},
          {"copy_bytes_per_second", p.h2d_bytes_per_second},
          {"memory_bytes_per_second", p.memory_bytes_per_second},
          {"adamw_parameters_per_second", p.adamw_parameters_per_second},
          {"norm_bytes_per_second", p.norm_bytes_per_second},
          {"checksum_bytes_per_second", p.checksum_bytes_per_second},
          {"op_overhead_seconds", p.op_overhead_seconds},
          {"handoff_seconds", p.handoff_seconds},
          {"nvme_block_bytes", p.drive.block_bytes},
          {"nvme_depth", p.drive.depth},
          {"nvme_backend", p.drive.backend},
          {"nvme_read_bytes_per_second", p.drive.read_bytes_per_second},
          {"nvme_write_bytes_per_second", p.drive.write_bytes_per_second},
          {"nvme_mixed_bytes_per_second", p.drive.mixed_bytes_per_second},
          {"nvme_request_seconds", p.drive.request_seconds},
          {"nvme_read_latency_seconds", p.drive.read_latency_seconds},
          {"nvme_write_latency_seconds", p.drive.write_latency_seconds},
          {"nvme_sync_seconds_per_byte", p.drive.sync_seconds_per_byte}};
}

void print_profile(const HardwareProfile& p, const std::string& path) {
  const auto share = [](double rate, double peak) {
    return peak > 0 ? fmt::format("{:.0f}% of the chip's peak {}FLOP/s", 100 * rate / peak, format_count(peak)) : "";
  };
  Table table({p.machine, "", ""});
  table.add(
      {"matrix multiply, fp32", format_count(p.gemm_flops_f32) + "FLOP/s", share(p.gemm_flops_f32, p.peak_flops_f32)});
  table.add({"matrix multiply, bf16", format_count(p.gemm_flops_bf16) + "FLOP/s",
             share(p.gemm_flops_bf16, p.peak_flops_bf16 > 0 ? p.peak_flops_bf16 : p.peak_flops_f32)});
  table.add({"memory, read and written", format_rate(2 * p.memory_bytes_per_second), ""});
  table.add({"copy, one thread", format_rate(p.h2d_bytes_per_second), ""});
  table.add({"AdamW", format_count(p.adamw_parameters_per_second) + "parameters/s", ""});
  table.add({"gradient norm", format_rate(p.norm_bytes_per_second), ""});
  table.add({"checksum, one thread", format_rate(p.checksum_bytes_per_second), ""});
  table.add({"drive, read", format_rate(p.drive.read_bytes_per_second), ""});
  table.add({"drive, write", format_rate(p.drive.write_bytes_per_second), ""});
  table.add({"drive, half and half", format_rate(p.drive.mixed_bytes_per_second), ""});
  table.add({"drive, requests", fmt::format("{} x {}", p.drive.depth, format_bytes(p.drive.block_bytes)),
             "tuned by 'bench io --tune', or the usual"});
  table.add({"drive, one request more", format_seconds(p.drive.request_seconds), ""});
  table.add({"drive, latency of a read", format_seconds(p.drive.read_latency_seconds), ""});
  table.add({"drive, latency of a write", format_seconds(p.drive.write_latency_seconds), ""});
  table.add({"drive, sync of a GiB written", format_seconds(p.drive.sync_seconds_per_byte * (1u << 30)), ""});
  table.add({"executor, per op", format_seconds(p.op_overhead_seconds), ""});
  table.add({"executor, waking a lane", format_seconds(p.handoff_seconds), ""});
  fmt::print("{}written to {}\n", table.text(), path);
}

Status bench_all(const RateArguments& o) {
  SLUICE_TRY(o.check());
  std::string path = o.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
    return bad_request("--profile " + path + " is a directory; give the name of a file");
  ProgressLine progress(0, !o.json && stderr_is_terminal());
  // What was measured earlier on this very machine stays: seconds of ops, other drives, and how drives were tuned.
  HardwareProfile old;
  if (std::filesystem::exists(path))
    if (auto loaded = load_profile(path); loaded.ok() && loaded->machine == machine_id()) old = *std::move(loaded);
  // The drive first: it is what can be refused.
  SLUICE_ASSIGN(const std::vector<std::string> directories, split_list("--nvme", o.nvme.empty() ? "." : o.nvme));
  progress.update("measuring: drive");
  DriveOptions drive;
  drive.directories = directories;
  if (select_drive(old, directories)) {
    drive.setting.block_bytes = old.drive.block_bytes;
    drive.setting.depth = old.drive.depth;
    SLUICE_ASSIGN(drive.setting.backend, parse_io_backend(old.drive.backend));
  }
  Doubts doubts = load_doubts(path);
  SLUICE_ASSIGN(old.drives[drive_key(directories)], measure_drive_quietly(drive, doubts));
  MeasureOptions options;
  options.compute_threads = o.threads;
  options.progress = [&progress](const std::string& what) { progress.update("measuring: " + what); };
  // Made anew, and so are the doubts: seconds of ops that are doubted are measured when they are needed.
  Doubts anew;
  for (const auto& [name, of] : doubts.all())
    if (old.op_seconds.contains(name) && doubts.has(name))
      old.op_seconds.erase(name);
    else if (name == drive_doubt(drive_key(directories)) || name.starts_with("device "))
      anew.all()[name] = of;
  SLUICE_ASSIGN(HardwareProfile profile, measure_profile(options, anew));
  progress.finish();
  profile.op_seconds = old.op_seconds;
  profile.drives = old.drives;
  profile.devices = old.devices;
  select_drive(profile, directories);
  SLUICE_TRY(save_profile(path, profile));
  SLUICE_TRY(save_doubts(path, anew));
  std::vector<std::string> doubted = rate_names();
  doubted.push_back(drive_doubt(drive_key(directories)));
  if (const std::string text = anew.describe(doubted); !text.empty())
    fmt::print(stderr, "the machine was not quiet: {}; the next plan or train on a quiet machine measures that again\n",
               text);
  if (o.json)
    fmt::print("{}\n", as_json(profile, path).dump());
  else
    print_profile(profile, path);
  return success();
}

using Bench = Status (*)(const RateArguments&, std::vector<Row>&);

Command* add_bench_of(Command& bench, const std::string& name, const std::string& what, const std::string& examples,
                      const std::shared_ptr<RateArguments>& options) {
  Command* command = add_command(bench, name, what, examples);
  command->add_option("--threads", options->threads, "compute threads (default: all cores)")->check(range(1, 1024));
  command->add_flag("--json", options->json, "print one JSON object");
  return command;
}

}  // namespace

void add_bench(Command& app, Outcome& outcome) {
  Command* bench = add_command(app, "bench", "measure this machine against its physical bounds", "");
  bench->require_subcommand(1);
  auto options = std::make_shared<RateArguments>();

  Command* all =
      add_bench_of(*bench, "all", "measure everything and write the hardware profile (about 30 s)",
                   "  sluice bench all --nvme /nvme\n  sluice bench all --profile here.json --json", options);
  all->add_option("--nvme", options->nvme,
                  "directories of the swap file, separated by commas (default: the current one)");
  all->add_option("--profile", options->profile, "file to write (default: ~/.cache/sluice/profile.json)");
  all->callback([options, &outcome] { outcome.finish("bench all", bench_all(*options)); });

  const auto add = [&](const std::string& name, const std::string& what, const std::string& examples, Bench run) {
    Command* command = add_bench_of(*bench, name, what, examples, options);
    command->add_option("--seconds", options->seconds, "per measurement")
        ->check(between(0.01, 600.0))
        ->capture_default_str();
    command->callback([options, &outcome, run, name] {
      std::vector<Row> rows;
      Status result = options->check();
      if (result.ok()) result = run(*options, rows);
      if (result.ok()) print_rows(rows, options->json);
      outcome.finish("bench " + name, result);
    });
    return command;
  };
  add("matmul", "matrix multiplies against the arithmetic peak", "  sluice bench matmul --threads 1", bench_matmul);
  add("norm", "the gradient's norm against the memory's bandwidth", "  sluice bench norm --json", bench_norm);
  add_bench_adamw(*bench, outcome);
  add_bench_copy(*bench, outcome);
  add_bench_collective(*bench, outcome);
  add_bench_device(*bench, outcome);
  add_bench_io(*bench, outcome);
  add_bench_pack(*bench, outcome);
}

}  // namespace sluice::tools
