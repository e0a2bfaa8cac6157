#include "src/train/request/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "io/files/publish.h"
#include "offload/parallel.h"
#include "sluice/size.h"
#include "src/device/calibrate.h"
#include "src/device/device.h"
#include "src/device/link_measure.h"
#include "src/device/profile.h"
#include "src/device/profile_device.h"
#include "src/device/profile_measure.h"
#include "src/device/profile_rates.h"
#include "src/schedule/build.h"
#include "src/schedule/stages.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/assumed_drive.h"
#include "src/train/request/choose_schedule.h"
#include "src/train/request/drive_space.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/profile_doubts.h"
#include "src/train/request/saving.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {
namespace {

/// Units times micro-batches of a step: each is some ops of a plan.
constexpr std::int64_t passes_max = 1 << 18;
constexpr int ranks_max = 4096;
Status validate(const RunConfig& c, Purpose purpose) {
  const auto refuse = [](const std::string& text) { return Status(bad_request(text)); };
  if (c.sequence < 1) return refuse("--seq " + std::to_string(c.sequence) + ": sequences have at least 1 token");
  if (c.micro_batch < 1) return refuse("--micro-batch must be at least 1");
  if (c.ranks < 1 || c.ranks > ranks_max)
    return refuse("--ranks " + std::to_string(c.ranks) + ": give 1 to " + std::to_string(ranks_max));
  if (c.ranks_of_node > 0 && c.ranks % c.ranks_of_node != 0)
    return refuse("--ranks " + std::to_string(c.ranks) + " are no whole number of machines with " +
                  std::to_string(c.ranks_of_node) + " ranks");
  if (c.nvme_space > 0 && c.nvme.empty())
    return refuse("--nvme-space is of the drive, and there is none: add --nvme DIR");
  if (c.drive_tbw > 0 && c.nvme.empty())
    return refuse("--drive-tbw is of the drives in --nvme, and there are none; add --nvme DIR or leave it out");
  for (const auto& [option, place] :
       {std::pair("--states", c.wish.states), std::pair("--activations", c.wish.activations)})
    if (place == Place::nvme && c.nvme.empty())
      return refuse(option + std::string(" nvme needs a drive: add --nvme DIR"));
  for (std::size_t i = 0; i < c.nvme.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (is_same_file(c.nvme[i], c.nvme[j]))
        return refuse("--nvme " + c.nvme[j] + "," + c.nvme[i] + ": both are one directory; name it once");
  SLUICE_TRY(check_mesh(c));
  if (purpose != Purpose::train) return success();
  if (c.durable == Durable::on && c.run.empty())
    return refuse("--durable on needs a directory for the run's records, and --run none keeps nothing");
  if (c.durable == Durable::on && c.nvme.empty())
    return refuse("--durable on needs a drive for the states: add --nvme DIR");
  if (c.steps < 1) return refuse("--steps " + std::to_string(c.steps) + ": give at least 1");
  SLUICE_TRY(check_seq_schedule(c));
  if (!c.seq_schedule.empty() && c.run.empty())
    return refuse(
        "--seq-schedule needs a directory for what the next length goes on from, and --run none keeps nothing");
  const std::int64_t at_once = std::int64_t{c.micro_batch} * batch_ranks(c);
  if (c.batch < 1) return refuse("--batch " + std::to_string(c.batch) + ": give at least 1");
  if (c.batch % at_once != 0)
    return refuse("--batch " + std::to_string(c.batch) + " is not a multiple of --micro-batch x --ranks" +
                  (c.stages > 1 ? " / --pp" : "") + (c.tensor > 1 ? " / --tp" : "") + (c.context > 1 ? " / --cp" : "") +
                  " = " + std::to_string(at_once));
  const auto micro_batches = static_cast<int>(c.batch / at_once);
  SLUICE_TRY(check_sharing(c));
  if (c.wish.group && (*c.wish.group < 1 || *c.wish.group > micro_batches))
    return refuse("--group " + std::to_string(*c.wish.group) + ": a step has " + std::to_string(micro_batches) +
                  " micro-batches per rank; give 1 to " + std::to_string(micro_batches));
  if (c.optimizer.clip_norm > 0 && c.wish.update == UpdateOrder::backward)
    return refuse(
        "--update backward cannot clip by the global norm, which is known only after the backward pass; "
        "use --update speculative, --update ahead or --clip 0");
  if (speculates(c) && c.sums == RankSums::native)
    return refuse(
        "--update speculative needs sums that have the same bits twice, and those of --reduce native have not; use "
        "--reduce tree, or --update ahead");
  if (speculates(c) && (c.run.empty() || c.nvme.empty() || c.durable == Durable::off))
    return refuse(
        "--update speculative goes back to committed states where a step clips, and these steps are not durable; "
        "give a run directory, --nvme DIR and --durable on, or use --update ahead");
  return success();
}

/// With what the kernel keeps of files and would give up.
std::uint64_t available_memory_bytes() {
  if (const std::uint64_t bytes = available_host_bytes(); bytes > 0) return bytes;
  const long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return static_cast<std::uint64_t>(std::max(0L, pages)) * static_cast<std::uint64_t>(size);
}

bool all_exist(const std::vector<std::string>& directories) {
  std::error_code ignored;
  return std::ranges::all_of(directories, [&](const std::string& d) { return std::filesystem::exists(d, ignored); });
}

/// What the ranks of a machine share.
Status set_sharing(Prepared& run) {
  const RunConfig& c = run.config;
  run.profile.ranks = ranks_of_machine(c);
  run.profile.ranks_apart = run.workload.exchanges;
  // Rates of multiplies were measured with as many threads as the profile says, and an op takes the cores of a rank's.
  const double share = static_cast<double>(run.workload.threads) / std::max(1, run.profile.compute_threads);
  if (run.workload.device.empty() && share < 1) {
    run.profile.gemm_flops_bf16 *= share;
    run.profile.gemm_flops_f32 *= share;
    run.profile.compute_threads = run.workload.threads;
  }
  SLUICE_ASSIGN(run.profile.ranks_of_device, ranks_of_device(c));
  return success();
}

/// Budgets per rank; what the user left open is a share of what the machine has now.
Status set_budgets(const RunConfig& c, const Device& what_computes, Workload& w) {
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(c));
  const std::uint64_t memory = available_memory_bytes();
  SLUICE_ASSIGN(const std::uint64_t own, what_computes.free_bytes());
  SLUICE_ASSIGN(const int sharers, ranks_of_device(c));
  SLUICE_ASSIGN(const std::uint64_t all, bytes_for_ranks(c, own));
  const std::uint64_t of_card = all / 10 * 9 / static_cast<std::uint64_t>(sharers);
  const std::uint64_t device = c.device_memory ? c.device_memory : own > 0 ? of_card : memory / 2 / ranks;
  const std::uint64_t host = (c.host_memory ? c.host_memory : memory / (own > 0 ? 2 : 4)) / ranks;
  std::uint64_t nvme = c.nvme_space / ranks;
  if (c.nvme.empty()) {
    nvme = 1;  // nothing fits a byte, and 0 would mean no limit
  } else if (nvme == 0 && c.assume && !all_exist(c.nvme)) {
    nvme = 0;  // as large as it has to be
  } else if (nvme == 0) {
    SLUICE_ASSIGN(const std::uint64_t space, free_space(c.nvme));
    nvme = std::max<std::uint64_t>(1, space / 10 * 9 / ranks);
  }
  w.budget_bytes = {device, host, nvme};
  return success();
}

/// The same of a machine that is not here.
Status set_budgets_there(const RunConfig& c, Workload& w) {
  const Cluster& there = *c.cluster;
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(c));
  const auto refuse = [&](const char* option, std::uint64_t asked, const std::string& what, std::uint64_t bytes) {
    return bad_request(std::string(option) + " " + format_bytes(asked) + ": " + what + " of --cluster " + there.path +
                       " has " + format_bytes(bytes) + "; give less");
  };
  if (c.device_memory > there.device->memory_bytes)
    return refuse("--device-memory", c.device_memory, there.device->name, there.device->memory_bytes);
  if (c.host_memory > there.host.memory_bytes)
    return refuse("--host-memory", c.host_memory, "a host", there.host.memory_bytes);
  const std::uint64_t drives = there.drives ? static_cast<std::uint64_t>(there.drives->count) * there.drives->bytes : 0;
  if (c.nvme_space > drives) return refuse("--nvme-space", c.nvme_space, "a machine", drives);
  const std::uint64_t nvme = c.nvme_space ? c.nvme_space : drives / 10 * 9;
  w.budget_bytes = {c.device_memory ? c.device_memory : there.device->memory_bytes / 10 * 9,
                    (c.host_memory ? c.host_memory : there.host.memory_bytes / 2) / ranks,
                    std::max<std::uint64_t>(1, nvme / ranks)};
  return success();
}

