#include "io/tokens/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::size_t open_bytes = std::size_t{64} << 20, open_least = 8;
constexpr std::size_t place_bytes = sizeof(std::int32_t) + sizeof(std::uint8_t);

}  // namespace

SequencePacker::SequencePacker(TokenSink& sink, const PackOptions& options)
    : sink_(sink),
      options_(options),
      open_(options.sequence, std::max<std::size_t>(open_least, open_bytes / (place_bytes * options.sequence))) {
  SLUICE_CHECK(options.sequence >= 2, "sequences of %llu tokens", static_cast<unsigned long long>(options.sequence));
}

Status SequencePacker::add(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
  while (!tokens.empty()) {
    const std::size_t room = options_.sequence - tokens_.size();
    if (room == 0) {
      if (options_.too_long == TooLong::refuse)
        return bad_request(
            fmt::format("the document has more than {} tokens; --too-long cut or drop goes on with it, and so do "
                        "longer sequences",
                        options_.sequence));
      report_.too_long += std::exchange(over_, true) ? 0 : 1;
      if (options_.too_long == TooLong::cut && options_.keep_rest) {
        SLUICE_TRY(place());
        continue;
      }
      report_.lost_tokens += tokens.size();
      return success();
    }
    const std::size_t n = std::min(room, tokens.size());
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
    if (mask.empty())
      mask_.insert(mask_.end(), n, 1);
    else
      mask_.insert(mask_.end(), mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(n));
    tokens = tokens.subspan(n);
    mask = mask.empty() ? mask : mask.subspan(n);
  }
  return success();
}

Status SequencePacker::end_document() {
  const bool over = std::exchange(over_, false);
  if (over && options_.too_long == TooLong::drop) {
    report_.lost_tokens += tokens_.size();
    tokens_.clear();
    mask_.clear();
  }
  return tokens_.empty() ? success() : place();
}

/// The document, or a piece of one, into a sequence.
Status SequencePacker::place() {
  const std::size_t length = tokens_.size();
  mask_[0] = 0;
  const auto learned = static_cast<std::uint64_t>(std::count(mask_.begin(), mask_.end(), 1));
  // A text of one token teaches nothing and is text all the same; a conversation that lost its answers is not.
  if (learned == 0 && !options_.keep_rest) {
    ++report_.unlearned;
    tokens_.clear();
    mask_.clear();
    return success();
  }
  ++report_.documents;
  report_.tokens += length;
  report_.loss_tokens += learned;
  const auto put = [&](Sequence& sequence) {
    sequence.tokens.insert(sequence.tokens.end(), tokens_.begin(), tokens_.end());
    sequence.mask.insert(sequence.mask.end(), mask_.begin(), mask_.end());
    sequence.ends.push_back(sequence.tokens.size());
  };
  SLUICE_TRY(open_.place(length, put, [&](Sequence& sequence) { return write(sequence); }));
  tokens_.clear();
  mask_.clear();
  return success();
}

Status SequencePacker::write(Sequence& sequence) {
  const std::size_t padding = options_.sequence - sequence.tokens.size();
  if (padding > 0) {
    sequence.tokens.resize(options_.sequence, 0);
    sequence.mask.resize(options_.sequence, 0);
    sequence.ends.push_back(options_.sequence);
  }
  std::size_t begin = 0;
  for (const std::size_t end : sequence.ends) {
    SLUICE_TRY(sink_.append(std::span(sequence.tokens).subspan(begin, end - begin),
                            std::span(sequence.mask).subspan(begin, end - begin)));
    sink_.end_document();
    begin = end;
  }
  ++report_.sequences;
  report_.padding_tokens += padding;
  return success();
}

Status SequencePacker::finish() {
  return open_.finish([&](Sequence& sequence) { return write(sequence); });
}

}  // namespace sluice
