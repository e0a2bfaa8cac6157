#include "offload/run/bound_plan.h"

#include <algorithm>
#include <string>

#include "offload/plan/finish.h"
#include "offload/run/quantized_pieces.h"

namespace sluice {
namespace {

std::span<const Operand> from(const std::vector<Operand>& operands, std::size_t first) {
  return std::span(operands).subspan(first);
}

const Operand* find_role(std::span<const Operand> operands, Role role) {
  for (const Operand& operand : operands)
    if (operand.role == role) return &operand;
  return nullptr;
}

/// What an op of this kind can not do without.
std::vector<Role> needed_roles(const Op& op, LaneKind lane, Dtype dtype) {
  switch (op.kind) {
    case OpKind::accumulate:
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
    case OpKind::ring_shift:
    case OpKind::quantize:
    case OpKind::dequantize:
    case OpKind::dequantize_sum: return {Role::src, Role::dst};
    case OpKind::send: return {Role::src};
    case OpKind::receive: return {Role::dst};
    case OpKind::grad_norm: return {Role::gradient, Role::control};
    case OpKind::control:
    case OpKind::step_end: return {Role::control};
    case OpKind::update: {
      std::vector<Role> roles{Role::parameters, Role::exp_avg, Role::exp_avg_sq, Role::gradient};
      if (dtype == Dtype::bf16) roles.push_back(Role::remainder);
      if (lane == LaneKind::compute) roles.push_back(Role::diverged);
      return roles;
    }
    case OpKind::save: {
      std::vector<Role> roles{Role::parameters, Role::exp_avg, Role::exp_avg_sq};
      if (dtype == Dtype::bf16) roles.push_back(Role::remainder);
      return roles;
    }
    default: return {};
  }
}

/// Values are fp32 or of 16 bits; those of sums fp32.
bool check_quantized(const Op& op, std::uint64_t src, std::uint64_t dst) {
  const std::uint64_t packed = quantized_bytes(static_cast<std::int64_t>(op.numel), op.quantization),
                      pieces = static_cast<std::uint64_t>(op.pieces);
  const auto holds = [&](std::uint64_t bytes) {
    return bytes == pieces * op.numel * 4 || bytes == pieces * op.numel * 2;
  };
  if (op.kind == OpKind::quantize) return holds(src) && dst == pieces * packed;
  if (op.kind == OpKind::dequantize) return src == pieces * packed && holds(dst);
  return dst % (op.numel * 4) == 0 && src == dst / (op.numel * 4) * pieces * packed;
}

Status check_sizes(const Op& op, std::span<const Operand> operands, const BindParts& parts, std::size_t members) {
  const auto holds = [&](Role role, std::uint64_t bytes) {
    const Operand* const operand = find_role(operands, role);
    return operand == nullptr || operand->bytes >= bytes;
  };
  bool fits = true;
  if (op.kind == OpKind::update)
    fits = holds(Role::parameters, op.numel * dtype_bytes(parts.dtype)) && holds(Role::remainder, op.numel * 2) &&
           holds(Role::exp_avg, parts.moments.bytes(op.numel)) &&
           holds(Role::exp_avg_sq, parts.moments.bytes(op.numel)) &&
           holds(Role::gradient, op.numel * dtype_bytes(parts.gradient_dtype)) &&
           holds(Role::control, control_result_bytes) && holds(Role::diverged, sizeof(std::uint64_t));
  if (op.kind == OpKind::verify)
    fits = std::ranges::all_of(op.accesses, [](const Access& a) { return a.bytes == sizeof(std::uint64_t); });
  if (op.kind == OpKind::grad_norm)
    fits = holds(Role::gradient, op.numel * 4) && holds(Role::control, sizeof(ExactSum)) &&
           holds(Role::dst, op.numel * dtype_bytes(Dtype::bf16));
  if (op.kind == OpKind::accumulate || op.kind == OpKind::ring_shift)
    fits = find_role(operands, Role::src)->bytes == find_role(operands, Role::dst)->bytes;
  if (op.kind == OpKind::all_gather) fits = !operands.empty() && gathered(operands).size() % members == 0;
  if (op.kind == OpKind::reduce_scatter)
    fits = find_role(operands, Role::src)->bytes == find_role(operands, Role::dst)->bytes * members;
  if (quantizes(op.kind))
    fits = op.quantization.is_valid() && op.pieces > 0 && op.numel > 0 &&
           check_quantized(op, find_role(operands, Role::src)->bytes, find_role(operands, Role::dst)->bytes);
  if (op.kind == OpKind::all_to_all) {
    const std::uint64_t bytes = find_role(operands, Role::src)->bytes;
    fits = op.pieces > 0 && bytes == find_role(operands, Role::dst)->bytes &&
           bytes % (members * static_cast<std::uint64_t>(op.pieces)) == 0;
  }
  if (fits) return success();
  return bad_request("operands have the wrong sizes");
}

std::size_t members_of(const StepPlan& plan, const Op& op) {
  return op.group < 0 ? 1 : plan.topology.size(plan.groups[static_cast<std::size_t>(op.group)]);
}

}  // namespace

std::span<std::byte> gathered(std::span<const Operand> operands) {
  std::byte *begin = operands[0].data, *end = begin;
  for (const Operand& operand : operands) {
    begin = std::min(begin, operand.data);
    end = std::max(end, operand.data + operand.bytes);
  }
  return {begin, end};
}

BoundPlan::Extent BoundPlan::extent() const {
  return {operands_.size(), waits_.size(), copies_.size(), transfers_.size(), chunks_.size()};
}

Status BoundPlan::check_arenas(const StepPlan& plan, const BindParts& parts) const {
  for (const Buffer& buffer : plan.buffers) {
    const std::uint64_t end = buffer.offset + footprint_bytes(buffer);
    const std::uint64_t have = buffer.tier != Tier::nvme ? parts.memory.bytes(buffer.tier)
                               : parts.store != nullptr  ? parts.store->arena_bytes()
                                                         : 0;
    if (end > have)
      return bad_request("buffer " + buffer.name + " ends at " + std::to_string(end) + " in the " +
                         tier_names[static_cast<std::size_t>(buffer.tier)] + " arena, which has " +
                         std::to_string(have) + " bytes");
    if (buffer.tier != Tier::nvme && buffer.slots != 1)
      return bad_request("buffer " + buffer.name + " has two slots but does not lie on nvme");
  }
  return success();
}

Result<BoundPlan> BoundPlan::make(const StepPlan& plan, const BindParts& parts) {
  BoundPlan bound;
  SLUICE_TRY(bound.check_arenas(plan, parts));
  std::vector<std::uint32_t> position(plan.ops.size()), length(plan.lanes.size(), 0);
  for (OpId id = 0; id < plan.ops.size(); ++id) position[id] = ++length[plan.ops[id].lane];
  for (OpId id = 0; id < plan.ops.size(); ++id) {
    bound.extents_.push_back(bound.extent());
    for (const Wait& wait : plan.ops[id].waits)
      bound.waits_.push_back({plan.ops[wait.op].lane, position[wait.op], wait.previous_iteration});
    if (Status status = bound.bind_op(plan, id, parts); !status.ok()) return status.error().in(describe(plan, id));
  }
  bound.extents_.push_back(bound.extent());

  // Only now, when the tables no longer move, can the ops point into them.
  for (const Lane& lane : plan.lanes) bound.lanes.push_back({lane, {}});
  bound.updated_back.resize(plan.units.size());
  bool waits = false;
  for (OpId id = 0; id < plan.ops.size(); ++id) {
    const Extent &first = bound.extents_[id], &last = bound.extents_[id + 1];
    BoundOp op;
    op.id = id;
    op.op = &plan.ops[id];
    op.waits = std::span(bound.waits_).subspan(first.wait, last.wait - first.wait);
    op.operands = std::span(bound.operands_).subspan(first.operand, last.operand - first.operand);
    op.copies = std::span(bound.copies_).subspan(first.copy, last.copy - first.copy);
    op.transfers = std::span(bound.transfers_).subspan(first.transfer, last.transfer - first.transfer);
    op.chunks = std::span(bound.chunks_).subspan(first.chunk, last.chunk - first.chunk);
    for (const Access& access : op.op->accesses) {
      const Buffer& buffer = plan.buffers[access.buffer];
      std::uint64_t& end = op.alive_end[static_cast<std::size_t>(buffer.tier)];
      end = std::max(end, buffer.offset + footprint_bytes(buffer));
    }
    bound.lanes[plan.ops[id].lane].ops.push_back(op);
    if (op.op->kind != OpKind::update) continue;
    const bool back = op.find(Role::control) == nullptr;
    waits |= !back;
    if (back) bound.updated_back[static_cast<std::size_t>(op.op->unit)] = true;
  }
  bound.mixes = waits && std::ranges::find(bound.updated_back, true) != bound.updated_back.end();
  return bound;
}

Status BoundPlan::bind_op(const StepPlan& plan, OpId id, const BindParts& parts) {
  const Op& op = plan.ops[id];
  const bool drives = op.kind == OpKind::read || op.kind == OpKind::write;
  const LaneKind lane = plan.lanes[op.lane].kind;
  const bool drive_lane = lane == LaneKind::nvme_read || lane == LaneKind::nvme_write;
  const bool commits = op.kind == OpKind::sync || op.kind == OpKind::commit;
  const bool saves = op.kind == OpKind::save;
  if (drives != drive_lane || commits != (lane == LaneKind::commit) || saves != (lane == LaneKind::save))
    return bad_request("stands on a lane that can not run it");
  const std::size_t first = operands_.size();
  for (const Access& access : op.accesses) {
    const Buffer& buffer = plan.buffers[access.buffer];
    if (access.offset + access.bytes > buffer.bytes) return bad_request("reaches beyond buffer " + buffer.name);
    std::byte* data = nullptr;
    if (buffer.tier != Tier::nvme)
      data = parts.memory.at(buffer.tier, buffer.offset + access.offset);
    else if (!drives && op.kind != OpKind::control)  // which waits for what is there, and reads none of it
      return bad_request("touches nvme buffer " + buffer.name + ", which only read and write can");
    if (saves && buffer.tier != Tier::host)
      return bad_request("saves " + buffer.name + ", which is not in host memory");
    operands_.push_back({access.role, access.mode, data, access.bytes});
  }
  for (const Role role : needed_roles(op, lane, parts.dtype))
    if (find_role(from(operands_, first), role) == nullptr)
      return bad_request("lacks the operand of role " + std::to_string(static_cast<int>(role)));
  if (op.group >= static_cast<std::int32_t>(plan.groups.size())) return bad_request("meets in an unknown group");
  for (const Access& access : op.accesses)
    if (op.kind == OpKind::all_gather && access.buffer != op.accesses[0].buffer)
      return bad_request("gathers into two buffers");
  SLUICE_TRY(check_sizes(op, from(operands_, first), parts, members_of(plan, op)));
  if (op.kind == OpKind::copy) return bind_copy(plan, op, first);
  if (drives) return bind_transfer(plan, op, first);
  return bind_optimizer(plan, op, parts, first);
}

// The i-th src goes to the i-th dst.
Status BoundPlan::bind_copy(const StepPlan& plan, const Op& op, std::size_t first_operand) {
  std::vector<std::size_t> sources, targets;
  for (std::size_t i = 0; i < op.accesses.size(); ++i)
    (op.accesses[i].role == Role::src ? sources : targets).push_back(i);
  if (sources.size() != targets.size()) return bad_request("has an src without a dst");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Operand &src = operands_[first_operand + sources[i]], &dst = operands_[first_operand + targets[i]];
    if (src.bytes != dst.bytes) return bad_request("src and dst differ in size");
    const Tier src_tier = plan.buffers[op.accesses[sources[i]].buffer].tier;
    const Tier dst_tier = plan.buffers[op.accesses[targets[i]].buffer].tier;
    const Direction direction = src_tier == dst_tier       ? Direction::within
                                : dst_tier == Tier::device ? Direction::h2d
                                                           : Direction::d2h;
    copies_.push_back({dst.data, src.data, src.bytes, direction});
  }
  return success();
}

