// The stages of a pipeline with one op per pass: what comes from the neighbours, what goes to them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "offload/plan/finish.h"
#include "src/schedule/pipeline.h"

namespace sluice::test {

constexpr std::uint64_t toy_activation_bytes = 4096;
enum class ToyMemory : std::uint8_t { used_again, of_each_its_own };

/// Forward: x -> y. Backward to the input: x, y and the gradient of y -> the gradient of x, which the first place keeps
/// in "result". Backward to the weights: x and the gradient of y -> one gradient, to which groups add in turn.
/// The activations of each chunk go through a group of their own, and so do the gradients: in a V the chunks' go opposite
/// ways, and one lane for both would have each end wait for the other. Between chunks of one stage nothing travels.
/// `passes` in place of those of the pipeline's order, for worlds that are broken.
inline StepPlan toy_stage(const Pipeline& p, RankId stage, const std::vector<StagePass>& passes,
                          ToyMemory memory = ToyMemory::used_again) {
  using Kind = StagePass::Kind;
  StepPlan plan;
  plan.cyclic = true;
  plan.topology = Topology::of({{"pp", p.stages}}, stage);
  plan.units = {"stage"};
  plan.lanes = {{LaneKind::compute}};
  for (std::int32_t group = 0; group < 2 * p.chunks; ++group) {
    plan.groups.push_back(1);
    plan.lanes.push_back({LaneKind::send, false, group});
    plan.lanes.push_back({LaneKind::receive, false, group});
  }
  plan.arenas = {{Tier::host, 0, 0, 0}};
  const auto buffer = [&](const std::string& name, Life life) {
    Buffer b;
    b.name = name;
    b.tier = Tier::host;
    b.bytes = toy_activation_bytes;
    b.life = memory == ToyMemory::of_each_its_own ? Life::persistent : life;
    plan.buffers.push_back(b);
    return static_cast<BufferId>(plan.buffers.size() - 1);
  };
  const auto owner = [&](int place) { return owner_of(p, place).stage; };
  // By place, of the input, and group. Results come first: persistent buffers do.
  std::map<std::pair<int, int>, BufferId> x, d;
  std::map<int, BufferId> weights;
  const auto of = [&](auto& map, const char* what, int place, int group) {
    const auto [found, is_new] = map.try_emplace({place, group});
    if (is_new)
      found->second = buffer(what + std::to_string(place) + ".g" + std::to_string(group), Life::lasting);
    return found->second;
  };
  if (owner(0) == stage)
    for (int g = 0; g < p.groups; ++g) d[{0, g}] = buffer("result.g" + std::to_string(g), Life::persistent);
  const auto op = [&](OpKind kind, LaneId lane, int group) -> Op& {
    Op& o = plan.ops.emplace_back();
    o.kind = kind;
    o.lane = lane;
    o.unit = 0;
    o.micro_batch = group;
    return o;
  };
  const auto touch = [](Op& o, BufferId b, Role role, Mode mode) {
    o.accesses.push_back({b, 0, toy_activation_bytes, role, mode});
  };
  std::map<std::pair<LaneId, std::int32_t>, std::int32_t> numbers;  // by lane and peer
  const auto message = [&](bool sends, std::int32_t group, RankId peer, BufferId b, int micro_batches) {
    const auto lane = static_cast<LaneId>(1 + 2 * group + (sends ? 0 : 1));
    Op& o = op(sends ? OpKind::send : OpKind::receive, lane, micro_batches);
    touch(o, b, sends ? Role::src : Role::dst, sends ? Mode::read : Mode::write);
    o.group = group;
    o.peer = peer;
    o.collective = numbers[{lane, o.peer}]++;
    o.bytes = toy_activation_bytes;
  };
  // Named by the chunk of the place behind.
  const auto activations = [&](int behind) { return 2 * owner_of(p, behind).chunk; };
  const auto gradients = [&](int behind) { return activations(behind) + 1; };
  const auto receive = [&](const StagePass& pass) {
    const int place = place_of(p, stage, pass.chunk), g = pass.group;
    if (pass.kind == Kind::forward && place > 0 && owner(place - 1) != stage)
      message(false, activations(place), owner(place - 1), of(x, "x", place, g), g);
    const bool goes_back = pass.kind == Kind::backward || pass.kind == Kind::backward_input;
    if (goes_back && place + 1 < p.places() && owner(place + 1) != stage)
      message(false, gradients(place + 1), owner(place + 1), of(d, "d", place + 1, g), g);
  };
  if (!passes.empty()) receive(passes.front());
  for (std::size_t at = 0; at < passes.size(); ++at) {
    // What the next pass needs may come while this one works: its sender need not wait for what this stage sends.
    if (at + 1 < passes.size()) receive(passes[at + 1]);
    const StagePass& pass = passes[at];
    const int place = place_of(p, stage, pass.chunk), g = pass.group;
    const bool is_first = place == 0, is_last = place == p.places() - 1;
    const BufferId in = is_first ? 0 : of(x, "x", place, g), out = of(x, "x", place + 1, g);
    if (pass.kind == Kind::forward) {
      Op& forward = op(OpKind::forward, 0, g);
      if (!is_first) touch(forward, in, Role::x_in, Mode::read);
      touch(forward, out, Role::x_out, Mode::write);
      if (!is_last && owner(place + 1) != stage) message(true, activations(place + 1), owner(place + 1), out, g);
      continue;
    }
    if (pass.kind != Kind::backward_weight) {
      Op& backward = op(OpKind::backward, 0, g);
      if (!is_first) touch(backward, in, Role::x_in, Mode::read);
      touch(backward, out, Role::saved, Mode::read);
      if (!is_last) touch(backward, of(d, "d", place + 1, g), Role::d_out, Mode::read);
      touch(backward, of(d, "d", place, g), Role::d_in, Mode::write);
      if (!is_first && owner(place - 1) != stage) message(true, gradients(place), owner(place - 1), of(d, "d", place, g), g);
    }
    if (pass.kind != Kind::backward_input) {
      const auto [weight, is_new] = weights.try_emplace(pass.chunk);
      if (is_new) weight->second = buffer("weight" + std::to_string(pass.chunk), Life::lasting);
      Op& gradient = op(OpKind::recompute, 0, g);
      if (!is_first) touch(gradient, in, Role::x_in, Mode::read);
      if (!is_last) touch(gradient, of(d, "d", place + 1, g), Role::d_out, Mode::read);
      touch(gradient, weight->second, Role::gradient, is_new ? Mode::write : Mode::read_write);
    }
  }
  finish(plan);
  return plan;
}
inline StepPlan toy_stage(const Pipeline& p, RankId stage) { return toy_stage(p, stage, stage_passes(p, stage)); }

inline std::vector<StepPlan> toy_pipeline(const Pipeline& p) {
  std::vector<StepPlan> world;
  for (RankId s = 0; s < p.stages; ++s) world.push_back(toy_stage(p, s));
  return world;
}
inline std::vector<StepPlan> toy_pipeline(const Pipeline& p,
                                          const std::function<std::vector<StagePass>(RankId stage)>& passes) {
  std::vector<StepPlan> world;
  for (RankId s = 0; s < p.stages; ++s) world.push_back(toy_stage(p, s, passes(s)));
  return world;
}

}  // namespace sluice::test
