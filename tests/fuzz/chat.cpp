// Lines of conversations: tokens and a mask, or one line that says what is wrong.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/chat/chat_encoding.h"
#include "tests/fuzz/input.h"

namespace {

using nlohmann::json;
using sluice::Tokenizer;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct Kind {
  std::shared_ptr<const Tokenizer> tokenizer;
  sluice::TextEncoding encoding;
  std::unique_ptr<sluice::TextEncoder> encoder;
  std::int32_t end_of_turn = 0;
};

Kind make(const char* name) {
  const std::string fixtures(SLUICE_FIXTURES "/");
  const json chat = json::parse(read(fixtures + "chat/" + name + ".json"));
  json file = json::parse(read(fixtures + "tokenizers/" + chat["tokenizer"].get<std::string>() + ".json"));
  file["added_tokens"] = chat["added_tokens"];
  auto tokenizer = Tokenizer::parse(file.dump(), name);
  SLUICE_CHECK(tokenizer.ok(), "%s", name);
  Kind kind;
  kind.tokenizer = std::make_shared<const Tokenizer>(std::move(*tokenizer));
  const auto token = [&](const char* field) {
    return chat[field].is_null() ? std::string() : chat[field].get<std::string>();
  };
  auto renderer = sluice::ChatRenderer::create(*sluice::template_named(name), *kind.tokenizer,
                                               {token("bos_token"), token("eos_token")});
  SLUICE_CHECK(renderer.ok(), "%s", name);
  kind.end_of_turn = renderer->end_of_turn();
  kind.encoding = sluice::chat_encoding(kind.tokenizer, *renderer, {});
  kind.encoder = kind.encoding.make_encoder();
  return kind;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Kind kinds[] = {make("qwen2"),      make("llama2"), make("llama3"),
                         make("mistral-v3"), make("phi3"),   make("zephyr")};
  if (size == 0) return 0;
  // The first byte says which template.
  Kind& kind = kinds[data[0] % std::size(kinds)];
  const std::string_view line(reinterpret_cast<const char*>(data) + 1, size - 1);
  sluice::recognize_template(line);  // which is text of others too
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;
  const sluice::Status encoded = kind.encoder->encode_masked(line, tokens, mask);
  if (!encoded.ok()) {
    sluice::fuzz::check_refusal(encoded.error());
    return 0;
  }
  SLUICE_CHECK(tokens.size() == mask.size(), "%zu tokens, %zu of the mask", tokens.size(), mask.size());
  const auto conversation = sluice::parse_conversation(line, "");
  SLUICE_CHECK(conversation.ok(), "what was encoded is a conversation");
  // Whatever messages spell, turns end as often as there are any: llama2 and mistral have none of a user.
  const auto ends = static_cast<std::size_t>(std::count(tokens.begin(), tokens.end(), kind.end_of_turn));
  SLUICE_CHECK(ends <= conversation->size() + 1, "%zu ends of %zu messages", ends, conversation->size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    SLUICE_CHECK(tokens[i] >= 0 && static_cast<std::uint64_t>(tokens[i]) < kind.encoding.vocabulary, "token %d",
                 tokens[i]);
    SLUICE_CHECK(mask[i] <= 1, "%d", mask[i]);
  }
  return 0;
}
