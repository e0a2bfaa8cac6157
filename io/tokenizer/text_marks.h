// What is known of the parts of a text while it becomes tokens.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "io/tokenizer/pattern.h"

namespace sluice {

/// Of a text from byte `begin` on, until the next mark. Before the first mark neither holds.
struct TextMark {
  std::size_t begin = 0;
  bool content = false;  ///< data: a special token that is spelt there is text as any other
  bool wanted = false;   ///< tokens that hold some of it are 1 in the mask

  friend bool operator==(const TextMark&, const TextMark&) = default;
};
/// In the order of their places.
using TextMarks = std::span<const TextMark>;

bool any_content(TextMarks marks, TextRange r);
bool any_wanted(TextMarks marks, TextRange r);
/// The marks of a part of the text, by places in it; none of none.
void cut_marks(TextMarks marks, TextRange part, std::vector<TextMark>& out);

}  // namespace sluice
