#include "src/train/inference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "src/train/hugging_face.h"

namespace sluice {
namespace {

std::span<const float> logits_of(const Prepared& run, const Engine& engine) {
  for (const Buffer& b : run.main.buffers)
    if (b.tier == Tier::host && b.name == "logits")
      return {reinterpret_cast<const float*>(engine.host(0, b)), static_cast<std::size_t>(run.model.config.vocabulary)};
  SLUICE_CHECK(false, "a decode plan without logits");
  return {};
}

}  // namespace

Result<RunConfig> with_weights(const RunConfig& config) {
  RunConfig c = config;
  std::error_code ignored;
  SLUICE_ASSIGN(const ModelConfig model, load_config(c.model));
  if (c.init.empty()) {
    if (!std::filesystem::is_directory(c.model, ignored))
      return bad_request(c.model +
                         " has no weights; give --init DIR with model.safetensors, or such a directory as --model");
    c.init = c.model;
  }
  SLUICE_ASSIGN([[maybe_unused]] const HuggingFaceWeights weights,
                HuggingFaceWeights::open(c.init, build_model(model)));
  return c;
}

Result<std::unique_ptr<Generator>> Generator::create(const Prepared& run, const Engine::Watch& watch) {
  if (!run.search.fits) return does_not_fit(run);
  std::unique_ptr<Generator> g(new Generator(run));
  SLUICE_ASSIGN(g->engine_, Engine::create(run, *g, {}));
  SLUICE_TRY(g->engine_->initialize(run.config.init, run.config.seed, watch));
  g->logits_ = logits_of(run, *g->engine_);
  SLUICE_TRY(g->engine_->executor().begin(run.main));
  return g;
}

Status Generator::check(std::span<const std::int32_t> tokens) const {
  const std::int64_t capacity = run_.workload.kv_capacity, vocabulary = run_.model.config.vocabulary;
  if (tokens.empty()) return bad_request("no tokens to append");
  if (position_ + static_cast<std::int64_t>(tokens.size()) > capacity)
    return bad_request("the key-value cache holds " + std::to_string(capacity) + " tokens, " +
                       std::to_string(position_) + " are in it and " + std::to_string(tokens.size()) +
                       " are to be appended");
  for (const std::int32_t t : tokens)
    if (t < 0 || t >= vocabulary)
      return bad_request("token " + std::to_string(t) + " is not in the model's vocabulary of " +
                         std::to_string(vocabulary));
  return success();
}

Result<std::span<const float>> Generator::append(std::span<const std::int32_t> tokens) {
  SLUICE_TRY(check(tokens));
  const auto most = static_cast<std::size_t>(run_.workload.shape.sequence);
  while (!tokens.empty()) {
    tokens_ = tokens.first(std::min(most, tokens.size()));
    StepParams p;
    p.step = passes_ + 1;
    p.position = position_;
    p.tokens = static_cast<std::int64_t>(tokens_.size());
    SLUICE_TRY(engine_->executor().release(p));
    SLUICE_TRY(engine_->executor().wait(passes_++));
    position_ += p.tokens;
    tokens = tokens.subspan(tokens_.size());
  }
  return logits_;
}

Status Generator::load_tokens(RankId, std::int32_t, const StepParams&, std::span<std::int32_t> dst) {
  std::fill(std::copy(tokens_.begin(), tokens_.end(), dst.begin()), dst.end(), -1);
  return success();
}

Result<TokenFile> open_text(const RunConfig& config, const std::function<void(const std::string&)>& note) {
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  return open_data(config, model, note);
}

Result<std::unique_ptr<Evaluator>> Evaluator::create(const Prepared& run, TokenFile text, const Options& options,
                                                     const Engine::Watch& watch) {
  if (!run.search.fits) return does_not_fit(run);
  std::unique_ptr<Evaluator> e(new Evaluator(run));
  e->tokens_ = std::move(text);
  SLUICE_TRY(e->choose_windows(options));
  SLUICE_ASSIGN(e->engine_, Engine::create(run, *e, {}));
  SLUICE_TRY(e->engine_->initialize(run.config.init, run.config.seed, watch));
  return e;
}

Status Evaluator::choose_windows(const Options& options) {
  const RunConfig& c = run_.config;
  const bool documents = run_.workload.documents;
  all_text_ = options.all_text;
  text_windows_ = Windows(tokens_, c.sequence, documents);
  if (all_text_) {
    windows_ = text_windows_.count();
    return success();
  }
  SLUICE_ASSIGN(batches_, Batches::create(tokens_, c.sequence, c.seed, documents));
  const auto wanted = static_cast<std::uint64_t>(options.batches) * static_cast<std::uint64_t>(c.batch);
  windows_ = std::min(wanted, batches_.held_out_windows());
  return success();
}

Result<std::uint64_t> Evaluator::text_bytes(const Tokenizer& tokenizer) const {
  const auto sequence = static_cast<std::uint64_t>(run_.config.sequence);
  std::vector<std::int32_t> planes(3 * sequence), text;
  const BatchRow row =
      BatchRow::of(std::span(planes).first(run_.workload.documents ? planes.size() : 2 * sequence), 0, 1, sequence);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < windows_; ++i) {
    SLUICE_TRY(text_windows_.read(window(i), row));
    // Runs of targets that count. What is before them is not predicted; with it they have the spaces that they have in
    // the text.
    for (std::size_t t = 0; t < sequence;) {
      if (row.targets[t] < 0) {
        ++t;
        continue;
      }
      text.assign(1, row.inputs[t]);
      const std::size_t before = tokenizer.decode(text, false).size();
      for (; t < sequence && row.targets[t] >= 0; ++t) text.push_back(row.targets[t]);
      bytes += tokenizer.decode(text, false).size() - before;
    }
  }
  return bytes;
}

