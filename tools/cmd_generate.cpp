// sluice generate: text that follows a prompt.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "io/chat/chat_template.h"
#include "io/files/json_guard.h"
#include "io/tokenizer/streaming_decoder.h"
#include "src/train/data/data_tokenizer.h"
#include "src/train/inference/inference.h"
#include "src/train/request/check_request.h"
#include "src/train/request/choose_weights.h"
#include "tools/commands.h"
#include "tools/json_text.h"
#include "tools/run_options.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateRequest {
  std::string prompt, tokenizer, chat, system;
  std::vector<std::int32_t> prompt_tokens;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::int64_t tokens = 200, prefill = 64;
  Sampling sampling;
};

struct Generated {
  std::vector<std::int32_t> tokens;
  std::string text;                        ///< of them, up to a stop string
  const char* ended = "length";            ///< or "eos", "stop"
  double prompt_seconds = 0, seconds = 0;  ///< of the prompt's passes; of all
};

/// None for models of bytes, and where the prompt is tokens.
Result<std::optional<Tokenizer>> tokenizer_of(const GenerateRequest& request, const TokenizerChoice& choice) {
  std::optional<Tokenizer> none;
  if (!request.prompt_tokens.empty() || choice.kind != TokenizerChoice::Kind::files) return none;
  SLUICE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(choice.path));
  return std::optional(std::move(tokenizer));
}

/// A question as the model was taught to be asked, and the token that ends its answer.
struct Question {
  std::vector<std::int32_t> tokens;
  std::int32_t end_of_turn = 0;
};
Result<std::optional<Question>> question_of(const GenerateRequest& request, const std::optional<Tokenizer>& tokenizer,
                                            const std::string& weights, const std::string& path) {
  if (request.chat.empty()) return std::optional<Question>();
  if (!tokenizer)
    return bad_request("--chat needs the special tokens of a tokenizer, and " + weights +
                       " has no tokenizer.json, and no vocab.json with merges.txt; add --tokenizer FILE");
  SLUICE_ASSIGN(const ChosenTemplate chosen, choose_template(request.chat, *tokenizer, path));
  const auto renderer = ChatRenderer::create(chosen.name, *tokenizer, chosen.tokens);
  if (!renderer.ok()) return renderer.error().in(path);
  Conversation conversation;
  if (!request.system.empty()) conversation.push_back({ChatRole::system, request.system, false});
  conversation.push_back({ChatRole::user, request.prompt, false});
  RenderedChat chat;
  SLUICE_TRY(renderer->render(conversation, ChatLoss::assistant, true, chat));
  Question question{{}, renderer->end_of_turn()};
  std::vector<std::uint8_t> unused;
  const Status encoded = Tokenizer::Encoder(*tokenizer).encode(chat.text, chat.marks, question.tokens, unused);
  if (!encoded.ok()) return encoded.error().in("--prompt");
  return std::optional(std::move(question));
}

Result<std::vector<std::int32_t>> tokens_of(const GenerateRequest& request, const std::optional<Question>& question,
                                            const std::optional<Tokenizer>& tokenizer, bool bytes,
                                            const std::string& model, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens = question ? question->tokens : request.prompt_tokens;
  const bool given = !tokens.empty();
  if (!given && tokenizer) SLUICE_TRY(Tokenizer::Encoder(*tokenizer).encode(request.prompt, true, tokens));
  if (!given && !tokenizer && !bytes)
    return bad_request(model + " has a vocabulary of " + std::to_string(vocabulary) +
                       " and no tokenizer beside its weights; give --tokenizer FILE, or --prompt-tokens 1,2,3");
  if (!given && !tokenizer)
    for (const char c : request.prompt) tokens.push_back(static_cast<unsigned char>(c));
  if (tokens.empty()) return bad_request("--prompt is empty; give at least one byte to go on from");
  for (const std::int32_t t : tokens)
    if (t < 0 || t >= vocabulary)
      return bad_request((given && !question ? "--prompt-tokens: " : "--tokenizer: token ") + std::to_string(t) +
                         " is not in the vocabulary of " + std::to_string(vocabulary) + " of " + model);
  return tokens;
}

/// Tokens that end a text: eos_token_id, a number or a list, of generation_config.json, else of config.json.
Result<std::vector<std::int32_t>> end_tokens(const std::string& weights) {
  std::vector<std::int32_t> tokens;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = weights + "/" + name;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    SLUICE_ASSIGN(const std::string text, read_json_file(path, 1u << 20));
    const auto config = nlohmann::json::parse(text, nullptr, false);
    if (!config.is_object() || !config.contains("eos_token_id") || config["eos_token_id"].is_null()) continue;
    const nlohmann::json& eos = config["eos_token_id"];
    for (const nlohmann::json& each : eos.is_array() ? eos : nlohmann::json::array({eos})) {
      if (!each.is_number_integer() || each.get<std::int64_t>() < 0 || each.get<std::int64_t>() > 0x7fffffff)
        return bad_request(path + ": eos_token_id must be a token or a list of tokens");
      tokens.push_back(each.get<std::int32_t>());
    }
    break;
  }
  return tokens;
}