/// Into the profile, where it succeeds. `why` is told beside the drives' names.
Status measure_drives(Prepared& run, const std::vector<std::string>& drives, const std::string& why, Doubts& doubts,
                      const Tell& progress) {
  DriveOptions options;
  options.directories = drives;
  SLUICE_ASSIGN(options.file_bytes, measuring_bytes(drives));
  const std::string key = drive_key(drives);
  if (progress) progress("measuring " + key + why);
  SLUICE_ASSIGN(const DriveProfile measured, measure_drive_quietly(options, doubts));
  run.profile.drives[key] = measured;
  return success();
}

/// For predictions alone, so that a drive which can not be measured hinders nobody. Whether it was measured now.
bool measure_drive_of_checkpoints(Prepared& run, Doubts& doubts, const Tell& progress) {
  const std::optional<std::string> other = other_drive_of_checkpoints(run.config, run.workload);
  if (!other) return false;
  const std::vector drives{*other};
  if (run.profile.drives.contains(drive_key(drives)) || access(other->c_str(), W_OK) != 0) return false;
  return measure_drives(run, drives, ", for checkpoints (once, about 10 seconds)", doubts, progress).ok();
}

/// `measures`: also the ops of the run's sublayers.
Status get_profile(Prepared& run, Device& device, bool measures, const Tell& progress) {
  const RunConfig& c = run.config;
  std::string path = c.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  bool usable = std::filesystem::exists(path);
  if (usable) {
    Result<HardwareProfile> loaded = load_profile(path);
    // The user's own file is not ours to replace; the default one may be of an older version.
    if (!loaded.ok() && !c.profile.empty()) return loaded.error();
    usable = loaded.ok() && profile_is_of_this_machine(*loaded);
    if (usable) run.profile = *std::move(loaded);
  }
  bool changed = false;
  Doubts doubts = usable ? load_doubts(path) : Doubts();
  if (!usable) {
    if (progress) progress("measuring this machine (once, about half a minute)");
    MeasureOptions options;
    options.progress = progress;
    SLUICE_ASSIGN(run.profile, measure_profile(options, doubts));
    changed = true;
  }
  const bool is_assumed = c.assume && !all_exist(c.nvme);
  const std::vector<std::string> drives = is_assumed ? std::vector<std::string>() : c.nvme;
  MeasuredAgain again;
  if (measures) {
    SLUICE_ASSIGN(again, settle_doubts(run.profile, run.workload, drives, doubts, progress));
  }
  changed = changed || again.changed;
  if (is_assumed) run.profile.drive = assumed_drive(c.nvme.size());
  if (!drives.empty() && !select_drive(run.profile, drives)) {
    SLUICE_TRY(measure_drives(run, drives, " (once, about 10 seconds a drive)", doubts, progress));
    select_drive(run.profile, drives);
    changed = true;
  }
  if (measures) changed = measure_drive_of_checkpoints(run, doubts, progress) || changed;
  run.workload.block_bytes = run.profile.drive.block_bytes;
  if (c.queue_depth > 0) run.profile.drive.depth = static_cast<std::uint32_t>(c.queue_depth);
  if (!select_device(run.profile, device.kind()) || again.device) {
    if (progress) progress("measuring " + device.description() + " (once, some seconds)");
    SLUICE_ASSIGN(const std::unique_ptr<DeviceBench> bench, device.make_bench(run.workload.threads, {}));
    SLUICE_ASSIGN(const std::uint64_t free, device.free_bytes());
    const auto choices = std::move(run.profile.devices[device.kind()].choices);
    SLUICE_ASSIGN(run.profile.devices[device.kind()], measure_device(*bench, DeviceSizes(free)));
    run.profile.devices[device.kind()].choices = choices;
    doubts.measured(device_doubt(device.kind()), "");
    select_device(run.profile, device.kind());
    changed = true;
  }
  bool added = false;
  // A GPU's kernels are chosen as they are measured: all of them are.
  const double budget_seconds = device.kind().empty() ? 30 : 300;
  const bool measures_ops = measures && (run.profile.measures_ops || !device.kind().empty());
  if (measures_ops) SLUICE_TRY(calibrate(run.workload, device, run.profile, budget_seconds, &added, &doubts));
  if (changed || added) {
    SLUICE_TRY(save_profile(path, run.profile));
    SLUICE_TRY(save_doubts(path, doubts));
  }
  if (measures) say_doubts(run.workload, drives, doubts, progress);
  return success();
}

