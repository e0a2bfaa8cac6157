// A training step as a value.
//
// A StepPlan lists, in one *program order* that would be a legal sequential execution, every piece of work of a step
// (Op), the lane that does it, the bytes it touches (Access into Buffer) and the ops it waits for. Builders
// (src/schedule) emit ops and accesses; then, in this order, functions of offload/plan complete and use it:
//
//     pack(plan)          gives every buffer an offset in its arena, from its life in program order
//     derive_waits(plan)  finds the waits that data and reused bytes require, and no others
//     check(plan)         proves from lanes and waits alone that the plan is legal
//     simulate(plan, hw)  predicts time, bottleneck and timeline
//     Executor            (offload/run) runs it on real devices
//
// A plan is the program of one rank. Ranks meet in collectives, each named by its group and its number there, and send
// each other messages, named by group, peer and number; no plan knows the ops of another rank.
//
// Memory: an arena is one tier. Persistent buffers lie at the bottom, one after the other in the order of
// `buffers`, so that every kind of plan of one run (train, flush, evaluate, ...) finds them at the same offsets;
// carried ones follow in the same way; transient buffers are packed above persistent ones by lifetime, and have the
// bytes of carried ones while nothing is carried there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/exact_sum.h"
#include "sluice/quantization.h"
#include "sluice/topology.h"