/// Shows tokens as they come: text as far as it is known, or numbers separated by commas.
class Printer {
 public:
  /// `tokenizer`: null where bytes are tokens.
  Printer(bool enabled, bool text, const Tokenizer* tokenizer, std::span<const std::int32_t> prompt,
          const std::vector<std::string>& stop)
      : enabled_(enabled), text_(text), stop_(stop) {
    if (tokenizer != nullptr) stream_.emplace(*tokenizer, prompt);
  }
  void show(std::int32_t token) {
    if (text_)
      put(stop_.push(stream_ ? stream_->push(token) : std::string(1, static_cast<char>(token))));
    else
      put((first_ ? "" : ",") + std::to_string(token));
    first_ = false;
  }
  void put(const std::string& text) {
    shown_ += text;
    if (!enabled_ || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void finish() {
    if (text_ && stream_) put(stop_.push(stream_->finish()));
    if (text_) put(stop_.finish());
    if (enabled_) std::fputc('\n', stdout);
  }
  bool stopped() const { return stop_.stopped(); }
  const std::string& shown() const { return shown_; }

 private:
  bool enabled_, text_, first_ = true;
  std::optional<StreamingDecoder> stream_;
  StopStrings stop_;
  std::string shown_;
};

Result<Generated> continue_prompt(Generator& generator, const std::vector<std::int32_t>& prompt,
                                  const GenerateRequest& request, const std::vector<std::int32_t>& ends,
                                  const std::atomic<bool>& stop, Printer& printer) {
  Generated g;
  std::vector<std::int32_t> before(prompt);
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
                  sample_token(logits, request.sampling, static_cast<std::uint64_t>(generator.position()), before));
    g.tokens.push_back(token);
    before.push_back(token);
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      g.ended = "eos";
      break;
    }
    printer.show(token);
    if (printer.stopped()) {
      g.ended = "stop";
      break;
    }
    if (std::ferror(stdout) != 0) break;  // nobody reads any more
    fresh = std::span<const std::int32_t>(g.tokens).last(1);
  }
  g.seconds = since();
  printer.finish();
  g.text = printer.shown();
  SLUICE_TRY(generator.finish());
  return g;
}

void report_json(Generator& generator, const std::vector<std::int32_t>& prompt, const Generated& g, bool text) {
  nlohmann::ordered_json j;
  if (text) j["text"] = g.text;
  j["tokens"] = g.tokens;
  j["ended"] = g.ended;
  j["prompt_tokens"] = prompt.size();
  j["prompt_seconds"] = g.prompt_seconds;
  j["seconds"] = g.seconds;
  RankTeam& team = generator.engine().team();
  const MovedBytes moved = team.moved();
  j["device_peak_bytes"] = team.peak_bytes(Tier::device, 0);
  j["host_peak_bytes"] = team.peak_bytes(Tier::host, 0);
  j["nvme_peak_bytes"] = team.peak_bytes(Tier::nvme, 0);
  j["nvme_read_bytes"] = moved.nvme_read;
  j["h2d_bytes"] = moved.h2d;
  // Bytes need not be UTF-8; "tokens" has them exactly.
  std::printf("%s\n", json_text(j).c_str());
}