/// Each slice passes every sublayer, and meets every slice before it in attention.
Status check_passes(const RunConfig& c, std::int64_t sequence_batches, std::int64_t slices, std::int64_t units) {
  const std::int64_t micro_batches = sequence_batches * slices;
  if (units * micro_batches > passes_max)
    return bad_request(
        "--batch " + std::to_string(c.batch) + (slices > 1 ? " in --slices " + std::to_string(slices) : "") + " is " +
        std::to_string(micro_batches) + " micro-batches a step, too many to plan for " + c.model + ": give at most " +
        std::to_string(passes_max / units) + (slices > 1 ? ", with fewer --slices" : ", with a larger --micro-batch") +
        " or a smaller --batch");
  const std::int64_t met = units / 2 * sequence_batches * (slices * (slices + 1) / 2);
  if (met <= passes_max) return success();
  return bad_request("--slices " + std::to_string(slices) + ": slices meet those before them " + std::to_string(met) +
                     " times a step, too often to plan for " + c.model + "; give fewer, or a smaller --batch");
}

double flop_per_token(const ModelSpec& model, std::int64_t sequence) {
  const ModelConfig& c = model.config;
  const double attention = 12.0 * static_cast<double>(c.layers * c.heads * c.head_dim * sequence) / 2.0;
  double matmul_parameters = 0;
  for (const UnitSpec& u : model.units)
    for (const TensorSpec& t : u.tensors)
      if (t.shape.size() >= 2 && u.kind != Sublayer::embed) matmul_parameters += static_cast<double>(t.numel);
  if (c.tied) matmul_parameters += static_cast<double>(c.vocabulary * c.hidden);
  return 6.0 * matmul_parameters + attention;
}

}  // namespace

