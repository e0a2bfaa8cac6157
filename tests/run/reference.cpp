#include "tests/run/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/checksum.h"
#include "sluice/adamw.h"
#include "sluice/random.h"

namespace sluice::testing {
namespace {

// A cheap generator seeded by one philox block: tests move megabytes.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  float small() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 33)) * 0x1p-32f - 0.25f;
  }

 private:
  std::uint64_t state_;
};

void fill_floats(std::uint64_t seed, std::span<std::byte> data) {
  Stream stream(seed);
  for (std::size_t i = 0; i + sizeof(float) <= data.size(); i += sizeof(float)) {
    const float value = stream.small();
    std::memcpy(data.data() + i, &value, sizeof value);
  }
}

bool of_role(const Access& a, Role role) { return a.role == role; }

}  // namespace

void mix(OpId id, const StepParams& params, std::span<const Operand> operands) {
  std::uint64_t hash = id * 1000003ull + params.step;
  for (const Operand& o : operands)
    if (o.mode != Mode::write) hash = hash * 31 + checksum({o.data, o.bytes});
  for (const Operand& o : operands) {
    if (o.mode == Mode::read) continue;
    ++hash;
    if (o.role != Role::loss) {
      fill_floats(hash, {o.data, o.bytes});
      continue;
    }
    for (std::size_t i = 0; i < o.bytes / sizeof(double); ++i) {
      const double loss = philox_uniform(hash, i, 7);
      std::memcpy(o.data + i * sizeof loss, &loss, sizeof loss);
    }
  }
}

void fill_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst) {
  for (std::size_t i = 0; i < dst.size(); ++i)
    dst[i] = static_cast<std::int32_t>(philox(params.step, i, rank * 16u + static_cast<unsigned>(micro_batch))[0] >> 1);
}

void initial_content(std::uint64_t seed, BufferId buffer, std::span<std::byte> data) {
  fill_floats(seed * 7919 + buffer, data);
  // Second moments are not negative, whatever the buffer is.
  for (std::byte* p = data.data(); p + 4 <= data.data() + data.size(); p += 4) p[3] &= std::byte{0x7f};
}

Reference::Reference(const StepPlan& plan, std::vector<OptimizerUnit> units, std::uint64_t seed)
    : plan_(plan), units_(std::move(units)), parity_(plan.ranks, 0), commits_(plan.ranks, 0) {
  for (auto& slot : storage_) slot.resize(plan.buffers.size());
  for (BufferId b = 0; b < plan.buffers.size(); ++b) {
    for (int slot = 0; slot < plan.buffers[b].slots; ++slot) storage_[slot][b].resize(plan.buffers[b].bytes);
    if (plan.buffers[b].life == Life::persistent) initial_content(seed, b, storage_[0][b]);
  }
}

std::span<const std::byte> Reference::content(BufferId buffer) const {
  const Buffer& b = plan_.buffers[buffer];
  return storage_[b.slots == 2 ? parity_[b.rank] : 0][buffer];
}

std::span<std::byte> Reference::at(const Access& access) {
  const Buffer& b = plan_.buffers[access.buffer];
  const int current = b.slots == 2 ? parity_[b.rank] : 0;
  const int slot = access.slot == Slot::current ? current : 1 - current;
  return std::span(storage_[slot][access.buffer]).subspan(access.offset, access.bytes);
}

std::vector<Operand> Reference::operands(const Op& op) {
  std::vector<Operand> all;
  for (const Access& a : op.accesses) all.push_back({a.role, a.mode, at(a).data(), a.bytes});
  return all;
}

void Reference::iterate(const StepParams& params) {
  std::fill(commits_.begin(), commits_.end(), 0);
  for (OpId id = 0; id < plan_.ops.size(); ++id) run(id, params);
  for (RankId r = 0; r < plan_.ranks; ++r) parity_[r] ^= commits_[r];
}

