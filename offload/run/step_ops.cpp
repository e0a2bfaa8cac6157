#include "offload/run/step_ops.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/quantize.h"
#include "offload/run/quantized_pieces.h"

namespace sluice {
namespace {

void add(std::atomic<std::uint64_t>& counter, std::uint64_t bytes) {
  counter.fetch_add(bytes, std::memory_order_relaxed);
}

template <class T>
T* as(const Operand* operand) {
  return reinterpret_cast<T*>(operand->data);
}

struct QuantizeOnCpu {
  void quantize(const auto&... a) const { kernels::quantize(a...); }
  void dequantize(const auto&... a) const { kernels::dequantize(a...); }
  void dequantize_add(const auto&... a) const { kernels::dequantize_add(a...); }
};

/// Of a whole control block.
std::span<const double> losses_of(const Operand& block) {
  return {reinterpret_cast<const double*>(block.data + sizeof(ControlBlock)),
          (block.bytes - sizeof(ControlBlock)) / sizeof(double)};
}

}  // namespace

void StepOps::prepare(const StepPlan& plan, const BoundPlan& bound) {
  plan_ = &plan;
  has_norms_ = bound.max_tile_numel > 0;
  rank_ = plan.topology.rank();
  if (!team_) team_ = std::make_unique<WorkerTeam>(options_.optimizer_threads);
  partial_.resize((bound.max_tile_numel + norm_block_numel - 1) / norm_block_numel);
  bad_step_ = 0;
  for (const BoundLane& lane : bound.lanes) {
    if (lane.lane.kind != LaneKind::compute || works_in_queue(LaneKind::compute)) continue;
    const bool updates = std::ranges::any_of(lane.ops, [](const BoundOp& o) { return o.op->kind == OpKind::update; });
    if (updates && !device_team_) device_team_ = std::make_unique<WorkerTeam>(options_.optimizer_threads);
  }
  updated_back_ = bound.updated_back;
  mixes_ = bound.mixes;
  expects_factor_ = std::ranges::find(updated_back_, true) != updated_back_.end();
}

/// Beside the host, which can not touch its memory.
bool StepOps::works_in_queue(LaneKind lane) const {
  return parts_.backend != nullptr && parts_.backend->queue(lane) != nullptr;
}

MovedBytes StepOps::moved() const {
  MovedBytes moved;
  moved.h2d = h2d_.load(std::memory_order_relaxed);
  moved.d2h = d2h_.load(std::memory_order_relaxed);
  moved.within = within_.load(std::memory_order_relaxed);
  moved.collective = collective_.load(std::memory_order_relaxed);
  moved.message = message_.load(std::memory_order_relaxed);
  return moved;
}

Status StepOps::run(const BoundOp& op, const StepParams& params) {
  switch (op.op->kind) {
    case OpKind::copy: return copy(op);
    case OpKind::load_tokens: {
      const Operand& dst = op.operands.front();
      return parts_.source->load_tokens(rank_, op.op->micro_batch, params,
                                        {as<std::int32_t>(&dst), dst.bytes / sizeof(std::int32_t)});
    }
    case OpKind::accumulate:
      kernels::add_f32(as<const float>(op.find(Role::src)), as<float>(op.find(Role::dst)),
                       static_cast<std::int64_t>(op.find(Role::dst)->bytes / sizeof(float)));
      return success();
    case OpKind::quantize:
    case OpKind::dequantize:
    case OpKind::dequantize_sum:
      each_quantized(*op.op, *op.find(Role::src), *op.find(Role::dst), QuantizeOnCpu{});
      return success();
    case OpKind::grad_norm: return grad_norm(op, params);
    case OpKind::update: return update(op, params);
    case OpKind::verify: return verify(op, params);
    case OpKind::control: return control(op, params);
    case OpKind::step_end: return step_end(op, params);
    case OpKind::all_gather: return all_gather(op);
    case OpKind::reduce_scatter: return reduce_scatter(op);
    case OpKind::all_to_all: return all_to_all(op);
    case OpKind::ring_shift: return ring_shift(op);
    case OpKind::barrier: {
      std::int64_t nothing = 0;
      return parts_.communicator->sum(op.op->group, std::span(&nothing, 1));
    }
    case OpKind::send: return send(op);
    case OpKind::receive: return receive(op);
    case OpKind::read:
    case OpKind::write:
    case OpKind::save: break;  // the drives'; bound plans have them on their lanes only
    case OpKind::sync: return parts_.store->sync();
    case OpKind::commit: return commit(params);
    case OpKind::forward:
    case OpKind::recompute:
    case OpKind::recompute_qkv:
    case OpKind::recompute_core:
    case OpKind::backward:
    case OpKind::backward_again:
    case OpKind::backward_input:
    case OpKind::backward_weight:
    case OpKind::forward_backward:
    case OpKind::enter:
    case OpKind::leave:
    case OpKind::expose:
    case OpKind::enter_backward:
    case OpKind::part_forward:
    case OpKind::part_recompute:
    case OpKind::part_backward:
    case OpKind::part_logits:
    case OpKind::part_gradient:
    case OpKind::part_loss:
    case OpKind::qkv:
    case OpKind::core:
    case OpKind::core_earlier:
    case OpKind::out:
    case OpKind::out_backward:
    case OpKind::core_backward:
    case OpKind::core_earlier_backward:
    case OpKind::qkv_backward:
    case OpKind::loss:
    case OpKind::logits: return parts_.backend->run(*plan_, *op.op, op.operands, params);
  }
  SLUICE_CHECK(false, "(op #%u of kind %d)", op.id, static_cast<int>(op.op->kind));
}

Status StepOps::put_in(const BoundOp& op, const StepParams& params, DeviceQueue& queue) {
  if (is_of_device_collectives(plan_->lanes[op.op->lane])) {
    SLUICE_TRY(parts_.device_collectives->put_in(*op.op, op.operands));
    add(collective_, op.op->bytes);
    return success();
  }
  if (op.op->kind == OpKind::update) {
    const StepParams own = of_update(static_cast<std::size_t>(op.op->unit), params);
    return own.update_step == 0 ? success() : parts_.backend->update(bind_update(op, own), own);
  }
  if (op.op->kind != OpKind::copy) return parts_.backend->run(*plan_, *op.op, op.operands, params);
  for (const BoundCopy& each : op.copies) {
    SLUICE_TRY(queue.copy(each.dst, each.src, each.bytes));
    count(each);
  }
  return success();
}

/// Every iteration of a plan that commits does it once: slots change places. With updates in both passes, those of a
/// step are whole behind the next one's: there is nothing new in the first iteration.
Status StepOps::commit(const StepParams& params) {
  if (mixes_ && params.update_step == 0) return success();
  const auto parity = static_cast<std::uint8_t>(1 - parts_.store->parity());
  if (parts_.commit_sink != nullptr) SLUICE_TRY(parts_.commit_sink->commit(rank_, params, parity));
  parts_.store->set_parity(parity);
  return success();
}

Status StepOps::copy(const BoundOp& op) {
  for (const BoundCopy& each : op.copies) {
    SLUICE_TRY(parts_.memory->device().copy(each.dst, each.src, each.bytes));
    count(each);
  }
  return success();
}

void StepOps::count(const BoundCopy& copy) {
  add(copy.direction == Direction::h2d ? h2d_ : copy.direction == Direction::d2h ? d2h_ : within_, copy.bytes);
}

Status StepOps::grad_norm(const BoundOp& op, const StepParams& params) {
  auto* const sum = as<ExactSum>(op.find(Role::control));
  if (!op.op->accumulate) *sum = ExactSum{};
  // What another rank counts is left out.
  const std::span<const float> tile{as<const float>(op.find(Role::gradient)), op.op->numel};
  const OptimizerUnit& unit = parts_.units[static_cast<std::size_t>(op.op->unit)];
  const std::uint64_t begin = unit.shard_begin + op.op->element, end = begin + op.op->numel;
  std::uint64_t at = begin;
  const auto count_up_to = [&](std::uint64_t last) {
    if (at < last) add_tile_norm(tile.subspan(at - begin, last - at), *team_, partial_, sum);
  };
  for (const TensorSegment& s : unit.segments) {
    const std::uint64_t first = std::max(at, s.offset), last = std::min(end, s.offset + s.numel);
    if (s.counts || first >= last) continue;
    count_up_to(first);
    at = last;
  }
  count_up_to(end);
  if (sum->above + sum->below + sum->nan > 0) bad_step_ = params.step;
  // The step is that of the update, whether it comes in this iteration or in the next.
  if (const Operand* const rounded = op.find(Role::dst))
    round_tile(tile, op.chunks, params.seed, params.step, *team_, as<bf16>(rounded));
  return success();
}

/// Also for a device's queue: the control block has been written when an op is put in.
DeviceUpdate StepOps::bind_update(const BoundOp& op, const StepParams& params) const {
  const Operand* const control = op.find(Role::control);
  // Else the norm is not known yet, or was known before this iteration.
  const bool clips = params.clip_norm > 0 && control != nullptr && !params.knows_factor;
  DeviceUpdate update;
  UpdateTile& tile = update.tile;
  tile.dtype = options_.dtype;
  tile.parameter = op.find(Role::parameters)->data;
  if (options_.dtype == Dtype::bf16) tile.remainder = as<std::int16_t>(op.find(Role::remainder));
  tile.moments = options_.moments;
  tile.numel = op.op->numel;
  tile.exp_avg = op.find(Role::exp_avg)->data;
  tile.exp_avg_sq = op.find(Role::exp_avg_sq)->data;
  tile.gradient = op.find(Role::gradient)->data;
  tile.gradient_dtype = options_.gradient_dtype;
  update.clip_factor = clips ? as<const ControlBlock>(control)->clip_factor : params.clip_factor;
  update.chunks = op.chunks;
  if (const Operand* const count = op.find(Role::diverged)) update.diverged = as<std::uint64_t>(count);
  update.first = op.op->element == 0;
  return update;
}

/// What the update of a unit is to be.
StepParams StepOps::of_update(std::size_t unit, StepParams params) const {
  if (!mixes_ || !updated_back_[unit]) return params;
  params.update_step = params.backward_step;
  params.lr = params.backward_lr;
  return params;
}

Status StepOps::update(const BoundOp& op, const StepParams& of_iteration) {
  const StepParams params = of_update(static_cast<std::size_t>(op.op->unit), of_iteration);
  if (params.update_step == 0 || params.update_step == bad_step_) return success();
  const DeviceUpdate u = bind_update(op, params);
  const bool on_device = u.diverged != nullptr;  // that is the host
  WorkerTeam& team = on_device ? *device_team_ : *team_;
  const std::uint64_t count = update_tile(u.tile, u.chunks, params, u.clip_factor, team);
  if (on_device) *u.diverged = (u.first ? 0 : *u.diverged) + count;
  if (on_device || count == 0) return success();
  return diverged(count, static_cast<std::size_t>(op.op->unit), params);
}

/// The counts of units lie one after the other.
Status StepOps::verify(const BoundOp& op, const StepParams& of_iteration) const {
  const auto unit = [&](std::size_t i) { return op.op->accesses[i].offset / sizeof(std::uint64_t); };
  const StepParams params = of_update(unit(0), of_iteration);  // the units of an op are updated in the same pass
  if (params.update_step == 0 || params.update_step == bad_step_) return success();
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    if (const std::uint64_t count = *as<const std::uint64_t>(&op.operands[i]); count > 0)
      return diverged(count, unit(i), params);
  return success();
}

Error StepOps::diverged(std::uint64_t count, std::size_t unit, const StepParams& params) const {
  return fault("step " + std::to_string(params.update_step) + ": " + std::to_string(count) + " parameters of " +
               plan_->units[unit] + " diverged (not finite, or too large for bf16); lower the learning rate");
}

Status StepOps::control(const BoundOp& op, const StepParams& params) {
  const Operand* const block = op.find(Role::control);
  auto* const own = as<ControlBlock>(block);
  // A plan without gradients has the norm of an earlier one there.
  norm_ = has_norms_ && !op.op->is_replica ? own->norm : ExactSum{};
  loss_ = ExactSum{};
  for (const double loss : losses_of(*block)) loss_.add(loss);
  if (members(*op.op) > 1) {
    SLUICE_TRY(parts_.communicator->sum(op.op->group, norm_.words()));
    SLUICE_TRY(parts_.communicator->sum(op.op->group, loss_.words()));
  }
  Status filled = fill_control(norm_.value(), loss_.value(), params, own);
  if (!filled.ok() && parts_.source != nullptr) parts_.source->step_not_finite(rank_, params);
  if (!filled.ok() || !expects_factor_ || own->clip_factor == params.clip_factor) return filled;
  if (parts_.source != nullptr) parts_.source->step_mispredicted(rank_, params, *own);
  char text[160];
  std::snprintf(
      text, sizeof text,
      "step %llu: its updates have worked with a clip factor of %.6g before the norm was known, and it is %.6g",
      static_cast<unsigned long long>(params.step), params.clip_factor, own->clip_factor);
  return Error{ErrorCode::mispredicted, text};
}

Status StepOps::step_end(const BoundOp& op, const StepParams& params) {
  const Operand* const block = op.find(Role::control);
  return parts_.source->step_end(rank_, params, *as<const ControlBlock>(block), losses_of(*block));
}

std::size_t StepOps::members(const Op& op) const {
  return op.group < 0 ? 1 : plan_->topology.size(plan_->groups[static_cast<std::size_t>(op.group)]);
}

Status StepOps::all_gather(const BoundOp& op) {
  const std::span<std::byte> full = gathered(op.operands);
  SLUICE_TRY(parts_.communicator->all_gather(op.op->group, full));
  const std::size_t ranks = members(*op.op);
  add(collective_, full.size() / ranks * (ranks - 1));
  return success();
}

Status StepOps::reduce_scatter(const BoundOp& op) {
  const Operand *const src = op.find(Role::src), *const dst = op.find(Role::dst);
  const Operand* const room = op.find(Role::workspace);
  SLUICE_TRY(parts_.communicator->reduce_scatter(
      op.op->group, {as<const float>(src), src->bytes / sizeof(float)}, {as<float>(dst), dst->bytes / sizeof(float)},
      room != nullptr ? std::span(room->data, room->bytes) : std::span<std::byte>(), op.op->sums));
  // Ranks that share memory read each other's fp32.
  const std::uint64_t arrived = room != nullptr ? wire_bytes(op.op->sums, dst->bytes) : dst->bytes;
  add(collective_, arrived * (members(*op.op) - 1));
  return success();
}

Status StepOps::all_to_all(const BoundOp& op) {
  const Operand &src = *op.find(Role::src), &dst = *op.find(Role::dst);
  SLUICE_TRY(parts_.communicator->all_to_all(op.op->group, {src.data, src.bytes}, {dst.data, dst.bytes},
                                             static_cast<std::size_t>(op.op->pieces)));
  const std::size_t ranks = members(*op.op);
  add(collective_, dst.bytes / ranks * (ranks - 1));
  return success();
}

Status StepOps::ring_shift(const BoundOp& op) {
  const Operand &src = *op.find(Role::src), &dst = *op.find(Role::dst);
  SLUICE_TRY(parts_.communicator->ring_shift(op.op->group, {src.data, src.bytes}, {dst.data, dst.bytes}));
  add(collective_, dst.bytes);
  return success();
}

Status StepOps::send(const BoundOp& op) {
  const Operand& src = *op.find(Role::src);
  return parts_.communicator->send(op.op->group, static_cast<std::size_t>(op.op->peer), {src.data, src.bytes});
}

Status StepOps::receive(const BoundOp& op) {
  const Operand& dst = *op.find(Role::dst);
  SLUICE_TRY(parts_.communicator->receive(op.op->group, static_cast<std::size_t>(op.op->peer), {dst.data, dst.bytes}));
  add(message_, dst.bytes);
  return success();
}

}  // namespace sluice
