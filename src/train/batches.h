// Which tokens a step trains on: a pure function of (seed, global sample number).
#pragma once

#include <cstdint>
#include <span>

#include "io/token_file.h"
#include "sluice/status.h"
#include "src/model/model.h"
#include "src/train/run_config.h"

namespace sluice {

/// config.data as tokens. bad_request when it has less than one window, or a larger vocabulary than the model.
Result<TokenFile> open_data(const RunConfig& config, const ModelConfig& model);

/// Cuts a token file into windows of sequence + 1 tokens, `sequence` apart. The last part of the file is held out for
/// evaluation (one window in twenty, at least one). Every epoch visits every training window once, in an order of its
/// own that (seed, epoch) decides.
class Batches {
 public:
  /// bad_request when the file has no room for one training and one held-out window.
  static Result<Batches> create(const TokenFile& tokens, std::int64_t sequence, std::uint64_t seed);

  std::uint64_t training_windows() const { return training_; }
  std::uint64_t held_out_windows() const { return held_out_; }
  /// out: sequence + 1 tokens of global sample `sample`, of the training or of the held-out part.
  Status training_sample(std::uint64_t sample, std::span<std::int32_t> out) const;
  Status held_out_sample(std::uint64_t sample, std::span<std::int32_t> out) const;

 private:
  const TokenFile* tokens_ = nullptr;
  std::uint64_t sequence_ = 0, seed_ = 0, training_ = 0, held_out_ = 0;
};

/// A permutation of [0, count) as a function: a Feistel network over the next power of four, walked until it lands
/// inside.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key);

}  // namespace sluice
