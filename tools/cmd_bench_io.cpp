// sluice bench io: what drives reach, as training uses them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/device/link_measure.h"
#include "src/device/profile_measure.h"
#include "tools/bench_io.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

struct Typed {
  BenchIoOptions options;
  std::vector<std::string> paths;
  std::string mode, pattern = "sequential", backend = "auto", against;
  bool sweep = false, tune = false;
};

Result<BenchIoOptions> resolve(const Typed& typed) {
  BenchIoOptions o = typed.options;
  for (const std::string& list : typed.paths) {
    SLUICE_ASSIGN(const std::vector<std::string> paths, split_list("--path", list));
    o.paths.insert(o.paths.end(), paths.begin(), paths.end());
  }
  if (o.paths.empty()) o.paths.emplace_back(".");
  for (std::size_t i = 0; i < o.paths.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (is_same_file(o.paths[i], o.paths[j]))
        return bad_request("--path " + o.paths[j] + "," + o.paths[i] + ": both are one place; name it once");
  for (const StreamMode mode : {StreamMode::read, StreamMode::write, StreamMode::mixed})
    if (typed.mode.empty() || typed.mode == stream_mode_names[static_cast<std::size_t>(mode)]) o.modes.push_back(mode);
  o.setting.random = typed.pattern == "random";
  SLUICE_ASSIGN(o.setting.backend, parse_io_backend(typed.backend));
  if ((typed.sweep ? 1 : 0) + (typed.tune ? 1 : 0) + (typed.against.empty() ? 0 : 1) > 1)
    return bad_request("--sweep, --tune and --against exclude each other: run them one after the other");
  if (!o.svg.empty() && !typed.sweep) return bad_request("--svg draws a sweep: add --sweep");
  if (!o.profile.empty() && !typed.tune) return bad_request("--profile is written by --tune: add it");
  const std::uint64_t block = typed.sweep  ? sweep_block_bytes_min
                              : typed.tune ? tune_block_bytes_min
                                           : o.setting.block_bytes;
  const std::uint64_t part = o.file_bytes / std::max<std::size_t>(1, o.setting.threads);
  if (part < block)
    return bad_request(fmt::format("--size {}: a thread's part of the file, {}, is smaller than a block of {}",
                                   format_bytes(o.file_bytes), format_bytes(part), format_bytes(block)));
  // Studies have blocks of their own; this one is for the checks ahead of them.
  o.setting.block_bytes = std::min(o.setting.block_bytes, part / block * block);
  const std::uint64_t memory = std::max(o.setting.memory_bytes, in_flight_bytes(o.setting, o.paths.size()));
  if (!typed.sweep && !typed.tune && memory > available_host_bytes())
    return bad_request(
        fmt::format("--block x --depth x --threads, and --memory, ask for {} of memory, and {} are available",
                    format_bytes(memory), format_bytes(available_host_bytes())));
  if (o.setting.memory_bytes > available_host_bytes())
    return bad_request(fmt::format("--memory {}: {} are available", format_bytes(o.setting.memory_bytes),
                                   format_bytes(available_host_bytes())));
  o.stop = &stop_on_signals();
  return o;
}

Status bench_io(const BenchIoOptions& o) {
  ProgressLine line(10, !o.json && stderr_is_terminal());
  SLUICE_ASSIGN(DriveBench bench, open_drive_bench(o, line));
  Table table({"", "rate", "IOPS", "latency p50", "p99", "p99.9", "max", "CPU s/GiB"});
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::string backend;
  for (std::size_t i = 0; i < o.modes.size(); ++i) {
    StreamSetting setting = o.setting;
    setting.mode = o.modes[i];
    const char* const name = stream_mode_names[static_cast<std::size_t>(setting.mode)];
    if (const auto bytes = in_flight_bytes(setting, o.paths.size()); bytes > bench.file().bytes())
      fmt::print(
          stderr,
          "sluice bench io: note: {} are in flight at once ({}), more than the file of {}, so that requests meet "
          "on the same blocks; give a larger --size or a smaller --depth\n",
          format_bytes(bytes), name, format_bytes(bench.file().bytes()));
    line.update(fmt::format("measuring: {}", name), static_cast<double>(i) / static_cast<double>(o.modes.size()));
    SLUICE_ASSIGN(const StreamResult r, bench.run(setting, o.seconds));
    backend = r.backend;
    all.push_back(to_json(setting, r));
    table.add({name, format_rate(r.bytes_per_second()), format_count(r.iops()),
               microseconds(r.latency.quantile_seconds(0.5)), microseconds(r.latency.quantile_seconds(0.99)),
               microseconds(r.latency.quantile_seconds(0.999)), microseconds(r.latency.max_seconds()),
               fmt::format("{:.3f}", r.cpu_seconds_per_gib())});
  }
  line.finish();
  if (o.json) {
    fmt::print("{}\n", all.size() == 1 ? all[0].dump() : nlohmann::ordered_json{{"results", all}}.dump());
    return success();
  }
  fmt::print("{}\n{} x {}, {}{}\n{}", bench.file().description(), o.setting.depth, format_bytes(o.setting.block_bytes),
             o.setting.random ? "random, " : "", backend, table.text());
  return success();
}

Status run(const Typed& typed) {
  SLUICE_ASSIGN(const BenchIoOptions o, resolve(typed));
  if (typed.sweep) return bench_io_sweep(o);
  if (typed.tune) return bench_io_tune(o);
  if (!typed.against.empty()) return bench_io_against_fio(o);
  return bench_io(o);
}

void add_stream_options(Command* io, Typed* t) {
  StreamSetting& s = t->options.setting;
  io->add_option("--path,--nvme", t->paths,
                 "directory on the drive (default: the current one); repeat it to stripe over several")
      ->type_name("DIR");
  add_size(io, "--size", &t->options.file_bytes, "of the temporary file, all paths together (default: 1GiB)");
  add_size(io, "--block", &s.block_bytes, "bytes per request (default: 512KiB)");
  io->add_option("--depth", s.depth, "requests in flight per path and thread; mixed: of reads and of writes each")
      ->check(range(1, 4096))
      ->capture_default_str();
  io->add_option("--backend", t->backend, "how requests reach the kernel")
      ->check(one_of({"auto", "io_uring", "libaio", "threads"}))
      ->capture_default_str();
  io->add_option("--mode", t->mode, "read, write, or mixed as in training (default: all three)")
      ->check(one_of({"read", "write", "mixed"}));
  io->add_option("--pattern", t->pattern, "order of the blocks")
      ->check(one_of({"sequential", "random"}))
      ->capture_default_str();
  io->add_option("--threads", s.threads, "threads, each with a queue and a part of the file of its own")
      ->check(range(1, 256))
      ->capture_default_str();
  add_size(io, "--memory", &s.memory_bytes,
           "that the requests go through in turn (default: 256MiB, more than caches hold, as in a run; with --against "
           "0: a buffer per request, as fio has)");
  io->add_flag("--sqpoll", s.sqpoll, "io_uring: a kernel thread submits (it takes a core)");
  io->add_flag("--iopoll", s.iopoll, "io_uring: completions are polled for; needs a drive with poll queues");
  io->add_option("--seconds", t->options.seconds, "per measurement (default: 2; sweep and tune 0.4)")
      ->check(between(0.01, 3600.0));
  io->add_flag("--json", t->options.json, "print one JSON object");
}

void add_studies(Command* io, Typed* t) {
  io->add_flag("--sweep", t->sweep, "measure block x depth x backend; prints tables and draws heat maps")
      ->group("Studies");
  io->add_option("--svg", t->options.svg,
                 "file for the sweep's picture: a heat map for each mode, one below the other (default: io-sweep.svg, "
                 "or where there is one io-sweep-2.svg and so on)")
      ->group("Studies");
  io->add_flag("--tune", t->tune,
               "find the requests that cost the least CPU within 1% of the best rate, and write them into the hardware "
               "profile, which train and plan use")
      ->group("Studies");
  io->add_option("--profile", t->options.profile, "profile to tune (default: ~/.cache/sluice/profile.json)")
      ->group("Studies");
  io->add_option("--against", t->against, "the same streams by a peer, interleaved: ratio and its 95% interval")
      ->check(one_of({"fio"}))
      ->group("Studies");
  io->add_option("--pairs", t->options.pairs, "of measurements for --against")
      ->check(range(3, 1000))
      ->capture_default_str()
      ->group("Studies");
}

}  // namespace

