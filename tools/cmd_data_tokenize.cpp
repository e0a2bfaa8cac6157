// sluice data tokenize: texts become token files.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "io/chat/chat_encoding.h"
#include "io/files/json_guard.h"
#include "io/tokens/tokenize.h"
#include "sluice/size.h"
#include "src/train/data/data_tokenizer.h"
#include "tools/data_commands.h"
#include "tools/json_text.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

struct TokenizeRequest {
  std::vector<std::string> input;
  std::string output, tokenizer;
  std::optional<std::string> jsonl_field;
  TextKind input_format = TextKind::automatic;
  TokenFormat format = TokenFormat::sluice;
  double eval_split = 0;
  std::uint64_t seed = 1;
  std::string append_eos;  ///< a number, auto, or nothing
  std::string chat;        ///< a template, auto, or nothing
  ChatLoss loss = ChatLoss::assistant;
  std::uint64_t pack = 0;
  TooLong too_long = TooLong::cut;
  int threads = 1;
  bool json = false, no_special_tokens = false;
};

/// What is read; bad_request when a field is named that nothing has.
Result<TextSource::Options> texts_of(const TokenizeRequest& request) {
  TextSource::Options texts{.paths = request.input, .kind = request.input_format};
  if (!request.chat.empty()) {
    if (texts.kind == TextKind::text) return bad_request("--chat reads JSON lines, and --input-format is text");
    texts.kind = TextKind::jsonl;
    texts.whole_lines = true;
    return texts;
  }
  if (!request.jsonl_field) return texts;
  texts.field = *request.jsonl_field;
  const bool any = texts.kind == TextKind::automatic
                       ? std::any_of(texts.paths.begin(), texts.paths.end(), is_jsonl_name)
                       : texts.kind == TextKind::jsonl;
  if (!any) return bad_request("--jsonl-field, but no input ends in .jsonl or .ndjson; add --input-format jsonl");
  return texts;
}

/// The end of a text by the model's own settings: as the tokenizer has it, or eos_token of tokenizer_config.json
/// beside.
Result<std::int32_t> end_of_text(const Tokenizer& tokenizer, const std::string& path) {
  if (const auto id = tokenizer.end_of_text()) return *id;
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::is_directory(path, ignored)
                                           ? std::filesystem::path(path)
                                           : std::filesystem::path(path).parent_path();
  const std::string file = (folder / "tokenizer_config.json").string();
  const auto refuse = [&](const std::string& why) { return bad_request(file + " " + why); };
  SLUICE_ASSIGN(const std::string text, read_json_file(file, 16u << 20));
  const json config = json::parse(text, nullptr, false);
  // A name, or an added token with its content.
  const json eos = config.is_object() && config.contains("eos_token") ? config["eos_token"] : json();
  const json name = eos.is_object() && eos.contains("content") ? eos["content"] : eos;
  if (!name.is_string()) return refuse("has no eos_token");
  const auto id = tokenizer.id(name.get<std::string>());
  if (!id) return refuse("has an eos_token that the tokenizer lacks");
  return *id;
}

/// How text becomes tokens, and the token behind each document if one was asked for.
struct Encoding {
  TextEncoding text;
  std::optional<std::int32_t> end;
  std::string rendered;  ///< conversations: by which template, and how that was chosen
};

Result<Encoding> chat_encoding_of(const TokenizeRequest& request) {
  if (request.tokenizer.empty() || request.tokenizer == bytes_are_tokens)
    return bad_request(
        "--chat needs the special tokens of a tokenizer, and bytes have none; add --tokenizer FILE or DIR");
  if (request.no_special_tokens || !request.append_eos.empty())
    return bad_request(std::string(request.no_special_tokens ? "--no-special-tokens" : "--append-eos") +
                       " is for texts; a chat template says which tokens stand around messages");
  SLUICE_ASSIGN(Tokenizer loaded, Tokenizer::load(request.tokenizer));
  auto tokenizer = std::make_shared<const Tokenizer>(std::move(loaded));
  if (request.chat == "none") {
    if (request.jsonl_field)
      return bad_request("--jsonl-field, but with --chat none lines have \"prompt\" and \"completion\"");
    const auto eos = end_of_text(*tokenizer, request.tokenizer);
    if (!eos.ok()) return eos.error().in("--chat none");
    return Encoding{completion_encoding(tokenizer, *eos, request.loss), std::nullopt, "none"};
  }
  SLUICE_ASSIGN(const ChosenTemplate chosen, choose_template(request.chat, *tokenizer, request.tokenizer));
  auto renderer = ChatRenderer::create(chosen.name, *tokenizer, chosen.tokens);
  if (!renderer.ok()) return renderer.error().in(request.tokenizer);
  return Encoding{chat_encoding(tokenizer, *renderer, {request.jsonl_field.value_or(""), request.loss}), std::nullopt,
                  std::string(template_name(chosen.name)) + (chosen.why.empty() ? "" : ", " + chosen.why)};
}

