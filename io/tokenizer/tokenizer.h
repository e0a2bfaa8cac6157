// A model's own tokenizer: tokenizer.json of a Hugging Face directory. Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM)
// and BPE over characters with byte fallback (Llama 2, Mistral), with the normalizers, pre-tokenizers, added tokens,
// templates and decoders that these come with. Or vocab.json and merges.txt, which GPT-2 and its kin had before. The
// ids are those of the `tokenizers` package; whatever a file asks for beyond that is refused by name.
//
// Text is UTF-8. Each maximal part of an invalid sequence counts as one U+FFFD, as Python's errors="replace" has it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/text_marks.h"
#include "sluice/status.h"

namespace sluice {

struct Gpt2Files;

class Tokenizer {
 public:
  /// `path`: tokenizer.json, or a directory that holds it, or else vocab.json and merges.txt; or one of these two.
  /// bad_request when it is missing, not one, or asks for what is not supported.
  static Result<Tokenizer> load(const std::string& path);
  /// The same from memory; `name` is for messages.
  static Result<Tokenizer> parse(std::string_view json, const std::string& name);
  static Result<Tokenizer> parse(const Gpt2Files& files);
  /// Whether a directory holds files of one.
  static bool lies_in(const std::string& directory);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// One more than the largest id.
  std::uint64_t vocabulary() const;
  std::optional<std::int32_t> id(std::string_view token) const;
  /// The token as the file writes it; empty for an id without one.
  std::string_view token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// Whether it is one of the bytes that only together are text, where the decoder joins such.
  bool is_byte(std::int32_t id) const;

  /// Of all that decides which ids a text has: tokens and their ids, merges, normalizer, pre-tokenizer and the texts of
  /// added tokens. Not of how the file is written, nor of what its template puts around a text. Never 0.
  std::uint64_t hash() const;
  /// Of that and the template: what the ids of a whole document hang on.
  std::uint64_t hash_with_template() const;

  /// The token behind a text, where the tokenizer's own files name it: of vocab.json and merges.txt alone.
  std::optional<std::int32_t> end_of_text() const;

  /// What the ids stand for. Ids without a token are left out, and special tokens with `skip_special`.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  /// Encodes for one thread, with a memory of the words it has met; the tokenizer outlives it.
  class Encoder {
   public:
    explicit Encoder(const Tokenizer& tokenizer);
    Encoder(Encoder&&) noexcept;
    ~Encoder();
    /// Appends the ids of `text`. With `add_special`, also what the file's template puts around a text (such as a
    /// beginning of sequence). Errors: fault when a pattern needs more steps or memory than is reasonable.
    Status encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids);
    /// The same without what the file's template puts around a text, and with special tokens found only outside of
    /// content. To `mask`, for each id, whether it holds some of what is wanted. bad_request for text that is not
    /// UTF-8.
    Status encode(std::string_view text, TextMarks marks, std::vector<std::int32_t>& ids,
                  std::vector<std::uint8_t>& mask);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace sluice
