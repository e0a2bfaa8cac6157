#include "src/train/data/document_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "io/tokens/best_fit.h"

namespace sluice {
namespace {

constexpr std::size_t open_max = 1024;
constexpr std::uint64_t looked_at_max = 256;

void fill(std::span<std::int32_t> positions) { std::iota(positions.begin(), positions.end(), 0); }

}  // namespace

Result<DocumentRows> DocumentRows::create(const TokenFile& tokens, const DocumentRange& range,
                                          std::uint64_t documents_max) {
  DocumentRows rows;
  rows.tokens_ = &tokens;
  rows.length_ = static_cast<std::uint64_t>(range.longest);
  const auto shortest = static_cast<std::uint64_t>(range.shortest);
  constexpr std::uint64_t countable = std::numeric_limits<std::uint32_t>::max() - 1;
  if (tokens.documents() > countable)
    return bad_request(fmt::format("{}: has {} documents, and whole ones can be taken of {} at most", tokens.path(),
                                   tokens.documents(), countable));
  std::vector<std::uint32_t> found, row_of;  // documents in their order
  std::uint32_t begun = 0;
  struct Row {
    std::optional<std::uint32_t> number = {};
  };
  BestFit<Row> open(rows.length_, open_max);
  const auto close = [](Row&) { return success(); };
  for (std::uint64_t i = 0; i < tokens.documents() && found.size() < documents_max; ++i) {
    SLUICE_ASSIGN(const TokenFile::Document document, tokens.document(i));
    if (document.end > range.end) break;
    if (document.count() < shortest || document.count() > rows.length_) continue;
    found.push_back(static_cast<std::uint32_t>(i));
    rows.in_rows_ += document.count();
    const auto put = [&](Row& row) {
      if (!row.number) row.number = begun++;
      row_of.push_back(*row.number);
    };
    SLUICE_TRY(open.place(document.count(), put, close));
  }
  // Sorted by rows. begins_[row + 1] is where the next document of the row goes, and so at last where the row after it
  // begins.
  rows.begins_.assign(begun + std::size_t{2}, 0);
  for (const std::uint32_t row : row_of) ++rows.begins_[row + std::size_t{2}];
  std::partial_sum(rows.begins_.begin(), rows.begins_.end(), rows.begins_.begin());
  rows.documents_.resize(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) rows.documents_[rows.begins_[row_of[i] + std::size_t{1}]++] = found[i];
  rows.begins_.pop_back();
  return rows;
}

Status DocumentRows::read(std::uint64_t row, const BatchRow& out) const {
  SLUICE_CHECK(row < count() && out.inputs.size() == length_ && out.positions.size() == length_, "row %llu of %llu",
               static_cast<unsigned long long>(row), static_cast<unsigned long long>(count()));
  std::size_t at = 0;
  for (std::uint64_t i = begins_[row]; i < begins_[row + 1]; ++i) {
    SLUICE_ASSIGN(const TokenFile::Document document, tokens_->document(documents_[i]));
    const auto n = static_cast<std::size_t>(document.count());
    const std::span inputs = out.inputs.subspan(at, n), targets = out.targets.subspan(at, n);
    SLUICE_TRY(tokens_->read(document.begin, inputs));
    SLUICE_TRY(read_targets(*tokens_, document.begin + 1, targets.first(n - 1)));
    targets.back() = -1;
    fill(out.positions.subspan(at, n));
    at += n;
  }
  std::ranges::fill(out.inputs.subspan(at), 0);
  std::ranges::fill(out.targets.subspan(at), -1);
  fill(out.positions.subspan(at));
  return success();
}

Result<std::int64_t> DocumentRows::document_length() const {
  const std::uint64_t looked_at = std::min(count(), looked_at_max);
  if (looked_at == 0) return 0;
  double keys = 0;  // that all tokens see
  for (std::uint64_t i = 0; i < looked_at; ++i) {
    const std::uint64_t row = i * count() / looked_at;
    std::uint64_t rest = length_;
    const auto add = [&](std::uint64_t n) { keys += static_cast<double>(n) * (static_cast<double>(n) + 1) / 2; };
    for (std::uint64_t d = begins_[row]; d < begins_[row + 1]; ++d) {
      SLUICE_ASSIGN(const TokenFile::Document document, tokens_->document(documents_[d]));
      add(document.count());
      rest -= document.count();
    }
    add(rest);
  }
  return equal_documents(keys / static_cast<double>(looked_at * length_));
}

std::int64_t equal_documents(double keys) {
  // In documents of n tokens the mean token sees (n + 1) / 2.
  const double length = std::max(1.0, 2 * keys - 1);
  const double grain = std::exp2(std::max(0.0, std::floor(std::log2(length)) - 4));
  return static_cast<std::int64_t>(std::round(length / grain) * grain);
}

}  // namespace sluice
