// A whole model run sublayer by sublayer in plain memory: the smallest program that uses src/model.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/random.h"
#include "src/model/init.h"
#include "src/model/kernel_sizes.h"
#include "src/model/model.h"
#include "src/model/sublayer.h"

namespace sluice::test {

/// Bytes between two guards, `shift` x 64 bytes after an address that is a multiple of 4096, filled with garbage.
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(std::uint64_t bytes, std::uint64_t shift = 0) : bytes_(bytes) {
    memory_.assign(bytes + 2 * guard_bytes + 4096 + 64 * shift, std::byte{0xa5});
    const auto base = reinterpret_cast<std::uintptr_t>(memory_.data()) + guard_bytes;
    at_ = guard_bytes + (4096 - base % 4096) % 4096 + 64 * shift;
    std::memset(data(), 0xff, bytes);  // NaN in every dtype: what is read before it is written shows
  }
  std::byte* data() { return memory_.data() + at_; }
  const std::byte* data() const { return memory_.data() + at_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  std::uint64_t size() const { return bytes_; }
  std::span<std::byte> span() { return {data(), bytes_}; }
  bool intact() const {
    for (std::uint64_t i = 0; i < at_; ++i)
      if (memory_[i] != std::byte{0xa5}) return false;
    for (std::uint64_t i = at_ + bytes_; i < memory_.size(); ++i)
      if (memory_[i] != std::byte{0xa5}) return false;
    return true;
  }
  bool operator==(const Guarded& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

 private:
  static constexpr std::uint64_t guard_bytes = 256;
  std::vector<std::byte> memory_;
  std::uint64_t bytes_ = 0, at_ = 0;
};

inline void store(Dtype dtype, const std::vector<float>& from, std::byte* to) {
  if (dtype == Dtype::f32) {
    std::memcpy(to, from.data(), 4 * from.size());
    return;
  }
  for (std::size_t i = 0; i < from.size(); ++i) reinterpret_cast<bf16*>(to)[i] = to_bf16(from[i]);
}

inline std::vector<float> load(Dtype dtype, const std::byte* from, std::size_t n) {
  std::vector<float> to(n);
  for (std::size_t i = 0; i < n; ++i)
    to[i] = dtype == Dtype::f32 ? reinterpret_cast<const float*>(from)[i]
                                : to_float(reinterpret_cast<const bf16*>(from)[i]);
  return to;
}

/// What computes; its memory is the host's.
struct Computer {
  const KernelSizes* sizes = &cpu_kernel_sizes;
  std::function<void(OpKind, const SublayerArgs&)> run = [](OpKind op, const SublayerArgs& args) {
    run_sublayer(op, args);
  };
};

class ModelRunner {
 public:
  ModelRunner(const ModelConfig& config, BatchShape shape, Dtype dtype, std::uint64_t shift = 0, Computer computer = {})
      : spec(build_model(config)), dtype_(dtype), shape_(shape), shift_(shift), computer_(std::move(computer)) {
    rope_ = make_rope(config, shape, shape.sequence);
    for (const UnitSpec& unit : spec.units) {
      const SublayerCost cost = sublayer_cost(spec, unit, shape, dtype, *computer_.sizes);
      costs_.push_back(cost);
      parameters.emplace_back(unit.numel * dtype_bytes(dtype), shift);
      gradients.emplace_back(unit.numel * 4, shift);
      x.emplace_back(cost.boundary_bytes, shift);
      d.emplace_back(cost.boundary_bytes, shift);
      saved.emplace_back(cost.saved_bytes, shift);
    }
    if (config.tied) tied_gradient = Guarded(static_cast<std::uint64_t>(4 * config.vocabulary * config.hidden), shift);
  }

  void set_parameters(std::size_t unit, const std::vector<float>& values) {
    store(dtype_, values, parameters[unit].data());
  }
  void initialise(std::uint64_t seed) {
    for (std::size_t u = 0; u < spec.units.size(); ++u) {
      std::vector<float> values(spec.units[u].numel);
      initial_weights(spec.units[u], seed, 0, values);
      set_parameters(u, values);
    }
  }

  SublayerArgs args(std::size_t u) {
    SublayerArgs a;
    a.model = &spec;
    a.unit = &spec.units[u];
    a.rope = view_of(rope_);
    a.shape = shape_;
    a.dtype = dtype_;
    a.parameters = parameters[u].data();
    a.gradient = gradients[u].as<float>();
    if (spec.config.tied && spec.units[u].kind == Sublayer::head) {
      a.tied_parameters = parameters[0].data();
      a.tied_gradient = tied_gradient.as<float>();
    }
    return a;
  }

  /// Documents of packed rows: [batch, sequence], as in TokenPlanes.
  void set_positions(std::vector<std::int32_t> positions) { positions_ = std::move(positions); }

  /// What follows the last token of a document is not to be predicted from it.
  void hide_targets_before_documents() { hide_targets_ = true; }

  /// Of rows of sequence + 1 tokens: inputs are columns 0..s-1, targets 1..s.
  TokenPlanes planes(const std::int32_t* rows) {
    if (rows == nullptr) return {nullptr, nullptr, positions_.empty() ? nullptr : positions_.data()};
    const auto count = static_cast<std::size_t>(shape_.tokens()), columns = static_cast<std::size_t>(shape_.sequence);
    tokens_.resize(2 * count);
    for (std::size_t t = 0; t < count; ++t) {
      const std::int32_t* token = rows + t / columns * (columns + 1) + t % columns;
      tokens_[t] = token[0];
      const bool ends = hide_targets_ && (t + 1) % columns != 0 && positions_[t + 1] == 0;
      tokens_[count + t] = ends ? -1 : token[1];
    }
    return {tokens_.data(), tokens_.data() + count, positions_.empty() ? nullptr : positions_.data()};
  }

  /// Boundary activations: x[u] is what unit u reads, x[0] unused; saved too with `keep`.
  void forward(const std::int32_t* tokens, bool keep = true) { forward_from(0, tokens, keep); }

  /// Units from `first` on, from x[first].
  void forward_from(std::size_t first, const std::int32_t* tokens = nullptr, bool keep = true) {
    for (std::size_t u = first; u + 1 < spec.units.size(); ++u) {
      Guarded workspace(costs_[u].forward_workspace_bytes, shift_);
      SublayerArgs a = args(u);
      a.tokens = planes(tokens);
      a.x_in = x[u].data();
      a.x_out = x[u + 1].data();
      a.saved = keep && saved[u].size() > 0 ? saved[u].data() : nullptr;
      a.core = a.saved != nullptr ? core(u) : nullptr;
      a.workspace = workspace.span();
      computer_.run(OpKind::forward, a);
      expect_intact(u, workspace);
    }
  }

  /// Behind the rest of what attention saves.
  std::byte* core(std::size_t u) {
    return costs_[u].core_bytes > 0 ? saved[u].data() + (costs_[u].saved_bytes - costs_[u].core_bytes) : nullptr;
  }

  /// Throws away what forward kept and makes it again from the boundary activations.
  /// Attention's in two halves: q, k and v, then its core.
  enum class Again : std::uint8_t { whole, halves };
  void recompute(Again again = Again::whole) {
    for (std::size_t u = 1; u + 1 < spec.units.size(); ++u) {
      Guarded workspace(costs_[u].forward_workspace_bytes, shift_);
      saved[u] = Guarded(saved[u].size(), shift_);
      SublayerArgs a = args(u);
      a.tokens = planes(nullptr);
      a.x_in = x[u].data();
      a.saved = saved[u].data();
      a.core = core(u);
      a.workspace = workspace.span();
      if (again == Again::halves && costs_[u].core_bytes > 0) {
        SublayerArgs qkv = a;
        qkv.core = nullptr;
        computer_.run(OpKind::recompute_qkv, qkv);
        a.x_in = nullptr;
        computer_.run(OpKind::recompute_core, a);
      } else {
        computer_.run(OpKind::forward, a);
      }
      expect_intact(u, workspace);
    }
  }

  /// One pass over a sublayer, or one in two halves, the second ones when all first ones are done. again: what
  /// forward has kept of the MLP is not looked at.
  enum class Back : std::uint8_t { whole, halves, again };

  /// After forward: sum of the loss in nats; gradients of `loss_scale` times that sum.
  double backward(const std::int32_t* tokens, double loss_scale, bool accumulate = false, Back back = Back::whole) {
    const std::size_t head = spec.units.size() - 1;
    double loss = 0;
    {
      Guarded workspace(costs_[head].backward_workspace_bytes, shift_);
      SublayerArgs a = args(head);
      a.tokens = planes(tokens);
      a.loss_scale = loss_scale;
      a.loss = &loss;
      a.accumulate = accumulate;
      a.x_in = x[head].data();
      a.d_in = d[head].data();
      a.workspace = workspace.span();
      computer_.run(OpKind::forward_backward, a);
      expect_intact(head, workspace);
    }
    std::vector<Guarded> deferred(head);
    const auto pass = [&](std::size_t u, OpKind op) {
      const bool to_input = op == OpKind::backward_input, to_weights = op == OpKind::backward_weight;
      const bool again = op == OpKind::backward_again;
      Guarded workspace(to_input ? costs_[u].backward_input_workspace_bytes
                        : again  ? costs_[u].backward_again_workspace_bytes
                                 : costs_[u].backward_workspace_bytes,
                        shift_);
      if (to_input) deferred[u] = Guarded(costs_[u].deferred_bytes, shift_);
      SublayerArgs a = args(u);
      a.tokens = planes(tokens);
      a.accumulate = accumulate;
      a.x_in = x[u].data();
      a.saved = again ? nullptr : saved[u].data();
      a.core = core(u);
      a.d_out = d[u + 1].data();
      a.d_in = to_weights ? nullptr : d[u].data();
      a.deferred = deferred[u].data();
      if (to_input) a.gradient = nullptr;
      if (to_weights) a.parameters = nullptr;
      a.workspace = workspace.span();
      computer_.run(op, a);
      expect_intact(u, workspace);
      EXPECT_TRUE((!to_input && !to_weights) || deferred[u].intact()) << spec.units[u].name;
    };
    const bool halves = back == Back::halves;
    for (std::size_t u = head; u-- > 0;)
      pass(u, halves && u > 0                                                       ? OpKind::backward_input
              : back == Back::again && costs_[u].backward_again_workspace_bytes > 0 ? OpKind::backward_again
                                                                                    : OpKind::backward);
    for (std::size_t u = head; halves && u-- > 1;) pass(u, OpKind::backward_weight);
    return loss;
  }

  double loss(const std::int32_t* tokens) {
    const std::size_t head = spec.units.size() - 1;
    double sum = 0;
    Guarded workspace(costs_[head].forward_workspace_bytes, shift_);
    SublayerArgs a = args(head);
    a.tokens = planes(tokens);
    a.loss = &sum;
    a.x_in = x[head].data();
    a.workspace = workspace.span();
    computer_.run(OpKind::loss, a);
    expect_intact(head, workspace);
    return sum;
  }

  /// After forward: [batch x sequence, vocabulary], one token at a time through the door that decoding uses.
  std::vector<float> logits() {
    const std::size_t head = spec.units.size() - 1;
    const auto vocabulary = static_cast<std::size_t>(spec.config.vocabulary);
    std::vector<float> all(static_cast<std::size_t>(shape_.tokens()) * vocabulary);
    Guarded workspace(costs_[head].forward_workspace_bytes, shift_);
    for (std::int64_t t = 0; t < shape_.tokens(); ++t) {
      SublayerArgs a = args(head);
      a.shape = {1, 1};
      a.x_in = x[head].data() + static_cast<std::uint64_t>(t * spec.config.hidden) * dtype_bytes(dtype_);
      a.logits = all.data() + static_cast<std::size_t>(t) * vocabulary;
      a.workspace = workspace.span();
      computer_.run(OpKind::logits, a);
    }
    return all;
  }

  /// The tied matrix's gradient is the sum of what head and embedding make.
  void add_tied_gradient() {
    if (!spec.config.tied) return;
    float* to = gradients[0].as<float>() + spec.units[0].tensors[0].offset;
    for (std::uint64_t i = 0; i < tied_gradient.size() / 4; ++i) to[i] += tied_gradient.as<float>()[i];
  }

  ModelSpec spec;
  std::vector<Guarded> parameters, gradients, x, d, saved;
  Guarded tied_gradient;

 private:
  void expect_intact(std::size_t u, const Guarded& workspace) const {
    EXPECT_TRUE(workspace.intact()) << "workspace of " << spec.units[u].name;
    for (const auto* group : {&parameters, &gradients, &x, &d, &saved})
      for (const Guarded& g : *group) ASSERT_TRUE(g.intact()) << spec.units[u].name;
    if (spec.config.tied) {
      EXPECT_TRUE(tied_gradient.intact());
    }
  }

  Dtype dtype_;
  BatchShape shape_;
  std::uint64_t shift_;
  Computer computer_;
  Rope rope_;
  std::vector<SublayerCost> costs_;
  std::vector<std::int32_t> tokens_, positions_;
  bool hide_targets_ = false;
};

/// Deterministic tokens [batch, sequence + 1] in the vocabulary.
inline std::vector<std::int32_t> some_tokens(BatchShape shape, std::int64_t vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.batch * (shape.sequence + 1)));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(philox(seed, i, 99)[0] % static_cast<std::uint64_t>(vocabulary));
  return tokens;
}

}  // namespace sluice::test