Result<Encoding> encoding_of(const TokenizeRequest& request) {
  if (!request.chat.empty()) return chat_encoding_of(request);
  Encoding e{byte_encoding(), std::nullopt, {}};
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!request.tokenizer.empty() && request.tokenizer != bytes_are_tokens) {
    SLUICE_ASSIGN(Tokenizer loaded, Tokenizer::load(request.tokenizer));
    tokenizer = std::make_shared<const Tokenizer>(std::move(loaded));
    e.text = tokenizer_encoding(tokenizer, !request.no_special_tokens);
  } else if (request.no_special_tokens) {
    return bad_request("--no-special-tokens, but bytes have none; add --tokenizer");
  }
  if (request.append_eos.empty()) return e;
  if (request.append_eos == "auto") {
    if (!tokenizer) return bad_request("--append-eos auto asks a tokenizer; add --tokenizer, or give a number");
    const auto eos = end_of_text(*tokenizer, request.tokenizer);
    if (!eos.ok()) return bad_request("--append-eos auto: " + eos.error().message + "; give the token's number");
    e.end = *eos;
    return e;
  }
  std::uint64_t id = 0;
  const std::string& given = request.append_eos;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), id);
  if (error != std::errc() || end != given.data() + given.size())
    return bad_request("--append-eos '" + given + "' is neither the number of a token nor auto");
  if (tokenizer && id >= e.text.vocabulary)
    return bad_request(fmt::format("--append-eos {} is not a token; those of {} end at {}", id, request.tokenizer,
                                   e.text.vocabulary - 1));
  if (!tokenizer && id > e.text.vocabulary)
    return bad_request(
        fmt::format("--append-eos {} is not a token; bytes are 0 to 255, and 256 can stand for the end", id));
  e.text.vocabulary = std::max(e.text.vocabulary, id + 1);
  e.end = static_cast<std::int32_t>(id);
  return e;
}

std::string progress_text(const TokenizeReport& report, double seconds) {
  const double rate = static_cast<double>(report.input_bytes) / std::max(seconds, 1e-9);
  const std::string of = report.input_bytes_total > 0 ? " of " + format_bytes(report.input_bytes_total) : "";
  std::string left;
  if (report.input_bytes_total > report.input_bytes && rate > 0)
    left = ", " + format_seconds(static_cast<double>(report.input_bytes_total - report.input_bytes) / rate) + " left";
  return fmt::format("{}{}, {}, {}tokens{}", format_bytes(report.input_bytes), of, format_rate(rate),
                     format_count(static_cast<double>(report.training.tokens + report.held_out.tokens)), left);
}

json as_json(const TokenizeRequest& request, const TokenizeReport::Output& output) {
  json out{{"output", output.path}, {"tokens", output.tokens}, {"documents", output.documents}};
  if (!request.chat.empty() || request.pack > 0) out["loss_tokens"] = output.loss_tokens;
  if (request.pack == 0) return out;
  out["sequence"] = request.pack;
  out["sequences"] = output.pack.sequences;
  out["padding_tokens"] = output.pack.padding_tokens;
  out["too_long"] = output.pack.too_long;
  out["lost_tokens"] = output.pack.lost_tokens;
  out["unlearned"] = output.pack.unlearned;
  return out;
}

void print_packing(const TokenizeRequest& request, const TokenizeReport::Output& output) {
  const PackReport& pack = output.pack;
  fmt::print("  {} sequences of {} tokens, {:.2f}% of them padding\n", pack.sequences, request.pack,
             percent(pack.padding_tokens, pack.padding_tokens + pack.tokens));
  const std::string of = fmt::format("{} of more than {} tokens", pack.too_long, request.pack);
  if (pack.too_long > 0 && request.too_long == TooLong::drop)
    fmt::print("  {} were dropped, with {} tokens\n", of, pack.lost_tokens);
  else if (pack.too_long > 0)
    fmt::print("  {} were cut, {} tokens lost\n", of, pack.lost_tokens);
  if (pack.unlearned > 0) fmt::print("  {} were left out, whose answers were cut off\n", pack.unlearned);
}

