#include "io/chat/chat_encoding.h"

#include <algorithm>
#include <optional>
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

class CompletionEncoder final : public TextEncoder {
 public:
  CompletionEncoder(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t eos, ChatLoss loss)
      : tokenizer_(std::move(tokenizer)), encoder_(*tokenizer_), eos_(eos), all_(loss == ChatLoss::all) {}

  Status encode(std::string_view line, std::vector<std::int32_t>& tokens) override {
    std::vector<std::uint8_t> unused;
    return encode_masked(line, tokens, unused);
  }
  Status encode_masked(std::string_view line, std::vector<std::int32_t>& tokens,
                       std::vector<std::uint8_t>& mask) override {
    SLUICE_ASSIGN(const Completion made, parse_completion(line));
    if (!before_) SLUICE_TRY(find_before());
    tokens.insert(tokens.end(), before_->begin(), before_->end());
    mask.insert(mask.end(), before_->size(), all_ ? 1 : 0);
    const TextMark marks[] = {{.begin = 0, .content = true, .wanted = all_},
                              {.begin = made.prompt.size(), .content = true, .wanted = true}};
    SLUICE_TRY(encoder_.encode(made.prompt + made.completion, marks, tokens, mask));
    tokens.push_back(eos_);
    mask.push_back(1);
    return success();
  }

 private:
  /// What stands before a text: of the tokens of one in its template, those before its own.
  Status find_before() {
    std::vector<std::int32_t> whole, text;
    SLUICE_TRY(encoder_.encode("x", true, whole));
    SLUICE_TRY(encoder_.encode("x", false, text));
    before_.emplace(whole.begin(), std::search(whole.begin(), whole.end(), text.begin(), text.end()));
    return success();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Tokenizer::Encoder encoder_;
  std::int32_t eos_;
  bool all_;
  std::optional<std::vector<std::int32_t>> before_;
};

}  // namespace

TextEncoding completion_encoding(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t eos, ChatLoss loss) {
  const std::uint64_t vocabulary = tokenizer->vocabulary(), hash = tokenizer->hash();
  return {.vocabulary = vocabulary,
          .whole_documents = true,
          .has_mask = true,
          .tokenizer = hash,
          .make_encoder = [tokenizer = std::move(tokenizer), eos, loss] {
            return std::make_unique<CompletionEncoder>(tokenizer, eos, loss);
          }};
}

TextEncoding chat_encoding(std::shared_ptr<const Tokenizer> tokenizer, ChatRenderer renderer, ChatOptions options) {
  const std::uint64_t vocabulary = tokenizer->vocabulary(), hash = tokenizer->hash();
  return {
      .vocabulary = vocabulary,
      .whole_documents = true,
      .has_mask = true,
      .tokenizer = hash,
      .make_encoder = [tokenizer = std::move(tokenizer), renderer = std::move(renderer), options = std::move(options)] {
        return std::make_unique<ChatEncoder>(tokenizer, renderer, options);
      }};
}

}  // namespace sluice