void Reference::run(OpId id, const StepParams& params) {
  const Op& op = plan_.ops[id];
  const RankId rank = plan_.lanes[op.lane].rank;
  const auto role = [&](Role wanted) {
    return at(
        *std::find_if(op.accesses.begin(), op.accesses.end(), [&](const Access& a) { return of_role(a, wanted); }));
  };
  switch (op.kind) {
    case OpKind::copy:
      for (std::size_t i = 0; i + 1 < op.accesses.size(); i += 2)  // src, dst, src, dst
        std::memcpy(at(op.accesses[i + 1]).data(), at(op.accesses[i]).data(), op.accesses[i].bytes);
      break;
    case OpKind::read:
    case OpKind::write: std::memcpy(role(Role::dst).data(), role(Role::src).data(), role(Role::src).size()); break;
    case OpKind::load_tokens: {
      const auto dst = role(Role::tokens);
      fill_tokens(rank, op.micro_batch, params, {reinterpret_cast<std::int32_t*>(dst.data()), dst.size() / 4});
      break;
    }
    case OpKind::sync:
    case OpKind::verify: break;
    case OpKind::commit: commits_[rank] = 1; break;
    case OpKind::grad_norm: {
      auto* const sum = reinterpret_cast<double*>(role(Role::control).data());
      if (op.element == 0) *sum = 0;
      add_squared_norm(reinterpret_cast<const float*>(role(Role::gradient).data()), static_cast<std::int64_t>(op.numel),
                       sum);
      break;
    }
    case OpKind::update: update(op, params); break;
    case OpKind::control:
    case OpKind::all_gather:
    case OpKind::reduce_scatter: {
      if (op.collective < 0) {
        control(op, params);
        break;
      }
      // Runs when the last rank has come.
      arrived_[op.collective].push_back(&op);
      if (arrived_[op.collective].size() < plan_.ranks) break;
      if (op.kind == OpKind::control)
        control(op, params);
      else
        collective(op);
      arrived_[op.collective].clear();
      break;
    }
    case OpKind::step_end: {
      const auto block = role(Role::control);
      const auto* const values = reinterpret_cast<const double*>(block.data() + sizeof(ControlBlock));
      const std::size_t count = (block.size() - sizeof(ControlBlock)) / 8, units = plan_.units.size();
      StepRecord record{params.step, rank, {}, {values, values + units}, {values + units, values + count}};
      std::memcpy(&record.control, block.data(), sizeof(ControlBlock));
      records_.push_back(record);
      break;
    }
    default: mix(id, params, operands(op));
  }
}

void Reference::collective(const Op& op) {
  const auto& all = arrived_[op.collective];
  const auto find = [&](const Op& o, Role role) {
    return at(*std::find_if(o.accesses.begin(), o.accesses.end(), [&](const Access& a) { return of_role(a, role); }));
  };
  for (std::size_t mine = 0; mine < all.size(); ++mine) {
    if (op.kind == OpKind::all_gather) {
      for (std::size_t other = 0; other < all.size(); ++other)
        if (other != mine)
          std::memcpy(at(all[mine]->accesses[other]).data(), at(all[other]->accesses[other]).data(),
                      op.accesses[other].bytes);
      continue;
    }
    const auto dst = find(*all[mine], Role::dst);
    for (std::size_t i = 0; i < dst.size() / 4; ++i) {
      float sum = 0;
      for (std::size_t other = 0; other < all.size(); ++other) {
        const float x = reinterpret_cast<const float*>(find(*all[other], Role::src).data() + mine * dst.size())[i];
        sum = other == 0 ? x : sum + x;
      }
      reinterpret_cast<float*>(dst.data())[i] = sum;
    }
  }
}

void Reference::control(const Op& op, const StepParams& params) {
  std::vector<const Op*> all = op.collective < 0 ? std::vector<const Op*>{&op} : arrived_[op.collective];
  const std::size_t count = (op.accesses[0].bytes - sizeof(ControlBlock)) / 8, units = plan_.units.size();
  ControlBlock result;
  for (std::size_t i = 0; i < count; ++i)
    for (const Op* each : all) {
      const double value = reinterpret_cast<const double*>(at(each->accesses[0]).data() + sizeof(ControlBlock))[i];
      (i < units ? result.grad_norm_sq : result.loss_sum) += value;
    }
  if (params.clip_norm > 0)
    result.clip_factor = std::min(1.0, params.clip_norm / (std::sqrt(result.grad_norm_sq) + 1e-6));
  for (const Op* each : all) {
    // `reserved` is nobody's.
    std::memcpy(at(each->accesses[0]).data(), &result, sizeof result - sizeof result.reserved);
  }
}

void Reference::update(const Op& op, const StepParams& params) {
  if (params.update_step == 0) return;
  const RankId rank = plan_.lanes[op.lane].rank;
  const OptimizerUnit& unit = units_[static_cast<std::size_t>(op.unit)];
  std::map<Role, std::byte*> data;
  for (const Access& a : op.accesses) data[a.role] = at(a).data();
  const auto* const block = reinterpret_cast<const ControlBlock*>(data[Role::control]);
  if (data.contains(Role::diverged) && op.element == 0) std::memset(data[Role::diverged], 0, 8);
  for (std::uint64_t i = 0; i < op.numel; ++i) {  // element by element: any split gives the same bits
    const std::uint64_t element = unit.shard_begin[rank] + op.element + i;
    for (const TensorSegment& s : unit.segments) {
      if (!s.trainable || element < s.offset || element >= s.offset + s.numel) continue;
      AdamwStep step;
      step.step = params.update_step;
      step.lr = params.lr * s.lr_scale;
      step.beta1 = params.beta1;
      step.beta2 = params.beta2;
      step.eps = params.eps;
      step.weight_decay = params.weight_decay * s.weight_decay;
      step.gradient_scale = params.clip_norm > 0 ? static_cast<float>(block->clip_factor) : 1.0f;
      const auto f = [&](Role role) { return reinterpret_cast<float*>(data[role]) + i; };
      adamw_f32(step, f(Role::parameters), f(Role::exp_avg), f(Role::exp_avg_sq), f(Role::gradient), 1);
    }
  }
}

}  // namespace sluice::testing
