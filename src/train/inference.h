// A model that is only read: text generated from it, and its loss on text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/token_file.h"
#include "io/tokenizer/tokenizer.h"
#include "src/train/batches.h"
#include "src/train/engine.h"
#include "src/train/sampling.h"

namespace sluice {

/// The config with `init` set to the directory that the weights come from: --init, or --model where that is a
/// directory. bad_request when there is none, or when it does not hold every tensor of the model. Only headers are
/// read.
Result<RunConfig> with_weights(const RunConfig& config);

/// Decodes one sequence through key-value caches, streaming parameters as the plan says. For Prepared of
/// Purpose::decode: config.sequence tokens at most in one pass over the model, config.steps in all.
class Generator final : public StepSource {
 public:
  /// Reads the weights of config.init; `watch` may be empty. `run` must outlive it.
  static Result<std::unique_ptr<Generator>> create(const Prepared& run, const Engine::Watch& watch = {});

  /// Appends tokens to the sequence. The logits, [vocabulary], of what follows them are valid until the next call.
  /// Errors: bad_request when the cache is full, or a token is not in the vocabulary.
  Result<std::span<const float>> append(std::span<const std::int32_t> tokens);
  std::int64_t position() const { return position_; }  ///< tokens in the cache
  Status finish() { return engine_->executor().end(); }
  Engine& engine() { return *engine_; }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;

 private:
  explicit Generator(const Prepared& run) : run_(run) {}
  Status check(std::span<const std::int32_t> tokens) const;

  const Prepared& run_;
  std::unique_ptr<Engine> engine_;
  std::span<const std::int32_t> tokens_;  ///< of the pass that runs
  std::span<const float> logits_;
  std::int64_t position_ = 0;
  std::uint64_t passes_ = 0;
};

/// config.data as tokens. bad_request when it has less than one window, or a larger vocabulary than the model.
Result<TokenFile> open_text(const RunConfig& config, const std::function<void(const std::string&)>& note = {});

struct EvaluateResult {
  double loss = 0;            ///< nats per token
  std::uint64_t tokens = 0;   ///< that were predicted
  std::uint64_t windows = 0;  ///< sequences
};

/// Loss over windows of a token file. For Prepared of Purpose::evaluate.
class Evaluator final : public StepSource {
 public:
  struct Options {
    int batches = 4;        ///< of config.batch held-out windows; fewer where the file has fewer
    bool all_text = false;  ///< instead, every whole window from the start of the file
  };
  /// Reads the weights of config.init; `watch` may be empty. `run` must outlive it. bad_request when the text has no
  /// held-out window.
  static Result<std::unique_ptr<Evaluator>> create(const Prepared& run, TokenFile text, const Options& options,
                                                   const Engine::Watch& watch = {});

  using Watch = std::function<void(double fraction, double loss)>;
  /// `watch` hears the loss so far after every pass over the model. Errors: cancelled once `stop` is true.
  Result<EvaluateResult> evaluate(const std::atomic<bool>& stop, const Watch& watch);
  std::uint64_t text_tokens() const { return tokens_.count(); }
  /// Bytes of text that the predicted tokens stand for.
  Result<std::uint64_t> text_bytes(const Tokenizer& tokenizer) const;
  Engine& engine() { return *engine_; }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> unit_norm_sq, std::span<const double> losses) override;

 private:
  explicit Evaluator(const Prepared& run) : run_(run) {}
  Status choose_windows(const Options& options);
  /// The file's window for the evaluation's `i`-th, which is below windows_.
  std::uint64_t window(std::uint64_t i) const { return all_text_ ? i : batches_.held_out_window(i); }
  Result<std::uint64_t> count_targets(std::uint64_t first, std::uint64_t last);
  std::uint64_t rows() const { return static_cast<std::uint64_t>(run_.workload.shape.batch); }

  const Prepared& run_;
  TokenFile tokens_;
  Batches batches_;
  Windows text_windows_;
  bool all_text_ = false;
  std::uint64_t windows_ = 0;
  std::vector<std::int32_t> scratch_;  ///< planes of one row
  std::vector<double> losses_;         ///< [pass], written on the optimizer lane before the pass is complete
  std::unique_ptr<Engine> engine_;
};

}  // namespace sluice
