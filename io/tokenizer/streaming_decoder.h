// Text as its tokens come, one by one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace sluice {

/// Decodes tokens of one text and hands out what can no longer change: whole characters, with the spaces between tokens
/// that the decoder gives them in their place.
class StreamingDecoder {
 public:
  /// `before`: tokens that the text goes on from; they are not handed out. The tokenizer outlives the stream.
  StreamingDecoder(const Tokenizer& tokenizer, std::span<const std::int32_t> before);
  std::string push(std::int32_t token);
  std::string finish();  ///< what is left: of a character that was not completed a U+FFFD

 private:
  std::string rest(bool last);
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> tokens_;  ///< the last ones that were handed out, and those that were not
  std::size_t handed_out_ = 0;        ///< of these
};

/// Ends a text before the first of some strings, and holds back what may yet become one.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}
  /// What may be shown of all that came so far.
  std::string push(const std::string& text);
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace sluice
