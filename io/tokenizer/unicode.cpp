#include "io/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sluice/status.h"

namespace sluice {
namespace {

/// Length of the valid character at the beginning of `s`, or 0 with the number of bytes to replace in `bad`: Table 3-7
/// of the Unicode standard.
std::size_t character(std::string_view s, std::size_t& bad) {
  const auto at = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const unsigned first = at(0);
  bad = 1;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  unsigned low = 0x80, high = 0xbf;
  if (first == 0xe0) low = 0xa0;
  if (first == 0xed) high = 0x9f;
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xbf) {
    if (at(i) < low || at(i) > high) return 0;
    bad = i + 1;
  }
  return length;
}

bool ascii8(const char* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return (word & 0x8080808080808080u) == 0;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size() && ascii8(text.data() + i)) {
      i += 8;
      continue;
    }
    std::size_t bad = 0;
    const std::size_t length = character(text.substr(i), bad);
    if (length == 0) return i;
    i += length;
  }
  return i;
}

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return text;
  storage.clear();
  while (!text.empty()) {
    storage += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    std::size_t bad = 0;
    character(text, bad);
    storage += replacement_character;
    text.remove_prefix(bad);
    valid = valid_utf8_prefix(text);
  }
  return storage;
}

void append_utf8(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

char32_t utf8_at(std::string_view text, std::size_t at) {
  utf8proc_int32_t c = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                   static_cast<utf8proc_ssize_t>(text.size() - at), &c);
  return static_cast<char32_t>(c);
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

std::string normalized(std::string_view text, NormalForm form) {
  // Nothing below U+0300 changes in NFC, and no ASCII in any form.
  const unsigned char bound = form == NormalForm::nfc ? 0xcc : 0x80;
  if (std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) < bound; }))
    return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(options));
  SLUICE_CHECK(n >= 0, "(%s)", utf8proc_errmsg(n));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(made, std::free);
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(n)};
}

}  // namespace sluice
