#include "src/train/data/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "src/train/data/batches.h"

namespace sluice {
namespace {

constexpr std::uint64_t early_versions_part = 20;

/// The border of documents that is nearest to `whole`, which is one of windows; none where none serves.
Result<std::optional<HeldOut>> at_document(const TokenFile& tokens, std::int64_t sequence, const HeldOut& whole) {
  const Windows windows(tokens, sequence, false);
  SLUICE_ASSIGN(const TokenFile::DocumentRange range, tokens.documents_in(whole.begin, 1));
  SLUICE_ASSIGN(const TokenFile::Document document, tokens.document(range.first));
  std::optional<HeldOut> nearest;
  const auto distance = [&](std::uint64_t at) { return at > whole.begin ? at - whole.begin : whole.begin - at; };
  for (const auto& [at, number] : {std::pair(document.begin, range.first), std::pair(document.end, range.first + 1)}) {
    if (at == 0 || at >= tokens.count()) continue;
    // The last of a window's targets is the token behind it.
    const HeldOut candidate{(at - 1) / static_cast<std::uint64_t>(sequence), at, windows.from(at).count(), number};
    const bool serves = candidate.training > 0 && candidate.windows > 0 && candidate.windows <= windows.count() / 2;
    if (serves && (!nearest || distance(at) < distance(nearest->begin))) nearest = candidate;
  }
  return nearest;
}

}  // namespace

Result<HeldOut> hold_out(const TokenFile& tokens, std::int64_t sequence, std::optional<double> share) {
  const Windows windows(tokens, sequence, false);
  const std::uint64_t count = windows.count();
  if (share && *share == 0 && count > 0) return HeldOut{count, tokens.count(), 0, std::nullopt};
  if (count < 2)
    return bad_request(fmt::format(
        "{}: {} tokens are too few for sequences of {}; give at least {} tokens or a smaller --seq, or hold out "
        "nothing (--eval-split 0)",
        tokens.path(), tokens.count(), sequence, 2 * sequence + (tokens.packed_sequence() == 0 ? 1 : 0)));
  const auto wanted =
      share ? static_cast<std::uint64_t>(std::floor(*share * static_cast<double>(count))) : count / early_versions_part;
  HeldOut whole;
  whole.windows = std::clamp<std::uint64_t>(wanted, 1, count - 1);
  whole.training = count - whole.windows;
  whole.begin = whole.training * static_cast<std::uint64_t>(sequence);
  if (!share || !tokens.documents_known() || tokens.documents() < 2) return whole;
  if (tokens.packed_sequence() != 0) {  // documents begin with windows
    SLUICE_ASSIGN(const TokenFile::DocumentRange range, tokens.documents_in(whole.begin, 1));
    whole.document = range.first;
    return whole;
  }
  SLUICE_ASSIGN(const std::optional<HeldOut> border, at_document(tokens, sequence, whole));
  return border.value_or(whole);
}

Result<HeldOut> held_out_at(const HeldOut& held_out, const TokenFile& tokens, std::int64_t sequence) {
  HeldOut other = held_out;
  const Windows windows(tokens, sequence, false);
  if (held_out.windows == 0) {
    other.training = windows.count();
  } else {
    // The last of a window's targets is the token behind it.
    other.training = held_out.begin == 0 ? 0 : (held_out.begin - 1) / static_cast<std::uint64_t>(sequence);
    other.windows = windows.from(held_out.begin).count();
  }
  if (other.training > 0 && (held_out.windows == 0 || other.windows > 0)) return other;
  return bad_request(
      fmt::format("{}: {} tokens, of which {} are held out, are too few for sequences of {}; give more, "
                  "shorter ones, or another --eval-split",
                  tokens.path(), tokens.count(), tokens.count() - held_out.begin, sequence));
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string shown(const HeldOut& held_out, const TokenFile& tokens, const std::string& path) {
  const std::uint64_t all = held_out.training + held_out.windows;
  const double percent = 100.0 * static_cast<double>(held_out.windows) / static_cast<double>(all);
  std::string text = fmt::format("the last {} of {} windows of {} ({:.3g}%", grouped(held_out.windows), grouped(all),
                                 std::filesystem::path(path).filename().string(), percent);
  if (held_out.document)
    text += fmt::format(", from document {} of {} on", grouped(*held_out.document + 1), grouped(tokens.documents()));
  else if (tokens.documents_known() && tokens.documents() > 1)
    text += ", from the middle of a document on";
  return text + ")";
}

}  // namespace sluice
