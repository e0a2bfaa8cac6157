#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

namespace sluice {
namespace {

/// Unicode's White_Space, which is what \s means to Oniguruma; PCRE2's has U+180E too.
constexpr std::string_view white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// So many steps of the interpreter, where the compiled code has no room.
constexpr std::uint32_t steps_max = 100'000'000;

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
    if (c == '\\' && (next == 'h' || next == 'H' || next == 'R' || next == 'X' || next == 'K' || next == 'Z'))
      return bad_request(std::string("\\") + next + " is not supported");
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
