#include "src/model/workspaces.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/cross_entropy.h"
#include "src/model/attention_shape.h"

namespace sluice {
namespace {

/// Equal chunks of at most `most` tokens, in multiples of 64.
std::int64_t even_chunk(std::int64_t tokens, std::int64_t most) {
  const std::int64_t chunks = (tokens + most - 1) / most;
  const std::int64_t chunk = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (chunk + 63) / 64 * 64);
}

/// Workspace of y = x W, and in the backward pass of dx = dy W^T and dW = x^T dy.
std::uint64_t linear_bytes(const Dims& d, std::int64_t rows, std::int64_t in, std::int64_t out, bool backward) {
  // A part of a sum over ranks is fp32.
  const auto bytes = [&](std::int64_t columns, std::int64_t inner) {
    const std::uint64_t whole = d.sizes->gemm_bytes(rows, columns, inner, d.dtype, d.dtype);
    return d.split == 1 ? whole : std::max(whole, d.sizes->gemm_bytes(rows, columns, inner, d.dtype, Dtype::f32));
  };
  if (!backward) return bytes(out, in);
  return std::max({bytes(in, out), d.sizes->gemm_bytes(out, in, rows, d.dtype, Dtype::f32),
                   d.sizes->gemm_bytes(in, out, rows, d.dtype, Dtype::f32), d.sizes->rows_bytes(rows, out)});
}

std::uint64_t attention_scratch_bytes(const Dims& d, std::int64_t keys, bool backward) {
  const std::int64_t rows = d.attention_chunk;
  kernels::AttentionShape shape = attention_shape(d, d.attention_chunk_sequences);
  shape.keys = keys;
  return std::max({linear_bytes(d, rows, d.hidden, d.qkv, backward), linear_bytes(d, rows, d.q, d.hidden, backward),
                   d.sizes->attention_bytes(shape, d.dtype),
                   backward ? d.sizes->rows_bytes(rows, std::max(d.hidden, d.qk_norm ? d.q + d.kv : 0)) : 0});
}

std::uint64_t context_scratch_bytes(const Dims& d, bool backward) {
  const std::int64_t rows = d.attention_chunk;
  const kernels::AttentionShape core =
      d.in_blocks ? block_attention_shape(d, 0, nullptr) : whole_attention_shape(d, d.whole_sequences);
  return std::max({linear_bytes(d, rows, d.hidden, d.qkv, backward), linear_bytes(d, rows, d.q, d.hidden, backward),
                   d.sizes->attention_bytes(core, d.dtype),
                   backward ? d.sizes->rows_bytes(rows, std::max(d.hidden, d.qk_norm ? d.q + d.kv : 0)) : 0});
}

std::uint64_t mlp_scratch_bytes(const Dims& d, bool backward) {
  return std::max({linear_bytes(d, d.mlp_chunk, d.hidden, d.pre, backward),
                   linear_bytes(d, d.mlp_chunk, d.ffn, d.hidden, backward),
                   backward ? d.sizes->rows_bytes(d.mlp_chunk, d.hidden) : 0});
}

std::uint64_t head_scratch_bytes(const Dims& d, bool backward) {
  const std::uint64_t forward = d.sizes->gemm_bytes(d.head_chunk, d.vocabulary, d.hidden, d.dtype, Dtype::f32);
  if (!backward) return forward;
  return std::max({forward, linear_bytes(d, d.head_chunk, d.hidden, d.vocabulary, true),
                   d.sizes->rows_bytes(d.head_chunk, d.hidden)});
}

std::span<std::byte> rest(Carver& carver, std::uint64_t bytes) { return {carver.bytes(bytes), bytes}; }

}  // namespace

