#include "io/tokenizer/text_marks.h"

#include <algorithm>

namespace sluice {
namespace {

/// The first mark behind `place`.
TextMarks::iterator behind(TextMarks marks, std::size_t place) {
  return std::upper_bound(marks.begin(), marks.end(), place,
                          [](std::size_t at, const TextMark& mark) { return at < mark.begin; });
}

bool any(TextMarks marks, TextRange r, bool TextMark::*what) {
  if (marks.empty() || r.begin == r.end) return false;
  auto mark = behind(marks, r.begin);
  if (mark != marks.begin() && (*(mark - 1)).*what) return true;
  for (; mark != marks.end() && mark->begin < r.end; ++mark)
    if ((*mark).*what) return true;
  return false;
}

}  // namespace

bool any_content(TextMarks marks, TextRange r) { return any(marks, r, &TextMark::content); }
bool any_wanted(TextMarks marks, TextRange r) { return any(marks, r, &TextMark::wanted); }

void cut_marks(TextMarks marks, TextRange part, std::vector<TextMark>& out) {
  out.clear();
  if (marks.empty()) return;
  auto mark = behind(marks, part.begin);
  out.push_back(mark == marks.begin() ? TextMark() : *(mark - 1));
  out.back().begin = 0;
  for (; mark != marks.end() && mark->begin < part.end; ++mark) {
    out.push_back(*mark);
    out.back().begin -= part.begin;
  }
}

}  // namespace sluice
