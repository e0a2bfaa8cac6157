// sluice data convert: token files of one format become those of another.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer.h"
#include "io/tokens/megatron.h"
#include "tools/data_commands.h"
#include "tools/json_text.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

struct ConvertRequest {
  std::string input, output, tokenizer;
  TokenFormat format = TokenFormat::sluice;
  std::uint64_t vocabulary = 0;
  bool json = false;
};

/// What made the tokens, as the new file says it.
struct Maker {
  std::uint64_t hash = 0;
  std::uint64_t tokens = ~0ull;  ///< that it has, where it was named
};

/// What the old file says, if nobody knows better.
Result<Maker> maker_of(const ConvertRequest& request, const TokenFile& file) {
  if (request.tokenizer.empty()) return Maker{file.tokenizer()};
  if (request.format != TokenFormat::sluice)
    return bad_request("--tokenizer is for files of the format sluice; Megatron's can not say it");
  if (request.tokenizer == "none") return Maker{};
  Maker maker{byte_tokenizer, 256};
  if (request.tokenizer != "bytes") {
    SLUICE_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(request.tokenizer));
    maker = {tokenizer.hash(), tokenizer.vocabulary()};
  }
  if (file.vocabulary_known() && file.vocabulary() > maker.tokens)
    return bad_request(fmt::format("--tokenizer {} has {} tokens, and {} has a vocabulary of {}", request.tokenizer,
                                   maker.tokens, file.path(), file.vocabulary()));
  return maker;
}

Status run_convert(const ConvertRequest& request) {
  SLUICE_TRY(check_output(request.output));
  SLUICE_ASSIGN(const TokenFile file, TokenFile::open(request.input));
  std::vector<std::string> inputs = {file.path()};
  if (file.format() == TokenFormat::megatron) inputs.push_back(megatron_name(file.path()) + ".bin");
  SLUICE_TRY(refuse_to_replace(inputs, files_of(request.output, request.format)));
  SLUICE_ASSIGN(const Maker maker, maker_of(request, file));
  ProgressLine line(plain_seconds, !request.json);
  std::uint64_t vocabulary = request.vocabulary > 0 ? request.vocabulary : file.vocabulary();
  if (request.vocabulary == 0 && !file.vocabulary_known()) {
    SLUICE_ASSIGN(const TokenSurvey survey,
                  survey_tokens(file, watch_tokens(line, file, "looking for the vocabulary")));
    vocabulary = static_cast<std::uint64_t>(survey.largest_token) + 1;
  }
  if (file.count() == 0) return bad_request(fmt::format("{} has no tokens", file.path()));
  SLUICE_ASSIGN(
      const auto sink,
      make_token_sink(request.format, request.output, vocabulary,
                      {.mask = file.has_mask(), .sequence = file.packed_sequence(), .tokenizer = maker.hash}));
  const Result<TokenSurvey> copied = copy_tokens(file, *sink, watch_tokens(line, file, "copying tokens"));
  line.finish();
  if (!copied.ok()) return copied.error();
  if (copied->tokens > 0 && static_cast<std::uint64_t>(copied->largest_token) >= maker.tokens)
    return bad_request(fmt::format("--tokenizer {} has {} tokens, and {} has token {}", request.tokenizer, maker.tokens,
                                   file.path(), copied->largest_token));
  SLUICE_TRY(sink->finish());
  const std::string files = printed_files(request.output, request.format);
  if (request.json)
    fmt::print("{}\n", json_text({{"output", request.output},
                                  {"tokens", copied->tokens},
                                  {"documents", copied->documents},
                                  {"vocabulary", vocabulary}}));
  else
    fmt::print("{}: {} tokens in {} documents, vocabulary {}\n", files, copied->tokens, copied->documents, vocabulary);
  return success();
}

}  // namespace

void add_data_convert(Command& data, Outcome& outcome) {
  auto request = std::make_shared<ConvertRequest>();
  Command* command =
      add_command(data, "convert", "token files of Megatron-LM, llm.c, nanoGPT or sluice to another format",
                  "  sluice data convert --input pile_text_document.idx --output pile.tokens\n"
                  "  sluice data convert --input fineweb_train_000001.bin --output fineweb.tokens "
                  "--vocabulary 50257 --tokenizer ./gpt2\n"
                  "  sluice data convert --input c4.tokens --output c4 --format megatron");
  command
      ->add_option("--input", request->input,
                   "token file; Megatron's as NAME.bin, NAME.idx or NAME; a .bin that is no other is nanoGPT's uint16")
      ->required()
      ->type_name("FILE");
  command->add_option("--output", request->output, "token file to write")->required()->type_name("FILE");
  add_format(command, &request->format);
  command
      ->add_option("--vocabulary", request->vocabulary,
                   "of the tokenizer; without it the file's, or one more than its largest token")
      ->check(range(1, 0x7fffffff).unshown())
      ->type_name("N");
  command
      ->add_option(
          "--tokenizer", request->tokenizer,
          "what made the tokens, for a sluice file to say: train and eval refuse a model that has another one; "
          "none: nobody knows (default: what the file says)")
      ->type_name("FILE|DIR|bytes|none");
  command->add_flag("--json", request->json, "print one JSON object");
  command->callback([request, &outcome] { outcome.finish("data convert", run_convert(*request)); });
}

}  // namespace sluice::tools