Dims::Dims(const ModelSpec& model, BatchShape shape, Dtype type, const KernelSizes& kernel_sizes)
    : sizes(&kernel_sizes) {
  const ModelConfig& c = model.config;
  gpt2 = c.family == Family::gpt2;
  qk_norm = c.qk_norm;
  dtype = type;
  element = dtype_bytes(type);
  batch = shape.batch;
  sequence = shape.sequence;
  tokens = shape.tokens();
  hidden = c.hidden;
  heads = c.heads;
  kv_heads = c.kv_heads;
  head_dim = c.head_dim;
  q = heads * head_dim;
  kv = kv_heads * head_dim;
  qkv = q + 2 * kv;
  ffn = c.ffn;
  pre = gpt2 ? ffn : 2 * ffn;
  split = c.split;
  vocabulary = c.vocabulary;
  window = c.window;
  logits_ld = (vocabulary + sizes->logits_multiple - 1) / sizes->logits_multiple * sizes->logits_multiple;
  // A chunk of 2 x hidden tokens makes the workspace about as large as the gradient that is alive beside it; more
  // would raise the floor of the device budget, less would read and write the gradient more often than needed.
  const std::int64_t most = std::clamp<std::int64_t>(2 * hidden, 512, sizes->chunk_tokens_max);
  mlp_chunk = even_chunk(tokens, most);
  attention_chunk_sequences = std::clamp<std::int64_t>(most / sequence, 1, batch);
  attention_chunk = attention_chunk_sequences * sequence;
  // Logits of a chunk and their gradient take up to 24 MiB or as much as the head's gradient, whichever is more.
  std::int64_t logits = std::max((std::int64_t{4} << 20) / (vocabulary * split), 2 * hidden / 3);
  logits -= logits % (logits < 512 ? 64 : 512);
  head_chunk = even_chunk(tokens, std::clamp<std::int64_t>(logits, 64, 2048));
  context = shape.context;
  whole = shape.whole();
  ring = shape.ring;
  in_blocks = shape.in_blocks();
  slices = shape.slices;
  pieces = ring ? 2 : 1;
  piece = shape.sequence / pieces;
  const std::int64_t shares = in_blocks ? 1 : context;  // of the heads
  kv_copies = shares > kv_heads ? shares / kv_heads : 1;
  own_heads = heads / shares;
  own_kv_heads = std::max<std::int64_t>(1, kv_heads / shares);
  own_q = own_heads * head_dim;
  own_kv = own_kv_heads * head_dim;
  own_qkv = own_q + 2 * own_kv;
  whole_sequences = std::clamp<std::int64_t>(most / whole, 1, batch);
  slice = tokens / split;
  slice_chunk = even_chunk(std::max<std::int64_t>(slice, 1), most);
}

AttentionSaved::AttentionSaved(Carver carver, const Dims& d, std::int64_t sequences) {
  const auto elements = [&](SavedPiece& piece, std::int64_t n) {
    piece = {carver.used(), d.element * static_cast<std::uint64_t>(n)};
    return carver.bytes(piece.bytes);
  };
  qkv = elements(values[0], sequences * d.sequence * d.qkv);
  core_at = carver.used();
  out = elements(values[1], sequences * d.sequence * d.q);
  lse = carver.floats(sequences * d.sequence * d.heads);
  bytes = carver.used();
}

AttentionSaved::AttentionSaved(std::byte* saved, std::byte* core, const Dims& d, std::int64_t sequences)
    : AttentionSaved(Carver(nullptr), d, sequences) {
  Carver carver(core);
  qkv = saved;
  out = carver.elements(d, sequences * d.sequence * d.q);
  lse = carver.floats(sequences * d.sequence * d.heads);
}

AttentionForwardSpace::AttentionForwardSpace(Carver carver, const Dims& d, std::int64_t keys)
    : normed(carver.elements(d, d.attention_chunk * d.hidden)),
      statistics(carver.floats(2 * d.attention_chunk)),
      turned(carver.elements(d, d.qk_norm ? d.attention_chunk * d.qkv : 0)),
      head_rstd(carver.floats(d.qk_norm ? d.attention_chunk * (d.heads + d.kv_heads) : 0)),
      saved(carver.bytes(AttentionSaved(Carver(nullptr), d, d.attention_chunk_sequences).bytes)),
      scratch(rest(carver, attention_scratch_bytes(d, keys, false))),
      bytes(carver.used()) {}