Result<std::unique_ptr<Prepared>> describe_request(const RunConfig& config, Purpose purpose) {
  SLUICE_TRY(validate(config, purpose));
  auto run = std::make_unique<Prepared>();
  run->config = config;
  SLUICE_ASSIGN(ModelConfig model_config, load_config(config.model));
  if (config.beyond_positions && model_config.family != Family::gpt2)
    model_config.max_positions = std::max(model_config.max_positions, config.sequence);
  run->model = build_model(model_config);
  if (config.sequence > model_config.max_positions)
    return bad_request("--seq " + std::to_string(config.sequence) + " is longer than the " +
                       std::to_string(model_config.max_positions) + " positions of " + config.model + "; " +
                       longer_positions(model_config, config.sequence));
  Workload& w = run->workload;
  w.model = &run->model;
  const std::int64_t slices = purpose == Purpose::decode ? 1 : config.slices;
  w.shape = {purpose == Purpose::decode ? 1 : config.micro_batch, config.sequence / config.context / slices,
             config.context, config.context > 1 && config.context_attention == ContextAttention::ring, slices};
  w.inference = purpose != Purpose::train;
  const auto of_training = [&](int group) { return static_cast<RankId>(purpose == Purpose::train ? group : 0); };
  const auto tensor = static_cast<RankId>(config.tensor);
  if (tensor > 1) {
    SLUICE_TRY(check_split(model_config, tensor));
    w.split = &run->split.emplace(run->model, tensor);
    w.model = &w.split->part();
  }
  if (!w.shape.ring) SLUICE_TRY(check_context(*w.model, static_cast<RankId>(config.context)));
  SLUICE_ASSIGN(const MeshOrder order, mesh_order_of(config));
  w.topology =
      topology_of({static_cast<RankId>(config.stages), static_cast<RankId>(batch_ranks(config)),
                   of_training(shares_states(config) ? 0 : config.shard_group), of_training(close_ranks_of(config)),
                   tensor, key_value_copies(model_config, tensor), static_cast<RankId>(config.context), order});
  w.splits_backward = splits_backward(config.pipeline.order);
  w.reduction = config.reduction;
  w.sums = config.sums;
  w.gathers = config.gathers;
  w.exchanges = config.ranks_of_node > 0 && config.ranks > 1;
  w.meets_in_host = config.device != "cpu" && config.ranks > 1;
  if (has_other_devices(config)) {
    w.meets_in_host = w.meets_in_host && config.cluster->device->meets_in_host;
  } else {
    SLUICE_ASSIGN(w.collects_on_device, collects_on_device(config));
  }
  if (purpose == Purpose::train) w.lots = lots_of(config) / batch_ranks(config);
  const std::int64_t sequence_batches = purpose == Purpose::train
                                            ? config.batch / (config.micro_batch * batch_ranks(config))
                                        : purpose == Purpose::evaluate ? std::max(1, config.batch / config.micro_batch)
                                                                       : 1;
  SLUICE_TRY(check_passes(config, sequence_batches, slices, static_cast<std::int64_t>(run->model.units.size())));
  w.micro_batches = static_cast<int>(sequence_batches * slices);
  const int places = config.stages * config.pipeline.chunks;
  if (const std::size_t units = run->model.units.size(); static_cast<std::size_t>(places) > units)
    return bad_request("--pp " + std::to_string(config.stages) +
                       (config.pipeline.chunks > 1 ? " with --chunks " + std::to_string(config.pipeline.chunks) : "") +
                       ": " + config.model + " has " + std::to_string(units) + " sublayers, fewer than the " +
                       std::to_string(places) + " parts; give at most " +
                       std::to_string(units / static_cast<std::size_t>(config.pipeline.chunks)) + " stages" +
                       (config.pipeline.chunks > 1 ? ", or fewer --chunks" : ""));
  SLUICE_TRY(check_pipeline_groups(w, config));
  w.dtype = config.dtype;
  w.moments = config.moments;
  w.gradient_dtype = config.gradient_dtype;
  if (purpose == Purpose::train) w.activation_dtype = config.activation_dtype;
  // Not where every step is saved: the next save begins before the step has ended that writes the last one.
  w.saves = purpose == Purpose::train && config.save_every > 1 && !config.run.empty();
  SLUICE_ASSIGN(w.kernels, kernel_sizes_of(config.device));
  w.documents = purpose != Purpose::decode && config.document_mask.value_or(false);
  w.document_length = config.document_length > 0 ? std::min(config.document_length, config.sequence) : config.sequence;
  w.threads = config.threads > 0
                  ? config.threads
                  : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_of_machine(config));
  if (purpose == Purpose::decode) {
    w.kv_capacity = model_config.max_positions;
    w.kv_capacity = std::min<std::int64_t>(w.kv_capacity, config.steps);
  }
  return run;
}

