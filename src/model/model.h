// What a model is made of: its configuration, its units and the tensors in them. No arithmetic here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/dtype.h"
#include "sluice/moments.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

enum class Family : std::uint8_t { llama, gpt2 };

/// Rotary frequencies beyond plain theta, as Hugging Face's `rope_scaling` names them.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, dynamic, llama3, yarn } kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_max_positions = 0;
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  bool truncate = true;  ///< yarn: whole dimensions at the ramp's ends
};

struct ModelConfig {
  Family family = Family::llama;
  std::string name;
  std::int64_t vocabulary = 256, hidden = 64, layers = 2, heads = 4, kv_heads = 4, head_dim = 16, ffn = 128;
  std::int64_t max_positions = 2048;
  std::int64_t window = 0;  ///< sliding window (Mistral), 0 = none
  float norm_eps = 1e-5f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied = false;      ///< head uses the embedding matrix
  bool qkv_bias = false;  ///< Qwen2
  bool qk_norm = false;   ///< Qwen3: RMSNorm on each head's q and k before rope
  std::int64_t split =
      1;               ///< ranks that sublayers are cut over: heads, ffn and vocabulary are of one (src/model/split.h)
  bool fused = false;  ///< Phi-3: files hold q, k, v and gate, up as one tensor each; in memory nothing differs
  double init_std = 0.02;
};

/// Compiled-in presets: llama-tiny, llama-25m, llama-125m, llama-1b, llama-3b, llama-7b, llama-8b, llama-13b,
/// llama-70b, gpt2-124m, gpt2-1.5b. Errors: bad_request listing the names.
Result<ModelConfig> preset_config(const std::string& name);
std::vector<std::string> preset_names();
/// Hugging Face config.json text: llama, mistral, phi3, qwen2, qwen3, smollm, gpt2. Absurd or missing fields are
/// bad_request.
Result<ModelConfig> parse_hf_config(const std::string& json_text, const std::string& origin);
/// --model: a preset's name, a config.json, or a directory that holds one.
Result<ModelConfig> load_config(const std::string& model);

/// What gives the model so many positions, in the words of its config.json, for people.
std::string longer_positions(const ModelConfig& config, std::int64_t positions);

/// Tensors begin at multiples of it in their unit: no block of 8-bit moments is of two.
constexpr std::int64_t tensor_alignment_numel = moment_block_numel;

enum class Sublayer : std::uint8_t { embed, attention, mlp, head };

/// Where a file has a tensor: as all of one of its tensors, or as rows of one that holds several (Phi-3's qkv_proj).
struct StoredPlace {
  std::string name;                 ///< Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< of all that is stored there, as Hugging Face has it (GPT-2's Conv1D: [in, out])
  std::uint64_t first = 0;          ///< element of it that the model's tensor begins with
};

/// One tensor in its unit's flat buffer. What differs from tensor to tensor is an attribute of the tensor.
struct TensorSpec {
  std::string name;  ///< what Hugging Face calls it, in Phi-3 too "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< as Hugging Face has it
  StoredPlace stored;
  std::uint64_t offset = 0;  ///< elements from the start of the unit; multiple of tensor_alignment_numel
  std::uint64_t numel = 0;
  bool decay = true;  ///< weight decay: none on norms and biases
  bool trainable = true;
  float lr_scale = 1;
  enum class Init : std::uint8_t { normal, ones, zeros } init = Init::normal;
  double init_std = 0.02;
  std::uint32_t index = 0;  ///< of the tensor in the model: key of its random numbers
};

/// The piece of the model that is gathered, streamed and released together. sluice's units are sublayers, finer than
/// FSDP's blocks: the smallest device budget is then set by one matmul's operands and not by a block's.
struct UnitSpec {
  std::string name;  ///< "embed", "L0.attention", "L0.mlp", ..., "head"
  Sublayer kind;
  std::int64_t layer = -1;
  std::vector<TensorSpec> tensors;
  std::uint64_t numel = 0;                                  ///< of the flat buffer: a multiple of 4096, at least 4096
  const TensorSpec* tensor(std::string_view suffix) const;  ///< whose name ends so; nullptr if none
};

