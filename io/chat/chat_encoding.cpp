#include "io/chat/chat_encoding.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

class ChatEncoder final : public TextEncoder {
 public:
  ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, const ChatRenderer& renderer, ChatOptions options)
      : tokenizer_(std::move(tokenizer)), encoder_(*tokenizer_), renderer_(renderer), options_(std::move(options)) {}

  Status encode(std::string_view line, std::vector<std::int32_t>& tokens) override {
    std::vector<std::uint8_t> unused;
    return encode_masked(line, tokens, unused);
  }
  Status encode_masked(std::string_view line, std::vector<std::int32_t>& tokens,
                       std::vector<std::uint8_t>& mask) override {
    const std::size_t tokens_before = tokens.size(), mask_before = mask.size();
    SLUICE_ASSIGN(const Conversation conversation, parse_conversation(line, options_.field));
    SLUICE_TRY(renderer_.render(conversation, options_.loss, false, rendered_));
    SLUICE_TRY(encoder_.encode(rendered_.text, rendered_.marks, tokens, mask));
    if (std::find(mask.begin() + static_cast<std::ptrdiff_t>(mask_before), mask.end(), 1) != mask.end())
      return success();
    tokens.resize(tokens_before);
    mask.resize(mask_before);
    return success();
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Tokenizer::Encoder encoder_;
  ChatRenderer renderer_;
  ChatOptions options_;
  RenderedChat rendered_;
};

}  // namespace

TextEncoding chat_encoding(std::shared_ptr<const Tokenizer> tokenizer, ChatRenderer renderer, ChatOptions options) {
  const std::uint64_t vocabulary = tokenizer->vocabulary();
  return {
      .vocabulary = vocabulary,
      .whole_documents = true,
      .has_mask = true,
      .make_encoder = [tokenizer = std::move(tokenizer), renderer = std::move(renderer), options = std::move(options)] {
        return std::make_unique<ChatEncoder>(tokenizer, renderer, options);
      }};
}

}  // namespace sluice