Status generate(const RunOptions& options, const GenerateRequest& request) {
  SLUICE_ASSIGN(RunConfig config, resolve(options));
  SLUICE_TRY(check_not_unfinished_run("--model", config.model));
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  const std::string weights = config.init.empty() ? config.model : config.init;
  config.tokenizer = request.tokenizer;
  SLUICE_ASSIGN(const TokenizerChoice choice, choose_tokenizer(config, model));
  const bool bytes = choice.kind == TokenizerChoice::Kind::bytes;
  SLUICE_ASSIGN(const std::optional<Tokenizer> tokenizer, tokenizer_of(request, choice));
  SLUICE_ASSIGN(const std::optional<Question> question, question_of(request, tokenizer, weights, choice.path));
  SLUICE_ASSIGN(const std::vector<std::int32_t> prompt,
                tokens_of(request, question, tokenizer, bytes, config.model, model.vocabulary));
  std::vector<std::int32_t> ends;
  if (!request.ignore_eos) {
    SLUICE_ASSIGN(ends, end_tokens(weights));
    if (question) ends.push_back(question->end_of_turn);
  }
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length + request.tokens > model.max_positions)
    return bad_request("a prompt of " + std::to_string(length) + " tokens and --tokens " +
                       std::to_string(request.tokens) + " do not fit the " + std::to_string(model.max_positions) +
                       " positions of " + config.model);
  config.sequence = std::min(request.prefill, length);
  config.steps = length + request.tokens;
  SLUICE_ASSIGN(CheckedRequest checked, check_request({.config = config, .purpose = Purpose::decode}));
  config = std::move(checked.config);
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !config.json);
  SLUICE_ASSIGN(auto run, prepare(config, Purpose::decode, [&](const std::string& text) { line.note(text); }));
  SLUICE_ASSIGN(auto generator, Generator::create(*run, [&](double fraction) {
                  line.task("reading weights from " + config.init, fraction);
                  return success();
                }));
  line.finish();
  const bool text = request.prompt_tokens.empty();
  if (text && !question && !config.json) std::fwrite(request.prompt.data(), 1, request.prompt.size(), stdout);
  Printer printer(!config.json, text, text && tokenizer ? &*tokenizer : nullptr, prompt, request.stop);
  SLUICE_ASSIGN(const Generated generated, continue_prompt(*generator, prompt, request, ends, stop, printer));
  if (config.json) report_json(*generator, prompt, generated, text);
  return success();
}

}  // namespace

void add_generate(Command& app, Outcome& outcome) {
  Command* command = add_command(
      app, "generate", "continue a text, streaming a model that need not fit in memory",
      "  sluice generate --model out --prompt 'It was a dark and ' --tokens 300 --temperature 0.8\n"
      "  sluice generate --model ./Llama-3.2-1B --prompt 'Q: Why is the sky blue?\\nA:' --top-p 0.9 --stop 'Q:'\n"
      "  sluice generate --model ./Qwen2.5-0.5B-Instruct --chat auto --system 'Answer in one line.' 'Why is the sky "
      "blue?'\n"
      "  sluice generate --model ./Llama-3.2-1B --prompt-tokens 128000,791,6864 --tokens 16 --temperature 0 \\\n"
      "      --device-memory 512MiB --host-memory 256MiB --nvme /mnt/nvme");
  auto options = std::make_shared<RunOptions>();
  auto request = std::make_shared<GenerateRequest>();
  Sampling& s = request->sampling;
  add_model_options(command, options.get());
  command->get_option("--model")->required();
  Option* text = command->add_option("prompt,--prompt", request->prompt, "text to continue, or to answer with --chat");
  Option* tokens =
      command->add_option("--prompt-tokens", request->prompt_tokens, "tokens to continue; prints tokens, not text")
          ->delimiter(',')
          ->type_name("T[,T]")
          ->excludes(text);
  command
      ->add_option("--tokenizer", request->tokenizer,
                   "tokenizer.json, vocab.json with merges.txt, or their directory; bytes: bytes are tokens (default: "
                   "the one beside the weights; without one, bytes are tokens for models that were trained on bytes or "
                   "have a vocabulary of 256)")
      ->excludes(tokens);
  Option* chat = command
                     ->add_option("--chat", request->chat,
                                  "the prompt is what a user says, rendered by the model's own template (auto) or " +
                                      template_names() + "; prints the answer alone")
                     ->type_name("TEMPLATE")
                     ->excludes(tokens);
  command->add_option("--system", request->system, "a system prompt before it")->type_name("TEXT")->needs(chat);
  command->add_option("--tokens", request->tokens, "tokens to generate at most")
      ->check(range(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--temperature", s.temperature, "0 takes the most likely token")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--top-k", s.top_k, "draw from the K most likely tokens; 0: from all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", s.top_p, "draw from the fewest tokens that together have this probability; 1: from all")
      ->check(between(1e-9, 1.0))
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", s.repetition_penalty,
                   "divides the logits of tokens that came before (negative ones are multiplied); 1: none")
      ->check(between(0.01, 100.0))
      ->capture_default_str();
  command->add_option("--stop", request->stop, "end before this text comes; may be given several times")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->excludes(tokens);
  command->add_flag("--ignore-eos", request->ignore_eos, "go on behind the tokens that end a text");
  command->add_option("--seed", s.seed, "the same seed draws the same text")->capture_default_str();
  command->add_option("--prefill", request->prefill, "tokens of the prompt in one pass over the model")
      ->check(range(1, 1 << 20))
      ->capture_default_str()
      ->group("Budgets");
  command->callback([options, request, text, tokens, &outcome] {
    if (text->count() + tokens->count() == 0) refuse_without("--prompt or --prompt-tokens");
    outcome.finish("generate", generate(*options, *request));
  });
}

}  // namespace sluice::tools
