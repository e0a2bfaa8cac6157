#include "io/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

struct Description {
  ChatTemplate id;
  const char* name;
  const char* system;       ///< what it says where the conversation has no system prompt
  const char *bos, *eos;    ///< of the models that it is of; null: the template has none
  const char* end_of_turn;  ///< null: eos
  bool alternates;          ///< user and assistant in turns, behind at most one system prompt
  bool tools;               ///< writes the role's name, whatever it is
  std::vector<const char*> tokens;
};

const std::vector<Description>& descriptions() {
  static const std::vector<const char*> im = {"<|im_start|>", "<|im_end|>"};
  static const std::vector<const char*> headers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  static const char* const llama3_bos = "<|begin_of_text|>";
  static const std::vector<Description> all = {
      {ChatTemplate::chatml, "chatml", nullptr, nullptr, nullptr, im[1], false, true, im},
      {ChatTemplate::qwen2, "qwen2", "You are a helpful assistant.", nullptr, nullptr, im[1], false, false, im},
      {ChatTemplate::qwen2_5, "qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
       nullptr, nullptr, im[1], false, false, im},
      {ChatTemplate::smollm, "smollm", "You are a helpful AI assistant named SmolLM, trained by Hugging Face", nullptr,
       nullptr, im[1], false, false, im},
      {ChatTemplate::llama2, "llama2", nullptr, "<s>", "</s>", nullptr, true, false, {}},
      {ChatTemplate::llama3, "llama3", nullptr, llama3_bos, nullptr, headers[2], false, true, headers},
      {ChatTemplate::llama3_1, "llama3.1", "", llama3_bos, nullptr, headers[2], false, false, headers},
      {ChatTemplate::mistral, "mistral", nullptr, "<s>", "</s>", nullptr, true, false, {}},
      {ChatTemplate::mistral_v3, "mistral-v3", nullptr, "<s>", "</s>", nullptr, true, false, {"[INST]", "[/INST]"}},
      {ChatTemplate::phi3,
       "phi3",
       nullptr,
       nullptr,
       "<|endoftext|>",
       "<|end|>",
       false,
       false,
       {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
      {ChatTemplate::zephyr, "zephyr", nullptr, nullptr, "</s>", nullptr, false, false, {}},
  };
  return all;
}

const Description& description(ChatTemplate t) {
  for (const Description& d : descriptions())
    if (d.id == t) return d;
  return descriptions().front();
}

/// As Python's str.strip() has it: white space, and four separators of ASCII.
bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view trim_end(std::string_view text) {
  while (!text.empty()) {
    std::size_t before = text.size() - 1;
    while ((static_cast<unsigned char>(text[before]) & 0xc0u) == 0x80u) --before;
    if (!is_python_space(utf8_at(text, before))) break;
    text = text.substr(0, before);
  }
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_python_space(utf8_at(text, 0))) text.remove_prefix(utf8_length(text[0]));
  return trim_end(text);
}

class Writer {
 public:
  Writer(const Description& d, const ChatRenderer::Tokens& tokens, const Conversation& messages, ChatLoss loss,
         RenderedChat& out)
      : d_(d), tokens_(tokens), messages_(messages), loss_(loss), out_(out) {
    out.text.clear();
    out.marks.clear();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == ChatRole::assistant) last_assistant_ = i;
      if (messages[i].role == ChatRole::user) last_user_ = i;
    }
  }

  void write(bool prompt) {
    switch (d_.id) {
      case ChatTemplate::chatml:
      case ChatTemplate::qwen2:
      case ChatTemplate::qwen2_5:
      case ChatTemplate::smollm: return chatml(prompt);
      case ChatTemplate::llama2: return llama2();
      case ChatTemplate::llama3:
      case ChatTemplate::llama3_1: return llama3(prompt);
      case ChatTemplate::mistral: return mistral(" [INST] ", " [/INST]");
      case ChatTemplate::mistral_v3: return mistral("[INST] ", "[/INST]");
      case ChatTemplate::phi3: return phi3(prompt);
      case ChatTemplate::zephyr: return zephyr(prompt);
    }
  }

 private:
  void put(std::string_view text, bool content, bool wanted) {
    if (text.empty()) return;
    wanted = wanted || loss_ == ChatLoss::all;
    const TextMark mark{out_.text.size(), content, wanted};
    if (out_.marks.empty() || out_.marks.back().content != content || out_.marks.back().wanted != wanted)
      out_.marks.push_back(mark);
    out_.text += text;
  }
  void own(std::string_view text) { put(text, false, false); }  ///< of the template
  void said(std::string_view text) { put(text, true, false); }  ///< of somebody else than the model
  /// An assistant's turn: what it is told from, what it says and how it ends.
  void turn(std::size_t i, std::string_view before, std::string_view content, std::string_view end) {
    const bool learned = messages_[i].learned && (loss_ != ChatLoss::last || i == last_assistant_);
    put(before, false, learned);
    put(content, true, learned);
    put(end, false, learned);
  }
  bool begins_with_system() const { return !messages_.empty() && messages_[0].role == ChatRole::system; }
  std::size_t behind_system() const { return begins_with_system() ? 1 : 0; }

  void chatml(bool prompt) {
    if (d_.system != nullptr && !begins_with_system())
      own(std::string("<|im_start|>system\n") + d_.system + "<|im_end|>\n");
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      own(std::string("<|im_start|>") + role_name(m.role) + "\n");
      if (m.role == ChatRole::assistant)
        turn(i, "", m.content, "<|im_end|>");
      else
        said(m.content), own("<|im_end|>");
      own("\n");
    }
    if (prompt) own("<|im_start|>assistant\n");
  }

  void llama2() {
    for (std::size_t i = behind_system(); i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      if (m.role == ChatRole::assistant) {
        turn(i, " ", trim(m.content), " " + tokens_.eos);
        continue;
      }
      own(tokens_.bos + "[INST] ");
      if (i == 1 && begins_with_system()) {
        own("<<SYS>>\n");
        said(messages_[0].content);
        // The end is trimmed of system prompt and message as one.
        own(trim_end(m.content).empty() ? "\n<</SYS>>" : "\n<</SYS>>\n\n");
        said(trim_end(m.content));
      } else {
        said(trim(m.content));
      }
      own(" [/INST]");
    }
  }

  void llama3(bool prompt) {
    const auto header = [&](const char* role) {
      own(std::string("<|start_header_id|>") + role + "<|end_header_id|>\n\n");
    };
    const bool dated = d_.id == ChatTemplate::llama3_1;
    own(tokens_.bos);
    if (dated) {
      header("system");
      own("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
      if (begins_with_system()) said(trim(messages_[0].content));
      own("<|eot_id|>");
    }
    for (std::size_t i = dated ? behind_system() : 0; i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      header(role_name(m.role));
      if (m.role == ChatRole::assistant)
        turn(i, "", trim(m.content), "<|eot_id|>");
      else
        said(trim(m.content)), own("<|eot_id|>");
    }
    if (prompt) header("assistant");
  }

  void mistral(const char* begin, const char* end) {
    const bool v3 = d_.id == ChatTemplate::mistral_v3;
    own(tokens_.bos);
    for (std::size_t i = behind_system(); i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      if (m.role == ChatRole::assistant) {
        turn(i, " ", v3 ? trim(m.content) : m.content, tokens_.eos);
        continue;
      }
      own(begin);
      // Version 3 has the system prompt before the last question, and before every other that says the same.
      const bool with_system = v3 ? m.content == messages_[last_user_].content : i == 1;
      if (begins_with_system() && with_system) said(messages_[0].content), own("\n\n");
      said(m.content);
      own(end);
    }
  }

  void phi3(bool prompt) {
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      own(std::string("<|") + role_name(m.role) + "|>\n");
      if (m.role == ChatRole::assistant)
        turn(i, "", m.content, "<|end|>");
      else
        said(m.content), own("<|end|>");
      own("\n");
    }
    own(prompt ? "<|assistant|>\n" : tokens_.eos);
  }

  void zephyr(bool prompt) {
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& m = messages_[i];
      own(std::string("<|") + role_name(m.role) + "|>\n");
      if (m.role == ChatRole::assistant)
        turn(i, "", m.content, tokens_.eos);
      else
        said(m.content), own(tokens_.eos);
      own("\n");
    }
    if (prompt) own("<|assistant|>\n");
  }

  const Description& d_;
  const ChatRenderer::Tokens& tokens_;
  const Conversation& messages_;
  ChatLoss loss_;
  RenderedChat& out_;
  std::size_t last_assistant_ = 0, last_user_ = 0;
};

