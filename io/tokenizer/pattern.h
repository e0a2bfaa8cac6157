// Regular expressions of tokenizer files: written for Oniguruma, matched by PCRE2 with its compiler.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.h"

namespace sluice {

/// A range of a text in bytes.
struct TextRange {
  std::size_t begin = 0, end = 0;
};

/// Compiled once; several threads may match, each with a Matcher of its own.
class Pattern {
 public:
  /// bad_request for what PCRE2 does not take, or would take otherwise than Oniguruma does.
  static Result<Pattern> compile(std::string_view expression);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    Matcher(Matcher&&) noexcept;
    ~Matcher();
    /// The first match in `text`, valid UTF-8, from byte `from` on. fault when it takes too many steps.
    Result<std::optional<TextRange>> find(std::string_view text, std::size_t from);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  std::unique_ptr<const Code> code_;
};

/// The expression in PCRE2's dialect.
Result<std::string> to_pcre2(std::string_view expression);

}  // namespace sluice
