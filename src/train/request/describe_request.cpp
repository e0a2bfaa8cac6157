// What a request describes, as far as no machine is looked at.
#include <algorithm>
#include <thread>

#include "io/files/publish.h"
#include "src/device/device.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/prepare.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {
namespace {

/// Units times micro-batches of a step: each is some ops of a plan.
constexpr std::int64_t unit_passes_max = 1 << 18;
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

/// Each slice passes every sublayer, and meets every slice before it in attention.
Status check_passes(const RunConfig& c, std::int64_t sequence_batches, std::int64_t slices, std::int64_t units) {
  const std::int64_t micro_batches = sequence_batches * slices;
  if (units * micro_batches > unit_passes_max)
    return bad_request(
        "--batch " + std::to_string(c.batch) + (slices > 1 ? " in --slices " + std::to_string(slices) : "") + " is " +
        std::to_string(micro_batches) + " micro-batches a step, too many to plan for " + c.model + ": give at most " +
        std::to_string(unit_passes_max / units) +
        (slices > 1 ? ", with fewer --slices" : ", with a larger --micro-batch") + " or a smaller --batch");
  const std::int64_t met = units / 2 * sequence_batches * (slices * (slices + 1) / 2);
  if (met <= unit_passes_max) return success();
  return bad_request("--slices " + std::to_string(slices) + ": slices meet those before them " + std::to_string(met) +
                     " times a step, too often to plan for " + c.model + "; give fewer, or a smaller --batch");
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

}  // namespace sluice
