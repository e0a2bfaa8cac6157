// Sizes and places inside the buffers that sublayers are given. sublayer_cost measures with the same code that the
// sublayers carve with, so that the two cannot disagree.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/model/kernel_sizes.h"
#include "src/model/model.h"

namespace sluice {

/// The numbers that shape one sublayer's arithmetic on one micro-batch.
struct Dims {
  Dims(const ModelSpec& model, BatchShape shape, Dtype dtype, const KernelSizes& sizes);

  const KernelSizes* sizes;

  bool gpt2;
  bool qk_norm;
  Dtype dtype;
  std::uint64_t element;  ///< bytes of one parameter or activation
  std::int64_t batch, sequence, tokens;
  std::int64_t hidden, heads, kv_heads, head_dim;
  std::int64_t q, kv, qkv;  ///< widths of the projections
  std::int64_t ffn;
  std::int64_t pre;  ///< width of what enters the activation: gate and up, or GPT-2's c_fc
  std::int64_t vocabulary, window;
  std::int64_t logits_ld;  ///< of rows of logits, in elements
  /// Work goes through a sublayer in chunks of tokens, so that workspace does not grow with the micro-batch. Chunks are
  /// a function of shapes alone: they decide the order of the sums in gradients of parameters.
  std::int64_t mlp_chunk;                  ///< tokens
  std::int64_t attention_chunk_sequences;  ///< whole sequences
  std::int64_t attention_chunk;            ///< tokens of those
  std::int64_t head_chunk;                 ///< tokens
  std::int64_t split, slice,
      slice_chunk;  ///< ranks that sublayers are cut over, and tokens of what each has between them
  /// Ranks that have slices of sequences, and what each has in attention: some heads of whole sequences.
  std::int64_t context, whole;
  bool ring;            ///< queries of the slice and keys and values of all, which go round
  bool in_blocks;       ///< the same, or one rank takes the slices of a sequence one after the other
  std::int64_t slices;  ///< that it takes so
  std::int64_t pieces;  ///< of a slice, in blocks: two in a ring
  std::int64_t piece;   ///< tokens of one
  /// Of slices that one rank takes one after the other: how many blocks before its own the queries of one see.
  std::int64_t earlier_blocks(std::int64_t of_slice) const {
    // The first query of a slice is so far from the last key of the one that many before.
    return window == 0 ? of_slice : std::min(of_slice, window < 2 ? 0 : (window - 2) / piece + 1);
  }
  std::int64_t own_heads, own_kv_heads, own_q, own_kv, own_qkv;
  std::int64_t kv_copies;        ///< neighbouring ranks that have the same keys and values
  std::int64_t whole_sequences;  ///< that attention takes at once
};

/// Cuts 64-byte aligned parts off a buffer, or only measures with a null base.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  std::byte* bytes(std::uint64_t n) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (n + 63) / 64 * 64;
    return at;
  }
  float* floats(std::int64_t n) { return reinterpret_cast<float*>(bytes(4 * static_cast<std::uint64_t>(n))); }
  /// n elements of the run's dtype
  std::byte* elements(const Dims& d, std::int64_t n) { return bytes(d.element * static_cast<std::uint64_t>(n)); }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

/// What attention keeps for backward: projections (after norm of heads and rope, or with qk_norm before both), the
/// attention's output and the log-sum-exp of its scores.
struct AttentionSaved {
  AttentionSaved(Carver carver, const Dims& d, std::int64_t sequences);
  /// The last two apart.
  AttentionSaved(std::byte* saved, std::byte* core, const Dims& d, std::int64_t sequences);
  std::byte* qkv;                    ///< [tokens, qkv]
  std::byte* out;                    ///< [tokens, q]
  float* lse;                        ///< [sequences, heads, sequence]
  std::uint64_t core_at, bytes;      ///< where `out` begins; all of it
  std::array<SavedPiece, 2> values;  ///< `qkv` and `out`
};

/// The parameters of a sublayer's norms, as backward_weight finds them without the rest of the unit.
struct DeferredNorm {
  DeferredNorm(Carver& carver, const Dims& d);
  std::byte *scale, *bias;  ///< [hidden]; bias: GPT-2
};

/// What attention's backward_input leaves for its backward_weight.
struct AttentionDeferred {
  AttentionDeferred(Carver carver, const Dims& d);
  std::byte* d_qkv;     ///< [tokens, qkv]: of the projections, but with qk_norm q and k from behind the norm of heads
  std::byte* d_normed;  ///< [tokens, hidden]
  DeferredNorm norm;
  std::byte *q_norm, *k_norm;  ///< qk_norm: [head_dim]
  std::uint64_t bytes;
};

struct MlpDeferred {
  MlpDeferred(Carver carver, const Dims& d);
  std::byte* dh;        ///< [tokens, ffn]: of what enters the last multiply
  std::byte* d_normed;  ///< [tokens, hidden]
  DeferredNorm norm;
  std::uint64_t bytes;
};

