// sluice eval: how well a model predicts a text.
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/train/inference.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t byte_vocabulary = 256;

/// The one beside the weights. The loss does not need it: where it can not be used that is said, before the work.
std::optional<Tokenizer> tokenizer_beside(const std::string& weights, ProgressLine& line) {
  if (!Tokenizer::lies_in(weights)) return std::nullopt;
  Result<Tokenizer> tokenizer = Tokenizer::load(weights);
  if (tokenizer.ok()) return std::move(*tokenizer);
  line.note("bits per byte are not known: " + tokenizer.error().message);
  return std::nullopt;
}

/// Of the text behind the tokens; 0 where that is not known.
Result<double> bits_per_byte(const Prepared& run, const std::optional<Tokenizer>& tokenizer, const Evaluator& evaluator,
                             const EvaluateResult& result) {
  const double bits = result.loss / std::log(2.0);
  if (!tokenizer)
    return !Tokenizer::lies_in(run.config.init) && run.model.config.vocabulary == byte_vocabulary ? bits : 0.0;
  SLUICE_ASSIGN(const std::uint64_t bytes, evaluator.text_bytes(*tokenizer));
  return bytes == 0 ? 0.0 : bits * static_cast<double>(result.tokens) / static_cast<double>(bytes);
}

void report(const Prepared& run, const Evaluator& evaluator, const EvaluateResult& result, double bits) {
  if (run.config.json) {
    nlohmann::ordered_json j;
    j["loss"] = result.loss;
    j["perplexity"] = std::exp(result.loss);
    if (bits > 0) j["bits_per_byte"] = bits;
    j["tokens"] = result.tokens;
    j["windows"] = result.windows;
    j["text_tokens"] = evaluator.text_tokens();
    std::printf("%s\n", j.dump().c_str());
    return;
  }
  std::printf("loss %.4f nats/token, perplexity %.3f", result.loss, std::exp(result.loss));
  if (bits > 0) std::printf(", %.4f bits per byte", bits);
  std::printf("\nover %llu tokens (%llu windows) of the %llu in %s\n", static_cast<unsigned long long>(result.tokens),
              static_cast<unsigned long long>(result.windows), static_cast<unsigned long long>(evaluator.text_tokens()),
              run.config.data.c_str());
}

Status eval(const RunOptions& options, const Evaluator::Options& what) {
  SLUICE_ASSIGN(RunConfig config, resolve(options));
  SLUICE_ASSIGN(config, with_weights(config));
  SLUICE_ASSIGN(config, with_document_mask(config));
  if (config.micro_batch < 1 || config.batch < config.micro_batch || config.batch % config.micro_batch != 0)
    return bad_request("--batch " + std::to_string(config.batch) + " is not a multiple of --micro-batch " +
                       std::to_string(config.micro_batch));
  ProgressLine line(10, !config.json);
  const auto tell = [&](const std::string& note) { line.note(note); };
  SLUICE_ASSIGN(TokenFile text, open_text(config, tell));
  const std::atomic<bool>& stop = stop_on_signals();
  SLUICE_ASSIGN(auto run, prepare(config, Purpose::evaluate, tell));
  SLUICE_ASSIGN(auto evaluator, Evaluator::create(*run, std::move(text), what, [&](double fraction) {
                  line.task("reading weights from " + config.init, fraction);
                  return success();
                }));
  const std::optional<Tokenizer> tokenizer = tokenizer_beside(config.init, line);
  const auto result = evaluator->evaluate(stop, [&](double fraction, double loss) {
    char shown[64];
    std::snprintf(shown, sizeof shown, "loss %.4f", loss);
    line.update(shown, fraction);
  });
  line.finish();
  if (!result.ok()) return result.error();
  SLUICE_ASSIGN(const double bits, bits_per_byte(*run, tokenizer, *evaluator, *result));
  report(*run, *evaluator, *result, bits);
  return success();
}

}  // namespace

void add_eval(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      add_command(app, "eval", "measure a model's loss on a text",
                  "  sluice eval --model out --data book.txt\n"
                  "  sluice eval --model ./Llama-3.2-1B --data tokens.bin --all-text --seq 2048 --batch 4 \\\n"
                  "      --device-memory 1GiB --host-memory 512MiB --nvme /mnt/nvme");
  auto options = std::make_shared<RunOptions>();
  auto what = std::make_shared<Evaluator::Options>();
  add_model_options(command, options.get());
  command->get_option("--model")->required();
  command
      ->add_option("--data", options->config.data,
                   "text or .jsonl, bytes as tokens, or a token file (sluice, Megatron-LM, llm.c, nanoGPT)")
      ->required();
  CLI::Option* batches =
      command
          ->add_option("--batches", what->batches,
                       "batches of held-out windows, the ones that training with this --seq leaves out")
          ->check(more_than(0))
          ->capture_default_str()
          ->group("Batch");
  command->add_flag("--all-text", what->all_text, "every whole window from the start of the file")
      ->excludes(batches)
      ->group("Batch");
  add_batch_options(command, options.get());
  command->callback([options, what, &outcome] { outcome.finish("eval", eval(*options, *what)); });
}

}  // namespace sluice::tools
