#include "io/token_survey.h"

#include <algorithm>
#include <vector>

namespace sluice {
namespace {

constexpr std::uint64_t chunk_tokens = 1u << 20;

/// Calls `each` with the tokens of the documents in order, at most chunk_tokens at a time, and their mask (empty where
/// the file has none), and `end` behind each document.
template <class Each, class End>
Status walk(const TokenFile& file, const TokenWatch& watch, const Each& each, const End& end) {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;
  std::uint64_t told = 0;
  for (std::uint64_t d = 0; d < file.documents(); ++d) {
    SLUICE_ASSIGN(const TokenFile::Document document, file.document(d));
    for (std::uint64_t at = document.begin; at < document.end; at += tokens.size()) {
      tokens.resize(std::min(chunk_tokens, document.end - at));
      SLUICE_TRY(file.read(at, tokens));
      mask.resize(file.has_mask() ? tokens.size() : 0);
      if (file.has_mask()) SLUICE_TRY(file.read_mask(at, mask));
      SLUICE_TRY(each(tokens, mask));
    }
    end(d, document);
    if (watch && (document.end - told >= chunk_tokens || d + 1 == file.documents()))
      SLUICE_TRY(watch(told = document.end));
  }
  return success();
}

}  // namespace

Result<TokenSurvey> survey_tokens(const TokenFile& file, const TokenWatch& watch) {
  TokenSurvey survey;
  const auto each = [&](const std::vector<std::int32_t>& tokens, const std::vector<std::uint8_t>& mask) {
    survey.loss_tokens +=
        mask.empty() ? tokens.size() : static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1));
    for (const std::int32_t token : tokens) survey.largest_token = std::max(survey.largest_token, token);
    return success();
  };
  const auto end = [&](std::uint64_t d, const TokenFile::Document& document) {
    survey.empty_documents += document.count() == 0 ? 1 : 0;
    if (document.count() <= survey.longest_tokens) return;
    survey.longest_document = d;
    survey.longest_tokens = document.count();
  };
  SLUICE_TRY(walk(file, watch, each, end));
  return survey;
}

Status copy_tokens(const TokenFile& file, TokenSink& sink, const TokenWatch& watch) {
  return walk(
      file, watch,
      [&](const std::vector<std::int32_t>& tokens, const std::vector<std::uint8_t>& mask) {
        return sink.append(tokens, mask);
      },
      [&](std::uint64_t, const TokenFile::Document&) { sink.end_document(); });
}

}  // namespace sluice