nlohmann::ordered_json to_json(const StreamSetting& s, const StreamResult& r) {
  const auto us = [](double seconds) { return seconds * 1e6; };
  nlohmann::ordered_json j;
  j["backend"] = backend_name(r);
  j["mode"] = stream_mode_names[static_cast<std::size_t>(s.mode)];
  j["pattern"] = s.random ? "random" : "sequential";
  j["block_bytes"] = s.block_bytes;
  j["depth"] = s.depth;
  j["threads"] = s.threads;
  j["bytes_per_second"] = r.bytes_per_second();
  j["read_bytes_per_second"] = static_cast<double>(r.read_bytes) / r.seconds;
  j["write_bytes_per_second"] = static_cast<double>(r.write_bytes) / r.seconds;
  j["iops"] = r.iops();
  j["latency_us"] = {{"p50", us(r.latency.quantile_seconds(0.5))},
                     {"p99", us(r.latency.quantile_seconds(0.99))},
                     {"p999", us(r.latency.quantile_seconds(0.999))},
                     {"max", us(r.latency.max_seconds())}};
  j["cpu_seconds_per_gib"] = r.cpu_seconds_per_gib();
  j["sync_seconds"] = r.sync_seconds;
  j["backend_detail"] = r.backend;
  return j;
}

std::uint64_t in_flight_bytes(const StreamSetting& s, std::size_t paths) {
  return s.block_bytes * s.depth * s.threads * paths * (s.mode == StreamMode::mixed ? 2 : 1);
}