Status BoundPlan::bind_transfer(const StepPlan& plan, const Op& op, std::size_t first_operand) {
  std::vector<std::size_t> drive_side, host_side;
  for (std::size_t i = 0; i < op.accesses.size(); ++i)
    (plan.buffers[op.accesses[i].buffer].tier == Tier::nvme ? drive_side : host_side).push_back(i);
  if (drive_side.size() != host_side.size()) return bad_request("needs one host buffer for each nvme buffer");
  for (std::size_t i = 0; i < drive_side.size(); ++i) {
    const Access &drive = op.accesses[drive_side[i]], &host = op.accesses[host_side[i]];
    const Buffer &nvme = plan.buffers[drive.buffer], &memory = plan.buffers[host.buffer];
    if (memory.tier != Tier::host || drive.bytes != host.bytes) return bad_request("src and dst do not match");
    const std::uint64_t end = drive.offset + drive.bytes;
    const bool whole = nvme.block_bytes > 0 && drive.offset % nvme.block_bytes == 0 &&
                       (end == nvme.bytes || end % nvme.block_bytes == 0);
    // The last block is transferred up to the next 4096: into the padding of both buffers.
    const bool aligned = host.offset % buffer_alignment_bytes == 0 &&
                         (host.bytes % buffer_alignment_bytes == 0 || host.offset + host.bytes == memory.bytes);
    if (!whole || !aligned)
      return bad_request("does not move whole blocks of " + nvme.name + " between aligned addresses");
    transfers_.push_back(
        {operands_[first_operand + host_side[i]].data, drive.buffer, drive.slot, drive.offset, drive.bytes});
  }
  return success();
}

