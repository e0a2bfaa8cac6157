// A tokenizer as OpenAI published GPT-2's, before there was tokenizer.json: tokens and ids in vocab.json, merges in
// merges.txt, and what else there is to know in files beside them. Read as transformers 5 reads them, with
// GPT2Tokenizer, RobertaTokenizer or Qwen2Tokenizer; but ids that files give to added tokens stay theirs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// The largest known files of tokens have 35 MB.
constexpr std::uint64_t tokenizer_bytes_max = 256u << 20;

struct Gpt2Files {
  struct File {
    std::string path, text;  ///< no path: there is no such file
  };
  File vocabulary, merges;                       ///< vocab.json, merges.txt
  File settings, special_tokens, added, config;  ///< tokenizer_config.json, special_tokens_map.json, added_tokens.json,
                                                 ///< and the model's config.json

  /// Whether the directory has the two that nothing can do without.
  static bool lie_in(const std::string& directory);
  /// bad_request when one of those two is missing, or any is too large.
  static Result<Gpt2Files> read(const std::string& directory);
};

/// What would be in tokenizer.json; to `end_of_text` the eos_token, empty where there is none. bad_request, naming file
/// and line or token, for files that do not fit together, and what is not supported.
Result<nlohmann::json> gpt2_tokenizer(const Gpt2Files& files, std::string& end_of_text);

}  // namespace sluice