AttentionBackwardSpace::AttentionBackwardSpace(Carver carver, const Dims& d)
    : narrow(carver.elements(d, d.attention_chunk * std::max(d.q, d.hidden))),
      d_qkv(carver.elements(d, d.attention_chunk * d.qkv)),
      statistics(carver.floats(2 * d.attention_chunk)),
      turned(carver.elements(d, d.qk_norm ? d.attention_chunk * d.qkv : 0)),
      head_rstd(carver.floats(d.qk_norm ? d.attention_chunk * (d.heads + d.kv_heads) : 0)),
      scratch(rest(carver, attention_scratch_bytes(d, d.sequence, true))),
      bytes(carver.used()) {}

DeferredNorm::DeferredNorm(Carver& carver, const Dims& d)
    : scale(carver.elements(d, d.hidden)), bias(carver.elements(d, d.gpt2 ? d.hidden : 0)) {}

AttentionDeferred::AttentionDeferred(Carver carver, const Dims& d)
    : d_qkv(carver.elements(d, d.tokens * d.qkv)),
      d_normed(carver.elements(d, d.tokens * d.hidden)),
      norm(carver, d),
      q_norm(carver.elements(d, d.qk_norm ? d.head_dim : 0)),
      k_norm(carver.elements(d, d.qk_norm ? d.head_dim : 0)),
      bytes(carver.used()) {}

MlpDeferred::MlpDeferred(Carver carver, const Dims& d)
    : dh(carver.elements(d, d.tokens * d.ffn)),
      d_normed(carver.elements(d, d.tokens * d.hidden)),
      norm(carver, d),
      bytes(carver.used()) {}

ContextSaved::ContextSaved(const Dims& d) : bytes(0) {
  const auto piece = [&](std::uint64_t n) { return Piece{std::exchange(bytes, bytes + n), n}; };
  const auto elements = [&](std::int64_t n) { return piece(d.element * static_cast<std::uint64_t>(n)); };
  const std::int64_t rows = d.in_blocks ? d.tokens : d.batch * d.whole;
  lse = piece((sizeof(float) * static_cast<std::uint64_t>(rows * d.own_heads) + 63) / 64 * 64);
  mixed = elements(rows * (d.in_blocks ? d.q : d.own_qkv));
  block = piece(d.ring ? block_bytes(d) : 0);
  attended = elements(rows * d.own_q);
  returned = elements(d.in_blocks ? 0 : d.tokens * d.q);
  projected = elements(d.qk_norm ? d.tokens * d.qkv : 0);
}

std::uint64_t block_bytes(const Dims& d) { return d.element * static_cast<std::uint64_t>(d.tokens * 2 * d.kv); }
std::uint64_t partial_bytes(const Dims& d) { return sizeof(float) * static_cast<std::uint64_t>(d.tokens * d.q); }
std::uint64_t block_gradient_bytes(const Dims& d) {
  return sizeof(float) * static_cast<std::uint64_t>(d.tokens * 2 * d.kv);
}