Status check_order(const Description& d, const Conversation& conversation) {
  const bool system = !conversation.empty() && conversation[0].role == ChatRole::system;
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const ChatRole role = conversation[i].role;
    if (role == ChatRole::tool && !d.tools)
      return bad_request(fmt::format("message {} is of a tool, which template {} does not know", i + 1, d.name));
    if (!d.alternates || (system && i == 0)) continue;
    const ChatRole due = (i - (system ? 1 : 0)) % 2 == 0 ? ChatRole::user : ChatRole::assistant;
    if (role != due)
      return bad_request(
          fmt::format("message {} is of {} where template {} has {}: user and assistant take turns, behind at most one "
                      "system prompt",
                      i + 1, role_name(role), d.name, role_name(due)));
  }
  return success();
}

}  // namespace

const char* template_name(ChatTemplate t) { return description(t).name; }

std::optional<ChatTemplate> template_named(std::string_view name) {
  for (const Description& d : descriptions())
    if (name == d.name) return d.id;
  return std::nullopt;
}

std::string template_names() {
  std::string names;
  for (const Description& d : descriptions()) names += (names.empty() ? "" : ", ") + std::string(d.name);
  return names;
}

Result<ChatRenderer> ChatRenderer::create(ChatTemplate t, const Tokenizer& tokenizer, const Tokens& tokens) {
  const Description& d = description(t);
  ChatRenderer renderer;
  renderer.template_ = t;
  std::vector<std::string> needed(d.tokens.begin(), d.tokens.end());
  if (d.bos != nullptr) needed.push_back(renderer.tokens_.bos = tokens.bos.empty() ? d.bos : tokens.bos);
  if (d.eos != nullptr) needed.push_back(renderer.tokens_.eos = tokens.eos.empty() ? d.eos : tokens.eos);
  for (const std::string& token : needed)
    if (const auto id = tokenizer.id(token); !id || !tokenizer.is_special(*id))
      return bad_request(
          fmt::format("template {} needs the special token {}, which the tokenizer lacks", d.name, token));
  renderer.end_of_turn_ = *tokenizer.id(d.end_of_turn != nullptr ? d.end_of_turn : renderer.tokens_.eos);
  return renderer;
}

Status ChatRenderer::render(const Conversation& conversation, ChatLoss loss, bool prompt, RenderedChat& out) const {
  const Description& d = description(template_);
  SLUICE_TRY(check_order(d, conversation));
  Writer(d, tokens_, conversation, loss, out).write(prompt);
  return success();
}

}  // namespace sluice