namespace {

/// These, budgets and profile.
Result<std::unique_ptr<Prepared>> begin_prepare(const RunConfig& config, Purpose purpose, const Tell& progress,
                                                bool measures = true) {
  SLUICE_ASSIGN(auto run, describe_request(config, purpose));
  if (has_other_devices(config)) {
    run->workload.device = config.cluster->device->name;
    SLUICE_TRY(set_budgets_there(config, run->workload));
    run->profile = profile_of(*config.cluster);
    run->workload.block_bytes = run->profile.drive.block_bytes;
    if (config.queue_depth > 0) run->profile.drive.depth = static_cast<std::uint32_t>(config.queue_depth);
  } else {
    SLUICE_ASSIGN(const std::unique_ptr<Device> device, Device::open(config.device));
    run->workload.device = device->kind();
    SLUICE_TRY(set_budgets(config, *device, run->workload));
    SLUICE_TRY(get_profile(*run, *device, measures, progress));
  }
  SLUICE_TRY(set_sharing(*run));
  if (config.cluster) {
    run->profile.messages_inside = config.cluster->messages_inside;
    run->profile.messages_between = config.cluster->messages_between;
  }
  run->model_flop_per_token = flop_per_token(run->model, config.sequence);
  return run;
}

/// Every plan that the run will run, before anything of it is touched.
Status prove_plans(const Prepared& run) {
  std::array<std::vector<Violation>, plans_of_stage.size()> found;
  parallel_for(plans_of_stage.size(), [&](std::size_t i) {
    std::vector<const StepPlan*> plans;
    for (const StagePlans& stage : run.stages) plans.push_back(&(stage.*plans_of_stage[i]));
    const Schedule& schedule = run.search.schedule;
    if (!plans.front()->ops.empty())
      found[i] = prove(plans, run.workload, goes_ahead(plans_of_stage[i]) ? schedule.ahead() : schedule);
  });
  for (const std::vector<Violation>& violations : found)
    if (!violations.empty())
      return fault("the plan is illegal, which is a bug in its builder: " + violations.front().message);
  return success();
}

/// What sums take on the device may be what does not fit.
bool may_stage(const Prepared& run) {
  return run.workload.collects_on_device && run.config.transport == Transport::automatic;
}

/// Side by side. What bounds the slowest of them bounds all.
void predict_stages(Prepared& run, StepPlan StagePlans::*plan, Simulation StagePlans::*predicted) {
  std::vector<const StepPlan*> plans;
  for (const StagePlans& stage : run.stages) plans.push_back(&(stage.*plan));
  WorldSimulation world = simulate_world(plans, run.profile);
  for (std::size_t s = 0; s < plans.size(); ++s) {
    run.stages[s].*predicted = std::move(world.members[s]);
    (run.stages[s].*predicted).bound_seconds = world.bound_seconds;
  }
}

/// Without the proof.
void build_plans_alone(Prepared& run) {
  const Workload& w = run.workload;
  const Schedule &schedule = run.search.schedule, ahead = schedule.ahead();
  const bool both = !w.inference && schedule.both_orders && !schedule.update_ahead,
             keeps = !w.inference && schedule.keeps_gradients;
  run.stages.resize(w.stages());
  parallel_for(run.stages.size(), [&](std::size_t s) {
    StagePlans& stage = run.stages[s];
    const Workload own = at_stage(w, static_cast<RankId>(s));
    parallel_invoke(
        [&] {
          stage.main = build_plan(w.main_kind(), own, schedule);
          if (run.stages.size() == 1) stage.predicted = simulate(stage.main, run.profile);
        },
        [&] {
          if (!w.inference) stage.evaluate = build_plan(PlanKind::evaluate, own, schedule);
          if (!w.inference && schedule.flushes_all()) stage.flush = build_plan(PlanKind::flush, own, ahead);
          if (!w.inference && schedule.mixes()) stage.flush_late = build_plan(PlanKind::flush, own, schedule);
          if (keeps && run.stages.size() == 1) stage.predicted_flush = simulate(stage.flush, run.profile);
          if (both) stage.ahead = build_plan(PlanKind::train, own, ahead);
          if (both && run.stages.size() == 1) stage.predicted_ahead = simulate(stage.ahead, run.profile);
        });
    stage.needs = {};
    for (const auto plan : plans_of_stage)
      for (const Arena& a : (stage.*plan).arenas)
        stage.needs.of(a.tier) = std::max(stage.needs.of(a.tier), a.arena_bytes);
  });
  if (run.stages.size() > 1) predict_stages(run, &StagePlans::main, &StagePlans::predicted);
  if (run.stages.size() > 1 && both) predict_stages(run, &StagePlans::ahead, &StagePlans::predicted_ahead);
  if (run.stages.size() > 1 && keeps) predict_stages(run, &StagePlans::flush, &StagePlans::predicted_flush);
  run.kernels.clear();
  for (const StagePlans& stage : run.stages) {
    run.kernels.merge(chosen_kernels(run.profile, stage.main.cost_keys));
    run.kernels.merge(chosen_kernels(run.profile, stage.evaluate.cost_keys));
  }
}

Status build_plans(Prepared& run) {
  build_plans_alone(run);
  return prove_plans(run);
}

}  // namespace

