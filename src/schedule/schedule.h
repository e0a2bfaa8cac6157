// What a plan is built from: the workload (what must be computed) and the schedule (every choice about how).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/state/moment_layout.h"
#include "sluice/plan.h"
#include "src/model/kernel_sizes.h"
#include "src/model/model.h"
#include "src/model/shard_map.h"
#include "src/model/split.h"
#include "src/schedule/lots.h"
#include "src/schedule/pipeline.h"

namespace sluice {

/// The stages of a pipeline each have a part of the model. Within a stage ranks each have a part of every batch: those
/// of a shard group, neighbours along dp, have one copy of the stage's states between them; replicas of the group have
/// the same. Within it those that are close may have a second copy of parameters between them. Ranks that have slices
/// of the same sequences (context parallelism) have parameters, gradients and states as ranks with other sequences do:
/// they are in the shard group, or, where that is smaller, among the replicas. They count slowest there, so that the
/// sums of a slice over the batch are nodes of the tree. Ranks that sublayers are cut over (src/model/split.h) have the
/// same part of the batch; of those, neighbours that are copies have the same keys and values.
constexpr AxisSet pipeline_axes = 1, far_axes = 8 + 16, context_axes = 2 + 8, replica_axes = 2 + 4,
                  batch_axes = 4 + 16 + 32, shard_axes = 8 + 16 + 32, close_axes = 32,
                  data_axes = replica_axes + shard_axes, tensor_axes = 64 + 128, copy_axes = 128;

/// What a person calls the axes, and in which order ranks are numbered through them: the last counts fastest. A stage's
/// ranks are neighbours, so that pp comes first. No bit depends on it.
enum class MeshAxis : std::uint8_t { pp, dp, cp, tp };
constexpr std::array<const char*, 4> mesh_axis_names{"pp", "dp", "cp", "tp"};
using MeshOrder = std::array<MeshAxis, 4>;
/// What gives each other most is closest.
constexpr MeshOrder mesh_order{MeshAxis::pp, MeshAxis::dp, MeshAxis::cp, MeshAxis::tp};

/// How many ranks there are along the axes.
struct Mesh {
  RankId stages = 1;
  RankId data = 1;     ///< of a stage: that have a part of the batch
  RankId shards = 0;   ///< of those, that have one copy of the states; divides `data`; 0: all, with those of `context`
  RankId close = 0;    ///< divides `shards`; 0: all of them that have other parts of the batch
  RankId tensor = 1;   ///< that sublayers are cut over
  RankId copies = 1;   ///< of those, that have the same keys and values; divides `tensor`
  RankId context = 1;  ///< that have slices of the same sequences
  MeshOrder order = mesh_order;
};
inline Topology topology_of(Mesh mesh, RankId rank = 0) {
  const bool shares = mesh.shards == 0;
  if (mesh.shards == 0) mesh.shards = mesh.data;
  if (mesh.close == 0) mesh.close = mesh.shards;
  // From a rank to the next one with another stage, slice, ...
  RankId pp = 0, cp = 0, dp = 0, tp = 0;
  std::uint32_t stride = 1;
  for (std::size_t i = mesh.order.size(); i-- > 0;) {
    const auto [of, size] = mesh.order[i] == MeshAxis::pp   ? std::pair(&pp, mesh.stages)
                            : mesh.order[i] == MeshAxis::dp ? std::pair(&dp, mesh.data)
                            : mesh.order[i] == MeshAxis::cp ? std::pair(&cp, mesh.context)
                                                            : std::pair(&tp, mesh.tensor);
    *of = static_cast<RankId>(stride);
    stride *= size;
  }
  const auto times = [](RankId axis, RankId inner) { return static_cast<RankId>(axis * inner); };
  return Topology::of({{"pp", mesh.stages, pp},
                       {"replica.slice", shares ? RankId{1} : mesh.context, cp},
                       {"replica", static_cast<RankId>(mesh.data / mesh.shards), times(dp, mesh.shards)},
                       {"shard.slice", shares ? mesh.context : RankId{1}, cp},
                       {"far", static_cast<RankId>(mesh.shards / mesh.close), times(dp, mesh.close)},
                       {"close", mesh.close, dp},
                       {"part", static_cast<RankId>(mesh.tensor / mesh.copies), times(tp, mesh.copies)},
                       {"copy", mesh.copies, tp}},
                      rank);
}
/// Of one stage.
inline Topology data_parallel(RankId ranks, RankId rank = 0, RankId shards = 0, RankId close = 0) {
  return topology_of({1, ranks, shards, close}, rank);
}

/// Whether ranks add up their gradients once, or after each lot. Then the lots of a batch go round the ranks, and what
/// waits for the last lot is the shard of a gradient, where else it is the whole. Bits are the same.
enum class Reduction : std::uint8_t { last, pass };
constexpr std::array<const char*, 2> reduction_names{"last", "pass"};

/// How ranks that share parameters gather them: as they are, or in blocks of 8 bits, which all of them then compute
/// with (ZeRO++'s qwZ, arXiv 2306.10209). What is stored, updated and evaluated is as it is.
enum class RankGathers : std::uint8_t { exact, int8 };
constexpr std::array<const char*, 2> rank_gathers_names{"exact", "int8"};
constexpr Quantization gathered_blocks{8, 256}, reduced_blocks{4, 128};

/// How activations lie in host memory or on the drive from a step's pass forward to its backward pass: as they are, or
/// in blocks of 8 bits, which the backward pass then computes with.
enum class ActivationDtype : std::uint8_t { exact, int8, fp8 };
constexpr std::array<const char*, 3> activation_dtype_names{"exact", "int8", "fp8"};
/// Of those in bits.
constexpr Quantization parked_blocks(ActivationDtype dtype) {
  return {8, 128, dtype == ActivationDtype::fp8 ? CodeFormat::e4m3 : CodeFormat::integer};
}

/// How ranks that have slices of sequences attend to all of them: each with some heads of whole sequences
/// (DeepSpeed-Ulysses, arXiv 2309.14509), or with all heads of its own queries, while keys and values go round (ring
/// attention, arXiv 2310.01889).
enum class ContextAttention : std::uint8_t { ulysses, ring };
constexpr std::array<const char*, 2> context_attention_names{"ulysses", "ring"};

/// What one step computes, on how many ranks. Decides the bits of the result; the schedule does not, but where
/// activations that it parks are stored in fewer bits.
struct Workload {
  const ModelSpec* model = nullptr;   ///< as a rank has it
  const SplitModel* split = nullptr;  ///< where its sublayers are cut over ranks
  BatchShape shape;                   ///< of one micro-batch
  /// Per rank and step; the ranks of a pipeline have the same. Where sequences are taken in slices each is of a slice,
  /// and those of the same sequences follow one another.
  int micro_batches = 1;
  int lots = 1;  ///< of the rank's part of the batch: in which order it is added up
  Reduction reduction = Reduction::last;
  RankSums sums = RankSums::tree;            ///< of gradients over ranks
  RankGathers gathers = RankGathers::exact;  ///< of parameters in training
  Topology topology;                         ///< whose plan it is
  bool splits_backward = false;              ///< backward passes come in halves: which ops are measured
  bool exchanges = false;                    ///< ranks share no memory: sums over them need room of their own
  bool meets_in_host = false;                ///< what ranks give each other goes through their host memory
  bool collects_on_device = false;           ///< but for collectives, which are a lane of the device (NCCL)
  Dtype dtype = Dtype::bf16;                 ///< of parameters and activations
  MomentFormat moments = MomentFormat::f32;  ///< of the optimizer's states
  Dtype gradient_dtype = Dtype::f32;         ///< of what updates read of gradients: f32 or bf16
  /// Of those that wait away from the device.
  ActivationDtype activation_dtype = ActivationDtype::exact;
  std::uint32_t block_bytes = drive_block_bytes;   ///< of requests to drives
  bool durable = false;                            ///< two slots per shard on NVMe and a commit per step
  bool saves = false;                              ///< steps can write the states to a checkpoint as they update them
  const KernelSizes* kernels = &cpu_kernel_sizes;  ///< of the device that computes
  int threads = 1;                                 ///< compute threads, part of the cost keys
  std::string device;                              ///< Device::kind: part of the cost keys too
  bool inference = false;                          ///< evaluate and decode only: no optimizer states
  bool documents = false;                          ///< of packed rows are kept apart: attention reads positions
  std::int64_t document_length = 1;                ///< of equal ones that cost attention as much: part of its cost key
  std::int64_t kv_capacity = 0;                    ///< decode: positions in the cache; 0 for everything else
  std::array<std::uint64_t, 3> budget_bytes{};     ///< per tier, of this rank; 0 = none