Status BoundPlan::bind_optimizer(const StepPlan& plan, const Op& op, const BindParts& parts,
                                 std::size_t first_operand) {
  if (op.kind == OpKind::verify)
    for (const Access& a : op.accesses)
      if (a.offset / sizeof(std::uint64_t) >= plan.units.size())
        return bad_request("verifies a unit that is not there");
  if (op.kind == OpKind::grad_norm) max_tile_numel = std::max(max_tile_numel, op.numel);
  if (op.kind == OpKind::control || op.kind == OpKind::step_end) {
    const std::uint64_t bytes = find_role(from(operands_, first_operand), Role::control)->bytes;
    if (bytes < sizeof(ControlBlock)) return bad_request("needs the whole control block");
    micro_batches = std::max(micro_batches, (bytes - sizeof(ControlBlock)) / sizeof(double));
  }
  if (op.kind != OpKind::update && op.kind != OpKind::grad_norm) return success();
  const bool rounds = op.kind == OpKind::grad_norm && find_role(from(operands_, first_operand), Role::dst) != nullptr;
  if (op.unit < 0 || op.unit >= static_cast<UnitId>(plan.units.size())) return bad_request("has no unit");
  if (op.kind == OpKind::grad_norm && !rounds) return success();
  const auto unit = static_cast<std::size_t>(op.unit);
  if (unit >= parts.units.size()) return bad_request("works on a unit whose tensors are not known");
  append_chunks(parts.units[unit], parts.units[unit].shard_begin + op.element, op.numel, chunks_);
  return success();
}

}  // namespace sluice
