// Cuts a text into the words that BPE works on, one after the other.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pattern.h"

namespace sluice {

class PreTokenizer {
 public:
  /// `json`: the file's "pre_tokenizer", null included.
  static Result<PreTokenizer> from(const nlohmann::json& json);
  /// Whether words are bytes: the vocabulary then writes each byte as a character.
  bool byte_level() const { return byte_level_; }

  /// `marks`: of the word, by places in it.
  using Sink = std::function<Status(std::string_view word, TextMarks marks)>;
  /// Of one thread; the pre-tokenizer outlives it.
  class Runner {
   public:
    explicit Runner(const PreTokenizer& pre_tokenizer);
    /// Words of a piece of text in order; none is empty. `at_start`: it is where the whole text begins.
    Status run(std::string_view text, bool at_start, TextMarks marks, const Sink& sink);

   private:
    struct Scratch {
      std::optional<Pattern::Matcher> matcher;
      std::string text;
      std::vector<TextRange> ranges;
      std::vector<TextMark> marks;
    };
    Status run_stage(std::size_t stage, std::string_view text, bool at_start, TextMarks marks, const Sink& sink);
    Status split(std::size_t stage, std::string_view text, bool at_start, TextMarks marks, const Sink& sink);
    const PreTokenizer& pre_tokenizer_;
    std::vector<Scratch> scratch_;
  };

 private:
  enum class Behavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    Wanted wanted;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
  };
  struct Prefix {
    std::string text;  ///< put in front of what does not begin with it
    bool only_at_start = false;
  };
  struct Swap {
    std::string from, to;
  };
  using Stage = std::variant<Split, Prefix, Swap>;
  Status add(const nlohmann::json& json);
  Status add_byte_level(const nlohmann::json& json);
  Status add_metaspace(const nlohmann::json& json);
  Status add_split(const nlohmann::json& json);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace sluice
