#include "src/train/inference/inference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "offload/plan/state_table.h"
#include "src/train/request/choose_weights.h"
#include "src/train/states/hugging_face.h"

namespace sluice {
namespace {

std::span<const float> logits_of(const Prepared& run, const Engine& engine) {
  const BufferId logits = StateTable(run.main()).logits();
  SLUICE_CHECK(logits != no_buffer, "a decode plan without logits (%zu buffers)", run.main().buffers.size());
  return {reinterpret_cast<const float*>(engine.host(0, run.main().buffers[logits])),
          static_cast<std::size_t>(run.model.config.vocabulary)};
}

}  // namespace

Result<RunConfig> with_weights(const RunConfig& config) {
  RunConfig c = config;
  std::error_code ignored;
  SLUICE_TRY(check_not_unfinished_run("--model", c.model));
  SLUICE_ASSIGN(const ModelConfig model, load_config(c.model));
  if (c.init.empty()) {
    if (!std::filesystem::is_directory(c.model, ignored))
      return bad_request(c.model +
                         " has no weights; give --init DIR with model.safetensors, or such a directory as --model");
    c.init = c.model;
  }
  SLUICE_TRY(check_not_unfinished_run("--init", c.init));
  SLUICE_TRY(check_has_safetensors(c.init));
  SLUICE_ASSIGN([[maybe_unused]] const HuggingFaceWeights weights,
                HuggingFaceWeights::open(c.init, build_model(model)));
  return c;
}

Result<std::unique_ptr<Generator>> Generator::create(const Prepared& run, const States::Watch& watch) {
  if (!run.search.fits) return does_not_fit(run);
  std::unique_ptr<Generator> g(new Generator(run));
  SLUICE_ASSIGN(g->engine_, Engine::create(run, *g, {}));
  SLUICE_TRY(g->engine_->states().initialize(run.config.init, run.config.seed, watch));
  g->logits_ = logits_of(run, *g->engine_);
  SLUICE_TRY(g->engine_->begin(&StagePlans::main));
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
    SLUICE_TRY(engine_->team().release(p));
    SLUICE_TRY(engine_->team().wait(passes_++));
    position_ += p.tokens;
    tokens = tokens.subspan(tokens_.size());
  }
  return logits_;
}

Status Generator::load_tokens(RankId, std::int32_t, const StepParams&, std::span<std::int32_t> dst) {
  std::fill(std::copy(tokens_.begin(), tokens_.end(), dst.begin()), dst.end(), -1);
  return success();
}

Result<TokenFile> open_text(const RunConfig& config, const std::function<void(const std::string&)>& note,
                            const std::function<Status(double)>& watch) {
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  return open_data(config, model, note, watch);
}

Result<std::unique_ptr<Evaluator>> Evaluator::create(const Prepared& run, const States::Watch& watch, World* world) {
  if (!run.search.fits) return does_not_fit(run);
  std::unique_ptr<Evaluator> e(new Evaluator(run));
  Engine::Options options;
  options.world = world;
  auto engine = Engine::create(run, *e, options);
  const Status made = engine.ok() ? success() : Status(engine.error());
  SLUICE_TRY(world == nullptr ? made : agree(*world, made));
  e->engine_ = *std::move(engine);
  SLUICE_TRY(e->engine_->agree_on(e->engine_->states().initialize(run.config.init, run.config.seed, watch)));
  SLUICE_TRY(e->engine_->agree_on(e->engine_->states().share_residents()));
  return e;
}

Result<EvaluateResult> Evaluator::evaluate(const Windows& windows, const std::atomic<bool>& stop,
                                           const WindowLoss::Watch& watch) {
  WindowLoss evaluation(windows, run_.workload, run_.search.schedule);
  evaluation_.store(&evaluation, std::memory_order_release);
  const Result<EvaluateResult> result = evaluation.run(*engine_, &StagePlans::main, {&stop, 0}, watch);
  evaluation_.store(nullptr, std::memory_order_release);
  if (result.ok() && result->tokens == 0)
    return bad_request(windows.tokens().path() + ": none of its tokens counts in the loss");
  return result;
}

Status Evaluator::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                              std::span<std::int32_t> dst) {
  return evaluation_.load(std::memory_order_acquire)->load(rank, micro_batch, params, dst);
}

Status Evaluator::step_end(RankId rank, const StepParams& params, const ControlBlock&, std::span<const double> losses) {
  evaluation_.load(std::memory_order_acquire)->collect(rank, params, losses);
  return success();
}

Result<std::uint64_t> text_bytes(const Windows& windows, const RunConfig& config, const Tokenizer& tokenizer) {
  const auto sequence = static_cast<std::uint64_t>(config.sequence);
  std::vector<std::int32_t> planes(3 * sequence), text;
  const BatchRow row = BatchRow::of(planes, 0, 1, sequence);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < windows.count(); ++i) {
    SLUICE_TRY(windows.read(i, row));
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

}  // namespace sluice
