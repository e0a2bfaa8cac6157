// sluice data inspect: what is in a token file.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/data_commands.h"
#include "tools/json_text.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

struct InspectRequest {
  std::string file;
  bool json = false;
};

/// What a vocabulary is where the format has none: said, not invented.
std::string printed_vocabulary(const TokenFile& file) {
  if (file.vocabulary_known()) return fmt::format("{}", file.vocabulary());
  return fmt::format("not in this format; its tokens can be up to {}", file.vocabulary() - 1);
}

/// For people.
std::string printed_tokenizer(const TokenFile& file) {
  if (file.tokenizer() == byte_tokenizer) return "none: bytes are tokens";
  if (file.tokenizer() != 0) return fmt::format("{:016x}", file.tokenizer());
  return file.format() == TokenFormat::sluice ? "not said" : "not said by this format";
}

std::string printed_checksums(const TokenFile& file) {
  if (file.has_checksums()) return "verified";
  if (file.format() != TokenFormat::sluice) return "none in this format";
  return fmt::format("none in version {}; 'sluice data convert' adds them", file.version());
}

/// Of TokenSurvey::by_length.
std::uint64_t longest_of(std::size_t i) { return std::uint64_t{1} << i; }
std::uint64_t shortest_of(std::size_t i) { return i == 0 ? 1 : longest_of(i - 1) + 1; }

/// A row for each power of two, where there is more than one document.
void add_lengths(Table& table, const TokenSurvey& survey) {
  for (std::size_t i = 0; survey.documents > 1 && i < 64; ++i) {
    const TokenSurvey::Lengths& alike = survey.by_length[i];
    if (alike.documents == 0) continue;
    table.add({fmt::format("of {} to {}", shortest_of(i), longest_of(i)),
               fmt::format("{} documents, {:.1f}%; {:.1f}% of the tokens", alike.documents,
                           percent(alike.documents, survey.documents), percent(alike.tokens, survey.tokens))});
  }
}

json lengths_json(const TokenSurvey& survey) {
  json lengths = json::array();
  for (std::size_t i = 0; i < 64; ++i)
    if (const TokenSurvey::Lengths& alike = survey.by_length[i]; alike.documents > 0)
      lengths.push_back(
          {{"from", shortest_of(i)}, {"to", longest_of(i)}, {"documents", alike.documents}, {"tokens", alike.tokens}});
  return lengths;
}

void print_inspection(const TokenFile& file, const TokenSurvey& survey, std::uint64_t hash) {
  Table table({"file", file.path()});
  table.add({"format", format_name(file.format())});
  table.add({"tokens", fmt::format("{} of {}", survey.tokens,
                                   file.token_bytes() == 1 ? "a byte" : fmt::format("{} bytes", file.token_bytes()))});
  table.add({"documents", file.documents_known() ? fmt::format("{}", survey.documents) : "one, or not known"});
  table.add({"vocabulary", printed_vocabulary(file)});
  table.add({"tokenizer", printed_tokenizer(file)});
  if (file.has_mask()) table.add({"in the loss", fmt::format("{} of {} tokens", survey.loss_tokens, survey.tokens)});
  if (file.packed_sequence() > 0) {
    table.add({"packed for", fmt::format("{} sequences of {} tokens", file.count() / file.packed_sequence(),
                                         file.packed_sequence())});
    table.add({"padding", fmt::format("{} tokens, {:.2f}% of the sequences", survey.padding_tokens,
                                      percent(survey.padding_tokens, file.count()))});
  }
  table.add({"largest token", fmt::format("{}", survey.largest_token)});
  table.add(
      {"longest document", fmt::format("number {} with {} tokens", survey.longest_document, survey.longest_tokens)});
  table.add({"empty documents", fmt::format("{}", survey.empty_documents)});
  add_lengths(table, survey);
  table.add({"checksums", printed_checksums(file)});
  table.add({"hash", fmt::format("{:016x}", hash)});
  fmt::print("{}", table.text());
}

Status run_inspect(const InspectRequest& request) {
  SLUICE_ASSIGN(const auto format, recognize_tokens(request.file));
  if (!format)
    return bad_request(fmt::format("{} is not a token file; 'sluice data tokenize' makes one of a text", request.file));
  SLUICE_ASSIGN(const TokenFile file, TokenFile::open(request.file));
  ProgressLine line(plain_seconds, !request.json);
  const auto survey = survey_tokens(file, watch_tokens(line, file, "reading tokens"));
  line.finish();
  if (!survey.ok()) return survey.error();
  SLUICE_TRY(file.verify());
  SLUICE_ASSIGN(const std::uint64_t hash, file.hash());
  if (!request.json) {
    print_inspection(file, *survey, hash);
    return success();
  }
  json out{{"file", file.path()},
           {"format", format_name(file.format())},
           {"tokens", survey->tokens},
           {"token_bytes", file.token_bytes()},
           {"documents", nullptr},
           {"vocabulary", nullptr},
           {"tokenizer", nullptr},
           {"largest_token", survey->largest_token},
           {"longest_document_tokens", survey->longest_tokens},
           {"empty_documents", survey->empty_documents},
           {"lengths", lengths_json(*survey)},
           {"checksums", file.has_checksums() ? "verified" : "none"},
           {"hash", fmt::format("{:016x}", hash)}};
  if (file.documents_known()) out["documents"] = survey->documents;
  if (file.has_mask()) out["loss_tokens"] = survey->loss_tokens;
  if (file.packed_sequence() > 0) {
    out["sequence"] = file.packed_sequence();
    out["sequences"] = file.count() / file.packed_sequence();
    out["padding_tokens"] = survey->padding_tokens;
  }
  if (file.vocabulary_known()) out["vocabulary"] = file.vocabulary();
  if (file.tokenizer() == byte_tokenizer)
    out["tokenizer"] = "bytes";
  else if (file.tokenizer() != 0)
    out["tokenizer"] = fmt::format("{:016x}", file.tokenizer());
  fmt::print("{}\n", json_text(out));
  return success();
}

}  // namespace

void add_data_inspect(Command& data, Outcome& outcome) {
  auto request = std::make_shared<InspectRequest>();
  Command* command =
      add_command(data, "inspect", "what is in a token file; reads all of it and compares it with its checksums",
                  "  sluice data inspect c4.tokens\n"
                  "  sluice data inspect pile_text_document.idx --json");
  command->add_option("file", request->file, "token file, as 'data convert' takes them")->required();
  command->add_flag("--json", request->json, "print one JSON object");
  command->callback([request, &outcome] { outcome.finish("data inspect", run_inspect(*request)); });
}

}  // namespace sluice::tools
