#include "src/schedule/pipeline.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice {
namespace {

using Kind = StagePass::Kind;

/// Writes down passes; each kind takes the groups of a chunk one after the other.
class Writer {
 public:
  explicit Writer(const Pipeline& pipeline)
      : groups_(pipeline.groups), next_(static_cast<std::size_t>(pipeline.chunks)) {}

  int forwards(int chunk) const { return at(chunk).forward; }
  int backwards(int chunk) const { return at(chunk).backward; }
  int weights(int chunk) const { return at(chunk).weight; }
  bool all_backward(int chunk) const { return backwards(chunk) == groups_; }

  /// Each is nothing where its groups are at an end.
  void forward(int chunk) {
    if (forwards(chunk) < groups_) passes_.push_back({Kind::forward, chunk, at(chunk).forward++});
  }
  void backward(int chunk) {
    if (backwards(chunk) < groups_) passes_.push_back({Kind::backward, chunk, at(chunk).backward++});
  }
  void backward_input(int chunk) {
    if (backwards(chunk) < groups_) passes_.push_back({Kind::backward_input, chunk, at(chunk).backward++});
  }
  void backward_weight(int chunk) {
    if (weights(chunk) < backwards(chunk)) passes_.push_back({Kind::backward_weight, chunk, at(chunk).weight++});
  }
  std::vector<StagePass> take() { return std::move(passes_); }

 private:
  struct Next {
    int forward = 0, backward = 0, weight = 0;
  };
  Next& at(int chunk) { return next_[static_cast<std::size_t>(chunk)]; }
  const Next& at(int chunk) const { return next_[static_cast<std::size_t>(chunk)]; }
  int groups_;
  std::vector<Next> next_;
  std::vector<StagePass> passes_;
};

std::vector<StagePass> gpipe(const Pipeline& p) {
  Writer write(p);
  for (int g = 0; g < p.groups; ++g) write.forward(0);
  for (int g = 0; g < p.groups; ++g) write.backward(0);
  return write.take();
}

/// As many groups ahead as there are stages behind this one, then one in, one out.
std::vector<StagePass> one_forward_one_backward(const Pipeline& p, RankId stage) {
  Writer write(p);
  for (int ahead = stage + 1; ahead < p.stages; ++ahead) write.forward(0);
  while (!write.all_backward(0)) {
    write.forward(0);
    write.backward(0);
  }
  return write.take();
}

/// The same over all chunks: `stages` groups pass a chunk, then they pass the next one.
std::vector<StagePass> interleaved(const Pipeline& p, RankId stage) {
  Writer write(p);
  const int all = p.groups * p.chunks, ahead = 2 * (p.stages - stage - 1) + (p.chunks - 1) * p.stages;
  const auto chunk_of = [&](int turn) { return turn % (p.stages * p.chunks) / p.stages; };
  int forwards = 0, backwards = 0;
  for (; forwards < std::min(ahead, all); ++forwards) write.forward(chunk_of(forwards));
  for (; backwards < all; ++backwards) {
    if (forwards < all) write.forward(chunk_of(forwards++));
    write.backward(p.chunks - 1 - chunk_of(backwards));
  }
  return write.take();
}

/// As 1F1B. What later stages do not hold of activations they hold of groups whose weight gradients are still to come,
/// and those fill the end.
std::vector<StagePass> zb_h1(const Pipeline& p, RankId stage) {
  Writer write(p);
  for (int ahead = stage + 1; ahead < p.stages; ++ahead) write.forward(0);
  while (!write.all_backward(0)) {
    write.forward(0);
    write.backward_input(0);
    if (write.backwards(0) - write.weights(0) > stage) write.backward_weight(0);
  }
  while (write.weights(0) < p.groups) write.backward_weight(0);
  return write.take();
}

/// The second chunks come back the way that the first ones went, so that the last stage goes back first.
std::vector<StagePass> zb_v(const Pipeline& p, RankId stage) {
  Writer write(p);
  const int behind = p.stages - stage;  // this stage and those to come
  for (int i = 0; i < 2 * behind - 1; ++i) write.forward(0);
  for (int i = 0; i < stage; ++i) {
    write.forward(1);
    write.forward(0);
  }
  const auto out_again = [&](int chunk) {
    write.backward_input(chunk);
    write.backward_weight(chunk);
  };
  for (int i = 0; i < behind; ++i) {
    write.forward(1);
    out_again(1);
  }
  while (write.forwards(1) < p.groups) {
    write.forward(0);
    out_again(0);
    write.forward(1);
    out_again(1);
  }
  for (int i = 0; i < stage; ++i) {
    write.backward_input(0);
    write.backward_input(1);
  }
  for (int i = 0; i < behind; ++i) out_again(0);
  for (const int chunk : {1, 0})
    while (write.weights(chunk) < p.groups) write.backward_weight(chunk);
  return write.take();
}

}  // namespace

