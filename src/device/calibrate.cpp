#include "src/device/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "offload/run/memory.h"
#include "sluice/random.h"
#include "src/device/profile_measure.h"
#include "src/model/init.h"
#include "src/model/sublayer.h"

namespace sluice {
namespace {

/// Read between runs, so that parameters are no nearer than they are in a step.
constexpr std::uint64_t eviction_bytes = 64u << 20;
constexpr double repeat_below_seconds = 0.2;  ///< quicker ops run more often
constexpr int repeats = 7;
constexpr double shortest_seconds = 1e-9;  ///< no op takes no time: profiles with zeros are refused

/// Memory and arguments to run every op of one unit.
struct Bench {
  SublayerArgs args;
  std::vector<Pages> owned;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  double loss = 0;

  Result<std::byte*> pages(std::uint64_t bytes, Dtype dtype, float scale) {
    SLUICE_ASSIGN(Pages made, Pages::make(bytes));
    fill_random(made, dtype, scale);
    owned.push_back(std::move(made));
    return owned.back().data();
  }
};

Result<std::unique_ptr<Bench>> make_bench(const Workload& workload, const UnitSpec& unit, const RopeTable& rope) {
  auto bench = std::make_unique<Bench>();
  const ModelSpec& model = *workload.model;
  const BatchShape shape = workload.shape;
  const Dtype dtype = workload.dtype;
  SublayerArgs& a = bench->args;
  const SublayerCost cost = sublayer_cost(model, unit, shape, dtype, cpu_kernel_sizes);
  const UnitSpec& embed = model.units.front();
  const bool tied_head = unit.kind == Sublayer::head && model.config.tied;
  a.model = &model;
  a.unit = &unit;
  a.rope = view_of(rope);
  a.shape = shape;
  a.dtype = dtype;
  SLUICE_ASSIGN(a.parameters, bench->pages(unit.numel * dtype_bytes(dtype), dtype, 0.05f));
  SLUICE_ASSIGN(std::byte * gradient, bench->pages(unit.numel * 4, Dtype::f32, 0));
  a.gradient = reinterpret_cast<float*>(gradient);
  if (tied_head) {
    SLUICE_ASSIGN(a.tied_parameters, bench->pages(embed.numel * dtype_bytes(dtype), dtype, 0.05f));
    SLUICE_ASSIGN(std::byte * tied, bench->pages(embed.numel * 4, Dtype::f32, 0));
    a.tied_gradient = reinterpret_cast<float*>(tied);
  }
  SLUICE_ASSIGN(a.x_in, bench->pages(cost.boundary_bytes, dtype, 1));
  SLUICE_ASSIGN(a.x_out, bench->pages(cost.boundary_bytes, dtype, 1));
  SLUICE_ASSIGN(a.d_out, bench->pages(cost.boundary_bytes, dtype, 1e-3f));
  SLUICE_ASSIGN(a.d_in, bench->pages(cost.boundary_bytes, dtype, 1e-3f));
  SLUICE_ASSIGN(a.saved, bench->pages(cost.saved_bytes, dtype, 1));
  const std::uint64_t workspace = std::max(cost.forward_workspace_bytes, cost.backward_workspace_bytes);
  SLUICE_ASSIGN(std::byte * scratch, bench->pages(workspace, Dtype::f32, 1));
  a.workspace = {scratch, workspace};
  bench->tokens.resize(TokenPlanes::bytes(shape, false) / sizeof(std::int32_t));
  for (std::size_t i = 0; i < bench->tokens.size(); ++i)
    bench->tokens[i] =
        static_cast<std::int32_t>(philox_uniform(2, i, 0) * static_cast<double>(model.config.vocabulary));
  a.tokens = TokenPlanes::at(bench->tokens.data(), shape, false);
  a.loss = &bench->loss;
  bench->logits.resize(static_cast<std::size_t>(model.config.vocabulary));
  a.logits = bench->logits.data();
  a.loss_scale = 1.0 / static_cast<double>(shape.tokens());
  return bench;
}

void run_op(SublayerArgs args, OpKind kind) {
  if (kind == OpKind::recompute) args.x_out = nullptr;
  run_sublayer(kind, args);
}

/// What is left to measure: one op of one kind of unit.
struct Task {
  const UnitSpec* unit;
  OpKind kind;
  std::string key;
  double flop;
};

/// The sublayer's ops in the plans of a run: training evaluates too.
std::vector<OpKind> ops_of(Sublayer sublayer, PlanKind main) {
  if (sublayer == Sublayer::head) {
    if (main == PlanKind::decode) return {OpKind::logits};
    if (main == PlanKind::evaluate) return {OpKind::loss};
    return {OpKind::loss, OpKind::forward_backward};
  }
  if (main != PlanKind::train) return {OpKind::forward};
  if (sublayer == Sublayer::embed) return {OpKind::forward, OpKind::backward};
  return {OpKind::forward, OpKind::recompute, OpKind::backward};
}

std::vector<Task> missing_tasks(const Workload& w, const HardwareProfile& profile) {
  std::vector<Task> tasks;
  for (const Sublayer sublayer : {Sublayer::embed, Sublayer::attention, Sublayer::mlp, Sublayer::head}) {
    const auto unit = std::find_if(w.model->units.begin(), w.model->units.end(),
                                   [sublayer](const UnitSpec& u) { return u.kind == sublayer; });
    if (unit == w.model->units.end()) continue;
    const SublayerCost cost = sublayer_cost(*w.model, *unit, w.shape, w.dtype, cpu_kernel_sizes);
    for (const OpKind kind : ops_of(sublayer, w.main_kind())) {
      std::string key = cost_key(*w.model, sublayer, kind, w.shape, w.dtype, w.threads);
      if (profile.op_seconds.count(key) == 0) tasks.push_back({&*unit, kind, key, op_flop(cost, kind)});
    }
  }
  return tasks;
}

/// Runs of one op with caches as a step leaves them: parameters cold, the input just written.
class Stopwatch {
 public:
  explicit Stopwatch(Pages eviction) : eviction_(std::move(eviction)) {}

