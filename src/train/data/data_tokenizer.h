// Whose tokens a run trains on: the model's tokenizer makes them of texts, and made those of token files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/tokenizer/tokenizer.h"
#include "sluice/status.h"
#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// RunConfig::tokenizer where bytes are tokens.
constexpr const char* bytes_are_tokens = "bytes";
/// The same of runs that began before it was kept: of a text the bytes, of a token file nobody knows.
constexpr const char* bytes_of_texts = "bytes of a text";
/// In the config.json of a model that was trained on bytes.
constexpr const char* tokenizer_field = "sluice_tokenizer";

struct TokenizerChoice {
  enum class Kind : std::uint8_t { files, bytes, none };
  Kind kind = Kind::none;
  std::string path;        ///< of files: as Tokenizer::load takes it
  bool is_said = false;    ///< by --tokenizer, by the run, or by the model's config.json
  bool is_preset = false;  ///< a model that has none by nature
};

/// --tokenizer; else the files beside the weights (--init) or the configuration (--model); else bytes, where the
/// model's config.json says so, its vocabulary is that of bytes, or it is a preset. None for other directories. A run
/// that goes on has its own copy. Nothing is read but config.json.
Result<TokenizerChoice> choose_tokenizer(const RunConfig& config, const ModelConfig& model);

/// The config with `tokenizer` decided (empty: nobody knows it, and the data is a token file), and its data checked
/// against it without making any tokens. bad_request for what is no text, for a text where the model's tokens are not
/// known or not in its vocabulary, and for a token file of another tokenizer.
Result<RunConfig> with_tokenizer(const RunConfig& config);

/// What makes tokens of a text: null where bytes are. bad_request as with_tokenizer's.
Result<std::shared_ptr<const Tokenizer>> text_tokenizer(const std::string& path, const RunConfig& config,
                                                        const ModelConfig& model);
/// The token file at `path` may be of the run: bad_request where another tokenizer made it. Whether it is known to be
/// the run's. `tokenizer`: TokenFile::tokenizer.
Result<bool> check_token_file(const std::string& path, std::uint64_t tokenizer, const RunConfig& config,
                              const ModelConfig& model);

/// One line for a text of a preset; empty for everything else.
std::string note_on_bytes(const std::string& path, const RunConfig& config);

}  // namespace sluice
