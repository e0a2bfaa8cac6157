// Block sizes and workspace of attention, the same for every SIMD target (internal to attention).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/parallel.h"

namespace sluice::kernels {

constexpr std::int64_t query_block = 64;
constexpr std::int64_t forward_key_block = 256, backward_key_block = 128;
/// Rows of a block of scores lie this much further apart than they are long, or walking down a column would use
/// few sets of the cache. Also room for the last vector of a row.
constexpr std::int64_t score_padding = 16;
/// Pairs of (batch, kv head) worked on at once keep about this much in the workspace, so that threads share work
/// evenly.
constexpr std::int64_t wave_floats = (8 << 20) / 4;

/// Row of a head, as packed operand or accumulator: whole vectors of any target, whole tiles of the bf16 units.
constexpr std::int64_t padded_head(const AttentionShape& s) { return round_up(s.head_dim, 32); }

/// Floats of workspace: `shared` (of one wave of `pairs` pairs), then `per_thread` for each thread.
struct AttentionWorkspace {
  std::int64_t pairs, pair_floats, thread_floats;
  std::int64_t shared_floats() const { return pairs * pair_floats; }
};

/// `threads`: of the machine. Decides only how much is done at once, no bit of the result.
inline AttentionWorkspace make_workspace(const AttentionShape& s, std::int64_t threads, std::int64_t items_per_pair,
                                         std::int64_t pair_floats, std::int64_t thread_floats) {
  const std::int64_t for_threads = (threads + items_per_pair - 1) / items_per_pair;
  const std::int64_t wanted = std::max(for_threads, wave_floats / pair_floats);
  return {std::clamp<std::int64_t>(wanted, 1, s.batch * s.kv_heads), pair_floats, thread_floats};
}

/// Pair: keys and values packed. Thread, for a block of queries: queries, output, scores, the same as bf16, and of each
/// row up to 18 floats.
inline AttentionWorkspace forward_workspace(const AttentionShape& s, std::int64_t threads) {
  const std::int64_t key_blocks = (s.keys + forward_key_block - 1) / forward_key_block;
  const std::int64_t packed = key_blocks * forward_key_block * 2 * padded_head(s);
  const std::int64_t scores = query_block * (forward_key_block + score_padding);
  const std::int64_t query_blocks = (s.queries + query_block - 1) / query_block;
  return make_workspace(s, threads, s.heads / s.kv_heads * query_blocks, packed,
                        query_block * (2 * padded_head(s) + 18) + scores + scores / 2);
}

/// Pair: per head of the group, sums of dk and dv. Thread: a sum of dq, the rows' dot products of output and its
/// gradient, packed keys (twice) and values, queries and output gradients (twice), two blocks of scores; room for what
/// any of the paths makes of these.
inline AttentionWorkspace backward_workspace(const AttentionShape& s, std::int64_t threads) {
  const std::int64_t group = s.heads / s.kv_heads;
  const std::int64_t scores = 4 * query_block * (8 * backward_key_block + score_padding);
  const std::int64_t operands = (8 * backward_key_block + 4 * query_block) * padded_head(s);
  return make_workspace(s, threads, group, 2 * group * s.keys * padded_head(s),
                        round_up(s.queries, 32) * (padded_head(s) + 1) + operands + scores);
}

inline std::uint64_t workspace_bytes(const AttentionWorkspace& w, std::int64_t threads) {
  return static_cast<std::uint64_t>(w.shared_floats() + threads * w.thread_floats) * sizeof(float);
}

/// Keys that a query sees: [first, last), of which some may be before or behind those that are there. Neither end goes
/// down from one query to the next, so that what several neighbours see is without gaps. `s` is of one row of the batch
/// (AttentionCall::row).
struct KeyRange {
  std::int64_t first, last;
};
inline KeyRange visible_keys(const AttentionShape& s, std::int64_t query) {
  const std::int64_t last = query + *s.shift + 1;  // NOLINT(bugprone-unchecked-optional-access): a call's shape has one
  const std::int64_t begin = s.positions != nullptr ? last - 1 - s.positions[query] : 0;
  return {s.window > 0 ? std::max(begin, last - s.window) : begin, last};
}
/// Keys of [key0, key1) that any query of [query0, query1) sees, relative to key0; empty if first >= last.
inline KeyRange visible_in_block(const AttentionShape& s, std::int64_t query0, std::int64_t query1, std::int64_t key0,
                                 std::int64_t key1) {
  return {std::max(visible_keys(s, query0).first, key0) - key0,
          std::min(visible_keys(s, query1 - 1).last, key1) - key0};
}
/// Of the keys that are there, those that any query of [query0, query1) sees; [0, 0) if there are none.
inline KeyRange visible_to(const AttentionShape& s, std::int64_t query0, std::int64_t query1) {
  const KeyRange range = visible_in_block(s, query0, query1, 0, s.keys);
  return range.first < range.last ? range : KeyRange{0, 0};
}
/// Whether any query sees any key of [key0, key1): what nobody sees is not packed.
inline bool any_sees(const AttentionShape& s, std::int64_t key0, std::int64_t key1) {
  const KeyRange range = visible_in_block(s, 0, s.queries, key0, key1);
  return range.first < range.last;
}
/// What a row's sums of exponentials times values are to be multiplied by, the sum of exponentials being `sum`.
inline float output_factor(const AttentionShape& s, std::int64_t query, float sum) {
  return visible_to(s, query, query + 1).last > 0 ? 1.0f / sum : 0.0f;
}

/// What one call works on.
template <class T>
struct AttentionCall {
  AttentionShape shape;              ///< its shift is set
  const T *q, *k, *v, *out, *d_out;  ///< forward writes out through out_mutable; d_out only backward
  const float* lse;
  T *out_mutable, *dq, *dk, *dv;
  float* lse_mutable;
  AttentionWorkspace layout;
  float* workspace;
  int threads;

  /// The shape, with the positions of that row of the batch.
  AttentionShape row(std::int64_t batch) const {
    AttentionShape s = shape;
    if (s.positions != nullptr) s.positions += batch * s.queries;
    return s;
  }
};

template <class T>
void attention_forward_blocks(const AttentionCall<T>& call);
template <class T>
void attention_backward_blocks(const AttentionCall<T>& call);

}  // namespace sluice::kernels
