// In which order the stages of a pipeline pass over their parts of the model: a pure function of a few numbers.
//
// A model that is cut into `stages` x `chunks` parts goes along *places*: place 0 begins with the embedding, the last
// one ends with the head. A stage has `chunks` of them. Micro-batches go through a place in groups, each in one pass;
// with larger groups parameters are streamed less often, and the bubble is larger. With m groups of equal passes, p
// stages, v chunks, and T_F, T_B, T_W seconds for a group's forward pass, the backward pass to its input, and to the
// weights, over all chunks of a stage:
//
//   order        idle between a stage's first pass and its last        groups whose activations a stage holds, at most
//   gpipe        (p-1) (T_F + T_B + T_W)                               m
//   1f1b         (p-1) (T_F + T_B + T_W)                               p
//   interleaved  (p-1) (T_F + T_B + T_W) / v                           p (1 + (p-1) / (p v))
//   zb-h1        (p-1) (T_F + T_B - T_W)                               p
//   zb-v         0, where T_F = T_B = T_W (and m >= 2 p always)        p
//
// GPipe is Huang et al. 2019 (arXiv 1811.06965), 1F1B and interleaved are Narayanan et al. 2021 (2104.04473), ZB-H1 is
// Qi et al. 2023 (2401.10241), ZB-V Qi et al. 2024 (2405.15362). tests/schedule/pipeline_test.cpp counts all of that.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/status.h"
#include "sluice/topology.h"

namespace sluice {

enum class PipelineOrder : std::uint8_t { gpipe, one_forward_one_backward, interleaved, zb_h1, zb_v };
constexpr std::array<const char*, 5> pipeline_order_names{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

/// Whether backward passes come in halves.
constexpr bool splits_backward(PipelineOrder order) { return order >= PipelineOrder::zb_h1; }

struct Pipeline {
  PipelineOrder order = PipelineOrder::one_forward_one_backward;
  RankId stages = 1;
  int chunks = 1;  ///< of a stage: two and more for interleaved, two for zb-v, one for the others
  int groups = 1;  ///< of micro-batches
  int places() const { return stages * chunks; }
};

/// bad_request where the numbers do not go together.
Status check_pipeline(const Pipeline& pipeline);

struct StagePass {
  /// backward is backward_input and backward_weight in one.
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight } kind = Kind::forward;
  int chunk = 0;
  int group = 0;
  bool operator==(const StagePass&) const = default;
};

/// Of a stage, in the order in which it makes them. Weight gradients of a chunk come in the order of the groups, so
/// that sums do not depend on the pipeline.
std::vector<StagePass> stage_passes(const Pipeline& pipeline, RankId stage);

/// By stage, the passes of each at their places in one order of all, in which a pass comes after those that give it
/// something: the order in which they would begin if forward passes took a second each, and the ways back as many
/// together as fits their kind.
using AllPasses = std::vector<std::vector<StagePass>>;
std::vector<std::vector<std::size_t>> common_order(const Pipeline& pipeline, const AllPasses& passes);

/// Where a stage's chunk lies along the model, and the stage that has a place.
int place_of(const Pipeline& pipeline, RankId stage, int chunk);
struct StageChunk {
  RankId stage = 0;
  int chunk = 0;
};
StageChunk owner_of(const Pipeline& pipeline, int place);

}  // namespace sluice