  /// The plan that this workload is mainly for.
  PlanKind main_kind() const {
    return !inference ? PlanKind::train : kv_capacity > 0 ? PlanKind::decode : PlanKind::evaluate;
  }
  /// Whether tokens come with theirs: how many of their document are before them in the sequence.
  bool has_positions() const { return documents || shape.in_blocks(); }
  /// Of a whole sequence: rotary tables are of so many, and dynamic frequencies stretched for them.
  std::int64_t positions() const { return kv_capacity > 0 ? kv_capacity : shape.whole(); }
  RankId ranks() const { return topology.ranks(); }
  bool rounds_gradients() const { return gradient_dtype != Dtype::f32; }
  bool stages_collectives() const { return meets_in_host && !collects_on_device; }
  /// Sums go as messages, and take room for what arrives.
  bool sends_sums() const { return exchanges || collects_on_device; }
  RankId stages() const { return topology.size(pipeline_axes); }
  /// Of a stage: that have parts of the batch, or slices of them, and between them, or each, all its parameters.
  RankId data_ranks() const { return topology.size(data_axes); }
  /// Parts of a batch.
  RankId batch_ranks() const { return topology.size(batch_axes); }
  RankId context_ranks() const { return topology.size(context_axes); }
  RankId tensor_ranks() const { return topology.size(tensor_axes); }
  RankId ranks_of_stage() const { return static_cast<RankId>(data_ranks() * tensor_ranks()); }
  RankId shards() const { return topology.size(shard_axes); }
  RankId replicas() const { return topology.size(replica_axes); }
  RankId close_ranks() const { return topology.size(close_axes); }
  RankId far_groups() const { return topology.size(far_axes); }
  LotSums lot_sums() const { return {lots, micro_batches / lots}; }
  /// That are added up before ranks are: the most that a group can have.
  int micro_batches_of_sum() const { return reduction == Reduction::pass ? micro_batches / lots : micro_batches; }
  /// Which part of a batch is the rank's.
  RankId batch_rank(RankId rank) const { return topology.at(rank).position(batch_axes); }
  /// Which slice of its sequences.
  RankId slice_of(RankId rank) const { return topology.at(rank).position(context_axes); }
  /// Micro-batches that have the same sequences, or all of them, count as one.
  int slices() const { return static_cast<int>(shape.slices); }
  int sequence_batches() const { return micro_batches / slices(); }
  int sequence_batch(int micro_batch) const { return micro_batch / slices(); }
  /// On the way back a sequence's slices come last to first: the micro-batch whose turn it is when this one's would be,
  /// and the turn of that one.
  int turn_back(int micro_batch) const {
    return micro_batch - micro_batch % slices() + slices() - 1 - micro_batch % slices();
  }
  /// Which slice of its sequences a rank's micro-batch is.
  std::int64_t slice_of(RankId rank, int micro_batch) const {
    return shape.slices > 1 ? micro_batch % shape.slices : slice_of(rank);
  }
  /// Of the batch's micro-batches, in the order of samples, the one that is a rank's `micro_batch`th; slices aside.
  std::uint64_t global_micro_batch(RankId rank, int micro_batch) const {
    const std::uint64_t of_lot = static_cast<std::uint64_t>(sequence_batches() / lots),
                        at = static_cast<std::uint64_t>(sequence_batch(micro_batch));
    const std::uint64_t part = batch_rank(rank);
    if (reduction == Reduction::last) return part * static_cast<std::uint64_t>(sequence_batches()) + at;
    return (at / of_lot * batch_ranks() + part) * of_lot + at % of_lot;
  }
  ShardMap shard_map() const { return {*model, {topology, shard_axes}, {topology, tensor_axes}, replicas()}; }
  std::uint64_t shard_numel(UnitId u) const { return shard_map().shard_numel(u); }
  std::uint64_t full_numel(UnitId u) const { return shard_map().full_numel(u); }
};

/// Where a thing lies while it is not being worked on.
enum class Place : std::uint8_t { device, host, nvme };
constexpr std::array<const char*, 3> place_names{"device", "host", "nvme"};

/// What becomes of a sublayer's saved activations between forward and backward: an MLP's are what comes from its first
/// multiply; attention's are q, k and v, and its core, which is its output with the log-sum-exp of its scores. What is
/// quickly made of these is made again in any case.
enum class Saved : std::uint8_t { keep, recompute, host, nvme };
constexpr std::array<const char*, 4> saved_names{"keep", "recompute", "host", "nvme"};

/// The choices for one unit.
struct UnitChoice {
  bool resident = false;  ///< a copy of the parameters stays on the device
  bool held = false;      ///< else: what a step has gathered stays there until its last pass over it
  /// Else: behind a step's first pass close ranks have a copy between them in host memory, and later passes fetch that.
  bool second_copy = false;
  Place parameter_home = Place::nvme;  ///< host or nvme
  Place state_home = Place::nvme;      ///< remainder and moments: host or nvme
  Place gradient = Place::host;        ///< where the reduced gradient waits for the global norm
  Place accumulator = Place::device;   ///< fp32 gradient between groups of micro-batches
  Saved saved = Saved::recompute;
  std::optional<Saved> core;       ///< of attention, its core's; none: as `saved`, in one piece with that
  Place boundary = Place::device;  ///< the unit's input between forward and backward
  /// Attention where a rank takes sequences in slices: each slice's keys and values, while others are worked on.
  Place blocks = Place::device;
  /// Which sweep over the sublayers before it keeps the unit's input for its backward pass: the step's own forward pass
  /// (0), or one that a backward pass makes again from what an earlier one has kept (1: from that of sweep 0, ...). Of
  /// a place's first unit and of the head always 0.
  std::uint8_t sweep = 0;
  bool update_on_device = false;  ///< AdamW there, its states streamed through; else on the CPU
  /// Where updates come in the backward pass: this unit's waits for the unit's next forward.
  bool late = false;
  bool operator==(const UnitChoice&) const = default;
};

/// In which order the stages of a pipeline take their passes (src/schedule/pipeline.h).
struct PipelineChoice {
  PipelineOrder order = PipelineOrder::one_forward_one_backward;
  int chunks = 1;  ///< of the model that each stage has
  bool operator==(const PipelineChoice&) const = default;
};

struct Schedule {
  PipelineChoice pipeline;
  std::vector<UnitId> cut;  ///< the first unit of each place along a pipeline but the first; none: one stage
  /// Micro-batches that pass a unit together: 1 is horizontal, all is vertical. All slices of a sequence are in one.
  int group = 1;
  /// Update ahead of the unit's next forward (else in the backward pass, but for units that are late).
  bool update_ahead = true;
  /// Of updates in the backward pass: steps may also be run as `ahead` has them, and there is room for both.
  bool both_orders = false;
  /// Of updates in the backward pass: gradients are also left where they would wait for the norm, so that a step whose
  /// clip factor was mispredicted is updated again from them (the flush plan).
  bool keeps_gradients = false;
  int prefetch = 1;  ///< passes that a unit's parameters are fetched ahead; 0 fetches when needed
  /// Micro-batches that parked activations are brought ahead, where anything is; and blocks of keys and values ahead of
  /// the one at hand.
  int activations_ahead = 1;
  bool gradients_ahead = false;         ///< sums that are parked travel beside the passes next to theirs
  int lag = 1;                          ///< passes that a unit's gradient may be drained behind; 0 drains at once
  int tiles_in_flight = 3;              ///< optimizer tiles between their first read and their last write
  bool hold = true;                     ///< activations between neighbouring passes stay on the device
  std::uint64_t tile_numel = 1u << 20;  ///< elements per transfer and optimizer tile; power of two, at least 4096
  std::vector<UnitChoice> units;
  /// Of both orders: the units of steps that `ahead` has, where these use memory otherwise. What outlasts a step lies
  /// where `units` has it. No parameters stay on the device: those of `units` are loaded anew when steps change back.
  /// None: as in `units`.
  std::vector<UnitChoice> waiting;
  bool operator==(const Schedule&) const = default;