  double run(const SublayerArgs& args, OpKind kind, std::uint64_t input_bytes) {
    std::vector<double> seconds;
    double spent = 0;
    do {
      touch(eviction_.data(), eviction_.bytes());
      if (args.unit->kind != Sublayer::embed) touch(args.x_in, input_bytes);
      const double start = now_seconds();
      run_op(args, kind);
      seconds.push_back(now_seconds() - start);
      spent += seconds.back();
    } while (static_cast<int>(seconds.size()) <= repeats && spent < repeat_below_seconds * repeats);
    // The first run pays for threads and libraries that wake up; it counts only where it is the only one.
    if (seconds.size() > 1) seconds.erase(seconds.begin());
    // The median: a step will meet the same clock and the same neighbours.
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  void touch(const std::byte* data, std::uint64_t bytes) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < bytes; i += 64) sum += static_cast<std::uint64_t>(data[i]);
    sink_ = sum;
  }
  Pages eviction_;
  volatile std::uint64_t sink_ = 0;
};

}  // namespace

Status calibrate(const Workload& workload, HardwareProfile& profile, double budget_seconds, bool* changed) {
  *changed = false;
  const std::vector<Task> tasks = missing_tasks(workload, profile);
  if (tasks.empty()) return success();
  *changed = true;
  kernels::set_compute_threads(workload.threads);
  const RopeTable rope = make_rope_table(workload.model->config, workload.shape.sequence);
  SLUICE_ASSIGN(Pages eviction, Pages::make(eviction_bytes));
  Stopwatch stopwatch(std::move(eviction));

  const double started = now_seconds();
  double flop_done = 0, seconds_done = 0;
  const UnitSpec* made_for = nullptr;
  std::unique_ptr<Bench> bench;
  for (const Task& task : tasks) {
    const double rate = seconds_done > 0 && flop_done > 0
                            ? flop_done / seconds_done
                            : (workload.dtype == Dtype::bf16 ? profile.gemm_flops_bf16 : profile.gemm_flops_f32);
    if (now_seconds() - started + task.flop / rate > budget_seconds) {
      profile.op_seconds[task.key] = std::max(task.flop / rate, shortest_seconds);
      continue;
    }
    if (made_for != task.unit) {
      bench.reset();
      SLUICE_ASSIGN(bench, make_bench(workload, *task.unit, rope));
      made_for = task.unit;
      // What backward reads must be what forward saves: statistics of noise would be infinite.
      if (task.kind == OpKind::backward && task.unit->kind != Sublayer::embed) run_op(bench->args, OpKind::recompute);
    }
    const SublayerCost cost =
        sublayer_cost(*workload.model, *task.unit, workload.shape, workload.dtype, cpu_kernel_sizes);
    const double seconds = stopwatch.run(bench->args, task.kind, cost.boundary_bytes);
    profile.op_seconds[task.key] = std::max(seconds, shortest_seconds);
    flop_done += task.flop;
    if (task.flop > 0) seconds_done += seconds;
  }
  return success();
}

}  // namespace sluice
