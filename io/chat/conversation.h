// Conversations as people write them down: JSON lines of messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/status.h"

namespace sluice {

enum class ChatRole : std::uint8_t { system, user, assistant, tool };
const char* role_name(ChatRole role);

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  bool learned = true;  ///< an assistant's: counts in the loss ("weight" 0 says that it does not)
};
using Conversation = std::vector<ChatMessage>;

/// The messages of a line of untrusted JSON: {"messages": [{"role": ..., "content": ...}, ...]}, or as ShareGPT has it
/// {"conversations": [{"from": ..., "value": ...}, ...]}. `field`: another name for the list; empty: either of these.
/// Messages may be empty. Tools are refused: no template here writes them. bad_request with what is wrong, to follow
/// the place of the line.
Result<Conversation> parse_conversation(std::string_view line, const std::string& field);

/// A text and how it goes on: {"prompt": ..., "completion": ...}.
struct Completion {
  std::string prompt, completion;
};
/// bad_request as above.
Result<Completion> parse_completion(std::string_view line);

}  // namespace sluice
