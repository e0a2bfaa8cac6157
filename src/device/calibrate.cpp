#include "src/device/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/run/memory.h"
#include "sluice/random.h"
#include "src/device/profile_measure.h"
#include "src/model/init.h"
#include "src/model/sublayer.h"
#include "src/model/workspaces.h"

namespace sluice {
namespace {

constexpr double shortest_seconds = 1e-9;  ///< no op takes no time: profiles with zeros are refused
constexpr double small_op_seconds = 1e-3;  ///< less is not worth measuring again: runs tell where it matters
constexpr std::size_t times_measured = 3;
constexpr double runs_of_measuring = 10;  ///< about as many as measuring an op takes, with what comes before it

/// The device's memory that ops are measured in.
class Place {
 public:
  explicit Place(DeviceMemory& memory) : memory_(memory) {}
  ~Place() {
    for (const auto& [address, bytes] : owned_) memory_.free(address, bytes);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Result<std::byte*> noise(std::uint64_t bytes, Dtype dtype, float scale) {
    SLUICE_ASSIGN(std::byte * address, reserve(bytes));
    SLUICE_TRY(fill_random(memory_, address, bytes, dtype, scale));
    return address;
  }
  template <class T>
  Result<T*> copy(std::span<const T> values) {
    SLUICE_ASSIGN(std::byte * address, reserve(values.size_bytes()));
    SLUICE_TRY(memory_.copy(address, reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()));
    return reinterpret_cast<T*>(address);
  }

 private:
  Result<std::byte*> reserve(std::uint64_t bytes) {
    SLUICE_ASSIGN(std::byte * address, memory_.allocate(std::max<std::uint64_t>(bytes, 1)));
    owned_.emplace_back(address, std::max<std::uint64_t>(bytes, 1));
    return address;
  }

  DeviceMemory& memory_;
  std::vector<std::pair<std::byte*, std::uint64_t>> owned_;
};

/// Memory and arguments to run every op of one unit.
struct UnitBench {
  explicit UnitBench(DeviceMemory& memory) : place(memory) {}
  Place place;
  SublayerArgs args;
};

/// Documents of about that length, which cost as much as equal ones. Equal ones would end with the kernels' blocks, and
/// so take fewer of them than those of data do.
void fill_positions(std::span<std::int32_t> positions, std::int64_t sequence, std::int64_t length) {
  constexpr std::array parts{0.8, 1.19, 0.93, 1.06};
  std::size_t document = 0;
  std::int64_t at = 0, end = 0;
  for (std::size_t i = 0; i < positions.size(); ++i, ++at) {
    const bool row_begins = i % static_cast<std::size_t>(sequence) == 0;
    if (row_begins || at == end) {
      at = 0;
      end = std::max<std::int64_t>(1, std::llround(parts[document++ % parts.size()] * static_cast<double>(length)));
    }
    positions[i] = static_cast<std::int32_t>(at);
  }
}

/// Of the first rank's slices in a ring, or the second one's of those that a rank takes.
void fill_slice_positions(std::span<std::int32_t> positions, const Workload& workload) {
  const BatchShape shape = workload.shape;
  std::vector<std::int32_t> whole(static_cast<std::size_t>(shape.batch * shape.whole()));
  if (workload.documents)
    fill_positions(whole, shape.whole(), workload.document_length);
  else
    for (std::size_t i = 0; i < whole.size(); ++i)
      whole[i] = static_cast<std::int32_t>(i) % static_cast<std::int32_t>(shape.whole());
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (const SliceRun& run : slice_runs(shape, shape.slices > 1 ? 1 : 0))
      std::copy_n(whole.begin() + b * shape.whole() + run.from, run.count,
                  positions.begin() + b * shape.sequence + run.at);
}

Result<std::unique_ptr<UnitBench>> make_bench(const Workload& workload, const UnitSpec& unit, const Rope& rope,
                                              DeviceMemory& memory) {
  auto bench = std::make_unique<UnitBench>(memory);
  Place& place = bench->place;
  const ModelSpec& model = *workload.model;
  const BatchShape shape = workload.shape;
  const Dtype dtype = workload.dtype;
  SublayerArgs& a = bench->args;
  const SublayerCost cost = sublayer_cost(model, unit, shape, dtype, *workload.kernels);
  const UnitSpec& embed = model.units.front();
  a.model = &model;
  a.unit = &unit;
  a.shape = shape;
  a.dtype = dtype;
  a.rope = view_of(rope);
  SLUICE_ASSIGN(a.rope.frequencies, place.copy(std::span(rope.frequencies)));
  SLUICE_ASSIGN(a.rope.cos, place.copy(std::span(rope.cos)));
  SLUICE_ASSIGN(a.rope.sin, place.copy(std::span(rope.sin)));
  const auto gradient = [&](std::uint64_t numel) -> Result<float*> {
    SLUICE_ASSIGN(std::byte * address, place.noise(numel * sizeof(float), Dtype::f32, 0));
    return reinterpret_cast<float*>(address);
  };
  SLUICE_ASSIGN(a.parameters, place.noise(unit.numel * dtype_bytes(dtype), dtype, 0.05f));
  SLUICE_ASSIGN(a.gradient, gradient(unit.numel));
  if (unit.kind == Sublayer::head && model.config.tied) {
    SLUICE_ASSIGN(a.tied_parameters, place.noise(embed.numel * dtype_bytes(dtype), dtype, 0.05f));
    SLUICE_ASSIGN(a.tied_gradient, gradient(embed.numel));
  }
  SLUICE_ASSIGN(a.x_in, place.noise(cost.boundary_bytes, dtype, 1));
  SLUICE_ASSIGN(a.x_out, place.noise(cost.boundary_bytes, dtype, 1));
  SLUICE_ASSIGN(a.d_out, place.noise(cost.boundary_bytes, dtype, 1e-3f));
  SLUICE_ASSIGN(a.d_in, place.noise(cost.boundary_bytes, dtype, 1e-3f));
  SLUICE_ASSIGN(a.saved, place.noise(cost.saved_bytes, dtype, 1));
  if (cost.core_bytes > 0) a.core = a.saved + (cost.saved_bytes - cost.core_bytes);
  if (workload.split != nullptr) {
    const Dims d(model, shape, dtype, *workload.kernels);
    const auto whole = static_cast<std::uint64_t>(d.tokens * d.hidden);
    SLUICE_ASSIGN(a.normed, place.noise(whole * dtype_bytes(dtype), dtype, 1));
    SLUICE_ASSIGN(a.d_out, place.noise(whole * dtype_bytes(dtype), dtype, 1e-3f));
    SLUICE_ASSIGN(std::byte * sum, place.noise(whole * sizeof(float), Dtype::f32, 1));
    SLUICE_ASSIGN(std::byte * d_sum, place.noise(whole * sizeof(float), Dtype::f32, 1e-3f));
    a.sum = reinterpret_cast<float*>(sum);
    a.d_sum = reinterpret_cast<float*>(d_sum);
    const std::vector<kernels::VocabularyPart> parts(static_cast<std::size_t>(d.head_chunk * d.split), {1, 0, 0});
    SLUICE_ASSIGN(a.vocabulary_parts, place.copy(std::span<const kernels::VocabularyPart>(parts)));
    a.words = d.vocabulary;
  }
  if (shape.cuts_sequences() && unit.kind == Sublayer::attention) {
    const Dims d(model, shape, dtype, *workload.kernels);
    const ContextSaved kept(d);
    // In blocks what goes round is these, and their gradients in fp32.
    const std::uint64_t travels = std::max(kept.mixed.bytes, shape.in_blocks() ? block_gradient_bytes(d) : 0);
    SLUICE_ASSIGN(a.leaving, place.noise(travels, dtype, 1));
    SLUICE_ASSIGN(a.arrived, place.noise(travels, dtype, 1));
    SLUICE_ASSIGN(a.mixed, place.noise(kept.mixed.bytes, dtype, 1));
    SLUICE_ASSIGN(a.attended, place.noise(kept.attended.bytes, dtype, 1));
    SLUICE_ASSIGN(std::byte * lse, place.noise(kept.lse.bytes, Dtype::f32, 1));
    a.lse = reinterpret_cast<float*>(lse);
    if (shape.in_blocks()) {
      SLUICE_ASSIGN(a.block, place.noise(block_bytes(d), dtype, 1));
      SLUICE_ASSIGN(std::byte * partial, place.noise(partial_bytes(d), Dtype::f32, 1));
      a.partial = reinterpret_cast<float*>(partial);
      // All steps of a ring have as much to do, but with a window those that are near: of the first rank the one with
      // its own block. Of slices there are kinds of their own (seconds_of).
      a.step = d.window > 0 || shape.slices > 1 ? 0 : 1;
      a.slice = shape.slices > 1 ? 1 : 0;
    }
  }
  const bool splits = workload.splits_backward;
  const std::uint64_t workspace =
      std::max({cost.forward_workspace_bytes, cost.backward_workspace_bytes, cost.backward_again_workspace_bytes,
                cost.slice_workspace_bytes, splits ? cost.backward_input_workspace_bytes : 0});
  if (splits) {
    SLUICE_ASSIGN(a.deferred, place.noise(cost.deferred_bytes, dtype, 1e-3f));
  }
  SLUICE_ASSIGN(std::byte * scratch, place.noise(workspace, Dtype::f32, 1));
  a.workspace = {scratch, workspace};
  std::vector<std::int32_t> tokens(TokenPlanes::bytes(shape, workload.documents) / sizeof(std::int32_t));
  const std::size_t own = static_cast<std::size_t>(shape.tokens()), words = 2 * own;
  for (std::size_t i = 0; i < words; ++i)
    tokens[i] = static_cast<std::int32_t>(philox_uniform(2, i, 0) * static_cast<double>(model.config.vocabulary));
  if (workload.has_positions()) {
    const std::span<std::int32_t> positions = std::span(tokens).subspan(words, own);
    if (shape.in_blocks())
      fill_slice_positions(positions, workload);
    else
      fill_positions(positions, shape.sequence, workload.document_length);
    fill_positions(std::span(tokens).subspan(words + own), shape.whole(), workload.document_length);
  }
  SLUICE_ASSIGN(std::int32_t * planes, place.copy(std::span<const std::int32_t>(tokens)));
  a.tokens = TokenPlanes::at(planes, shape, workload.documents);
  const double no_loss = 0;
  SLUICE_ASSIGN(a.loss, place.copy(std::span(&no_loss, 1)));
  const Dims d(model, shape, dtype, *workload.kernels);
  const std::vector<float> logits(
      static_cast<std::size_t>(workload.split != nullptr ? d.head_chunk * d.logits_ld : model.config.vocabulary));
  SLUICE_ASSIGN(a.logits, place.copy(std::span(logits)));
  a.loss_scale = 1.0 / static_cast<double>(shape.tokens());
  return bench;
}

bool takes_gradient(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_again || kind == OpKind::backward_input ||
         kind == OpKind::backward_weight || kind == OpKind::part_backward;
}

Result<double> seconds_of(DeviceBench& bench, SublayerArgs args, OpKind kind) {
  if (kind == OpKind::recompute) args.x_out = nullptr;
  if (kind == OpKind::recompute_core) SLUICE_TRY(bench.run(OpKind::recompute_qkv, args));
  if (kind == OpKind::part_recompute) args.sum = nullptr;
  // What backward reads must be what forward saves: statistics of noise would be infinite.
  if (kind == OpKind::backward_again) args.saved = nullptr;
  if (takes_gradient(kind) && args.saved != nullptr && args.unit->kind != Sublayer::embed) {
    SublayerArgs before = args;
    before.x_out = nullptr;
    before.sum = nullptr;
    SLUICE_TRY(bench.run(kind == OpKind::part_backward ? OpKind::part_recompute : OpKind::recompute, before));
    if (kind == OpKind::backward_weight) SLUICE_TRY(bench.run(OpKind::backward_input, before));
  }
  if (kind == OpKind::core_earlier || kind == OpKind::core_earlier_backward) args.step = 1;
  if (is_core_of_slices(kind) && goes_back_in_slices(kind)) {
    args.accumulate = args.shape.slices > 1;
    SublayerArgs before = args;
    for (before.step = 0; before.step <= args.step; ++before.step) SLUICE_TRY(bench.run(OpKind::core, before));
  }
  if (kind == OpKind::backward_weight) args.parameters = nullptr;
  if (kind == OpKind::backward_input) {
    args.gradient = nullptr;
  } else if (takes_gradient(kind) || kind == OpKind::forward_backward || kind == OpKind::part_gradient ||
             kind == OpKind::out_backward || kind == OpKind::qkv_backward) {
    // A step's first micro-batch sets gradients, the others add to them: kernels are chosen for both.
    SLUICE_TRY(bench.run(kind, args));
    args.accumulate = true;
  }
  return bench.op_seconds(kind, args);
}

/// Again where others disturbed it, unless it takes next to nothing. What a GPU takes is not disturbed by programs on
/// cores.
Result<QuietMeasurer::Measured> measure_op(QuietMeasurer& quiet, bool on_gpu,
                                           const std::function<Result<double>()>& once) {
  const CpuReading before = quiet.clock().read();
  SLUICE_ASSIGN(const double first, once());
  const std::string disturbed = disturbance(before, quiet.clock().read(), quiet.clock().cores());
  if (on_gpu || disturbed.empty() || first < small_op_seconds) return QuietMeasurer::Measured{first, ""};
  SLUICE_ASSIGN(QuietMeasurer::Measured again, quiet.measure(QuietMeasurer::Better::less, once));
  again.value = std::min(again.value, first);
  return again;
}

/// What is left to measure: one op of one kind of unit.
struct Task {
  const UnitSpec* unit;
  OpKind kind;
  std::string key;
  double flop;
};

/// One that is measured several times.
struct Lasting {
  Task task;
  std::vector<QuietMeasurer::Measured> measured;
  /// Of two the less.
  const QuietMeasurer::Measured& median() {
    std::ranges::sort(measured, {}, &QuietMeasurer::Measured::value);
    return measured[(measured.size() - 1) / 2];
  }
};

/// The sublayer's ops in the plans of a run: training evaluates too.
std::vector<OpKind> ops_of(Sublayer sublayer, const Workload& workload) {
  const PlanKind main = workload.main_kind();
  if (sublayer == Sublayer::attention && workload.shape.cuts_sequences()) {
    std::vector<OpKind> ops{OpKind::qkv, OpKind::core, OpKind::out};
    const bool trains = main == PlanKind::train;
    if (trains) ops.insert(ops.end(), {OpKind::out_backward, OpKind::core_backward, OpKind::qkv_backward});
    if (workload.shape.slices > 1) ops.push_back(OpKind::core_earlier);
    if (workload.shape.slices > 1 && trains) ops.push_back(OpKind::core_earlier_backward);
    if (workload.split != nullptr) ops.insert(ops.end(), {OpKind::enter, OpKind::leave});
    if (workload.split != nullptr && trains) ops.insert(ops.end(), {OpKind::expose, OpKind::enter_backward});
    return ops;
  }
  if (workload.split != nullptr) {
    const std::vector<OpKind> head{OpKind::enter, OpKind::part_logits, OpKind::part_loss},
        body{OpKind::enter, OpKind::part_forward, OpKind::leave};
    std::vector<OpKind> ops = sublayer == Sublayer::head    ? head
                              : sublayer == Sublayer::embed ? std::vector{OpKind::part_forward, OpKind::leave}
                                                            : body;
    if (main != PlanKind::train) return ops;
    if (sublayer == Sublayer::head) {
      ops.insert(ops.end(), {OpKind::part_gradient, OpKind::enter_backward});
    } else if (sublayer == Sublayer::embed) {
      ops.insert(ops.end(), {OpKind::expose, OpKind::part_backward});
    } else {
      ops.insert(ops.end(), {OpKind::part_recompute, OpKind::expose, OpKind::part_backward, OpKind::enter_backward});
    }
    if (sublayer == Sublayer::attention) ops.insert(ops.end(), {OpKind::recompute_qkv, OpKind::recompute_core});
    return ops;
  }
  if (sublayer == Sublayer::head) {
    if (main == PlanKind::decode) return {OpKind::logits};
    if (main == PlanKind::evaluate) return {OpKind::loss};
    return {OpKind::loss, OpKind::forward_backward};
  }
  if (main != PlanKind::train) return {OpKind::forward};
  if (sublayer == Sublayer::embed) return {OpKind::forward, OpKind::backward};
  std::vector<OpKind> ops{OpKind::forward};
  const bool again_in_chunks = sublayer == Sublayer::mlp && !workload.splits_backward;
  ops.push_back(again_in_chunks ? OpKind::backward_again : OpKind::recompute);
  if (sublayer == Sublayer::attention) ops.insert(ops.end(), {OpKind::recompute_qkv, OpKind::recompute_core});
  if (workload.splits_backward)
    ops.insert(ops.end(), {OpKind::backward_input, OpKind::backward_weight});
  else
    ops.push_back(OpKind::backward);
  return ops;
}

std::vector<Task> missing_tasks(const Workload& w, const HardwareProfile& profile) {
  std::vector<Task> tasks;
  for (const Sublayer sublayer : {Sublayer::embed, Sublayer::attention, Sublayer::mlp, Sublayer::head}) {
    const auto unit = std::find_if(w.model->units.begin(), w.model->units.end(),
                                   [sublayer](const UnitSpec& u) { return u.kind == sublayer; });
    if (unit == w.model->units.end()) continue;
    const SublayerCost cost = sublayer_cost(*w.model, *unit, w.shape, w.dtype, *w.kernels);
    for (const OpKind kind : ops_of(sublayer, w)) {
      std::string key = cost_key(w, sublayer, kind);
      // On a GPU what was only estimated has no kernels chosen.
      const bool known = profile.op_seconds.contains(key) && (!profile.device || profile.device->choices.contains(key));
      if (!known) tasks.push_back({&*unit, kind, key, op_flop(cost, kind)});
    }
  }
  return tasks;
}

}  // namespace

Status calibrate(const Workload& workload, Device& device, HardwareProfile& profile, double budget_seconds,
                 bool* changed, Doubts* doubts, CpuClock* clock) {
  *changed = false;
  const std::vector<Task> tasks = missing_tasks(workload, profile);
  if (tasks.empty()) return success();
  *changed = true;
  KernelChoices made;
  if (profile.device)
    for (const auto& [key, choices] : profile.device->choices) made.insert(choices.begin(), choices.end());
  SLUICE_ASSIGN(const std::unique_ptr<DeviceBench> bench, device.make_bench(workload.threads, made));
  const Rope rope = make_rope(workload.model->config, workload.shape, workload.shape.whole());
  const bool bf16 = workload.dtype == Dtype::bf16;
  const double best_rate = profile.device ? (bf16 ? profile.device->gemm_flops_bf16 : profile.device->gemm_flops_f32)
                                          : (bf16 ? profile.gemm_flops_bf16 : profile.gemm_flops_f32);

  const double started = now_seconds();
  QuietMeasurer quiet(clock, budget_seconds / 2);
  double flop_done = 0, seconds_done = 0;
  const UnitSpec* made_for = nullptr;
  std::unique_ptr<UnitBench> unit;
  const auto measure = [&](const Task& task) -> Result<QuietMeasurer::Measured> {
    if (made_for != task.unit) {
      unit.reset();
      Result<std::unique_ptr<UnitBench>> made_bench = make_bench(workload, *task.unit, rope, device.memory());
      if (!made_bench.ok())
        return made_bench.error().in("measuring " + task.unit->name +
                                     " needs more memory than there is; give a smaller " +
                                     (workload.kv_capacity > 0 ? "--prefill" : "--micro-batch or --seq"));
      unit = *std::move(made_bench);
      made_for = task.unit;
    }
    static_cast<void>(bench->used());
    Result<QuietMeasurer::Measured> measured =
        measure_op(quiet, profile.device.has_value(), [&] { return seconds_of(*bench, unit->args, task.kind); });
    if (!measured.ok()) return measured.error().in("measuring " + task.key);
    return measured;
  };
  std::vector<Lasting> lasting;
  for (const Task& task : tasks) {
    const double rate = seconds_done > 0 && flop_done > 0 ? flop_done / seconds_done : best_rate;
    if (now_seconds() - started + task.flop / rate > budget_seconds) {
      profile.op_seconds[task.key] = std::max(task.flop / rate, shortest_seconds);
      continue;
    }
    SLUICE_ASSIGN(const QuietMeasurer::Measured measured, measure(task));
    profile.op_seconds[task.key] = std::max(measured.value, shortest_seconds);
    if (profile.device) profile.device->choices[task.key] = bench->used();
    flop_done += task.flop;
    if (task.flop > 0) seconds_done += measured.value;
    if (measured.value >= small_op_seconds && !profile.device)
      lasting.push_back({task, {measured}});
    else if (doubts != nullptr)
      doubts->measured(task.key, measured.disturbance);
  }
  // Again behind the others: neighbours on a shared host slow ops down for seconds, and no clock here tells.
  for (std::size_t times = 1; times < times_measured; ++times)
    for (Lasting& op : lasting)
      if (now_seconds() - started + runs_of_measuring * op.measured.front().value <= budget_seconds) {
        SLUICE_ASSIGN(const QuietMeasurer::Measured measured, measure(op.task));
        op.measured.push_back(measured);
      }
  for (Lasting& op : lasting) {
    const QuietMeasurer::Measured& median = op.median();
    profile.op_seconds[op.task.key] = median.value;
    if (doubts != nullptr) doubts->measured(op.task.key, median.disturbance);
  }
  if (profile.device) profile.devices[workload.device] = *profile.device;
  return success();
}

KernelChoices chosen_kernels(const HardwareProfile& profile, const std::vector<std::string>& cost_keys) {
  KernelChoices all;
  if (!profile.device) return all;
  for (const std::string& key : cost_keys)
    if (const auto of = profile.device->choices.find(key); of != profile.device->choices.end())
      all.insert(of->second.begin(), of->second.end());
  return all;
}

}  // namespace sluice
