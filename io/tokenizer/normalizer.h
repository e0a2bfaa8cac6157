// What happens to a text before it is cut into words.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/tokenizer/text_marks.h"
#include "io/tokenizer/unicode.h"

namespace sluice {

/// What a Replace looks for: a pattern, or a string as it stands.
struct Wanted {
  std::string text;
  std::optional<Pattern> pattern;
  static Result<Wanted> from(const nlohmann::json& json);
};
/// `text` with all of it replaced.
Result<std::string> replaced(std::string_view text, const Wanted& wanted, std::string_view by);

class Normalizer {
 public:
  /// `json`: the file's "normalizer", null included.
  static Result<Normalizer> from(const nlohmann::json& json);
  bool empty() const { return steps_.empty(); }
  Status apply(std::string& text) const;
  /// The places that `marks` of `text`, whose normal form has `normal_bytes`, have in it.
  Status move_marks(std::string_view text, std::size_t normal_bytes, std::vector<TextMark>& marks) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Wanted wanted;
    std::string by;
  };
  struct Strip {
    bool left = false, right = false;
  };
  using Step = std::variant<NormalForm, Prepend, Replace, Strip>;
  Status add(const nlohmann::json& json);
  std::vector<Step> steps_;
};

}  // namespace sluice
