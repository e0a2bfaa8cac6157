#include "io/tokenizer/streaming_decoder.h"

#include <algorithm>
#include <utility>

#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

/// Enough for decoders that look at what stands before a token, as for spaces.
constexpr std::size_t context_tokens = 8;

}  // namespace

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, std::span<const std::int32_t> before)
    : tokenizer_(tokenizer) {
  const auto context = before.last(std::min(before.size(), context_tokens));
  tokens_.assign(context.begin(), context.end());
  handed_out_ = tokens_.size();
}

std::string StreamingDecoder::push(std::int32_t token) {
  tokens_.push_back(token);
  return rest(false);
}

std::string StreamingDecoder::finish() { return rest(true); }

std::string StreamingDecoder::rest(bool last) {
  // What a run of bytes stands for is known when it has ended.
  if (!last && !tokens_.empty() && tokenizer_.is_byte(tokens_.back())) return "";
  const std::string known = tokenizer_.decode(std::span(tokens_).first(handed_out_), true);
  std::string all = tokenizer_.decode(tokens_, true);
  // The end of a character that is not complete decodes as U+FFFD; so may what follows complete it.
  if (!last && all.ends_with(replacement_character)) return "";
  if (all.size() < known.size() || all.compare(0, known.size(), known) != 0) return "";
  all.erase(0, known.size());
  if (all.empty() && !last) return "";
  std::size_t gone = tokens_.size() > context_tokens ? tokens_.size() - context_tokens : 0;
  while (gone > 0 && tokenizer_.is_byte(tokens_[gone])) --gone;
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(gone));
  handed_out_ = tokens_.size();
  return all;
}

std::string StopStrings::push(const std::string& text) {
  if (stopped_) return "";
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& s : strings_) first = std::min(first, held_.find(s));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return std::exchange(held_, "");
  }
  // the longest end that one of the strings begins with
  std::size_t keep = 0;
  for (const std::string& s : strings_)
    for (std::size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
      if (held_.ends_with(std::string_view(s).substr(0, n))) keep = n;
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace sluice
