// Forward and backward of each sublayer, by hand, on spans of memory that the plan owns. Nothing here allocates. On the
// CPU it runs in the calling thread's OpenMP team (kernels::set_compute_threads); for other devices the same code takes
// another set of kernels (sublayers-inl.h).
//
// A residual sublayer is out = x + f(norm(x)). Activations and parameters have the run's dtype (f32 or bf16), matmuls
// accumulate in fp32, gradients of parameters are fp32 and flat like the unit's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/vocabulary_part.h"
#include "src/model/model.h"

namespace sluice {

/// By what rotary positions turn, made once per run; empty for models without. Where attention takes sequences in
/// blocks there are no tables of all positions: ops make the rows that they need from the frequencies.
struct Rope {
  std::vector<float> frequencies;  ///< [head_dim/2], in radians a position
  double scale = 1;                ///< of cos and sin: yarn's
  std::vector<float> cos, sin;     ///< [positions, head_dim/2], or empty
};
/// The same where it lies.
struct RopeView {
  const float* frequencies = nullptr;
  double scale = 1;
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t numel = 0;  ///< of cos and of sin each
};
inline RopeView view_of(const Rope& rope) {
  return {rope.frequencies.data(), rope.scale, rope.cos.data(), rope.sin.data(),
          static_cast<std::int64_t>(rope.cos.size())};
}
/// Of sequences of so many positions (dynamic scaling stretches by them).
Rope make_rope(const ModelConfig& config, BatchShape shape, std::int64_t positions);
/// What a device with a memory of its own has of it in its arena: cos and then sin, or the frequencies.
std::uint64_t rope_bytes(const ModelConfig& config, BatchShape shape, std::int64_t positions);

/// The tokens of a micro-batch, each plane [batch, sequence].
struct TokenPlanes {
  const std::int32_t* inputs = nullptr;   ///< -1 is padding: a row of zeros
  const std::int32_t* targets = nullptr;  ///< what follows each input; -1 does not count in the loss. Decoding: none
  /// Where documents are kept apart: how many tokens of its document are before each input in its row. Where attention
  /// takes sequences in blocks, there always. Else null: all of a row is one document.
  const std::int32_t* positions = nullptr;
  /// Those of whole sequences, where a rank has some heads of each; else null.
  const std::int32_t* whole_positions = nullptr;
  bool documents = false;  ///< are kept apart

  /// In memory the planes lie behind one another.
  static std::uint64_t bytes(BatchShape shape, bool documents) {
    const std::int64_t whole = has_whole(shape, documents) ? shape.batch * shape.whole() : 0,
                       planes = documents || shape.in_blocks() ? 3 : 2;
    return static_cast<std::uint64_t>(shape.tokens() * planes + whole) * sizeof(std::int32_t);
  }
  static TokenPlanes at(const std::int32_t* data, BatchShape shape, bool documents) {
    const std::int64_t n = shape.tokens();
    return {data, data + n, documents || shape.in_blocks() ? data + 2 * n : nullptr,
            has_whole(shape, documents) ? data + 3 * n : nullptr, documents};
  }
  static bool has_whole(BatchShape shape, bool documents) { return documents && shape.context > 1 && !shape.ring; }
};

struct SublayerArgs {
  const ModelSpec* model = nullptr;
  const UnitSpec* unit = nullptr;
  RopeView rope;
  BatchShape shape;
  Dtype dtype = Dtype::f32;
  std::int64_t position0 = 0;  ///< of the first token of each sequence: decoding, and of a slice
  std::int64_t slice = 0;      ///< whose, or which, of each sequence: where attention takes it in blocks

  const std::byte* parameters = nullptr;       ///< flat, of the unit
  const std::byte* tied_parameters = nullptr;  ///< head of a tied model: the embed unit's flat parameters
  float* gradient = nullptr;                   ///< fp32 flat
  float* tied_gradient = nullptr;              ///< head of a tied model: fp32 [vocabulary, hidden] made by the head
  bool accumulate = false;                     ///< add to gradient (and tied_gradient) instead of setting all of it

