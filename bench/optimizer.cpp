// The optimizer alone over a drive, against the drive: every state and gradient is read, updated and written, in a host
// budget of an eighth of the states.
//
//     bench_optimizer [--smoke] [DIR]        DIR: on the drive, default .
//
// Per parameter: parameter, remainder, moments and gradient read (16 bytes with fp32 moments), all but the gradient
// written (12). The bound is what `bench io --mode mixed` reaches with the same requests over as large a file, measured
// before and after each pass; the ratio is of bytes per second, read and written.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "sluice/size.h"
#include "src/device/drive_bench.h"
#include "src/device/profile.h"
#include "src/device/statistics.h"
#include "src/train/states/engine.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct NoSource final : StepSource {
  Status load_tokens(RankId, std::int32_t, const StepParams&, std::span<std::int32_t>) override { return success(); }
};

Result<std::unique_ptr<Prepared>> prepared(const std::string& directory, MomentFormat moments, bool smoke) {
  RunConfig c;
  c.model = smoke ? "llama-tiny" : "llama-125m";
  c.sequence = smoke ? 32 : 256;
  c.micro_batch = c.batch = 1;
  c.moments = moments;
  c.nvme = {directory};
  c.wish.states = Place::nvme;
  c.wish.update = UpdateOrder::ahead;
  c.device_memory = 4ull << 30;
  const std::uint64_t parameters = smoke ? 800'000 : 134'000'000;
  const std::uint64_t state_bytes = parameters * (4 + 2 * moment_bytes(moments));
  c.host_memory = smoke ? 16u << 20 : state_bytes / 8;
  if (!smoke) return prepare(c, Purpose::train, {});
  // Nothing is measured before the smoke test: a profile with made-up rates does.
  c.profile = directory + "/bench_optimizer-profile.json";
  HardwareProfile profile;
  profile.machine = machine_id();
  profile.drives[drive_key(c.nvme)] = {};
  SLUICE_TRY(save_profile(c.profile, profile));
  auto run = prepare(c, Purpose::train, {});
  std::remove(c.profile.c_str());
  return run;
}

/// Bytes a second of an update of everything.
Result<double> update_all(Engine& engine, std::uint64_t& step) {
  RankTeam& team = engine.team();
  const MovedBytes before = team.moved();
  StepParams p;
  p.step = p.update_step = ++step;
  p.lr = 1e-4f;
  SLUICE_TRY(engine.begin(&StagePlans::flush));
  const Clock::time_point start = Clock::now();
  SLUICE_TRY(team.release(p));
  SLUICE_TRY(team.end());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const MovedBytes after = team.moved();
  return static_cast<double>(after.nvme_read + after.nvme_write - before.nvme_read - before.nvme_write) / seconds;
}

Status measure(const std::string& directory, MomentFormat moments, bool smoke) {
  SLUICE_ASSIGN(const auto run, prepared(directory, moments, smoke));
  if (!run->search.fits) return does_not_fit(*run);
  NoSource source;
  SLUICE_ASSIGN(const auto engine, Engine::create(*run, source, {}));
  SLUICE_TRY(engine->states().initialize("", 1, {}));
  SLUICE_ASSIGN(DriveBench bench,
                DriveBench::create({.directories = {directory},
                                    .weights = run->profile.drive.stripe_weights,
                                    .file_bytes = std::max<std::uint64_t>(run->search.needs.nvme, 64u << 20)}));
  SLUICE_TRY(bench.fill({}));
  StreamSetting mixed;
  mixed.block_bytes = run->profile.drive.block_bytes;
  mixed.depth = run->profile.drive.depth;
  mixed.memory_bytes = std::max<std::uint64_t>(run->search.needs.host / mixed.block_bytes, 64) * mixed.block_bytes;
  const double seconds = smoke ? 0.05 : 1.5;
  const auto stream = [&]() -> Result<double> {
    SLUICE_ASSIGN(const StreamResult r, bench.run(mixed, seconds));
    return r.bytes_per_second();
  };
  std::uint64_t step = 0;
  SLUICE_ASSIGN([[maybe_unused]] const double warm, update_all(*engine, step));
  std::vector<double> rates, bounds, ratios;
  SLUICE_ASSIGN(double before, stream());
  for (int round = 0; round < (smoke ? 1 : 15); ++round) {
    SLUICE_ASSIGN(const double rate, update_all(*engine, step));
    SLUICE_ASSIGN(const double after, stream());
    rates.push_back(rate);
    bounds.push_back((before + after) / 2);
    ratios.push_back(rate / bounds.back());
    before = after;
  }
  std::printf("%-6s %10s %12s %12s %10.2f %10.2f %8.3f [%.3f, %.3f]\n", moment_format_name(moments),
              format_count(static_cast<double>(run->model.parameters)).c_str(),
              format_bytes(run->search.needs.nvme).c_str(), format_bytes(run->search.needs.host).c_str(),
              median(rates) / 1e9, median(bounds) / 1e9, median(ratios),
              *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
  return success();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  bool smoke = false;
  std::string directory = ".";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0)
      smoke = true;
    else
      directory = argv[i];
  }
  std::printf("%-6s %10s %12s %12s %10s %10s %8s\n", "moment", "parameters", "on drive", "host memory", "GB/s",
              "mixed GB/s", "ratio");
  for (const auto moments : {sluice::MomentFormat::f32, sluice::MomentFormat::int8}) {
    if (const auto done = sluice::measure(directory, moments, smoke); !done.ok()) {
      std::fprintf(stderr, "bench_optimizer: %s\n", done.error().message.c_str());
      return done.error().code == sluice::ErrorCode::bad_request ? 2 : 1;
    }
  }
  return 0;
}
