#include "io/tokenizer/added_tokens.h"

#include <algorithm>

#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

std::size_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u);
  return at;
}

bool stands_alone(std::string_view text, TextRange r) {
  const bool joined_before = r.begin > 0 && is_word_character(utf8_at(text, character_before(text, r.begin)));
  const bool joined_after = r.end < text.size() && is_word_character(utf8_at(text, r.end));
  return !joined_before && !joined_after;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken* token, std::string_view as) {
  if (as.empty()) return;
  first_[static_cast<unsigned char>(as[0])] = true;
  std::uint32_t node = 0;
  for (const char c : as) {
    const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [it, is_new] = children_.try_emplace(key, static_cast<std::uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(nullptr);
    node = it->second;
  }
  if (ends_[node] == nullptr) ends_[node] = token;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at, TextMarks marks,
                                               std::size_t& length) const {
  const AddedToken* longest = nullptr;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto it = children_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (it == children_.end()) break;
    node = it->second;
    if (ends_[node] == nullptr) continue;
    if (ends_[node]->special && any_content(marks, {at, i + 1})) continue;
    longest = ends_[node];
    length = i + 1 - at;
  }
  return longest;
}

void AddedTokenFinder::find_all(std::string_view text, TextMarks marks, std::vector<Found>& found) const {
  found.clear();
  if (empty()) return;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::size_t length = 0;
    const AddedToken* const token = longest_at(text, at, marks, length);
    if (token == nullptr) {
      ++at;
      continue;
    }
    TextRange r{at, at + length};
    const std::size_t start = at;
    at = r.end;
    if (token->single_word && !stands_alone(text, r)) continue;
    if (token->lstrip) {
      while (r.begin > 0) {
        const std::size_t before = character_before(text, r.begin);
        if (!is_white_space(utf8_at(text, before))) break;
        r.begin = before;
      }
      r.begin = std::max(r.begin, done);  // what the token before has taken is taken
    }
    while (token->rstrip && r.end < text.size() && is_white_space(utf8_at(text, r.end)))
      r.end += utf8_length(text[r.end]);
    found.push_back({r, start, token});
    done = r.end;
  }
}

}  // namespace sluice