namespace sluice {

using OpId = std::uint32_t;
using BufferId = std::uint32_t;
using LaneId = std::uint16_t;
using UnitId = std::int32_t;  ///< index in StepPlan::units, -1 for none

constexpr OpId no_op = 0xffffffffu;
constexpr std::uint64_t buffer_alignment_bytes = 4096;

enum class Tier : std::uint8_t { device, host, nvme };
constexpr std::array<const char*, 3> tier_names{"device", "host", "nvme"};

enum class StateKind : std::uint8_t { parameter, remainder, exp_avg, exp_avg_sq, gradient };
constexpr std::array<const char*, 5> state_names{"parameter", "remainder", "exp_avg", "exp_avg_sq", "gradient"};

/// What works in order and beside the others. compute: the device. h2d, d2h: copies. nvme_read, nvme_write: the drive.
/// optimizer: CPU AdamW, norms and step control. comm: collectives; where those of a device are NCCL's, all of them are
/// on one lane, since NCCL promises an end only to ranks that issue all of them in one order. commit: syncs and commit
/// records, so that other writes go on beside them. input: the trainer's tokens. send, receive: messages between two
/// ranks, apart, so that what is to come does not wait for what is to go. save: what goes to a checkpoint.
enum class LaneKind : std::uint8_t {
  compute,
  h2d,
  d2h,
  nvme_read,
  nvme_write,
  optimizer,
  comm,
  commit,
  input,
  send,
  receive,
  save
};
constexpr std::array<const char*, 12> lane_names{"compute", "h2d",    "d2h",   "nvme_read", "nvme_write", "optimizer",
                                                 "comm",    "commit", "input", "send",      "receive",    "save"};

/// Order within a lane. Ops always start in order and their completions become visible in order. On a lane that is
/// not `windowed`, an op starts only after the one before it has finished. On a windowed lane (a drive with many
/// requests in flight) the next op may start before the previous one has finished, so lane order alone does not
/// order their accesses.
struct Lane {
  LaneKind kind;
  bool windowed = false;
  /// comm, send, receive: every group has lanes of its own, so that none waits behind another's traffic. comm, -1: that
  /// of a device, with the collectives of all groups whose buffers lie in its memory.
  std::int32_t group = -1;
};
/// Whose collectives are work of a device's queue.
constexpr bool is_of_device_collectives(const Lane& lane) { return lane.kind == LaneKind::comm && lane.group < 0; }

enum class OpKind : std::uint8_t {
  // compute lane; the unit says which sublayer
  forward,           ///< x_in, parameters -> x_out, saved
  recompute,         ///< x_in, parameters -> saved, core again
  recompute_qkv,     ///< attention: x_in or normed, parameters -> saved again
  recompute_core,    ///< attention: saved, parameters -> core again
  backward,          ///< x_in, saved, parameters, d_out -> d_in, gradient (+=)
  backward_again,    ///< MLP: the same without saved, which is made again chunk by chunk, in the workspace
  backward_input,    ///< the first half of it: x_in, saved, parameters, d_out -> d_in, deferred
  backward_weight,   ///< the other one: x_in, saved, d_out, deferred -> gradient (+=)
  forward_backward,  ///< head in training: x_in, parameters, tokens -> loss, d_in, gradient (+=)
  loss,              ///< head in evaluation: x_in, parameters, tokens -> loss
  logits,            ///< head in decoding: x_in, parameters -> logits of the last token
  // where sublayers are cut over ranks (src/model/split.h)
  enter,           ///< of a slice of the tokens: x_in, parameters -> normed
  leave,           ///< of a slice: x_in, sum, parameters -> x_out
  expose,          ///< of a slice: d_out -> d_in, its place in that of all tokens
  enter_backward,  ///< of a slice: x_in, d_sum, d_out, parameters -> d_in, gradient (+=)
  part_forward,    ///< normed, parameters -> a part of the sum, saved
  part_recompute,  ///< normed, parameters -> saved again
  part_backward,   ///< normed, saved, parameters, d_out -> a part of d_sum, gradient (+=)
  part_logits,     ///< head, of a chunk of tokens: normed, parameters, tokens -> logits, vocabulary_part
  part_gradient,   ///< head, of a chunk: normed, logits, all vocabulary parts -> loss, a part of d_sum, gradient (+=)
  part_loss,       ///< head in evaluation, of a chunk: all vocabulary parts, tokens -> loss
  // attention of slices of sequences (src/model/context-inl.h), which ranks have, or one rank takes one after the
  // other; in a ring, and there, it is in blocks of keys and values (src/model/blocks-inl.h)
  qkv,           ///< x_in or normed, parameters -> leaving: what each rank's heads are to have of the slice; saved. In
                 ///< blocks -> mixed, block
  core,          ///< mixed -> attended, lse. In blocks mixed, block -> partial (+=), lse, and in the last step attended
  core_earlier,  ///< the same of the block of an earlier slice of one rank's
  out,           ///< arrived: attended of all heads of the slice, parameters -> x_out, or a part of the sum
  out_backward,  ///< arrived: the same, parameters, d_out -> leaving: its gradient, by head; gradient (+=)
  core_backward,  ///< mixed, attended, lse, arrived: the gradient of attended -> leaving: that of mixed. In blocks also
                  ///< block -> leaving: the part of its gradient (+=), partial (+=): that of mixed
  core_earlier_backward,  ///< the same of such a block
  qkv_backward,  ///< arrived: that, of the slice; saved, x_in or normed, parameters -> d_in, or a part of d_sum,
                 ///< gradient (+=). In blocks partial, arrived: of q, and of k and v
  // what ranks give each other in few bits (sluice/quantization.h), `pieces` of `numel` elements
  quantize,        ///< src -> dst, codes and scales of each piece behind one another
  dequantize,      ///< src -> dst, pieces behind one another
  dequantize_sum,  ///< src -> dst, fp32: sums of as many pieces as follow one another, in their order
  accumulate,      ///< dst += src, fp32
  // h2d, d2h lanes
  copy,  ///< src -> dst
  // input lane
  load_tokens,  ///< this micro-batch's tokens from the trainer -> dst, in host memory
  // nvme lanes
  read,    ///< nvme src -> host dst
  write,   ///< host src -> nvme dst
  sync,    ///< everything written so far on the drive is durable
  commit,  ///< writes the commit record
  // optimizer lane
  grad_norm,  ///< adds the squared norm of a gradient tile to the rank's sum; gradient -> dst in bf16, if there is one
  update,     ///< AdamW on one tile; on the compute lane where the device does it
  verify,     ///< stops the run where parameters that the device has updated diverged
  control,    ///< global norm, clip factor, finiteness (across ranks)
  step_end,   ///< hands losses and norm of the finished step to the trainer
  // comm lane
  all_gather,      ///< own part of dst is filled; the others' parts arrive
  reduce_scatter,  ///< full src on every rank -> own part, summed over the group, in dst
  all_to_all,      ///< of each of `pieces` equal pieces of src, part m goes to member m -> the members' parts, in dst
  ring_shift,  ///< src goes to the next member, the last one's to the first -> what the member before has sent, in dst
  // send and receive lanes
  send,     ///< src -> the dst of a receive of the group's member at `peer`
  receive,  ///< the src of a send of the group's member at `peer` -> dst
  // comm lane
  barrier,  ///< nothing is given: what follows comes after what every rank has committed before it
  // save lane
  save,  ///< the updated states of a tile, in host memory -> a checkpoint, where the iteration saves; else nothing
};
/// Of attention of slices of sequences.
constexpr bool is_core_of_slices(OpKind kind) {
  return kind == OpKind::core || kind == OpKind::core_earlier || kind == OpKind::core_backward ||
         kind == OpKind::core_earlier_backward;
}
constexpr bool goes_back_in_slices(OpKind kind) { return kind >= OpKind::out_backward && kind <= OpKind::qkv_backward; }
constexpr std::array<const char*, 52> op_names{"forward",
                                               "recompute",
                                               "recompute_qkv",
                                               "recompute_core",
                                               "backward",
                                               "backward_again",
                                               "backward_input",
                                               "backward_weight",
                                               "forward_backward",
                                               "loss",
                                               "logits",
                                               "enter",
                                               "leave",
                                               "expose",
                                               "enter_backward",
                                               "part_forward",
                                               "part_recompute",
                                               "part_backward",
                                               "part_logits",
                                               "part_gradient",
                                               "part_loss",
                                               "qkv",
                                               "core",
                                               "core_earlier",
                                               "out",
                                               "out_backward",
                                               "core_backward",
                                               "core_earlier_backward",
                                               "qkv_backward",
                                               "quantize",
                                               "dequantize",
                                               "dequantize_sum",
                                               "accumulate",
                                               "copy",
                                               "load_tokens",
                                               "read",
                                               "write",
                                               "sync",
                                               "commit",
                                               "grad_norm",
                                               "update",
                                               "verify",
                                               "control",
                                               "step_end",
                                               "all_gather",
                                               "reduce_scatter",
                                               "all_to_all",
                                               "ring_shift",
                                               "send",
                                               "receive",
                                               "barrier",
                                               "save"};

constexpr bool is_message(OpKind kind) { return kind == OpKind::send || kind == OpKind::receive; }

/// What an access is to its op: the executor hands operands to kernels by role.
enum class Role : std::uint8_t {
  src,
  dst,  // copies, collectives, drive
  parameters,
  tied_parameters,  // flat parameter buffer of the unit; of the tied embedding
  gradient,         // fp32, flat like the unit's parameters
  tied_gradient,    // fp32 gradient of the tied matrix made by the head
  x_in,
  x_out,
  saved,
  core,    // of what attention saves its output and the log-sum-exp of its scores; `saved` is the rest
  normed,  // what a cut sublayer begins with
  sum,     // fp32, of what all ranks' parts of a sublayer make; d_sum: of the gradient of normed
  d_sum,
  vocabulary_part,
  leaving,  // what attention is to give to other ranks, and what they have brought
  arrived,
  mixed,  // of own heads and whole sequences: q, k and v; attention's output; the log-sum-exp of scores. In blocks q
          // of the slice
  attended,
  lse,
  block,     // keys and values of a slice
  partial,   // fp32: what is made of q so far, or of its gradient
  deferred,  // what the backward pass to a sublayer's input leaves for that to its parameters
  d_out,
  d_in,
  workspace,
  tokens,
  loss,
  logits,
  kv_cache,
  remainder,
  exp_avg,
  exp_avg_sq,  // optimizer tile; with parameters and gradient
  control,     // the step's control block
  diverged,    // a unit's 64-bit count of parameters: the update of its first tile sets it, others add
};

/// Of an operand that is a tile of that state.
constexpr Role role_of(StateKind kind) {
  constexpr std::array roles{Role::parameters, Role::remainder, Role::exp_avg, Role::exp_avg_sq, Role::gradient};
  return roles[static_cast<std::size_t>(kind)];
}

enum class Mode : std::uint8_t { read, write, read_write };

/// Which of a buffer's slots an access means. Only durable buffers have two: a step reads `current` and writes
/// `next`; they change places when the step is committed. Everything else uses `current`.
enum class Slot : std::uint8_t { current, next };

struct Access {
  BufferId buffer;
  std::uint64_t offset = 0;  ///< bytes from the start of the buffer (of the slot)
  std::uint64_t bytes = 0;
  Role role = Role::src;
  Mode mode = Mode::read;
  Slot slot = Slot::current;
};

/// Transients live within an iteration. Long-lived and short-lived ones lie apart (ZeRO-R): the packer keeps `lasting`
/// low, `brief` high. carried: alive from its first Mode::write of an iteration, round the iteration's end, to its last
/// use ahead of that write in the next one; in device or host memory. Each byte that is read then was written.
enum class Life : std::uint8_t { persistent, lasting, brief, carried };
constexpr bool is_transient(Life life) { return life == Life::lasting || life == Life::brief; }

/// Where a drive was not tuned: what one request moves and one checksum covers, unless the buffer's tiles are smaller;
/// and how many requests a drive's lane keeps in flight. 8 MiB are 2 ms of a drive at 4 GB/s, longer than a lane waits
/// for a core; more only stand in line, and slow some drives down.
constexpr std::uint32_t drive_block_bytes = 512u << 10;
constexpr std::uint32_t drive_window = 16;
/// The most that a drive may be tuned to: transfers outside steps move whole blocks of every state.
constexpr std::uint32_t drive_block_bytes_max = 1u << 20;

/// What a persistent buffer hands from step to step. home: a state of a unit, where it lies. mirror: the durable copy
/// on the drive of one whose home is host memory. resident: a unit's whole parameters on the device.
enum class Holds : std::uint8_t { work, home, mirror, resident, rope, logits };

struct Buffer {
  std::string name;  ///< "L3.mlp.parameters", "x.L3.mlp.mb2": names the thing, not the place
  Tier tier = Tier::device;
  std::uint64_t bytes = 0;  ///< of one slot; its place is padded to buffer_alignment_bytes
  Life life = Life::brief;
  std::uint8_t slots = 1;  ///< 2 for durable state on nvme
  /// Of two slots, in a plan that writes others in the backward pass: an iteration makes the states of the step before,
  /// which are committed ahead of the others' writes. So its slots are one step behind theirs.
  bool behind = false;
  std::uint64_t offset = 0;  ///< in its arena; set by pack
  Holds holds = Holds::work;
  StateKind state = StateKind::parameter;  ///< of home and mirror
  UnitId unit = -1;                        ///< of home, mirror and resident
  /// nvme only: requests and checksums are per block of this size from the start of the buffer (multiple of 4096; the
  /// last block may be shorter). Drive accesses start and end at block borders or at the buffer's end.
  std::uint32_t block_bytes = drive_block_bytes;
};

constexpr std::uint64_t padded_bytes(std::uint64_t bytes) {
  return (bytes + buffer_alignment_bytes - 1) / buffer_alignment_bytes * buffer_alignment_bytes;
}
/// Bytes of the arena that the buffer occupies, all slots.
inline std::uint64_t footprint_bytes(const Buffer& b) { return padded_bytes(b.bytes) * b.slots; }

/// Start only after `op` has finished: of this iteration, or of the iteration before it in a cyclic plan.
struct Wait {
  OpId op;
  bool previous_iteration = false;
  bool operator==(const Wait&) const = default;
};

/// How a reduction adds up. tree: in pairs of neighbours, and their sums in pairs, while there is an even number of
/// them, and then one after the other, so that bits do not depend on the number of ranks (src/schedule/lots.h). bf16:
/// so too, but ranks send each other bf16. native: as the transport's library does, in an order of its own. int4:
/// gradients are exchanged in blocks of 4 bits, first between close ranks, then between groups of them, and added up in
/// fp32 in between, which are ops of the plan (ZeRO++'s qgZ, arXiv 2306.10209).
enum class RankSums : std::uint8_t { tree, bf16, native, int4 };
constexpr std::array<const char*, 4> rank_sums_names{"tree", "bf16", "native", "int4"};
/// What one rank sends another of so many bytes of fp32.
constexpr std::uint64_t wire_bytes(RankSums sums, std::uint64_t bytes) {
  return sums == RankSums::bf16 ? bytes / 2 : bytes;
}

struct Op {
  OpKind kind;
  LaneId lane = 0;
  UnitId unit = -1;
  std::int32_t micro_batch = -1;
  std::int32_t chunk = -1;  ///< of a micro-batch's tokens: which (part_logits, part_gradient, part_loss)
  std::int32_t step = -1;   ///< core, core_earlier and back, in blocks: the block is that of the slice so many before
  std::int32_t tile = -1;   ///< which tile of the unit's shard (copies, drive, optimizer)
  std::int32_t group = -1;  ///< index in StepPlan::groups for collectives and messages
  /// Number of the collective among those of its group, in program order from 0; of a message among those to, or from,
  /// the same peer.
  std::int32_t collective = -1;
  std::int32_t peer = -1;          ///< send, receive: position in the group of who is at the other end
  std::int32_t pieces = 1;         ///< all_to_all, and what quantizes
  Quantization quantization;       ///< of what quantizes
  bool accumulate = false;         ///< backward, grad_norm: add to what is there instead of setting it
  RankSums sums = RankSums::tree;  ///< reduce_scatter; all_to_all: int4 where it carries the parts of a sum
  bool is_replica = false;         ///< control: another rank counts the norm of the same gradients
  std::uint64_t element = 0;       ///< first element of the tile within the rank's shard (optimizer ops)
  std::uint64_t numel = 0;         ///< elements of the tile (optimizer ops), or of a piece
  std::uint64_t bytes = 0;         ///< moved by the op (copies, drive, collectives: received)
  double flop = 0;                 ///< matrix-multiply FLOP of compute ops
  std::int32_t cost = -1;          ///< index in StepPlan::cost_keys: measured seconds in the profile, if known
  std::vector<Access> accesses;
  std::vector<Wait> waits;  ///< set by derive_waits
};

/// A collective after which a rank has sums of what all members have: each of them has come so far.
constexpr bool is_sum(const Op& op) {
  return op.collective >= 0 &&
         (op.kind == OpKind::reduce_scatter || (op.kind == OpKind::all_to_all && op.sums == RankSums::int4));
}

/// What is known of an arena's packing, the best first.
enum class PackState : std::uint8_t {
  at_bound,  ///< as small as the most bytes alive
  within,    ///< at most 1.02 of them
  minimal,   ///< proven: no packing is smaller
  limited,   ///< the effort, or the limit of its search, ended above 1.02 of them
};
constexpr std::array<const char*, 4> pack_state_names{"at bound", "within", "minimal", "limit reached"};

/// Sizes are set by pack.
struct Arena {
  Tier tier;
  std::uint64_t budget_bytes = 0;
  std::uint64_t arena_bytes = 0;     ///< highest end of any buffer
  std::uint64_t max_live_bytes = 0;  ///< the lower bound: most bytes alive at one point of program order
  PackState packing = PackState::at_bound;
};

/// What plan kinds have in common is their contract: `train` expects and leaves state with its pending updates
/// declared; `flush` applies pending updates; `evaluate` and `decode` need flushed state and change none.
enum class PlanKind : std::uint8_t { train, flush, evaluate, decode };
constexpr std::array<const char*, 4> plan_kind_names{"train", "flush", "evaluate", "decode"};

constexpr std::uint32_t plan_schema_version = 7;

struct StepPlan {
  PlanKind kind = PlanKind::train;
  bool cyclic = false;             ///< iterations follow each other without a barrier
  Topology topology;               ///< whose program it is
  std::vector<std::string> units;  ///< names, "embed", "L0.attention", "L0.mlp", ..., "head"
  /// That this rank meets in, or sends messages in; each is a channel of its own. No group does both.
  std::vector<AxisSet> groups;
  std::vector<std::string> cost_keys;
  std::vector<Lane> lanes;
  std::vector<Buffer> buffers;
  std::vector<Op> ops;  ///< in program order
  std::vector<Arena> arenas;