  const std::byte* x_in = nullptr;
  std::byte* x_out = nullptr;
  std::byte* saved = nullptr;     ///< written by forward/recompute, read by backward
  std::byte* core = nullptr;      ///< the rest of what attention saves (SublayerCost::core_bytes), the same
  std::byte* deferred = nullptr;  ///< written by backward_input, read and used up by backward_weight
  const std::byte* d_out = nullptr;
  std::byte* d_in = nullptr;
  std::span<std::byte> workspace;

  // Where sublayers are cut over ranks (src/model/split.h). x_in, x_out, d_in, and d_out of leave and enter_backward,
  // are of the rank's slice of the tokens.
  std::byte* normed = nullptr;  ///< enter: written, of the slice; part_*: of all tokens
  float* sum = nullptr;         ///< [tokens or slice, hidden]: part_forward writes it, leave reads it
  float* d_sum = nullptr;       ///< the same of part_backward and part_gradient, and of enter_backward
  kernels::VocabularyPart* vocabulary_parts =
      nullptr;             ///< part_logits: own, [chunk]; else of all ranks, [ranks, chunk]
  std::int64_t words = 0;  ///< own columns of the logits that are words
  bool leads = true;       ///< the first of the ranks, which has the loss and GPT-2's positions
  std::int64_t chunk = 0;  ///< part_logits, part_gradient, part_loss: which; normed and d_sum are of its tokens

  // Attention where ranks have slices of sequences (src/model/context-inl.h).
  std::byte *leaving = nullptr, *arrived = nullptr, *mixed = nullptr, *attended = nullptr;
  float* lse = nullptr;
  std::byte* block = nullptr;  ///< in blocks (src/model/blocks-inl.h)
  float* partial = nullptr;
  std::int64_t step = 0;

  TokenPlanes tokens;
  double loss_scale = 1;          ///< gradient scale: 1 / target tokens of the global batch
  double* loss = nullptr;         ///< sum of nats over the micro-batch's targets, set
  float* logits = nullptr;        ///< decode: [vocabulary] of the last token
  std::byte* kv_cache = nullptr;  ///< decode: [2, kv_capacity, kv_heads, head_dim] of run dtype, k then v
  std::int64_t kv_capacity = 0;
};

/// A compute op of a unit, on the CPU:
/// forward: x_in, parameters -> x_out, saved. embed: tokens -> x_out. With kv_cache: appends at position0 and attends
/// to the cache. saved and core may be null, each by itself: it is not kept. x_out may be null: only those are wanted;
/// recompute is that.
/// recompute_qkv, recompute_core: attention's, of one of them; where sublayers are cut the first begins with normed.
/// backward: x_in, saved, parameters, d_out -> d_in, gradient. embed: no d_in. d_in may not alias d_out.
/// backward_again: the MLP's, with saved null, to the same bits as recompute and backward.
/// backward_input and backward_weight: the same in two halves, to the same bits. The second takes no parameters and may
/// come much later. embed: only backward.
/// forward_backward, the head's in training: norm, logits in chunks of tokens, loss, d_in, gradients, in one pass.
/// qkv, core, core_earlier, out, and their backward passes: attention of slices of sequences (src/model/context-inl.h).
/// enter, leave, enter_backward, part_*: of a sublayer that is cut over ranks (src/model/split.h). logits are those of
/// a chunk then, [head_chunk, vocabulary], rows logits_ld apart, and loss is added to but by the first chunk. loss: the
/// head's in evaluation. logits: the head's in decoding, of the last token of the (single) sequence.
void run_sublayer(OpKind op, const SublayerArgs& args);
/// bytes of one unit's kv_cache (attention units; else 0)
std::uint64_t kv_cache_bytes(const ModelSpec& model, const UnitSpec& unit, std::int64_t capacity, Dtype dtype);

}  // namespace sluice