ContextSpace::ContextSpace(Carver carver, const Dims& d, bool backward)
    : wide(carver.elements(d, d.attention_chunk * d.qkv)),
      narrow(carver.elements(d, d.attention_chunk * std::max({d.q, d.hidden, d.in_blocks ? 2 * d.kv : 0}))),
      statistics(carver.floats(2 * d.attention_chunk)),
      turned(carver.elements(d, d.qk_norm ? d.attention_chunk * d.qkv : 0)),
      head_rstd(carver.floats(d.qk_norm ? d.attention_chunk * (d.heads + d.kv_heads) : 0)),
      keys(carver.elements(
          d, backward && (d.in_blocks || d.kv_copies > 1) ? (d.in_blocks ? d.piece : d.sequence) * 2 * d.own_kv : 0)),
      other_keys(carver.elements(d, backward && d.kv_copies > 1 ? d.sequence * 2 * d.own_kv : 0)),
      cos(carver.floats(d.in_blocks && !d.gpt2 ? d.attention_chunk * (d.head_dim / 2) : 0)),
      sin(carver.floats(d.in_blocks && !d.gpt2 ? d.attention_chunk * (d.head_dim / 2) : 0)),
      part(carver.elements(d, d.in_blocks ? d.piece * d.q : 0)),
      part_lse(carver.floats(d.in_blocks ? d.piece * d.heads : 0)),
      scratch(rest(carver, context_scratch_bytes(d, backward))),
      bytes(carver.used()) {}

SliceSpace::SliceSpace(Carver carver, const Dims& d)
    : normed(carver.elements(d, d.slice_chunk * d.hidden)),
      d_normed(carver.elements(d, d.slice_chunk * d.hidden)),
      statistics(carver.floats(2 * d.slice_chunk)),
      scratch(rest(carver, d.sizes->rows_bytes(d.slice_chunk, d.hidden))),
      bytes(carver.used()) {}

std::uint64_t embed_part_bytes(const Dims& d) { return d.element * static_cast<std::uint64_t>(d.mlp_chunk * d.hidden); }

std::uint64_t logits_bytes(const Dims& d) {
  return sizeof(float) * static_cast<std::uint64_t>(d.head_chunk * d.logits_ld);
}

std::uint64_t vocabulary_part_bytes(const Dims& d) {
  return sizeof(kernels::VocabularyPart) * static_cast<std::uint64_t>(d.head_chunk);
}

std::uint64_t unwanted_gradient_bytes(const Dims& d) {
  return sizeof(float) * static_cast<std::uint64_t>(2 * std::max(d.hidden, d.head_dim));
}

SavedPiece mlp_saved_values(const Dims& d) { return {0, d.element * static_cast<std::uint64_t>(d.tokens * d.pre)}; }

std::uint64_t mlp_saved_bytes(const Dims& d) {
  Carver carver(nullptr);
  carver.bytes(mlp_saved_values(d).bytes);
  return carver.used();
}

MlpSpace::MlpSpace(Carver carver, const Dims& d, MlpPass pass)
    : wide(carver.elements(d, d.mlp_chunk * d.pre)),
      middle(carver.elements(d, d.mlp_chunk * std::max(d.ffn, d.hidden))),
      statistics(carver.floats(2 * d.mlp_chunk)),
      again(carver.elements(d, pass == MlpPass::backward_again ? d.mlp_chunk * d.pre : 0)),
      scratch(rest(carver, std::max(pass == MlpPass::backward ? 0 : mlp_scratch_bytes(d, false),
                                    pass == MlpPass::forward ? 0 : mlp_scratch_bytes(d, true)))),
      bytes(carver.used()) {}

HeadSpace::HeadSpace(Carver carver, const Dims& d, bool backward)
    : normed(carver.elements(d, d.head_chunk * d.hidden)),
      statistics(carver.floats(2 * d.head_chunk)),
      logits(carver.floats(d.split > 1 ? 0 : d.head_chunk * d.logits_ld)),  // else a buffer of the plan
      loss(carver.floats(d.head_chunk)),
      d_logits(carver.elements(d, backward && d.dtype == Dtype::bf16 ? d.head_chunk * d.logits_ld : 0)),
      d_normed(carver.elements(d, backward ? d.head_chunk * d.hidden : 0)),
      scratch(rest(carver, head_scratch_bytes(d, backward))),
      bytes(carver.used()) {}

}  // namespace sluice
