#include "src/train/data/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "io/tokens/text_source.h"
#include "io/tokens/token_cache.h"
#include "sluice/random.h"
#include "src/train/data/data_tokenizer.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {

std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  unsigned half_bits = 1;
  while ((std::uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = index >> half_bits, right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (philox(key, right, round)[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

namespace {

constexpr std::uint64_t looked_at_documents = 1u << 16;

bool has_phases_of_documents(const RunConfig& config) {
  return std::ranges::any_of(phases_of(config), &SequencePhase::of_documents);
}

/// Data with sequences of whole documents says where they end, and has not laid them into sequences itself.
Status check_documents_apart(const RunConfig& config, const TokenFile& tokens) {
  if (tokens.packed_sequence() != 0)
    return bad_request(
        fmt::format("{}: its documents are packed into sequences of {} already, and --seq-schedule {} "
                    "takes them by their lengths; give data that is not packed",
                    tokens.path(), tokens.packed_sequence(), config.seq_schedule));
  if (tokens.documents_known()) return success();
  return bad_request(
      fmt::format("{}: --seq-schedule {} takes whole documents, and a {} file of this kind does not say "
                  "where they end; make one that does of the texts (sluice data tokenize)",
                  tokens.path(), config.seq_schedule, format_name(tokens.format())));
}

Status check_mask_of_phases(const RunConfig& config) {
  if (config.document_mask.value_or(true) || !has_phases_of_documents(config)) return success();
  return bad_request("--seq-schedule " + config.seq_schedule +
                     " has sequences of whole documents, which are kept apart; leave out --document-mask off");
}

Status check_packed(const RunConfig& config, const TokenFile& tokens) {
  const std::uint64_t packed = tokens.packed_sequence();
  if (packed == 0 || packed == static_cast<std::uint64_t>(config.sequence)) return success();
  return bad_request(
      fmt::format("{}: its documents are packed for sequences of {}, and --seq is {}; give --seq {}, "
                  "or pack them anew (sluice data tokenize --pack {})",
                  config.data, packed, config.sequence, packed, config.sequence));
}

}  // namespace

Result<TokenFile> open_data(const RunConfig& config, const ModelConfig& model,
                            const std::function<void(const std::string&)>& note,
                            const std::function<Status(double)>& watch) {
  TokenFile::Requirements requirements;
  requirements.vocabulary_limit = static_cast<std::uint64_t>(model.vocabulary);
  const auto sequence = static_cast<std::uint64_t>(std::max<std::int64_t>(1, config.sequence));
  requirements.tokens_min = sequence;
  SLUICE_ASSIGN(const auto format, recognize_tokens(config.data));
  TextTokens text{.tokenizer = nullptr, .note = note, .watch = watch};
  if (!format) {
    SLUICE_ASSIGN(text.tokenizer, text_tokenizer(config.data, config, model));
    if (const std::string bytes = note_on_bytes(config.data, config); note && !bytes.empty()) note(bytes);
  }
  const std::string cache = config.run.empty() ? "" : config.run + "/tokens";
  SLUICE_ASSIGN(TokenFile tokens, open_or_tokenize(config.data, cache, requirements, text));
  if (format) SLUICE_TRY(check_token_file(config.data, tokens.tokenizer(), config, model));
  SLUICE_TRY(check_packed(config, tokens));
  if (config.document_mask.value_or(false) && !tokens.documents_known())
    return bad_request(config.data + ": --document-mask on needs to know where documents end, and a " +
                       format_name(tokens.format()) + " file of this kind does not say it; leave the option out");
  // Packed sequences end with documents, and so need no token behind them.
  if (tokens.packed_sequence() == 0 && tokens.count() == sequence)
    return bad_request(fmt::format("{} has {} tokens, at least {} are needed", config.data, sequence, sequence + 1));
  return tokens;
}

Result<RunConfig> with_document_mask(const RunConfig& config) {
  RunConfig decided = config;
  SLUICE_TRY(check_mask_of_phases(config));
  if (has_phases_of_documents(config)) decided.document_mask = true;
  if (config.data.empty() || !decided.document_mask.value_or(true)) return decided;
  SLUICE_ASSIGN(const std::optional<TokenFormat> format, recognize_tokens(config.data));
  if (!format && has_phases_of_documents(config) && !is_jsonl_name(config.data))
    return bad_request(
        fmt::format("{}: a text is one document, and --seq-schedule {} has sequences of whole ones; "
                    "give .jsonl, or a token file that says where documents end",
                    config.data, config.seq_schedule));
  if (!format && config.document_mask.value_or(false) && !is_jsonl_name(config.data))
    return bad_request(config.data +
                       ": --document-mask on needs to know where documents end, and a text is one document; give "
                       ".jsonl or a token file that says it, or leave the option out");
  const bool is_open = !decided.document_mask;
  decided.document_mask = decided.document_mask.value_or(false);
  if (!format || (format != TokenFormat::sluice && !has_phases_of_documents(config))) return decided;
  SLUICE_ASSIGN(const TokenFile tokens, TokenFile::open(config.data));
  if (has_phases_of_documents(config)) SLUICE_TRY(check_documents_apart(config, tokens));
  if (format != TokenFormat::sluice) return decided;
  SLUICE_TRY(check_packed(config, tokens));  // before the machine is measured
  if (is_open) decided.document_mask = tokens.packed_sequence() != 0;
  if (!*decided.document_mask || !tokens.documents_known() || config.sequence <= 0) return decided;
  if (const SequencePhase phase = phase_of(config); phase.of_documents()) {
    const DocumentRange range{phase.shortest, phase.sequence, tokens.count()};
    SLUICE_ASSIGN(const DocumentRows rows, DocumentRows::create(tokens, range, looked_at_documents));
    SLUICE_ASSIGN(decided.document_length, rows.document_length());
    return decided;
  }
  SLUICE_ASSIGN(decided.document_length, Windows(tokens, config.sequence, true).document_length());
  return decided;
}

Windows Windows::from(std::uint64_t token) const {
  Windows w = *this;
  w.begin_ = token;
  const std::uint64_t tokens = tokens_->count() - std::min(token, tokens_->count());
  w.count_ = tokens_->packed_sequence() != 0 ? tokens / sequence_ : tokens == 0 ? 0 : (tokens - 1) / sequence_;
  return w;
}

Windows Windows::first(std::uint64_t windows) const {
  SLUICE_CHECK(windows <= count_, "%llu of %llu windows", static_cast<unsigned long long>(windows),
               static_cast<unsigned long long>(count_));
  Windows w = *this;
  w.count_ = windows;
  return w;
}

Status Windows::read(std::uint64_t window, const BatchRow& row) const {
  const std::uint64_t start = begin_ + window * sequence_;
  SLUICE_CHECK(window < count() && row.inputs.size() == sequence_ && row.targets.size() == sequence_,
               "window %llu of %llu", static_cast<unsigned long long>(window),
               static_cast<unsigned long long>(count()));
  SLUICE_TRY(tokens_->read(start, row.inputs));
  const std::uint64_t behind = std::min(sequence_, tokens_->count() - start - 1);
  SLUICE_TRY(read_targets(*tokens_, start + 1, row.targets.first(behind)));
  std::ranges::fill(row.targets.subspan(behind), -1);
  return documents_ ? mark_documents(start, row) : success();
}

Result<std::int64_t> Windows::document_length() const {
  constexpr std::uint64_t looked_at_max = 256;
  const std::uint64_t windows = std::min(count(), looked_at_max);
  if (windows == 0) return 0;
  std::vector<std::int32_t> planes(3 * sequence_);
  const BatchRow row = BatchRow::of(planes, 0, 1, sequence_);
  double keys = 0;  // that all tokens see
  for (std::uint64_t i = 0; i < windows; ++i) {
    SLUICE_TRY(mark_documents(begin_ + i * count() / windows * sequence_, row));
    for (const std::int32_t before : row.positions) keys += before + 1.0;
  }
  return equal_documents(keys / static_cast<double>(windows * sequence_));
}

/// Documents may begin before the window, and go on behind it.
Status Windows::mark_documents(std::uint64_t start, const BatchRow& row) const {
  const std::uint64_t end = start + sequence_;
  SLUICE_ASSIGN(const TokenFile::DocumentRange range, tokens_->documents_in(start, sequence_));
  std::uint64_t at = start;
  for (std::uint64_t d = range.first; d < range.last; ++d) {
    SLUICE_ASSIGN(const TokenFile::Document document, tokens_->document(d));
    if (document.begin > at) break;
    const std::uint64_t first = at, last = std::min(document.end, end);
    for (; at < last; ++at) row.positions[at - start] = static_cast<std::int32_t>(at - first);
    if (last > first && document.end <= end) row.targets[last - 1 - start] = -1;
  }
  if (at == end) return success();
  return bad_request(fmt::format("{}: its table of documents contradicts itself at token {}", tokens_->path(), at));
}

Result<Batches> Batches::create(const TokenFile& tokens, const RunConfig& config, bool documents) {
  return create(tokens, config.sequence, border_sequence(config), config.seed, documents, config.eval_split);
}

Result<Batches> Batches::create(const TokenFile& tokens, std::int64_t sequence, std::int64_t border, std::uint64_t seed,
                                bool documents, std::optional<double> share) {
  Batches b;
  SLUICE_ASSIGN(b.held_out_, hold_out(tokens, border, share));
  if (sequence != border) {
    SLUICE_ASSIGN(b.held_out_, held_out_at(b.held_out_, tokens, sequence));
  }
  const Windows windows(tokens, sequence, documents);
  b.training_ = windows.first(b.held_out_.training);
  b.held_out_windows_ = windows.from(b.held_out_.begin);
  b.seed_ = seed;
  return b;
}

Result<Batches> Batches::for_training(const TokenFile& tokens, const RunConfig& config, bool documents,
                                      std::uint64_t documents_max) {
  SLUICE_ASSIGN(Batches b, create(tokens, config, documents));
  const SequencePhase phase = phase_of(config);
  if (!phase.of_documents()) return b;
  SLUICE_TRY(check_documents_apart(config, tokens));
  const DocumentRange range{phase.shortest, phase.sequence, b.held_out_.begin};
  SLUICE_ASSIGN(DocumentRows rows, DocumentRows::create(tokens, range, documents_max));
  if (rows.count() == 0)
    return bad_request(
        fmt::format("{}: no document that is trained on has {} tokens; give other lengths in "
                    "--seq-schedule (sluice data inspect shows how long those of a token file are)",
                    config.data, phase.lengths()));
  b.rows_ = std::make_shared<const DocumentRows>(std::move(rows));
  return b;
}

Status Batches::read(std::uint64_t sample, const BatchRow& row) const {
  return rows_ ? rows_->read(training_window(sample), row) : training_.read(training_window(sample), row);
}

std::uint64_t Batches::training_window(std::uint64_t sample) const {
  const std::uint64_t windows = rows_ ? rows_->count() : training_.count(), epoch = sample / windows;
  return permuted(sample % windows, windows, seed_ * 0x9E3779B97F4A7C15ull + epoch);
}

namespace {

/// Documents for training, and those of them that no phase takes.
struct LeftOut {
  std::uint64_t of = 0, documents = 0;
};
Result<LeftOut> documents_left_out(const TokenFile& tokens, const std::vector<SequencePhase>& phases,
                                   std::uint64_t end) {
  LeftOut left_out;
  for (std::uint64_t i = 0; i < tokens.documents(); ++i) {
    SLUICE_ASSIGN(const TokenFile::Document document, tokens.document(i));
    if (document.end > end) break;
    const auto length = static_cast<std::int64_t>(document.count());
    ++left_out.of;
    left_out.documents += std::ranges::none_of(
        phases, [&](const SequencePhase& phase) { return phase.shortest <= length && length <= phase.sequence; });
  }
  return left_out;
}

std::uint64_t steps_alike(const RunConfig& config) {
  const SequencePhase now = phase_of(config);
  std::uint64_t steps = 0;
  for (const SequencePhase& phase : phases_of(config))
    if (phase.is_like(now)) steps += static_cast<std::uint64_t>(phase.last - phase.first + 1);
  return steps;
}

}  // namespace

std::string shown_documents(const RunConfig& config, const Batches& batches) {
  const DocumentRows& rows = *batches.rows();
  const std::uint64_t places = rows.count() * static_cast<std::uint64_t>(config.sequence);
  const std::uint64_t steps = steps_alike(config);
  const double times =
      static_cast<double>(steps * static_cast<std::uint64_t>(config.batch)) / static_cast<double>(rows.count());
  return fmt::format(
      "whole documents of {} tokens: {} of them in {} sequences, {:.1f}% of which is padding; {} steps see {}",
      phase_of(config).lengths(), grouped(rows.documents()), grouped(rows.count()),
      100 - 100.0 * static_cast<double>(rows.tokens()) / static_cast<double>(places), grouped(steps),
      times < 1 ? fmt::format("{:.3g}% of them", 100 * times) : fmt::format("each {:.3g} times", times));
}

Result<std::string> shown_left_out(const RunConfig& config, const Batches& batches) {
  std::vector<SequencePhase> kinds;
  const std::vector<SequencePhase> phases = phases_of(config);
  for (const std::size_t i : phases_apart(config)) kinds.push_back(phases[i]);
  if (!std::ranges::all_of(kinds, &SequencePhase::of_documents)) return std::string();
  SLUICE_ASSIGN(const LeftOut left_out, documents_left_out(batches.tokens(), kinds, batches.held_out().begin));
  if (left_out.documents == 0) return std::string();
  return fmt::format(
      "{} of the {} documents for training have lengths that --seq-schedule {} takes nowhere: nothing "
      "is learned from them",
      grouped(left_out.documents), grouped(left_out.of), config.seq_schedule);
}

}  // namespace sluice