  const Arena* arena(Tier tier) const {
    for (const Arena& a : arenas)
      if (a.tier == tier) return &a;
    return nullptr;
  }
};

/// What changes from step to step without changing the plan.
struct StepParams {
  std::uint64_t step = 0;  ///< 1-based number of the optimizer step whose forward pass this iteration runs
  /// The update that this iteration applies: of step `update_step` (equal to `step` with updates in the backward
  /// pass, step - 1 ahead of the forward); 0 means none is pending and update ops leave the state as it is.
  std::uint64_t update_step = 0;
  std::uint64_t seed = 0;  ///< of stochastic rounding
  float lr = 0;            ///< of update_step
  /// In a plan with updates in both passes, those in the backward pass: of `step`. Else 0.
  std::uint64_t backward_step = 0;
  float backward_lr = 0;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float clip_norm = 0;  ///< 0: no clipping
  /// Updates in the backward pass work with it before the norm is known; control looks whether it was right.
  double clip_factor = 1;
  bool knows_factor = false;  ///< updates that wait for the norm take clip_factor too, and not what control has found
  bool again = false;         ///< the step was made before, and what it clips by was mispredicted
  double loss_scale = 1;      ///< 1 / (target tokens of the global batch)
  std::int64_t position = 0;  ///< decode: tokens already in the cache
  std::int64_t tokens = 0;    ///< decode: new tokens this call
  bool saves = false;         ///< what updates of update_step leave goes to a checkpoint too (save ops)
  bool saves_back = false;    ///< likewise of backward_step
};

/// The step whose update is in what an iteration leaves: with none due, its states are those it began with.
constexpr std::uint64_t committed_step(const StepParams& params) {
  return params.update_step != 0 ? params.update_step : params.step - 1;
}

/// The step's control block (host, persistent): written by control and grad_norm ops. What all ranks know of the step,
/// and what this one has added up for it. Followed in memory by `double loss[micro_batches]`.
struct ControlBlock {
  double grad_norm_sq = 0;
  double clip_factor = 1;
  double loss_sum = 0;
  double reserved = 0;
  ExactSum norm;  ///< squared norms of the gradients of this rank's shards
};
/// What updates read of it; they run beside the norms of the next step.
constexpr std::uint64_t control_result_bytes = offsetof(ControlBlock, norm);

}  // namespace sluice