std::string backend_name(const StreamResult& result) { return result.backend.substr(0, result.backend.find(',')); }

std::string microseconds(double seconds) { return fmt::format("{:.0f} us", seconds * 1e6); }

Result<DriveBench> open_drive_bench(const BenchIoOptions& o, ProgressLine& line) {
  DriveBench::Options options{o.paths, {}, o.file_bytes, o.stop};
  {
    // What can be refused is, before anything takes time.
    SLUICE_ASSIGN(const DriveBench bench, DriveBench::create(options));
    SLUICE_TRY(bench.check(o.setting));
  }
  if (o.paths.size() > 1) {
    line.update("measuring each path for the stripes");
    DriveOptions drive;
    drive.directories = o.paths;
    drive.file_bytes = o.file_bytes;
    drive.setting = o.setting;
    drive.seconds = 1;
    SLUICE_ASSIGN(options.weights, measure_stripe_weights(drive));
  }
  SLUICE_ASSIGN(DriveBench bench, DriveBench::create(options));
  SLUICE_TRY(bench.fill([&](double fraction) { line.task("writing the file once", fraction); }));
  return bench;
}

void add_bench_io(Command& bench, Outcome& outcome) {
  auto typed = std::make_shared<Typed>();
  Command* io = add_command(
      bench, "io", "drives through the I/O queue: rates, latencies, CPU time; sweep, tune, compare with fio",
      "  sluice bench io --path /nvme\n"
      "  sluice bench io --path /nvme0 --path /nvme1 --mode mixed --block 256KiB --depth 32 --json\n"
      "  sluice bench io --path /nvme --sweep --svg drive.svg\n"
      "  sluice bench io --path /nvme --tune            # train and plan use what it finds\n"
      "  sluice bench io --path /nvme --mode read --block 1MiB --against fio\n"
      "Rates count bytes whose requests completed; with O_DIRECT where the file system has it. The temporary file has "
      "no\n"
      "name and is gone when the program ends, however it ends.");
  add_stream_options(io, typed.get());
  add_studies(io, typed.get());
  io->callback([typed, io, &outcome] {
    for (const char* option : {"--block", "--depth"})
      if ((typed->sweep || typed->tune) && io->count(option) > 0)
        return outcome.finish(
            "bench io", bad_request(std::string(option) + ": --sweep and --tune measure all of them; leave it out"));
    if (typed->against.empty() && io->count("--pairs") > 0)
      return outcome.finish("bench io", bad_request("--pairs is of --against: add it"));
    typed->options.seconds_given = io->count("--seconds") > 0;
    if (!typed->against.empty() && io->count("--memory") == 0) typed->options.setting.memory_bytes = 0;
    outcome.finish("bench io", run(*typed));
  });
}

}  // namespace sluice::tools
