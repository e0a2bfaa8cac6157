#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

namespace sluice {
namespace {

/// Unicode's White_Space, which is what \s means to Oniguruma; PCRE2's has U+180E too.
constexpr std::string_view white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Characters that Unicode 15 and 16 have added to a category. The ids of the reference are those of Unicode 16, and
/// PCRE2's tables end with 14; where they are newer nothing changes.
struct Addition {
  std::string_view category, ranges;
};
constexpr Addition additions[] = {
    {"L",
     "1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 1123F-11240 11380-11389 1138B "
     "1138E 11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA "
     "16100-1611D 16D40-16D6C 18CFF 1B132 1B155 1DF25-1DF2A 1E030-1E06D 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 2B739 "
     "2EBF0-2EE5D 31350-323AF"},
    {"Lu", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65"},
    {"Ll", "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A"},
    {"Lt", ""},
    {"Lm", "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB"},
    {"Lo",
     "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 "
     "11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D 16D43-16D6A 18CFF 1B132 "
     "1B155 1E4D0-1E4EA 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF"},
    {"M",
     "897 CF3 ECE 10D69-10D6D 10EFC-10EFF 11241 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2 "
     "11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F5A 13440 13447-13455 1611E-1612F 1E08F 1E4EC-1E4EF 1E5EE-1E5EF"},
    {"N",
     "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 1D2C0-1D2D3 1E4F0-1E4F9 "
     "1E5F1-1E5FA"},
    {"Nd",
     "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 1E4F0-1E4F9 1E5F1-1E5FA"},
    {"P", "1B4E-1B4F 1B7F 10D6E 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F 16D6D-16D6F 1E5FF"},
    {"S",
     "2427-2429 2FFC-2FFF 31E4-31E5 31EF 10D8E-10D8F 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 1F77B-1F77F 1F7D9 "
     "1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC "
     "1FADF 1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF"},
};

/// The category as the inside of a class: \p{N} and what was added to it.
std::string with_additions(const std::string& category) {
  std::string out = "\\p{" + category + "}";
  for (const Addition& a : additions) {
    if (a.category != category) continue;
    std::string_view rest = a.ranges;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string_view range = rest.substr(0, end);
      const std::size_t dash = range.find('-');
      out.append("\\x{").append(range.substr(0, dash)).append("}");
      if (dash != std::string_view::npos) out.append("-\\x{").append(range.substr(dash + 1)).append("}");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return out;
}

/// Escapes that both write alike and mean otherwise, or that only one has.
constexpr std::string_view refused_escapes = "hHRXKZwWbB";

/// So many steps of the interpreter, where the compiled code has no room.
constexpr std::uint32_t steps_max = 10'000'000;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Result<std::string> to_pcre2(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (c == '\\' && (next == 's' || next == 'S')) {
      if (next == 'S' && in_class) return bad_request("\\S within brackets is not supported");
      if (in_class)
        out += white_space;
      else
        out.append(next == 's' ? "[" : "[^").append(white_space).append("]");
      ++i;
      continue;
    }
    if (c == '\\' && refused_escapes.find(next) != std::string_view::npos)
      return bad_request(std::string("\\") + next + " is not supported");
    const bool property = c == '\\' && (next == 'p' || next == 'P');
    if (property || (c == '\\' && (next == 'd' || next == 'D'))) {
      std::string category = "Nd";
      std::size_t end = i + 1;
      if (property) {
        end = expression.find('}', i);
        if (i + 2 >= expression.size() || expression[i + 2] != '{' || end == std::string_view::npos)
          return bad_request("a property without its name");
        category = expression.substr(i + 3, end - i - 3);
      }
      const bool negated = next == 'P' || next == 'D' || category.starts_with('^');
      if (category.starts_with('^')) category.erase(0, 1);
      if (negated && in_class) return bad_request("a negated property within brackets is not supported");
      if (in_class)
        out += with_additions(category);
      else
        out.append(negated ? "[^" : "[").append(with_additions(category)).append("]");
      i = end;
      continue;
    }
    if (c == '\\') {
      out.append(expression.substr(i, 2));
      ++i;
      continue;
    }
    if (in_class && c == '&' && next == '&') return bad_request("intersections of classes are not supported");
    if (in_class && c == '[') {
      const std::size_t end = next == ':' ? expression.find(":]", i + 2) : std::string_view::npos;
      if (end == std::string_view::npos) return bad_request("classes within classes are not supported");
      out.append(expression.substr(i, end + 2 - i));
      i = end + 1;
      continue;
    }
    if (!in_class && c == '(' && next == '?') {
      const std::size_t end = expression.find_first_of(":)<=!>", i + 2);
      const std::string_view flags = expression.substr(i + 2, end == std::string_view::npos ? 0 : end - i - 2);
      if (flags.find_first_of("mx") != std::string_view::npos)
        return bad_request("(?" + std::string(flags) + " is not supported");
    }
    if (c == '[') {
      in_class = true;
      out += c;
      // a bracket that comes first is one of the class
      if (next == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') {
        out += "\\]";
        ++i;
      }
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct Pattern::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view expression) {
  const auto refuse = [&](const std::string& why) {
    std::string shown(expression.substr(0, 80));
    if (shown.size() < expression.size()) shown += "...";
    return bad_request("pattern '" + shown + "': " + why);
  };
  if (expression.size() > (1u << 16)) return refuse("is longer than 64 KiB");
  const Result<std::string> translated = to_pcre2(expression);
  if (!translated.ok()) return refuse(translated.error().message);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_unique<Code>();
  // Oniguruma's ^ and $ stand for the ends of lines.
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code->code == nullptr) return refuse(message_of(error));
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // where it can not, the interpreter matches
  return Pattern(std::move(code));
}

struct Pattern::Matcher::State {
  const pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

Pattern::Matcher::Matcher(const Pattern& pattern) : state_(std::make_unique<State>()) {
  state_->code = pattern.code_->code;
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  SLUICE_CHECK(state_->data != nullptr && state_->context != nullptr, "out of memory");
  pcre2_set_match_limit(state_->context, steps_max);
}
Pattern::Matcher::Matcher(Matcher&&) noexcept = default;
Pattern::Matcher::~Matcher() = default;

Result<std::optional<TextRange>> Pattern::Matcher::find(std::string_view text, std::size_t from) {
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, state_->data, state_->context);
  };
  int found = match(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<TextRange>();
  if (found < 0) return fault("a pattern can not be matched: " + message_of(found));
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(state_->data);
  return std::optional(TextRange{ends[0], ends[1]});
}

}  // namespace sluice
