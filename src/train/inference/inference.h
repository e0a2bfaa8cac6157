// A model that is only read: text generated from it, and its loss on text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.h"
#include "io/tokens/token_file.h"
#include "src/train/data/batches.h"
#include "src/train/inference/sampling.h"
#include "src/train/inference/window_loss.h"
#include "src/train/states/engine.h"

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
  static Result<std::unique_ptr<Generator>> create(const Prepared& run, const States::Watch& watch = {});

  /// Appends tokens to the sequence. The logits, [vocabulary], of what follows them are valid until the next call.
  /// Errors: bad_request when the cache is full, or a token is not in the vocabulary.
  Result<std::span<const float>> append(std::span<const std::int32_t> tokens);
  std::int64_t position() const { return position_; }  ///< tokens in the cache
  Status finish() { return engine_->team().end(); }
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

/// config.data as tokens, as open_data has it.
Result<TokenFile> open_text(const RunConfig& config, const std::function<void(const std::string&)>& note = {},
                            const std::function<Status(double fraction)>& watch = {});

/// Loss over windows of tokens. For Prepared of Purpose::evaluate.
class Evaluator final : public StepSource {
 public:
  /// Reads the weights of config.init; `watch` may be empty. `run` must outlive it, and so must `world`, null where all
  /// ranks are this process's. All processes of a world call everything here alike.
  static Result<std::unique_ptr<Evaluator>> create(const Prepared& run, const States::Watch& watch = {},
                                                   World* world = nullptr);

  /// Of the windows, at least one, with the run's sequence. `watch`, which may be empty, hears the loss so far after
  /// every pass over the model. Errors: cancelled once `stop` is true; bad_request where no token counts.
  Result<EvaluateResult> evaluate(const Windows& windows, const std::atomic<bool>& stop,
                                  const WindowLoss::Watch& watch = {});
  Engine& engine() { return *engine_; }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> losses) override;

 private:
  explicit Evaluator(const Prepared& run) : run_(run) {}

  const Prepared& run_;
  std::atomic<WindowLoss*> evaluation_{nullptr};
  std::unique_ptr<Engine> engine_;
};

/// Bytes of text that the predicted tokens of the windows, of config.sequence, stand for.
Result<std::uint64_t> text_bytes(const Windows& windows, const RunConfig& config, const Tokenizer& tokenizer);

}  // namespace sluice
