// sluice generate: text that follows a prompt.
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/train/inference.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/terminal.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t byte_vocabulary = 256;
using Clock = std::chrono::steady_clock;

struct Request {
  std::string prompt;
  std::vector<std::int32_t> prompt_tokens;
  std::int64_t tokens = 200, prefill = 64;
  Sampling sampling;
};

struct Generated {
  std::vector<std::int32_t> tokens;
  double prompt_seconds = 0, seconds = 0;  ///< of the prompt's passes; of all
};

/// Bytes as tokens, unless the prompt was given as tokens.
Result<std::vector<std::int32_t>> tokens_of(const Request& request, const std::string& model, std::int64_t vocabulary) {
  for (const std::int32_t t : request.prompt_tokens)
    if (t < 0 || t >= vocabulary)
      return bad_request("--prompt-tokens: " + std::to_string(t) + " is not in the vocabulary of " +
                         std::to_string(vocabulary) + " of " + model);
  if (!request.prompt_tokens.empty()) return request.prompt_tokens;
  if (vocabulary != byte_vocabulary)
    return bad_request(model + " has a vocabulary of " + std::to_string(vocabulary) +
                       ", and text is read as bytes, for vocabularies of 256; give --prompt-tokens 1,2,3");
  if (request.prompt.empty()) return bad_request("--prompt is empty; give at least one byte to go on from");
  std::vector<std::int32_t> tokens;
  for (const char c : request.prompt) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Shows tokens as they come: text byte by byte, or numbers separated by commas.
class Printer {
 public:
  Printer(bool enabled, bool text) : enabled_(enabled), text_(text) {}
  void show(std::int32_t token) {
    if (!enabled_) return;
    if (text_) {
      std::fputc(token, stdout);
    } else {
      std::printf(first_ ? "%d" : ",%d", token);
    }
    first_ = false;
    std::fflush(stdout);
  }
  void finish() const {
    if (enabled_) std::fputc('\n', stdout);
  }

 private:
  bool enabled_, text_, first_ = true;
};

Result<Generated> continue_prompt(Generator& generator, const std::vector<std::int32_t>& prompt, const Request& request,
                                  const std::atomic<bool>& stop, Printer& printer) {
  Generated g;
  const auto start = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::span<const std::int32_t> fresh(prompt);
  while (static_cast<std::int64_t>(g.tokens.size()) < request.tokens) {
    if (stop.load()) {
      printer.finish();
      return Error{ErrorCode::cancelled, "stopped by a signal after " + std::to_string(g.tokens.size()) + " of " +
                                             std::to_string(request.tokens) + " tokens"};
    }
    SLUICE_ASSIGN(const auto logits, generator.append(fresh));
    if (g.tokens.empty()) g.prompt_seconds = since();
    SLUICE_ASSIGN(const std::int32_t token,
                  sample_token(logits, request.sampling, static_cast<std::uint64_t>(generator.position())));
    g.tokens.push_back(token);
    printer.show(token);
    fresh = std::span<const std::int32_t>(g.tokens).last(1);
  }
  g.seconds = since();
  printer.finish();
  SLUICE_TRY(generator.finish());
  return g;
}

void report_json(Generator& generator, const std::vector<std::int32_t>& prompt, const Generated& g, bool text) {
  nlohmann::ordered_json j;
  if (text) j["text"] = std::string(g.tokens.begin(), g.tokens.end());
  j["tokens"] = g.tokens;
  j["prompt_tokens"] = prompt.size();
  j["prompt_seconds"] = g.prompt_seconds;
  j["seconds"] = g.seconds;
  const Executor& executor = generator.engine().executor();
  const MovedBytes moved = executor.moved();
  j["device_peak_bytes"] = executor.peak_bytes(Tier::device, 0);
  j["host_peak_bytes"] = executor.peak_bytes(Tier::host, 0);
  j["nvme_peak_bytes"] = executor.peak_bytes(Tier::nvme, 0);
  j["nvme_read_bytes"] = moved.nvme_read;
  j["h2d_bytes"] = moved.h2d;
  // Bytes need not be UTF-8; "tokens" has them exactly.
  std::printf("%s\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

Status generate(const RunOptions& options, const Request& request) {
  SLUICE_ASSIGN(RunConfig config, resolve(options));
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  SLUICE_ASSIGN(const std::vector<std::int32_t> prompt, tokens_of(request, config.model, model.vocabulary));
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length + request.tokens > model.max_positions)
    return bad_request("a prompt of " + std::to_string(length) + " tokens and --tokens " +
                       std::to_string(request.tokens) + " do not fit the " + std::to_string(model.max_positions) +
                       " positions of " + config.model);
  SLUICE_ASSIGN(config, with_weights(config));
  config.sequence = std::min(request.prefill, length);
  config.steps = length + request.tokens;
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !config.json);
  SLUICE_ASSIGN(auto run, prepare(config, Purpose::decode, [&](const std::string& text) { line.note(text); }));
  SLUICE_ASSIGN(auto generator, Generator::create(*run, [&](double fraction) {
                  line.task("reading weights from " + config.init, fraction);
                  return success();
                }));
  line.finish();
  const bool text = request.prompt_tokens.empty();
  Printer printer(!config.json, text);
  if (text)
    for (const std::int32_t t : prompt) printer.show(t);
  SLUICE_ASSIGN(const Generated generated, continue_prompt(*generator, prompt, request, stop, printer));
  if (config.json) report_json(*generator, prompt, generated, text);
  return success();
}

}  // namespace

void add_generate(CLI::App& app, Outcome& outcome) {
  CLI::App* command = add_command(
      app, "generate", "continue a text, streaming a model that need not fit in memory",
      "  sluice generate --model out --prompt 'It was a dark and ' --tokens 300 --temperature 0.8\n"
      "  sluice generate --model ./Llama-3.2-1B --prompt-tokens 128000,791,6864 --tokens 16 --temperature 0 \\\n"
      "      --device-memory 512MiB --host-memory 256MiB --nvme /mnt/nvme");
  auto options = std::make_shared<RunOptions>();
  auto request = std::make_shared<Request>();
  Sampling& s = request->sampling;
  add_model_options(command, options.get());
  command->get_option("--model")->required();
  CLI::Option* text =
      command->add_option("--prompt", request->prompt, "text to continue, for models of bytes (vocabulary 256)");
  CLI::Option* tokens =
      command->add_option("--prompt-tokens", request->prompt_tokens, "tokens to continue; prints tokens, not text")
          ->delimiter(',')
          ->type_name("T[,T]")
          ->excludes(text);
  command->add_option("--tokens", request->tokens, "tokens to generate")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--temperature", s.temperature, "0 takes the most likely token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", s.top_k, "draw from the K most likely tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", s.seed, "the same seed draws the same text")->capture_default_str();
  command->add_option("--prefill", request->prefill, "tokens of the prompt in one pass over the model")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Budgets");
  command->callback([options, request, text, tokens, &outcome] {
    if (text->count() + tokens->count() == 0) throw CLI::RequiredError("--prompt or --prompt-tokens");
    outcome.finish("generate", generate(*options, *request));
  });
}

}  // namespace sluice::tools
