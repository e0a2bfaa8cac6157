// Texts to token files: documents are read, encoded by several threads and written in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer.h"
#include "io/tokens/pack.h"
#include "io/tokens/text_source.h"
#include "io/tokens/token_layout.h"
#include "sluice/status.h"

namespace sluice {

/// Turns text into tokens, for one thread.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Appends the tokens of `text`.
  virtual Status encode(std::string_view text, std::vector<std::int32_t>& tokens) = 0;
  /// The same, and to `mask` for each token whether it counts in the loss; every one does unless this is overridden.
  virtual Status encode_masked(std::string_view text, std::vector<std::int32_t>& tokens,
                               std::vector<std::uint8_t>& mask) {
    const std::size_t before = tokens.size();
    SLUICE_TRY(encode(text, tokens));
    mask.insert(mask.end(), tokens.size() - before, 1);
    return success();
  }
};

/// A vocabulary, and encoders for it. This is where a tokenizer plugs in.
struct TextEncoding {
  std::uint64_t vocabulary = 0;
  bool whole_documents = true;  ///< else a text may be cut anywhere, and the tokens of its parts are the text's
  bool has_mask = false;        ///< not every token counts in the loss
  std::uint64_t tokenizer = 0;  ///< as TokenFile::tokenizer
  std::function<std::unique_ptr<TextEncoder>()> make_encoder;
};

/// Each byte is a token.
TextEncoding byte_encoding();
/// A model's own tokenizer. With `add_special`, its template stands around each document.
TextEncoding tokenizer_encoding(const std::shared_ptr<const Tokenizer>& tokenizer, bool add_special);

struct TokenizeOptions {
  TextSource::Options texts;  ///< part_bytes is set by tokenize()
  std::string output;
  TokenFormat format = TokenFormat::sluice;  ///< or megatron
  std::optional<std::int32_t> end_of_text;   ///< a token that is put behind each document
  double held_out = 0;                       ///< share of the documents that go to eval_output(output); whole ones
  std::uint64_t seed = 0;                    ///< decides, with a document's number, whether it is held out
  /// Documents are laid whole into sequences, and the format must be sluice. Of an encoding with a mask, what is cut
  /// off is lost.
  std::optional<PackOptions> pack;
  int threads = 1;                            ///< that encode; the result is the same for any number
  std::function<Status()> before_publishing;  ///< its failure is tokenize()'s, and leaves no output
};

struct TokenizeReport {
  struct Output {
    std::string path;
    std::uint64_t documents = 0, tokens = 0;  ///< where they are packed, without padding
    std::uint64_t loss_tokens = 0;            ///< of an encoding with a mask, and where documents are packed
    PackReport pack;
  };
  Output training, held_out;
  std::uint64_t empty_documents = 0;  ///< left out; of an encoding with a mask, where nothing counts in the loss
  std::uint64_t text_bytes = 0;       ///< unpacked
  std::uint64_t input_bytes = 0, input_bytes_total = 0;  ///< as packed; the total is 0 when a pipe is among them
  std::uint64_t vocabulary = 0;
};

/// Writes options.output, and eval_output() where documents are held out; they appear when all is done. `watch` is
/// called now and then with what is done so far; its error ends the work. Memory: the longest document (1 MiB where
/// texts may be cut) and its tokens for twice the threads, and 8 bytes a document, a bit a token where there is a mask.
/// bad_request for everything that is wrong with the texts, the first of them in their order; also when an output would
/// have no document.
Result<TokenizeReport> tokenize(const TokenizeOptions& options, const TextEncoding& encoding,
                                const std::function<Status(const TokenizeReport&)>& watch = {});

/// "book.eval.tokens" of "book.tokens".
std::string eval_output(const std::string& output);

/// Whether document `number` is held out: a function of (seed, number).
bool is_held_out(std::uint64_t seed, std::uint64_t number, double share);

}  // namespace sluice