LinkBytes plan_link_bytes(const StepPlan& plan) {
  LinkBytes b;
  for (const Op& op : plan.ops) {
    switch (plan.lanes[op.lane].kind) {
      case LaneKind::h2d: b.h2d += op.bytes; break;
      case LaneKind::d2h: b.d2h += op.bytes; break;
      case LaneKind::nvme_read: b.nvme_read += op.bytes; break;
      case LaneKind::nvme_write: b.nvme_write += op.bytes; break;
      case LaneKind::comm: b.collective += op.bytes; break;
      case LaneKind::receive: b.message += op.bytes; break;
      default: break;
    }
  }
  return b;
}

LinkBytes step_link_bytes(const Prepared& run) {
  LinkBytes all;
  for (const StagePlans& stage : run.stages) all += plan_link_bytes(stage.main) * run.workload.ranks_of_stage();
  return all;
}

LinkBytes machine_link_bytes(const Prepared& run) {
  LinkBytes all;
  for (RankId s = 0; s < run.stages.size(); ++s) all += plan_link_bytes(run.stages[s].main) * run.ranks_here(s);
  return all;
}

std::uint64_t state_bytes(const Prepared& run) {
  std::uint64_t bytes = 0;
  for (const StagePlans& stage : run.stages)
    for (const Buffer& b : stage.main.buffers)
      if (b.holds == Holds::home && b.state != StateKind::gradient) bytes += b.bytes;
  return bytes * run.workload.ranks_of_stage();
}

