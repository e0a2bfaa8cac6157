// Conversations as an encoding of text: what stands in a line of JSON becomes tokens and their mask.
#pragma once

#include <memory>
#include <string>

#include "io/chat/chat_template.h"
#include "io/tokens/tokenize.h"

namespace sluice {

struct ChatOptions {
  std::string field;  ///< of the line, holds the messages; empty: "messages" or "conversations"
  ChatLoss loss = ChatLoss::assistant;
};

/// For TextSource::Options::whole_lines. A conversation of which nothing counts in the loss has no tokens.
TextEncoding chat_encoding(std::shared_ptr<const Tokenizer> tokenizer, ChatRenderer renderer, ChatOptions options);

/// Lines with a prompt and a completion, one text without a template: what the tokenizer puts before a text, both, and
/// `eos`. The completion and `eos` count in the loss, with ChatLoss::all everything.
TextEncoding completion_encoding(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t eos, ChatLoss loss);

}  // namespace sluice
