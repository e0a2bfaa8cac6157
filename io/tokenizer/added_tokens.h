// Tokens that are found in the text before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/text_marks.h"

namespace sluice {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;             ///< not where a word's character stands beside it
  bool lstrip = false, rstrip = false;  ///< takes the white space beside it along
  bool normalized = false;              ///< is looked for after the normalizer, in its normal form
};

/// Finds the leftmost, and of those the longest, of a set of strings.
class AddedTokenFinder {
 public:
  void add(const AddedToken* token, std::string_view as);
  bool empty() const { return children_.empty(); }

  struct Found {
    TextRange range;     ///< with the white space that goes along
    std::size_t at = 0;  ///< where the token itself begins
    const AddedToken* token = nullptr;
  };
  /// All tokens in the text, in order, but special ones that touch content; `found` is emptied first.
  void find_all(std::string_view text, TextMarks marks, std::vector<Found>& found) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at, TextMarks marks, std::size_t& length) const;
  std::array<bool, 256> first_{};                              ///< bytes that tokens begin with
  std::unordered_map<std::uint64_t, std::uint32_t> children_;  ///< node << 8 | byte -> node; 0 is the root
  std::vector<const AddedToken*> ends_{nullptr};               ///< [node]
};

}  // namespace sluice