Status check_pipeline(const Pipeline& p) {
  const std::string name = pipeline_order_names[static_cast<std::size_t>(p.order)];
  SLUICE_CHECK(p.stages > 0 && p.chunks > 0 && p.groups > 0, "(%d stages, %d chunks, %d groups)", p.stages, p.chunks,
               p.groups);
  switch (p.order) {
    case PipelineOrder::interleaved:
      if (p.chunks < 2) return bad_request("an interleaved pipeline has two chunks a stage or more");
      if (p.groups % p.stages != 0)
        return bad_request("an interleaved pipeline of " + std::to_string(p.stages) +
                           " stages takes a multiple of that many groups of micro-batches, not " +
                           std::to_string(p.groups));
      return success();
    case PipelineOrder::zb_v:
      if (p.chunks != 2) return bad_request("a zb-v pipeline has two chunks a stage");
      // With fewer, stages would wait for one another on the way back.
      if (p.groups < 2 * p.stages)
        return bad_request("a zb-v pipeline of " + std::to_string(p.stages) + " stages takes at least " +
                           std::to_string(2 * p.stages) + " groups of micro-batches, not " + std::to_string(p.groups));
      return success();
    default: return p.chunks == 1 ? success() : Status(bad_request("a " + name + " pipeline has one chunk a stage"));
  }
}

std::vector<StagePass> stage_passes(const Pipeline& pipeline, RankId stage) {
  const Status fits = check_pipeline(pipeline);
  SLUICE_CHECK(fits.ok() && stage < pipeline.stages, "(%s)", fits.ok() ? "stage" : fits.error().message.c_str());
  switch (pipeline.order) {
    case PipelineOrder::gpipe: return gpipe(pipeline);
    case PipelineOrder::one_forward_one_backward: return one_forward_one_backward(pipeline, stage);
    case PipelineOrder::interleaved: return interleaved(pipeline, stage);
    case PipelineOrder::zb_h1: return zb_h1(pipeline, stage);
    case PipelineOrder::zb_v: return zb_v(pipeline, stage);
  }
  SLUICE_CHECK(false, "(pipeline order %d)", static_cast<int>(pipeline.order));
}

std::vector<std::vector<std::size_t>> common_order(const Pipeline& pipeline, const AllPasses& passes) {
  constexpr int not_yet = -1;
  const auto places = static_cast<std::size_t>(pipeline.places()), groups = static_cast<std::size_t>(pipeline.groups);
  // When passes have ended, by place and group.
  std::vector<int> forward(places * groups, not_yet), backward(forward);
  std::vector<int> free(passes.size());  // when each stage is
  std::vector<std::vector<std::size_t>> order(passes.size());
  std::size_t all = 0;
  for (const std::vector<StagePass>& stage : passes) all += stage.size();
  for (std::size_t at = 0; at < all; ++at) {
    std::size_t next = passes.size();
    int begins = 0;
    for (std::size_t s = 0; s < passes.size(); ++s) {
      if (order[s].size() == passes[s].size()) continue;
      const StagePass& pass = passes[s][order[s].size()];
      const auto place = static_cast<std::size_t>(place_of(pipeline, static_cast<RankId>(s), pass.chunk));
      const std::size_t here = place * groups + static_cast<std::size_t>(pass.group);
      const bool goes_back = pass.kind != Kind::forward;
      const int given = !goes_back                           ? (place == 0 ? 0 : forward[here - groups])
                        : pass.kind == Kind::backward_weight ? 0
                        : place + 1 == places                ? forward[here]
                                                             : backward[here + groups];
      if (given == not_yet) continue;
      const int start = std::max(given, free[s]);
      if (next == passes.size() || start < begins) next = s, begins = start;
    }
    SLUICE_CHECK(next < passes.size(), "(pass %zu of %zu)", at, all);
    const StagePass& pass = passes[next][order[next].size()];
    const auto place = static_cast<std::size_t>(place_of(pipeline, static_cast<RankId>(next), pass.chunk));
    const std::size_t here = place * groups + static_cast<std::size_t>(pass.group);
    free[next] = begins + (pass.kind == Kind::backward ? 2 : 1);
    if (pass.kind == Kind::forward) forward[here] = free[next];
    if (pass.kind == Kind::backward || pass.kind == Kind::backward_input) backward[here] = free[next];
    order[next].push_back(at);
  }
  return order;
}

int place_of(const Pipeline& pipeline, RankId stage, int chunk) {
  const bool turns = pipeline.order == PipelineOrder::zb_v && chunk == 1;
  return chunk * pipeline.stages + (turns ? pipeline.stages - 1 - stage : stage);
}

StageChunk owner_of(const Pipeline& pipeline, int place) {
  const int chunk = place / pipeline.stages, along = place % pipeline.stages;
  const bool turns = pipeline.order == PipelineOrder::zb_v && chunk == 1;
  return {static_cast<RankId>(turns ? pipeline.stages - 1 - along : along), chunk};
}

}  // namespace sluice
