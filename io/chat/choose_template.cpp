#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/chat/chat_template.h"
#include "io/files/json_guard.h"
#include "io/files/publish.h"

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

/// The expressions and statements of a template without the space between their parts, literals in single quotes with
/// their escapes resolved, x.role as x['role']. None where text stands outside of them, which would be printed.
std::optional<std::string> squeezed(std::string_view jinja) {
  std::string out;
  bool tag = false;
  char quote = 0;
  for (std::size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i], next = i + 1 < jinja.size() ? jinja[i + 1] : '\0';
    if (quote != 0) {
      const bool escape = c == '\\' && (next == 'n' || next == '\'' || next == '"' || next == '\\');
      if (escape)
        out += next == 'n' ? '\n' : next, ++i;
      else
        out += c == quote ? '\'' : c;
      if (!escape && c == quote) quote = 0;
    } else if (!tag && c == '{' && next == '#') {
      i = std::min(jinja.find("#}", i), jinja.size() - 2) + 1;
    } else if (!tag) {
      tag = c == '{' && (next == '{' || next == '%');
      if (!tag && c != ' ' && c != '\t' && c != '\n' && c != '\r') return std::nullopt;
      if (tag) out += ' ', ++i;
    } else if ((c == '}' || c == '%') && next == '}') {
      tag = false;
      ++i;
    } else if (c == '\'' || c == '"') {
      quote = c;
      out += '\'';
    } else if (jinja.substr(i).starts_with(".role") || jinja.substr(i).starts_with(".content")) {
      const std::size_t length = jinja[i + 1] == 'r' ? 4 : 7;
      out.append("['").append(jinja.substr(i + 1, length)).append("']");
      i += length;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      out += c;
    }
  }
  return out;
}

/// What a published template is known by: all of `there` are in it, and none of `missing`.
struct Marks {
  ChatTemplate name;
  std::vector<const char*> there, missing;
};
const std::vector<Marks>& known_marks() {
  static const char* const chatml = "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'";
  static const char* const llama3 =
      "'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'";
  static const char* const thinks = "<think>";
  static const std::vector<Marks> all = {
      {ChatTemplate::qwen2_5,
       {chatml, "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"},
       {thinks}},
      {ChatTemplate::smollm,
       {chatml, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"},
       {thinks}},
      {ChatTemplate::qwen2,
       {chatml, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"},
       {thinks, "bos_token"}},
      {ChatTemplate::chatml, {chatml}, {thinks, "bos_token", "<|im_start|>system", "system_message", "loop.first"}},
      {ChatTemplate::llama3_1, {llama3, "Cutting Knowledge Date: December 2023\n"}, {}},
      {ChatTemplate::llama3, {llama3}, {"Cutting Knowledge Date", "<|start_header_id|>system", "system_message"}},
      {ChatTemplate::llama2,
       {"'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message['content']",
        "bos_token+'[INST] '+content.strip()+' [/INST]'", "' '+content.strip()+' '+eos_token"},
       {}},
      {ChatTemplate::mistral,
       {"' [INST] '+message['content']+' [/INST]'", "' [INST] '+system_message+'\n\n'+message['content']+' [/INST]'",
        "' '+message['content']+eos_token"},
       {}},
      {ChatTemplate::mistral_v3,
       {"'[INST] '+message['content']+'[/INST]'", "'[INST] '+system_message+'\n\n'+message['content']+'[/INST]'",
        "' '+message['content']|trim+eos_token", "message==user_messages[-1]"},
       {}},
      {ChatTemplate::phi3,
       {"'<|system|>\n'+message['content']+'<|end|>\n'", "'<|user|>\n'+message['content']+'<|end|>\n'",
        "'<|assistant|>\n'+message['content']+'<|end|>\n'"},
       {"bos_token"}},
      {ChatTemplate::zephyr,
       {"'<|system|>\n'+message['content']+eos_token", "'<|user|>\n'+message['content']+eos_token",
        "'<|assistant|>\n'+message['content']+eos_token"},
       {"bos_token"}},
  };
  return all;
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
  const std::optional<std::string> text = squeezed(jinja);
  if (!text) return std::nullopt;
  for (const Marks& known : known_marks()) {
    const auto in_text = [&](const char* mark) { return has(*text, mark); };
    if (std::all_of(known.there.begin(), known.there.end(), in_text) &&
        std::none_of(known.missing.begin(), known.missing.end(), in_text))
      return known.name;
  }
  return std::nullopt;
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
    if (has(beside.jinja, "strftime_now")) chosen.why += ", with the date that it has where there is no clock";
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
