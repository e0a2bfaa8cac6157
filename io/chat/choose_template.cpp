#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/chat/chat_template.h"
#include "io/json_guard.h"
#include "io/publish.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t config_bytes_max = 16u << 20;

/// What lies beside the tokenizer. Each may be missing.
struct Beside {
  ChatRenderer::Tokens tokens;
  std::string jinja, jinja_from;
};

/// A name, or an added token with its content.
std::string token_of(const Json& config, const char* field) {
  if (!config.is_object() || !config.contains(field)) return {};
  const Json& token = config[field];
  const Json& name = token.is_object() && token.contains("content") ? token["content"] : token;
  return name.is_string() ? name.get<std::string>() : std::string();
}

/// One text, or a list of {"name", "template"} with one that is the default.
std::string template_of(const Json& config) {
  if (!config.is_object() || !config.contains("chat_template")) return {};
  const Json& given = config["chat_template"];
  if (given.is_string()) return given.get<std::string>();
  for (const Json& each : given.is_array() ? given : Json::array())
    if (each.is_object() && each.contains("name") && each["name"] == "default" && each.contains("template") &&
        each["template"].is_string())
      return each["template"].get<std::string>();
  return {};
}

Result<Beside> look_beside(const std::string& tokenizer_path) {
  Beside beside;
  std::error_code ignored;
  const std::filesystem::path path(tokenizer_path);
  const std::filesystem::path folder = std::filesystem::is_directory(path, ignored) ? path : path.parent_path();
  const std::string config_path = (folder / "tokenizer_config.json").string();
  if (std::filesystem::exists(config_path, ignored)) {
    SLUICE_ASSIGN(const std::string text, read_json_file(config_path, config_bytes_max));
    const Json config = Json::parse(text, nullptr, false);
    beside.tokens = {token_of(config, "bos_token"), token_of(config, "eos_token")};
    beside.jinja = template_of(config);
    beside.jinja_from = config_path;
  }
  const std::string jinja_path = (folder / "chat_template.jinja").string();
  if (std::filesystem::exists(jinja_path, ignored)) {
    SLUICE_ASSIGN(beside.jinja, read_file(jinja_path, config_bytes_max));
    beside.jinja_from = jinja_path;
  }
  return beside;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::optional<ChatTemplate> recognize_chatml(std::string_view jinja) {
  if (has(jinja, "reasoning_content") || has(jinja, "<think>")) return std::nullopt;
  if (has(jinja, "You are Qwen, created by Alibaba Cloud.")) return ChatTemplate::qwen2_5;
  if (has(jinja, "You are a helpful AI assistant named SmolLM, trained by Hugging Face<")) return ChatTemplate::smollm;
  if (has(jinja, "You are a helpful assistant.<|im_end|>")) return ChatTemplate::qwen2;
  if (has(jinja, "<|im_start|>system") || has(jinja, "bos_token")) return std::nullopt;  // something of its own
  return ChatTemplate::chatml;
}

std::optional<ChatTemplate> recognize_inst(std::string_view jinja) {
  if (has(jinja, "[SYSTEM_PROMPT]")) return std::nullopt;
  if (has(jinja, "<<SYS>>")) return ChatTemplate::llama2;
  const auto quoted = [&](const std::string& text) { return has(jinja, "'" + text) || has(jinja, '"' + text); };
  const auto ends = [&](const std::string& text) { return has(jinja, text + "'") || has(jinja, text + '"'); };
  const bool answers_with_space = has(jinja, "' ' + message['content']") || has(jinja, "\" \" + message[\"content\"]");
  if (!answers_with_space) return std::nullopt;
  if (quoted(" [INST] ") && ends(" [/INST]")) return ChatTemplate::mistral;
  if (quoted("[INST] ") && ends("[/INST]") && !ends(" [/INST]")) return ChatTemplate::mistral_v3;
  return std::nullopt;
}

/// By the special tokens of the vocabulary, where one template alone has them.
std::optional<ChatTemplate> by_vocabulary(const Tokenizer& tokenizer) {
  const auto special = [&](const char* token) {
    const auto id = tokenizer.id(token);
    return id && tokenizer.is_special(*id);
  };
  if (special("<|im_start|>") && special("<|im_end|>")) return ChatTemplate::chatml;
  if (special("<|start_header_id|>") && special("<|end_header_id|>") && special("<|eot_id|>"))
    return ChatTemplate::llama3;
  if (special("<|user|>") && special("<|assistant|>") && special("<|end|>")) return ChatTemplate::phi3;
  if (special("[INST]") && special("[/INST]")) return ChatTemplate::mistral_v3;
  return std::nullopt;
}

}  // namespace

std::optional<ChatTemplate> recognize_template(std::string_view jinja) {
  if (has(jinja, "<|im_start|>")) return recognize_chatml(jinja);
  if (has(jinja, "<|start_header_id|>"))
    return has(jinja, "Cutting Knowledge Date") ? ChatTemplate::llama3_1 : ChatTemplate::llama3;
  if (has(jinja, "[INST]")) return recognize_inst(jinja);
  // In JSON the newline is one, in a file of Jinja it may be written.
  if (!has(jinja, "<|user|>\n") && !has(jinja, "<|user|>\\n")) return std::nullopt;
  if (has(jinja, "<|end|>")) return ChatTemplate::phi3;
  return has(jinja, "message['content'] + eos_token") ? std::optional(ChatTemplate::zephyr) : std::nullopt;
}

Result<ChosenTemplate> choose_template(const std::string& name, const Tokenizer& tokenizer,
                                       const std::string& tokenizer_path) {
  SLUICE_ASSIGN(const Beside beside, look_beside(tokenizer_path));
  ChosenTemplate chosen;
  chosen.tokens = beside.tokens;
  if (name != "auto") {
    const auto named = template_named(name);
    if (!named) return bad_request(fmt::format("--chat '{}' is none of auto, {}", name, template_names()));
    chosen.name = *named;
    return chosen;
  }
  if (!beside.jinja.empty()) {
    const auto found = recognize_template(beside.jinja);
    if (!found)
      return bad_request(
          fmt::format("--chat auto: the chat_template in {} is none that is known here; if one of {} is "
                      "what the model is to learn, name it",
                      beside.jinja_from, template_names()));
    chosen.name = *found;
    chosen.why = fmt::format("by the chat_template in {}", beside.jinja_from);
    return chosen;
  }
  const auto found = by_vocabulary(tokenizer);
  if (!found)
    return bad_request(
        fmt::format("--chat auto: {} has no chat_template beside it, and no special tokens of one; name one of {}",
                    tokenizer_path, template_names()));
  chosen.name = *found;
  chosen.why = "by the special tokens of the vocabulary";
  return chosen;
}

}  // namespace sluice