std::uint64_t durable_slot_bytes(const Prepared& run) {
  std::uint64_t bytes = 0;
  for (RankId s = 0; s < run.stages.size(); ++s)
    for (const Buffer& b : run.stages[s].main.buffers)
      if (b.slots == 2) bytes += padded_bytes(b.bytes) * run.ranks_here(s);
  return bytes;
}

std::uint64_t Prepared::ranks_here(RankId stage) const {
  const int first = stage * workload.ranks_of_stage(),
            end = std::min(first + workload.ranks_of_stage(), ranks_of_machine(config));
  return static_cast<std::uint64_t>(std::max(0, end - first));
}

Arena Prepared::arena_of_machine(Tier tier) const {
  Arena all{tier};
  for (RankId r = 0; r < ranks_of_machine(config); ++r) {
    const Arena& rank = *stage_of_rank(r).main.arena(tier);
    if (tier == Tier::device) {
      if (rank.arena_bytes > all.arena_bytes) all = rank;
      continue;
    }
    all.budget_bytes += rank.budget_bytes > 1 ? rank.budget_bytes : 0;
    all.arena_bytes += rank.arena_bytes;
    all.max_live_bytes += rank.max_live_bytes;
    all.packing = std::max(all.packing, rank.packing);
  }
  return all;
}