Status Evaluator::load_tokens(RankId, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst) {
  const std::uint64_t at = (params.step - 1) * static_cast<std::uint64_t>(run_.workload.micro_batches) +
                           static_cast<std::uint64_t>(micro_batch);
  const auto sequence = static_cast<std::uint64_t>(run_.workload.shape.sequence);
  for (std::uint64_t i = 0; i < rows(); ++i) {
    const BatchRow row = BatchRow::of(dst, i, rows(), sequence);
    SLUICE_TRY(text_windows_.read(window(std::min(at * rows() + i, windows_ - 1)), row));
    // Past the end any window serves: nothing of it counts.
    if (at * rows() + i >= windows_) std::fill(row.targets.begin(), row.targets.end(), -1);
  }
  return success();
}

Status Evaluator::step_end(RankId, const StepParams& params, const ControlBlock&, std::span<const double>,
                           std::span<const double> losses) {
  losses_[params.step - 1] = std::accumulate(losses.begin(), losses.end(), 0.0);
  return success();
}

/// Of windows [first, last).
Result<std::uint64_t> Evaluator::count_targets(std::uint64_t first, std::uint64_t last) {
  const auto sequence = static_cast<std::uint64_t>(run_.workload.shape.sequence);
  if (text_windows_.all_count()) return (last - first) * sequence;
  scratch_.resize((run_.workload.documents ? 3 : 2) * sequence);
  const BatchRow row = BatchRow::of(scratch_, 0, 1, sequence);
  std::uint64_t count = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    SLUICE_TRY(text_windows_.read(window(i), row));
    count += row.targets_that_count();
  }
  return count;
}

Result<EvaluateResult> Evaluator::evaluate(const std::atomic<bool>& stop, const Watch& watch) {
  const auto per_pass = static_cast<std::uint64_t>(run_.workload.micro_batches);
  const std::uint64_t per_pass_windows = per_pass * rows(),
                      passes = (windows_ + per_pass_windows - 1) / per_pass_windows;
  losses_.assign(passes, 0.0);
  Executor& executor = engine_->executor();
  SLUICE_TRY(executor.begin(run_.main));
  double sum = 0;
  std::uint64_t released = 0, tokens = 0;
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    // One pass ahead, so that its first reads overlap this one's tail.
    for (; released < std::min(pass + 2, passes); ++released) {
      StepParams p;
      p.step = released + 1;
      SLUICE_TRY(executor.release(p));
    }
    SLUICE_TRY(executor.wait(pass));
    sum += losses_[pass];
    const std::uint64_t windows = std::min((pass + 1) * per_pass_windows, windows_);
    SLUICE_ASSIGN(const std::uint64_t counted, count_targets(pass * per_pass_windows, windows));
    tokens += counted;
    const double loss = sum / static_cast<double>(std::max<std::uint64_t>(tokens, 1));
    if (watch) watch(static_cast<double>(pass + 1) / static_cast<double>(passes), loss);
    if (stop.load() && pass + 1 < passes) {
      SLUICE_TRY(executor.end());
      return Error{ErrorCode::cancelled, "stopped by a signal after " + std::to_string(windows) + " of " +
                                             std::to_string(windows_) + " windows"};
    }
  }
  SLUICE_TRY(executor.end());
  if (tokens == 0) return bad_request(run_.config.data + ": none of its tokens counts in the loss");
  return EvaluateResult{sum / static_cast<double>(tokens), tokens, windows_};
}

}  // namespace sluice