void print_report(const TokenizeRequest& request, const Encoding& encoding, const TokenizeReport& report,
                  double seconds) {
  const double rate = static_cast<double>(report.text_bytes) / seconds;
  if (request.json) {
    json out = as_json(request, report.training);
    if (!encoding.rendered.empty()) out["template"] = encoding.rendered.substr(0, encoding.rendered.find(','));
    out["vocabulary"] = report.vocabulary;
    out["empty_documents"] = report.empty_documents;
    out["input_bytes"] = report.input_bytes;
    out["text_bytes"] = report.text_bytes;
    out["seconds"] = seconds;
    out["text_bytes_per_second"] = rate;
    if (!report.held_out.path.empty()) out["eval"] = as_json(request, report.held_out);
    fmt::print("{}\n", json_text(out));
    return;
  }
  const bool chat = !request.chat.empty();
  if (chat) fmt::print("template {}\n", encoding.rendered);
  for (const auto* output : {&report.training, &report.held_out}) {
    if (output->path.empty()) continue;
    fmt::print("{}: {} tokens in {} {}, vocabulary {}\n", printed_files(output->path, request.format), output->tokens,
               output->documents, chat ? "conversations" : "documents", report.vocabulary);
    if (chat) fmt::print("  {:.1f}% of them in the loss\n", percent(output->loss_tokens, output->tokens));
    if (request.pack > 0) print_packing(request, *output);
  }
  if (report.empty_documents > 0)
    fmt::print("{} {} were left out\n", report.empty_documents,
               chat ? "conversations with nothing to learn" : "documents without text");
  fmt::print("{} of text in {}, {}\n", format_bytes(report.text_bytes), format_seconds(seconds), format_rate(rate));
}

Status run_tokenize(const TokenizeRequest& request) {
  SLUICE_TRY(check_output(request.output));
  std::vector<std::string> outputs = files_of(request.output, request.format);
  if (request.eval_split > 0)
    for (const std::string& file : files_of(eval_output(request.output), request.format)) outputs.push_back(file);
  SLUICE_TRY(refuse_to_replace(request.input, outputs));
  SLUICE_ASSIGN(const Encoding encoding, encoding_of(request));
  TokenizeOptions options;
  SLUICE_ASSIGN(options.texts, texts_of(request));
  options.output = request.output;
  options.format = request.format;
  options.end_of_text = encoding.end;
  options.held_out = request.eval_split;
  options.seed = request.seed;
  if (request.pack > 0) options.pack = PackOptions{.sequence = request.pack, .too_long = request.too_long};
  options.threads = request.threads;
  const std::atomic<bool>& stop = stop_on_signals();
  options.before_publishing = [&] { return unless_stopped(stop); };
  const Clock clock;
  double told = 0;
  ProgressLine line(plain_seconds, !request.json);
  const auto watch = [&](const TokenizeReport& report) {
    const double now = clock.seconds();
    if (now - told < 0.1) return unless_stopped(stop);
    told = now;
    line.update(progress_text(report, now),
                report.input_bytes_total == 0
                    ? -1
                    : static_cast<double>(report.input_bytes) / static_cast<double>(report.input_bytes_total));
    return unless_stopped(stop);
  };
  const auto report = tokenize(options, encoding.text, watch);
  line.finish();
  if (!report.ok()) return report.error();
  print_report(request, encoding, *report, clock.seconds());
  return success();
}