namespace {

void take_layout(Prepared& run, const DriveLayout& layout) {
  run.workload.block_bytes = run.profile.drive.block_bytes = layout.block_bytes;
  run.profile.drive.stripe_weights = layout.stripe_weights;
}

/// As far as what the search takes.
Result<std::unique_ptr<Prepared>> prepare_to_search(const RunConfig& config, Purpose purpose, const Tell& progress,
                                                    bool measures) {
  SLUICE_ASSIGN(auto run, begin_prepare(config, purpose, progress, measures));
  run->wish = wish_of(*run);
  run->workload.durable =
      !run->workload.inference && config.durable != Durable::off && !config.run.empty() && !config.nvme.empty();
  return run;
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare_to_estimate(const RunConfig& config, Purpose purpose, const Tell& progress) {
  SLUICE_ASSIGN(auto run, prepare_to_search(config, purpose, progress, false));
  run->profile.op_seconds.clear();
  return run;
}

Result<std::unique_ptr<Prepared>> arranged(const Prepared& other, const RunConfig& config) {
  SLUICE_ASSIGN(auto run, describe_request(config, Purpose::train));
  Workload& w = run->workload;
  w.device = other.workload.device;
  w.budget_bytes = other.workload.budget_bytes;
  w.block_bytes = other.workload.block_bytes;
  w.durable = other.workload.durable;
  run->profile = other.profile;
  run->model_flop_per_token = other.model_flop_per_token;
  run->wish = wish_of(*run);
  return run;
}

Result<std::unique_ptr<Prepared>> prepare(const RunConfig& config, Purpose purpose, const Tell& progress, Effort effort,
                                          const DriveLayout* layout) {
  SLUICE_ASSIGN(auto run, prepare_to_search(config, purpose, progress, true));
  if (layout != nullptr) take_layout(*run, *layout);
  if (progress) progress("searching a schedule");
  const Effort aim = has_other_devices(config) ? Effort::quick : effort;
  const bool durable = run->workload.durable;
  choose_schedule(*run, progress, aim);
  if (!run->search.fits && may_stage(*run)) {
    run->workload.collects_on_device = false;
    run->workload.durable = durable;
    choose_schedule(*run, progress, aim);
  }
  if (run->search.fits) SLUICE_TRY(build_plans(*run));
  return run;
}

namespace {

Status check_units(const Prepared& run, const Schedule& schedule) {
  if (run.workload.gathers == RankGathers::int8 && std::ranges::any_of(schedule.units, &UnitChoice::resident))
    return bad_request(
        "the schedule keeps parameters on the device, where --gather int8 would round them; leave that out");
  if (schedule.units.size() != run.model.units.size())
    return bad_request("the schedule is for " + std::to_string(schedule.units.size()) + " sublayers, " +
                       run.config.model + " has " + std::to_string(run.model.units.size()));
  if (!schedule.update_ahead && std::ranges::all_of(schedule.units, &UnitChoice::late))
    return bad_request("the schedule updates in the backward pass, and all of its units are late: give update_ahead");
  if (schedule.mixes() && run.workload.stages() > 1)
    return bad_request("the schedule updates in both passes, which stages of a pipeline can not");
  return check_stages(run.workload, schedule);
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare_stored(const RunConfig& config, const Schedule& schedule,
                                                 const DriveLayout& layout) {
  // Nothing is computed: states lie alike whatever computes.
  RunConfig on_host = config;
  on_host.device = "cpu";
  SLUICE_ASSIGN(auto run, describe_request(on_host, Purpose::train));
  SLUICE_TRY(check_units(*run, schedule));
  run->workload.durable = config.durable == Durable::on;
  take_layout(*run, layout);
  run->is_given = true;
  run->search.schedule = schedule;
  const std::vector<TierBytes> needs = stage_needs(run->workload, schedule);
  std::vector<StepPlan> plans = build_stages(run->workload.main_kind(), run->workload, schedule);
  for (std::size_t s = 0; s < needs.size(); ++s) {
    StagePlans& stage = run->stages.emplace_back();
    stage.main = std::move(plans[s]);
    stage.needs = needs[s];
  }
  run->search.needs = run_needs(run->workload, schedule);
  return run;
}

Result<std::unique_ptr<Prepared>> prepare_with(const RunConfig& config, Purpose purpose, const Schedule& schedule,
                                               const DriveLayout* layout, const Tell& progress) {
  SLUICE_ASSIGN(auto run, begin_prepare(config, purpose, progress));
  SLUICE_TRY(check_units(*run, schedule));
  run->workload.durable = config.durable == Durable::on;
  run->durability = run->workload.durable ? "on" : "off";
  if (layout != nullptr) take_layout(*run, *layout);
  run->is_given = true;
  run->wish = config.wish;
  run->wish.pipeline = schedule.pipeline;
  SearchResult& found = run->search;
  found.schedule = schedule;
  found.needs = run_needs(run->workload, schedule);
  found.fits = within(found.needs, run->workload.budget_bytes);
  if (!found.fits && may_stage(*run)) {
    run->workload.collects_on_device = false;
    found.needs = run_needs(run->workload, schedule);
    found.fits = within(found.needs, run->workload.budget_bytes);
  }
  if (!found.fits && run->workload.saves) {
    // It was found for steps that do not save: these stop for that.
    run->workload.saves = false;
    found.needs = run_needs(run->workload, schedule);
    found.fits = within(found.needs, run->workload.budget_bytes);
    if (found.fits && progress)
      progress("the run's plan has no room for steps that save beside their work: they stop for each checkpoint");
  }
  if (!found.fits) return run;
  SLUICE_TRY(build_plans(*run));
  found.predicted_seconds = run->step_seconds();
  return run;
}

Result<std::unique_ptr<Prepared>> prepare_decided(const Decided& decided) {
  SLUICE_ASSIGN(auto run, describe_request(decided.config, decided.purpose));
  SLUICE_TRY(check_units(*run, decided.schedule));
  Workload& w = run->workload;
  w.device = decided.device;
  w.budget_bytes = decided.budget_bytes;
  w.threads = decided.threads;
  w.durable = decided.durable;
  w.saves = decided.saves;
  run->profile = decided.profile;
  w.block_bytes = run->profile.drive.block_bytes;
  SLUICE_TRY(set_sharing(*run));
  run->model_flop_per_token = flop_per_token(run->model, decided.config.sequence);
  run->is_given = true;
  run->search.schedule = decided.schedule;
  run->search.needs = run_needs(w, decided.schedule);
  run->search.fits = true;
  build_plans_alone(*run);
  run->kernels = decided.kernels;
  run->search.predicted_seconds = run->step_seconds();
  return run;
}

}  // namespace sluice
