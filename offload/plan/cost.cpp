#include "offload/plan/cost.h"

#include <algorithm>
#include <cmath>

namespace sluice::planning {
namespace {

bool names_bf16(const std::string& key) { return key.find("bf16") != std::string::npos; }

/// DRAM traffic of an op that streams its operands: (read + written) / 2, so that a copy of n bytes counts n.
double streamed_bytes(const StepPlan& plan, const Op& op) {
  double bytes = 0;
  for (const Access& a : op.accesses)
    if (plan.buffers[a.buffer].tier != Tier::nvme)
      bytes += static_cast<double>(a.bytes) * (a.mode == Mode::read_write ? 1.0 : 0.5);
  return bytes;
}

}  // namespace

bool is_streamed(OpKind kind) { return kind >= OpKind::quantize && kind <= OpKind::accumulate; }
bool is_compute(OpKind kind) { return kind <= OpKind::accumulate; }

bool runs_on_device(const Lane& lane, const HardwareProfile& hw) {
  return hw.device.has_value() && (lane.kind == LaneKind::compute || lane.kind == LaneKind::h2d ||
                                   lane.kind == LaneKind::d2h || is_of_device_collectives(lane));
}

HostRates host_rates(const HardwareProfile& hw) {
  if (hw.device)
    return {hw.device->optimizer_threads, hw.device->host_adamw_parameters_per_second,
            hw.device->host_norm_bytes_per_second, hw.device->handoff_seconds};
  return {hw.optimizer_threads, hw.adamw_parameters_per_second, hw.norm_bytes_per_second, hw.handoff_seconds};
}

double both_ways_slowdown(const HardwareProfile& hw) {
  if (!hw.device) return 1;
  return std::max(1.0,
                  (hw.device->h2d_bytes_per_second + hw.device->d2h_bytes_per_second) / both_ways_rate(*hw.device));
}

double both_ways_rate(const DeviceProfile& device) {
  return std::max({device.both_bytes_per_second, device.h2d_bytes_per_second, device.d2h_bytes_per_second});
}

CostModel::CostModel(const StepPlan& plan, const HardwareProfile& hw) : plan_(plan), hw_(hw), host_(host_rates(hw)) {
  for (const std::string& key : plan.cost_keys) {
    const auto it = hw.op_seconds.find(key);
    measured_.push_back(it == hw.op_seconds.end() ? 0.0 : it->second);
    bf16_.push_back(names_bf16(key));
  }
  for (const Op& op : plan.ops)
    if (op.kind == OpKind::write) written_bytes_ += op.bytes;
}

double CostModel::flops(const Op& op) const {
  const bool bf16 = op.cost >= 0 && bf16_[static_cast<std::size_t>(op.cost)];
  if (hw_.device) return bf16 ? hw_.device->gemm_flops_bf16 : hw_.device->gemm_flops_f32;
  return bf16 ? hw_.gemm_flops_bf16 : hw_.gemm_flops_f32;
}

double CostModel::copy_rate(bool down) const {
  if (hw_.device) return down ? hw_.device->h2d_bytes_per_second : hw_.device->d2h_bytes_per_second;
  return down ? hw_.h2d_bytes_per_second : hw_.d2h_bytes_per_second;
}

double CostModel::compute_seconds(const Op& op) const {
  if (op.cost >= 0 && measured_[static_cast<std::size_t>(op.cost)] > 0)
    return measured_[static_cast<std::size_t>(op.cost)];
  const double overhead = hw_.device ? hw_.device->op_overhead_seconds : hw_.op_overhead_seconds;
  const double memory = hw_.device ? hw_.device->memory_bytes_per_second : hw_.memory_bytes_per_second;
  const double streamed = streamed_bytes(plan_, op) / memory;
  if (is_streamed(op.kind)) return streamed + overhead;
  // Of a GPU an op's operands come and go through its memory, however little it computes.
  return (hw_.device ? std::max(op.flop / flops(op), streamed) : op.flop / flops(op)) + overhead;
}

/// Neighbouring ranks share a machine.
double CostModel::members_here(AxisSet axes) const {
  double members = 1;
  for (std::size_t i = 0; i < plan_.topology.axes.size(); ++i) {
    const Axis& axis = plan_.topology.axes[i];
    if (axes >> i & 1)
      members *= std::clamp(hw_.ranks / static_cast<double>(axis.stride), 1.0, static_cast<double>(axis.size));
  }
  return members;
}

/// Of a collective: what a rank sends to others of its machine, and what the ranks of a machine, which share its
/// network, send elsewhere. In a ring each sends to one neighbour, and of a group's on a machine one has it elsewhere.
CostModel::Sent CostModel::sent(const Op& op) const {
  const AxisSet axes = plan_.groups[static_cast<std::size_t>(op.group)];
  const double members = plan_.topology.size(axes), here = members_here(axes), bytes = static_cast<double>(op.bytes);
  if (op.kind == OpKind::ring_shift) return {here > 1 ? bytes : 0, here < members ? bytes * hw_.ranks / here : 0};
  const double part = bytes / (members - 1);
  return {part * (here - 1), part * (members - here) * hw_.ranks};
}

/// Messages inside the machine and between machines go beside each other.
double CostModel::message_seconds(const Op& op, bool with_latency) const {
  const auto seconds = [&](const std::optional<MessageRates>& measured, double bytes) {
    const MessageRates rates = measured.value_or(MessageRates());
    const bool gathers = op.kind != OpKind::reduce_scatter;
    return bytes == 0 ? 0.0
                      : (with_latency ? rates.latency_seconds : 0) +
                            bytes / (gathers ? rates.gather_bytes_per_second : rates.reduce_bytes_per_second);
  };
  const Sent bytes = sent(op);
  return std::max(seconds(hw_.messages_inside, bytes.inside), seconds(hw_.messages_between, bytes.between));
}

/// Between GPUs, of which no profile tells: in a machine as quick as copies from its host memory, or as messages where
/// those are said to be quicker (of a cluster), and between machines as its network. Sums are added up behind that.
double CostModel::device_collective_seconds(const Op& op, bool with_latency) const {
  const MessageRates between = hw_.messages_between.value_or(MessageRates());
  const double inside = std::max(hw_.device->h2d_bytes_per_second,
                                 hw_.messages_inside ? hw_.messages_inside->gather_bytes_per_second : 0);
  const Sent bytes = sent(op);
  const double inside_seconds = bytes.inside / inside,
               between_seconds = bytes.between / between.gather_bytes_per_second;
  const double adds =
      op.kind == OpKind::reduce_scatter ? static_cast<double>(op.bytes) / hw_.device->memory_bytes_per_second : 0;
  const double latency = bytes.between > 0 ? between.latency_seconds : hw_.device->op_overhead_seconds;
  return std::max(inside_seconds, between_seconds) + adds + (with_latency ? latency : 0);
}

/// Between two ranks: of a GPU's link or a network each direction is one's own.
double CostModel::message_to_peer_seconds(const Op& op, bool with_latency) const {
  if (!hw_.ranks_apart) return static_cast<double>(op.bytes) / hw_.memory_bytes_per_second;
  const AxisSet axes = plan_.groups[static_cast<std::size_t>(op.group)];
  const Topology& own = plan_.topology;
  const RankId peer = own.members(axes)[static_cast<std::size_t>(op.peer)], rank = own.rank();
  const bool is_here = peer / hw_.ranks == rank / hw_.ranks;
  const MessageRates rates = (is_here ? hw_.messages_inside : hw_.messages_between).value_or(MessageRates());
  const double bytes = static_cast<double>(op.bytes) * (is_here ? 1 : hw_.ranks);
  return (with_latency ? rates.latency_seconds : 0) + bytes / rates.gather_bytes_per_second;
}

OpCost CostModel::cost(const Op& op) const {
  OpCost c;
  double bytes = static_cast<double>(op.bytes), memory = 0, busy = 1;
  const bool on_device = runs_on_device(plan_.lanes[op.lane], hw_);
  bool is_message = false;
  const double overhead = on_device ? hw_.device->op_overhead_seconds : hw_.op_overhead_seconds;
  switch (op.kind) {
    case OpKind::load_tokens:
      c.seconds = bytes / hw_.h2d_bytes_per_second + overhead;
      memory = bytes;
      break;
    case OpKind::copy: {
      const bool down = plan_.lanes[op.lane].kind == LaneKind::h2d;
      const double link = bytes / copy_rate(down);
      (down ? c.link_down_seconds : c.link_up_seconds) = link;
      c.seconds = link + overhead;
      memory = on_device ? bytes / 2 : bytes;  // a GPU copies one way through the host's memory, and without a core
      break;
    }
    case OpKind::save:
      if (!hw_.saving || hw_.saving->shares_blocks) break;
      bytes /= hw_.saving->replicas;
      if (!hw_.saving->to_drive) {
        c.drive = DriveUse::other;
        c.drive_bytes = bytes;
        c.seconds = bytes / hw_.saving->bytes_per_second;
        busy = std::min(1.0, hw_.saving->bytes_per_second / hw_.checksum_bytes_per_second);
        memory = bytes;
        break;
      }
      [[fallthrough]];
    case OpKind::read:
    case OpKind::write: {
      const bool read = op.kind == OpKind::read;
      c.drive = read ? DriveUse::read : DriveUse::write;
      c.drive_bytes = bytes;
      const double requests = std::max(1.0, std::ceil(bytes / hw_.drive.block_bytes));
      c.seconds = bytes / (read ? hw_.drive.read_bytes_per_second : hw_.drive.write_bytes_per_second) +
                  requests * hw_.drive.request_seconds;
      // Requests in flight side by side hide each other's overhead.
      c.latency_seconds = read ? hw_.drive.read_latency_seconds : hw_.drive.write_latency_seconds;
      c.flying_requests = std::min(requests, std::ceil(c.latency_seconds / c.seconds * requests));
      if (!plan_.lanes[op.lane].windowed) {
        c.seconds += overhead + c.latency_seconds;
        c.latency_seconds = 0;
      }
      busy = c.seconds > 0 ? std::min(1.0, bytes / hw_.checksum_bytes_per_second / c.seconds) : 0;
      memory = bytes;  // the transfer and the checksum, each one way
      break;
    }
    case OpKind::update:
      c.seconds = static_cast<double>(op.numel) /
                      (on_device ? hw_.device->adamw_parameters_per_second : host_.adamw_parameters_per_second) +
                  overhead;
      c.threads = host_.optimizer_threads;
      memory = streamed_bytes(plan_, op);
      break;
    case OpKind::grad_norm:
      if (op.bytes == 0) bytes = 4.0 * static_cast<double>(op.numel);
      c.seconds = bytes / host_.norm_bytes_per_second + overhead;
      c.threads = host_.optimizer_threads;
      memory = bytes / 2;
      break;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
    case OpKind::ring_shift:
      if (on_device) {
        c.seconds = device_collective_seconds(op, true) + overhead;
        c.network_seconds = device_collective_seconds(op, false);
        c.group = device_queue;
        break;
      }
      c.seconds = (hw_.ranks_apart ? message_seconds(op, true) : bytes / hw_.memory_bytes_per_second) + overhead;
      c.network_seconds = hw_.ranks_apart ? message_seconds(op, false) : 0;
      c.group = op.group;
      memory = bytes;
      is_message = true;
      break;
    case OpKind::send:
    case OpKind::receive:
      c.seconds = message_to_peer_seconds(op, true) + overhead;
      c.network_seconds = hw_.ranks_apart && op.kind == OpKind::receive ? message_to_peer_seconds(op, false) : 0;
      c.group = op.group;
      memory = bytes / 2;  // each end one way
      is_message = true;
      break;
    case OpKind::barrier:
      c.seconds = (hw_.ranks_apart ? hw_.messages_inside.value_or(MessageRates()).latency_seconds : 0) + overhead;
      c.group = op.group;
      break;
    case OpKind::sync:
      c.seconds = overhead + hw_.drive.sync_seconds_per_byte * static_cast<double>(written_bytes_);
      busy = c.seconds > 0 ? overhead / c.seconds : 0;  // it waits for the drive
      if (hw_.drive.sync_seconds_per_byte > 0) c.drive = DriveUse::flush;
      break;
    case OpKind::commit:
    case OpKind::verify:
    case OpKind::control:
    case OpKind::step_end: c.seconds = overhead; break;
    default:
      c.seconds = compute_seconds(op);
      // An op that was measured to be quicker than that shows what the rate was not.
      c.best_seconds = std::min(op.flop / flops(op), c.seconds);
      c.threads = hw_.compute_threads;
      if (is_streamed(op.kind)) memory = streamed_bytes(plan_, op);
  }
  if (on_device) {
    c.threads = 1;
    busy = 0;
    if (c.link_down_seconds + c.link_up_seconds == 0) {
      memory = 0;
      // Those of other ranks go on in turns.
      c.seconds *= hw_.ranks_of_device;
      c.best_seconds *= hw_.ranks_of_device;
    }
  }
  if (is_message && hw_.messages_of_devices) memory = busy = 0;
  // Alone, an op is not held up by its own use of a resource.
  c.threads = std::min(c.threads, static_cast<double>(hw_.cores));
  c.core_seconds = c.seconds * c.threads * busy;
  c.memory_seconds = std::min(memory / hw_.memory_bytes_per_second, c.seconds);
  return c;
}

MixedRates mixed_rates(const HardwareProfile& hw) {
  const double read = hw.drive.read_bytes_per_second, write = hw.drive.write_bytes_per_second;
  const double mixed = hw.drive.mixed_bytes_per_second;
  return {std::min(read, mixed - std::min(mixed / 2, write)), std::min(write, mixed - std::min(mixed / 2, read))};
}

double drive_seconds(const HardwareProfile& hw, double read_bytes, double write_bytes) {
  const double read = hw.drive.read_bytes_per_second, write = hw.drive.write_bytes_per_second;
  const MixedRates mixed = mixed_rates(hw);
  const double both = std::min(read_bytes / mixed.read, write_bytes / mixed.write);
  const double together = both + (read_bytes - both * mixed.read) / read + (write_bytes - both * mixed.write) / write;
  return std::min(read_bytes / read + write_bytes / write, together);
}

}  // namespace sluice::planning
