#include "io/tokens/token_survey.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
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
    end(document);
    if (watch && (document.end - told >= chunk_tokens || d + 1 == file.documents()))
      SLUICE_TRY(watch(told = document.end));
  }
  return success();
}

/// Counts what walk() shows it.
class Surveyor {
 public:
  explicit Surveyor(const TokenFile& file) : file_(file) {}

  void see(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
    const auto counted = mask.empty() ? tokens.size() : static_cast<std::uint64_t>(std::ranges::count(mask, 1));
    survey_.loss_tokens += counted;
    blank_ = blank_ && counted == 0 && std::ranges::all_of(tokens, [](std::int32_t t) { return t == 0; });
    for (const std::int32_t token : tokens) survey_.largest_token = std::max(survey_.largest_token, token);
  }

  void end(const TokenFile::Document& document) {
    const std::uint64_t sequence = file_.packed_sequence();
    const bool fills = sequence > 0 && document.begin % sequence != 0 && document.end % sequence == 0;
    const bool padding = std::exchange(blank_, true) && fills && document.count() > 0;
    if (padding) {
      survey_.padding_tokens += document.count();
      return;
    }
    survey_.tokens += document.count();
    survey_.empty_documents += document.count() == 0 ? 1 : 0;
    const std::uint64_t number = survey_.documents++;
    if (document.count() > 0) {
      TokenSurvey::Lengths& alike = survey_.by_length[static_cast<std::size_t>(std::bit_width(document.count() - 1))];
      ++alike.documents;
      alike.tokens += document.count();
    }
    if (document.count() <= survey_.longest_tokens) return;
    survey_.longest_document = number;
    survey_.longest_tokens = document.count();
  }

  const TokenSurvey& survey() const { return survey_; }

 private:
  const TokenFile& file_;
  TokenSurvey survey_;
  bool blank_ = true;  ///< so far the document has nothing but token 0, and none that counts
};

}  // namespace

Result<TokenSurvey> survey_tokens(const TokenFile& file, const TokenWatch& watch) {
  Surveyor surveyor(file);
  SLUICE_TRY(walk(
      file, watch,
      [&](const std::vector<std::int32_t>& tokens, const std::vector<std::uint8_t>& mask) {
        surveyor.see(tokens, mask);
        return success();
      },
      [&](const TokenFile::Document& document) { surveyor.end(document); }));
  return surveyor.survey();
}

Result<TokenSurvey> copy_tokens(const TokenFile& file, TokenSink& sink, const TokenWatch& watch) {
  Surveyor surveyor(file);
  SLUICE_TRY(walk(
      file, watch,
      [&](const std::vector<std::int32_t>& tokens, const std::vector<std::uint8_t>& mask) {
        surveyor.see(tokens, mask);
        return sink.append(tokens, mask);
      },
      [&](const TokenFile::Document& document) {
        surveyor.end(document);
        sink.end_document();
      }));
  return surveyor.survey();
}

}  // namespace sluice