/// What fine-tuning on conversations asks for.
void add_chat(Command* command, TokenizeRequest& request) {
  Option* chat =
      command
          ->add_option(
              "--chat", request.chat,
              "JSON lines are conversations, {\"messages\": [{\"role\", \"content\"}]} or ShareGPT's; rendered "
              "by the model's own template (auto) or " +
                  template_names() + "; none: {\"prompt\", \"completion\"} as they stand, and eos_token")
          ->type_name("TEMPLATE");
  const std::map<std::string, ChatLoss> losses{
      {"assistant", ChatLoss::assistant}, {"last", ChatLoss::last}, {"all", ChatLoss::all}};
  command
      ->add_option("--loss", request.loss,
                   "what counts in the loss of a conversation: what the assistant says, its last turn alone, or all")
      ->transform(one_of(losses))
      ->type_name("assistant|last|all")
      ->needs(chat);
  Option* pack =
      command
          ->add_option("--pack", request.pack,
                       "lay documents whole into sequences of N tokens, for training on sequences of so many; what is "
                       "left of one is padding, which does not count")
          ->check(range(2, 1 << 24).unshown())
          ->type_name("N");
  const std::map<std::string, TooLong> ways{
      {"cut", TooLong::cut}, {"drop", TooLong::drop}, {"refuse", TooLong::refuse}};
  command
      ->add_option("--too-long", request.too_long,
                   "documents of more than N tokens: cut them (texts into several, conversations at their end), drop "
                   "them, or stop")
      ->transform(one_of(ways))
      ->type_name("cut|drop|refuse")
      ->needs(pack);
}

}  // namespace

void add_data_tokenize(Command& data, Outcome& outcome) {
  auto request = std::make_shared<TokenizeRequest>();
  request->threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Command* command = add_command(
      data, "tokenize", "Texts to a token file that knows where documents end",
      "  sluice data tokenize --input book.txt --output book.tokens\n"
      "  sluice data tokenize --input wiki.jsonl.zst --tokenizer ./Llama-3.2-1B --append-eos auto --output "
      "wiki.tokens\n"
      "  sluice data tokenize --input c4-*.jsonl.zst --output c4.tokens --eval-split 0.01\n"
      "  sluice data tokenize --input wiki.jsonl --jsonl-field body --output wiki --format megatron\n"
      "  sluice data tokenize chat.jsonl --tokenizer ./Qwen2.5-0.5B --chat auto --pack 2048 --output chat.tokens\n"
      "  sluice data tokenize chat.jsonl --tokenizer ./Llama-3.2-1B --chat llama3 --loss last --output chat.tokens\n"
      "  xzcat corpus.jsonl.xz | sluice data tokenize --input - --input-format jsonl --output corpus.tokens");
  command
      ->add_option("input,--input", request->input,
                   "texts (a document each) or JSON lines (.jsonl, .ndjson; a document a line), also as .gz, .dz or "
                   ".zst; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--output", request->output, "token file to write")->required()->type_name("FILE");
  command
      ->add_option(
          "--tokenizer", request->tokenizer,
          "a model's tokenizer.json, or vocab.json with merges.txt, or the directory that holds them; bytes: bytes are "
          "tokens (default)")
      ->type_name("FILE|DIR|bytes");
  command->add_flag("--no-special-tokens", request->no_special_tokens,
                    "leave out what the tokenizer's template puts around a text, such as a beginning of sequence");
  const std::map<std::string, TextKind> kinds{
      {"auto", TextKind::automatic}, {"text", TextKind::text}, {"jsonl", TextKind::jsonl}};
  command
      ->add_option("--input-format", request->input_format,
                   "what all inputs are; auto: by their endings, and what looks like no text is refused")
      ->transform(one_of(kinds))
      ->type_name("auto|text|jsonl");
  command
      ->add_option("--jsonl-field,--field", request->jsonl_field,
                   "the field of a JSON line that is the document (default: text), or with --chat the list of messages "
                   "(default: messages, or conversations)")
      ->type_name("NAME");
  add_chat(command, *request);
  add_format(command, &request->format);
  Option* eval_split =
      command
          ->add_option(
              "--eval-split", request->eval_split,
              "share of the documents, whole ones, that go to a second file instead: OUTPUT with .eval before its "
              "ending")
          ->check(between(0.0, 0.999))
          ->type_name("SHARE");
  command->add_option("--seed", request->seed, "which documents those are")
      ->capture_default_str()
      ->type_name("N")
      ->needs(eval_split);
  command
      ->add_option("--append-eos", request->append_eos,
                   "a token to put behind each document; 256 is the first that is no byte; auto: the "
                   "tokenizer's eos_token, as tokenizer_config.json and the files beside it have it")
      ->type_name("ID|auto");
  command->add_option("--threads", request->threads, "that encode; the output is the same for any number")
      ->check(range(1, 1024).unshown())
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--json", request->json, "print one JSON object");
  command->callback([request, &outcome] { outcome.finish("data tokenize", run_tokenize(*request)); });
}

}  // namespace sluice::tools
