// From tokens back to text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/tokenizer/normalizer.h"

namespace sluice {

class Decoder {
 public:
  /// `json`: the file's "decoder", null included: then tokens are joined with spaces.
  static Result<Decoder> from(const nlohmann::json& json);
  /// Tokens as the file writes them; valid UTF-8 comes out.
  std::string decode(std::vector<std::string> tokens) const;
  /// Whether the token is a byte that is joined with those beside it.
  bool joins(std::string_view token) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    Wanted wanted;
    std::string by;
  };
  struct Strip {
    std::string content;
    std::size_t start = 0, stop = 0;  ///< characters at most
  };
  struct Metaspace {
    std::string mark;
    bool prefixed = false;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace>;
  Status add(const nlohmann::json& json);
  std::vector<Step> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace sluice
