#include "src/train/request/check_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/tokens/text_source.h"
#include "io/tokens/token_file.h"
#include "io/tokens/tokenize.h"
#include "src/train/data/batches.h"
#include "src/train/data/data_tokenizer.h"

namespace sluice {
namespace {

constexpr std::uint64_t looked_at_bytes = 1u << 20;
constexpr std::size_t part_bytes = 1u << 16;

Error too_few(const RunConfig& config, std::uint64_t tokens, std::uint64_t needed) {
  return bad_request(fmt::format(
      "{}: {} tokens are too few for sequences of {}; give at least {} tokens or {}{}", config.data, tokens,
      config.sequence, needed, config.seq_schedule.empty() ? "a smaller --seq" : "shorter ones in --seq-schedule",
      needed > static_cast<std::uint64_t>(config.sequence) + 1 ? ", or hold out nothing (--eval-split 0)" : ""));
}

/// Parts of a text that are encoded apart may have fewer tokens than they have together.
constexpr std::uint64_t tokens_lost_by_a_cut = 8;

/// Its first documents can be read, and where they are all of it there are enough tokens.
Status check_text(const RunConfig& config, const ModelConfig& model, std::uint64_t needed) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(config.data, ignored))
    return bad_request(config.data + " is not a regular file");
  SLUICE_ASSIGN(const auto tokenizer, text_tokenizer(config.data, config, model));
  const auto encoder = (tokenizer ? tokenizer_encoding(tokenizer, true) : byte_encoding()).make_encoder();
  TextSource::Options options;
  options.paths = {config.data};
  options.part_bytes = part_bytes;
  SLUICE_ASSIGN(TextSource source, TextSource::open(options));
  TextPiece piece;
  std::string storage;
  std::vector<std::int32_t> encoded;
  std::uint64_t tokens = 0, cuts = 0;
  for (std::uint64_t bytes = 0; bytes < looked_at_bytes || tokens < needed;) {
    SLUICE_ASSIGN(const bool is_piece, source.next(piece));
    const std::uint64_t lost = tokenizer ? cuts * tokens_lost_by_a_cut : 0;
    if (!is_piece) return tokens + lost < needed ? Status(too_few(config, tokens, needed)) : success();
    std::string_view text;
    SLUICE_TRY(source.text_of(piece, storage, text));
    encoded.clear();
    SLUICE_TRY(encoder->encode(text, encoded));
    bytes += text.size();
    tokens += encoded.size();
    cuts += piece.last ? 0 : 1;
  }
  return success();
}

}  // namespace

Status check_data_begins(const RunConfig& config, const ModelConfig& model, std::uint64_t windows_min) {
  const std::uint64_t needed = windows_min * static_cast<std::uint64_t>(config.sequence) + 1;
  SLUICE_ASSIGN(const std::optional<TokenFormat> format, recognize_tokens(config.data));
  if (format) {
    SLUICE_ASSIGN(const TokenFile tokens, open_data(config, model));
    const std::uint64_t windows = Windows(tokens, config.sequence, false).count();
    return windows < windows_min ? Status(too_few(config, tokens.count(), needed)) : success();
  }
  return check_text(config, model, needed);
}

Status check_documents(const RunConfig& config, const ModelConfig& model) {
  SLUICE_ASSIGN(const std::optional<TokenFormat> format, recognize_tokens(config.data));
  if (!format) return success();
  SLUICE_ASSIGN(const TokenFile tokens, open_data(config, model));
  const auto batches = Batches::for_training(tokens, config, true, 1);
  return batches.ok() ? success() : Status(batches.error());
}

Status check_tokens(const RunConfig& config, const ModelConfig& model, const std::function<void(double)>& watch) {
  SLUICE_ASSIGN(const std::optional<TokenFormat> format, recognize_tokens(config.data));
  if (!format) return success();
  SLUICE_ASSIGN(const TokenFile tokens, open_data(config, model));
  return tokens.check_tokens(watch);
}

}  // namespace sluice