struct ModelSpec {
  ModelConfig config;
  std::vector<UnitSpec> units;   ///< in forward order; units.front() is embed, units.back() is head
  std::uint64_t parameters = 0;  ///< true count, padding excluded
};
ModelSpec build_model(const ModelConfig& config);

/// Shape of one micro-batch. With context parallelism each of so many ranks has an equal slice of every sequence, and
/// `sequence` is its length. `ring`: in attention queries stay where they are, and keys and values go round; else each
/// rank has some heads of whole sequences. `slices`: a rank takes each sequence in so many slices, one micro-batch
/// after the other, and `sequence` is the length of one.
struct BatchShape {
  std::int64_t batch = 1, sequence = 0, context = 1;
  bool ring = false;
  std::int64_t slices = 1;
  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t whole() const { return sequence * context * slices; }
  /// Whether attention takes the keys and values of a sequence in blocks, one of each slice.
  bool in_blocks() const { return ring || slices > 1; }
  /// Whether sequences come in slices, of ranks or one after the other, and attention is ops of its own.
  bool cuts_sequences() const { return context > 1 || slices > 1; }
};

/// Neighbouring tokens of a slice: `count` from `at` on, which are those from `from` on of the whole sequence.
struct SliceRun {
  std::int64_t at, from, count;
};
/// A rank's slice of a sequence, or the one of that number. Attention is causal, so in a ring slices are zig-zag: of
/// twice as many pieces as ranks each has one, and the one that is as far from the end, and all have as much to do.
inline std::array<SliceRun, 2> slice_runs(BatchShape shape, std::int64_t rank) {
  const std::int64_t half = shape.sequence / 2, other = shape.sequence - half;
  const std::int64_t first = rank * (shape.ring ? half : shape.sequence);
  return {SliceRun{0, first, half}, SliceRun{half, shape.ring ? shape.whole() - first - other : first + half, other}};
}

struct KernelSizes;  // src/model/kernel_sizes.h

/// Bytes of what a sublayer saves.
struct SavedPiece {
  std::uint64_t at = 0, bytes = 0;
};

/// Bytes and FLOP of one unit's ops on one micro-batch. All are functions of shapes alone, never of budgets.
struct SublayerCost {
  std::uint64_t boundary_bytes = 0;  ///< one boundary activation [tokens, hidden] (x_in, x_out, d_in, d_out)
  std::uint64_t saved_bytes = 0;     ///< what forward keeps for backward, x_in excluded (0 for embed, head)
  std::uint64_t core_bytes = 0;      ///< the last of them: attention's output and the log-sum-exp of scores
  /// Of all that it saves, what has the dtype of activations, some empty; the rest is statistics in fp32, and padding.
  std::array<SavedPiece, 5> saved_values{};
  std::uint64_t forward_workspace_bytes = 0;         ///< forward, recompute, loss
  std::uint64_t backward_workspace_bytes = 0;        ///< backward, forward_backward, backward_weight
  std::uint64_t backward_again_workspace_bytes = 0;  ///< 0: the sublayer has no such op
  std::uint64_t deferred_bytes = 0;  ///< what backward_input leaves for backward_weight, x_in, saved, d_out excluded
  std::uint64_t backward_input_workspace_bytes = 0;
  double recompute_flop = 0;                   ///< forward without what only x_out needs
  double forward_flop = 0, backward_flop = 0;  ///< matrix multiplies only; the head's forward_backward costs their sum
  std::uint64_t slice_workspace_bytes = 0;     ///< enter, leave, enter_backward, where sublayers are cut
  double backward_input_flop = 0;              ///< the rest of backward's is backward_weight's
  double qkv_flop = 0, core_flop = 0, out_flop = 0;  ///< of attention's forward
  double core_earlier_flop = 0;                      ///< of a slice's queries to the block of an earlier one
  int chunks = 1;                                    ///< of tokens, that the head takes one after the other
  double logits_flop = 0;                            ///< head: forward of one token
};
/// `kv_capacity`: positions of the cache that decoding attends to; it sizes the forward workspace of attention.
SublayerCost sublayer_cost(const ModelSpec& model, const UnitSpec& unit, BatchShape shape, Dtype dtype,
                           const KernelSizes& sizes, std::int64_t kv_capacity = 0);
/// FLOP of one compute op of the unit with this cost.
double op_flop(const SublayerCost& cost, OpKind kind);

}  // namespace sluice