/// What attention keeps for backward where ranks have slices of sequences: bytes of one buffer, without gaps, since its
/// pieces are written one by one and it may be parked whole.
struct ContextSaved {
  explicit ContextSaved(const Dims& d);
  using Piece = SavedPiece;
  Piece lse;        ///< fp32 [batch, own_heads, whole]; in blocks [batch, pieces, heads, piece]; filled up to 64 bytes
  Piece mixed;      ///< [batch, whole, own_qkv]; in blocks q, [tokens, q]
  Piece block;      ///< in a ring: the slice's k and v, [tokens, 2 kv]
  Piece attended;   ///< [batch, whole, own_q]; in blocks [tokens, q]
  Piece returned;   ///< [batch, context, sequence, own_q]: attended, of all heads, as it arrives; in blocks none
  Piece projected;  ///< qk_norm: [tokens, qkv] before norm and rope
  std::uint64_t bytes;
  /// All but `lse`.
  std::array<Piece, 5> values() const { return {mixed, block, attended, returned, projected}; }
};

/// Of the keys and values of a slice, [tokens, 2 kv], and of their gradient in fp32; and fp32, what is made of q so
/// far, or of its gradient.
std::uint64_t block_bytes(const Dims& d);
std::uint64_t block_gradient_bytes(const Dims& d);
std::uint64_t partial_bytes(const Dims& d);

/// Of those ops of attention.
struct ContextSpace {
  ContextSpace(Carver carver, const Dims& d, bool backward);
  std::byte* wide;    ///< [chunk, qkv]: projections, all heads of attention's output, gradients of the projections
  std::byte* narrow;  ///< [chunk, max(q, hidden)]: normed x, gradients; in blocks also of k and v, [chunk, 2 kv]
  float* statistics;
  std::byte* turned;             ///< qk_norm: [chunk, qkv]
  float* head_rstd;              ///< qk_norm: [heads + kv_heads, chunk]
  std::byte *keys, *other_keys;  ///< backward with copies: [sequence, 2 own_kv] each; in blocks one, [piece, 2 kv]
  float *cos, *sin;              ///< in blocks: [chunk, head_dim/2], of the positions at hand
  std::byte* part;               ///< in blocks: [piece, q], attention's output from a piece of a block, or d_q
  float* part_lse;               ///< in blocks: [heads, piece]
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

/// Of enter, leave and enter_backward.
struct SliceSpace {
  SliceSpace(Carver carver, const Dims& d);
  std::byte *normed, *d_normed;  ///< [slice_chunk, hidden]
  float* statistics;
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

/// Of part_forward of an embedding: [mlp_chunk, hidden].
std::uint64_t embed_part_bytes(const Dims& d);
/// Logits of a chunk where the vocabulary is cut, and what ranks exchange of each chunk, of one rank.
std::uint64_t logits_bytes(const Dims& d);
std::uint64_t vocabulary_part_bytes(const Dims& d);

/// Behind the workspace of backward: where backward_input lets kernels put gradients of norms that nobody wants yet.
std::uint64_t unwanted_gradient_bytes(const Dims& d);

struct AttentionForwardSpace {
  /// `keys`: that a query may see, more than the sequence where there is a cache.
  AttentionForwardSpace(Carver carver, const Dims& d, std::int64_t keys);
  std::byte* normed;  ///< [chunk, hidden]
  float* statistics;  ///< rstd and mean
  std::byte* turned;  ///< qk_norm: [chunk, qkv], q and k after norm and rope
  float* head_rstd;   ///< qk_norm: [heads + kv_heads, chunk]
  std::byte* saved;   ///< AttentionSaved of one chunk, where the caller keeps nothing
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

struct AttentionBackwardSpace {
  AttentionBackwardSpace(Carver carver, const Dims& d);
  std::byte* narrow;  ///< [chunk, max(q, hidden)]: d_out of attention, then normed x, then its gradient
  std::byte* d_qkv;   ///< [chunk, qkv]
  float* statistics;
  std::byte* turned;  ///< as in forward; then d_qkv before the norm of heads
  float* head_rstd;
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

/// What the MLP keeps for backward: [tokens, pre], and with padding behind it.
SavedPiece mlp_saved_values(const Dims& d);
std::uint64_t mlp_saved_bytes(const Dims& d);

enum class MlpPass : std::uint8_t { forward, backward, backward_again };
struct MlpSpace {
  MlpSpace(Carver carver, const Dims& d, MlpPass pass);
  std::byte* wide;    ///< [chunk, pre]: pre-activations where the caller keeps none; backward: d_pre
  std::byte* middle;  ///< [chunk, max(ffn, hidden)]: normed x, h; backward: dh, h, normed x, then its gradient
  float* statistics;
  std::byte* again;  ///< backward_again: [chunk, pre], what the caller has not kept
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

struct HeadSpace {
  HeadSpace(Carver carver, const Dims& d, bool backward);
  std::byte* normed;  ///< [chunk, hidden]
  float* statistics;
  float* logits;        ///< [chunk, vocabulary], rows logits_ld apart
  float* loss;          ///< [chunk]
  std::byte* d_logits;  ///< backward in bf16: as logits
  std::byte* d_normed;  ///< backward: [chunk, hidden]
  std::span<std::byte> scratch;
  std::uint64_t bytes;
};

}  // namespace sluice
