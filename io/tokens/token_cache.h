// Texts that are trained on as they are: their tokens are made once and kept.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/tokenizer/tokenizer.h"
#include "io/tokens/token_file.h"

namespace sluice {

/// How a text becomes tokens.
struct TextTokens {
  std::shared_ptr<const Tokenizer> tokenizer = {};    ///< documents as 'sluice data tokenize' makes them; none: bytes
  std::function<void(const std::string&)> note = {};  ///< what is done to the text, and to tokens that are not whole
  std::function<Status(double fraction)> watch = {};  ///< now and then while it is done; its error ends it
};

/// A token file as it is; anything else is taken as text (io/tokens/text_source.h) and tokenized into `cache_dir` (made
/// if missing), again only when its content or the tokenizer is new there, or what is there is not what was written.
/// What others than this user and the directory's owner may have written there is not trusted. Where `cache_dir` is
/// empty, or lacks the tokens and can not be written to, the user's cache takes its place, in which this user alone is
/// trusted. bad_request for what is no text, before anything is made.
Result<TokenFile> open_or_tokenize(const std::string& path, const std::string& cache_dir,
                                   const TokenFile::Requirements& requirements, const TextTokens& tokens = {});

}  // namespace sluice
