// How models were taught to read a conversation: the templates that they were published with, written in C++.
//
// A template makes one text of the messages, in which its own special tokens stand as text. What they are spelt like
// may stand in a message too: marks say which part of the text is content, where no special token is found, and which
// part the model is to learn. Then the whole text is encoded at once, so that words that go over the border of a
// message become the tokens that they become for everybody.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/conversation.h"
#include "io/tokenizer/tokenizer.h"
#include "sluice/status.h"

namespace sluice {

enum class ChatTemplate : std::uint8_t {
  chatml,      ///< <|im_start|>role ... <|im_end|>, with nothing of its own
  qwen2,       ///< chatml that begins with a system prompt, Qwen2's where there is none
  qwen2_5,     ///< the same of Qwen2.5
  smollm,      ///< the same of SmolLM2
  llama2,      ///< [INST] <<SYS>>
  llama3,      ///< <|start_header_id|>role<|end_header_id|>
  llama3_1,    ///< the same with a system prompt that has dates, always those of the template's default
  mistral,     ///< [INST] as text: Mistral 7B v0.1 and v0.2, Mixtral 8x7B
  mistral_v3,  ///< [INST] as a token: Mistral 7B v0.3
  phi3,        ///< <|user|> ... <|end|>
  zephyr,      ///< <|user|> as text, and the end of sequence
};
const char* template_name(ChatTemplate t);
std::optional<ChatTemplate> template_named(std::string_view name);
/// All of them, for messages: "chatml, qwen2, ...".
std::string template_names();

/// What counts in the loss. Of an assistant: what it said and the token that ends its turn.
enum class ChatLoss : std::uint8_t { assistant, all, last };

struct RenderedChat {
  std::string text;
  std::vector<TextMark> marks;
};

/// A template with the tokens of a tokenizer. May be used from several threads.
class ChatRenderer {
 public:
  /// Names of tokens as tokenizer_config.json has them; empty: those of the models that the template is of.
  struct Tokens {
    std::string bos, eos;
  };
  /// bad_request when the tokenizer lacks a special token of the template.
  static Result<ChatRenderer> create(ChatTemplate t, const Tokenizer& tokenizer, const Tokens& tokens);

  /// With `prompt`, what an assistant's next turn begins with stands behind the messages. bad_request, naming the
  /// message, for an order or a role that the template does not know.
  Status render(const Conversation& conversation, ChatLoss loss, bool prompt, RenderedChat& out) const;
  ChatTemplate of() const { return template_; }
  std::int32_t end_of_turn() const { return end_of_turn_; }

 private:
  ChatTemplate template_ = ChatTemplate::chatml;
  Tokens tokens_;
  std::int32_t end_of_turn_ = 0;
};

struct ChosenTemplate {
  ChatTemplate name = ChatTemplate::chatml;
  ChatRenderer::Tokens tokens;
  std::string why;  ///< how it was found, for people; empty where it was named
};
/// The template `name`, or for "auto" the one of the model: by the expressions of its chat_template
/// (chat_template.jinja or tokenizer_config.json beside the tokenizer), or where it has none by the special tokens of
/// its vocabulary. bad_request, with the names, for one that is not known, and where it is not clear which it is.
Result<ChosenTemplate> choose_template(const std::string& name, const Tokenizer& tokenizer,
                                       const std::string& tokenizer_path);
/// Which published template the Jinja text is; none where it does something that none of them does.
std::optional<ChatTemplate> recognize_template(std::string_view jinja);

}  // namespace sluice
