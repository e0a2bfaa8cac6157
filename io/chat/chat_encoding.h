// Conversations as an encoding of text: what stands in a line of JSON becomes tokens and their mask.
#pragma once

#include <memory>
#include <string>

#include "io/chat/chat_template.h"
#include "io/tokenize.h"

namespace sluice {

struct ChatOptions {
  std::string field;  ///< of the line, holds the messages; empty: "messages" or "conversations"
  ChatLoss loss = ChatLoss::assistant;
};

/// For TextSource::Options::whole_lines. A conversation of which nothing counts in the loss has no tokens.
TextEncoding chat_encoding(std::shared_ptr<const Tokenizer> tokenizer, ChatRenderer renderer, ChatOptions options);

}  // namespace sluice