  /// The same with updates ahead of the forward pass.
  Schedule ahead() const {
    Schedule s = *this;
    if (!waiting.empty()) s.units = std::exchange(s.waiting, {});
    s.update_ahead = true;
    for (UnitChoice& c : s.units) c.late = false;
    return s;
  }
  bool updates_ahead(UnitId u) const { return update_ahead || units[static_cast<std::size_t>(u)].late; }
  /// Whether updates come in both passes.
  bool mixes() const {
    return !update_ahead && std::ranges::any_of(units, [](const UnitChoice& c) { return c.late; });
  }
  /// Whether a step leaves the unit's gradient behind.
  bool stores_gradient(UnitId u) const { return updates_ahead(u) || keeps_gradients; }
  /// Whether some plan does.
  bool has_waiting_gradient(UnitId u) const { return stores_gradient(u) || both_orders; }
  /// Whether it does so with any.
  bool stores_gradients() const { return update_ahead || keeps_gradients || mixes(); }
  /// Whether steps may be followed by the updates of all units, from gradients that have waited (Schedule::ahead).
  bool flushes_all() const { return update_ahead || keeps_gradients || both_orders; }
};

/// Micro-batches that pass a unit together, one group after the other.
struct MicroBatchGroup {
  int first = 0, end = 0;
  bool ends_sum = false;  ///< ranks add up their gradients behind it
};
std::vector<MicroBatchGroup> micro_batch_groups(const Workload& workload, const Schedule& schedule, PlanKind kind);

/// Whether a gradient that waits on the device is added up where it waits: what ranks reduce, or is rounded in host
/// memory, or was parked, comes there when all is added up.
bool sums_where_it_waits(const Workload& workload, const Schedule& schedule, UnitId unit);

/// Whether sums of gradients leave the device between groups.
bool parks_sums(const Workload& workload, const Schedule& schedule);

/// A power of two from tile_min to 2^24 that cuts the model into about tiles_max tiles or fewer.
std::uint64_t tile_for(const Workload& workload, std::uint64_t tile_min, std::uint64_t tiles_max);
/// The largest that is used: a few in flight take no more than some percent of a large device's memory.
std::uint64_t tile_limit(const Workload& workload);

/// Where a pipeline's model is cut: places with about as many FLOP each. As many units as places are needed at least.
std::vector<UnitId> cut_evenly(const Workload& workload, int places);

/// Everything streamed from NVMe, least memory: where the search starts.
Schedule frugal_schedule(const Workload& workload, const PipelineChoice& pipeline = {});

}  // namespace sluice
