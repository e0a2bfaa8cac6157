// UTF-8, and normal forms of Unicode (utf8proc's tables).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

constexpr std::string_view replacement_character = "\xef\xbf\xbd";

/// Bytes of `text` from the beginning that are valid UTF-8; all of them where nothing is wrong.
std::size_t valid_utf8_prefix(std::string_view text);
/// `text` with each maximal part of an invalid sequence as U+FFFD (Unicode 15, chapter 3.9, "substitution of maximal
/// subparts"; Python's errors="replace"). `storage` holds what is returned where something had to be replaced.
std::string_view valid_utf8(std::string_view text, std::string& storage);

/// Bytes of the character that begins with this byte of valid UTF-8.
constexpr std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}
void append_utf8(char32_t c, std::string& out);
/// The character at `at` of valid UTF-8.
char32_t utf8_at(std::string_view text, std::size_t at);

/// The White_Space property.
bool is_white_space(char32_t c);
/// Alphabetic, mark, decimal digit or connector: what a regular expression calls a word's character.
bool is_word_character(char32_t c);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
/// `text`, valid UTF-8, in the normal form.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace sluice
