#include "tests/run/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "io/checksum.h"
#include "sluice/adamw.h"
#include "sluice/random.h"

namespace sluice::test {
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

void mix(RankId rank, OpId id, const StepParams& params, std::span<const Operand> operands) {
  std::uint64_t hash = id * 1000003ull + params.step * 64 + rank;
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

void initial_content(std::uint64_t seed, RankId rank, BufferId buffer, std::span<std::byte> data) {
  fill_floats((seed * 61 + rank) * 7919 + buffer, data);
  // Second moments are not negative, whatever the buffer is.
  for (std::byte* p = data.data(); p + 4 <= data.data() + data.size(); p += 4) p[3] &= std::byte{0x7f};
}

Reference::Reference(const std::vector<StepPlan>& plans, std::vector<std::vector<OptimizerUnit>> units,
                     std::uint64_t seed) {
  for (RankId r = 0; r < plans.size(); ++r) {
    Rank rank;
    rank.plan = &plans[r];
    if (!units.empty()) rank.units = units[r];
    for (auto& slot : rank.storage) slot.resize(plans[r].buffers.size());
    for (BufferId b = 0; b < plans[r].buffers.size(); ++b) {
      const Buffer& buffer = plans[r].buffers[b];
      for (int slot = 0; slot < buffer.slots; ++slot) rank.storage[slot][b].resize(buffer.bytes);
      if (buffer.life == Life::persistent) initial_content(seed, r, b, rank.storage[0][b]);
    }
    ranks_.push_back(std::move(rank));
    everyone_.push_back(r);
  }
}

std::span<const std::byte> Reference::content(RankId rank, BufferId buffer) const {
  const Rank& of = ranks_[rank];
  return of.storage[of.plan->buffers[buffer].slots == 2 ? of.parity : 0][buffer];
}

std::span<std::byte> Reference::at(RankId rank, const Access& access) {
  Rank& of = ranks_[rank];
  const int current = of.plan->buffers[access.buffer].slots == 2 ? of.parity : 0;
  const int slot = access.slot == Slot::current ? current : 1 - current;
  return std::span(of.storage[slot][access.buffer]).subspan(access.offset, access.bytes);
}

std::vector<Operand> Reference::operands(RankId rank, const Op& op) {
  std::vector<Operand> all;
  for (const Access& a : op.accesses) all.push_back({a.role, a.mode, at(rank, a).data(), a.bytes});
  return all;
}

void Reference::iterate(const StepParams& params) {
  for (Rank& rank : ranks_) rank.commits = 0;
  for (OpId id = 0; id < ranks_.front().plan->ops.size(); ++id) {
    const Op& op = ranks_.front().plan->ops[id];
    if (op.collective < 0)
      for (const RankId r : everyone_) run(r, id, params);
    else if (op.kind == OpKind::control)
      control(everyone_, id, params);
    else
      collective(id);
  }
  for (Rank& rank : ranks_) rank.parity ^= rank.commits;
}

void Reference::run(RankId rank, OpId id, const StepParams& params) {
  const StepPlan& plan = *ranks_[rank].plan;
  const Op& op = plan.ops[id];
  const auto role = [&](Role wanted) {
    return at(rank, *std::find_if(op.accesses.begin(), op.accesses.end(),
                                  [&](const Access& a) { return of_role(a, wanted); }));
  };
  switch (op.kind) {
    case OpKind::copy:
      for (std::size_t i = 0; i + 1 < op.accesses.size(); i += 2)  // src, dst, src, dst
        std::memcpy(at(rank, op.accesses[i + 1]).data(), at(rank, op.accesses[i]).data(), op.accesses[i].bytes);
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
    case OpKind::commit: ranks_[rank].commits = 1; break;
    case OpKind::grad_norm: {
      auto* const sum = reinterpret_cast<ExactSum*>(role(Role::control).data());
      if (!op.accumulate) *sum = ExactSum{};
      const auto* const gradient = reinterpret_cast<const float*>(role(Role::gradient).data());
      for (std::uint64_t at = 0; at < op.numel; at += norm_block_numel) {
        double block = 0;
        add_squared_norm(gradient + at, static_cast<std::int64_t>(std::min(norm_block_numel, op.numel - at)), &block);
        sum->add(block);
      }
      break;
    }
    case OpKind::update: update(rank, op, params); break;
    case OpKind::control: control(std::span(&rank, 1), id, params); break;
    case OpKind::step_end: {
      const auto block = role(Role::control);
      const auto* const values = reinterpret_cast<const double*>(block.data() + sizeof(ControlBlock));
      StepRecord record{params.step, rank, {}, {values, values + (block.size() - sizeof(ControlBlock)) / 8}};
      std::memcpy(&record.control, block.data(), sizeof(ControlBlock));
      records_.push_back(record);
      break;
    }
    default: mix(rank, id, params, operands(rank, op));
  }
}

void Reference::collective(OpId id) {
  const auto op = [&](RankId rank) -> const Op& { return ranks_[rank].plan->ops[id]; };
  const auto find = [&](RankId rank, Role role) {
    const std::vector<Access>& accesses = op(rank).accesses;
    return at(rank, *std::find_if(accesses.begin(), accesses.end(), [&](const Access& a) { return of_role(a, role); }));
  };
  for (const RankId mine : everyone_) {
    if (op(mine).kind == OpKind::all_gather) {
      for (const RankId other : everyone_)
        if (other != mine)
          std::memcpy(at(mine, op(mine).accesses[other]).data(), at(other, op(other).accesses[other]).data(),
                      op(mine).accesses[other].bytes);
      continue;
    }
    const auto dst = find(mine, Role::dst);
    for (std::size_t i = 0; i < dst.size() / 4; ++i) {
      std::vector<float> terms;
      for (const RankId other : everyone_)
        terms.push_back(reinterpret_cast<const float*>(find(other, Role::src).data() + mine * dst.size())[i]);
      while (terms.size() % 2 == 0) {
        for (std::size_t t = 0; t < terms.size() / 2; ++t) terms[t] = terms[2 * t] + terms[2 * t + 1];
        terms.resize(terms.size() / 2);
      }
      for (std::size_t t = 1; t < terms.size(); ++t) terms[0] += terms[t];
      reinterpret_cast<float*>(dst.data())[i] = terms[0];
    }
  }
}

void Reference::control(std::span<const RankId> ranks, OpId id, const StepParams& params) {
  const auto block = [&](RankId r) { return at(r, ranks_[r].plan->ops[id].accesses[0]); };
  ExactSum norm, loss;
  for (const RankId r : ranks) {
    const auto adds_norms = [](const Op& op) { return op.kind == OpKind::grad_norm; };
    if (std::ranges::any_of(ranks_[r].plan->ops, adds_norms))
      norm.add(reinterpret_cast<const ControlBlock*>(block(r).data())->norm);
    const auto* const losses = reinterpret_cast<const double*>(block(r).data() + sizeof(ControlBlock));
    for (std::size_t i = 0; i < (block(r).size() - sizeof(ControlBlock)) / 8; ++i) loss.add(losses[i]);
  }
  ControlBlock result;
  result.grad_norm_sq = norm.value();
  result.loss_sum = loss.value();
  if (params.clip_norm > 0)
    result.clip_factor = std::min(1.0, params.clip_norm / (std::sqrt(result.grad_norm_sq) + 1e-6));
  // What follows is each rank's own.
  for (const RankId r : ranks) std::memcpy(block(r).data(), &result, offsetof(ControlBlock, reserved));
}

void Reference::update(RankId rank, const Op& op, const StepParams& params) {
  if (params.update_step == 0) return;
  const OptimizerUnit& unit = ranks_[rank].units[static_cast<std::size_t>(op.unit)];
  std::map<Role, std::byte*> data;
  for (const Access& a : op.accesses) data[a.role] = at(rank, a).data();
  const auto* const block = reinterpret_cast<const ControlBlock*>(data[Role::control]);
  if (data.contains(Role::diverged) && op.element == 0) std::memset(data[Role::diverged], 0, 8);
  for (std::uint64_t i = 0; i < op.numel; ++i) {  // element by element: any split gives the same bits
    const std::uint64_t element = unit.shard_begin + op.element + i;
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

}  // namespace sluice::test
