// What lies beside the weights of a Hugging Face directory: the tokenizer with its chat template, and what says which
// tokens begin and end a text. A run copies them when it begins; its model and its exports have them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sluice/status.h"
#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// Whether a companion has that name: a tokenizer's file, config.json or generation_config.json.
bool is_companion(const std::string& name);

/// The directory that a run's weights or configuration came from, which may be gone; empty where a preset described
/// them.
std::string source_directory(const RunConfig& config);

/// Copies into `directory`, which is made, what a model of the run will need beside its weights; config.json appears
/// last. The tokenizer is the run's (src/train/data/data_tokenizer.h) with what lies beside it; none where bytes are
/// tokens. Special tokens are those of the model that it begins from, unless --tokenizer gives it another: then that
/// one's. `of_text`: the run's data is a text. bad_request for what can not be read.
Status keep_companions(const RunConfig& config, const ModelConfig& model, bool of_text, const std::string& directory);

/// The model's config.json, with the special tokens of the one in `source`, which may be empty or have none, and with
/// `marks`.
Result<std::string> config_with_companions(const ModelConfig& model, Dtype dtype, const std::string& source,
                                           const nlohmann::ordered_json& marks);

/// What a config.json says of special tokens, and of bytes that are tokens: no more than is there.
nlohmann::ordered_json special_tokens_of(const nlohmann::ordered_json& config);

/// Copies those of `source` into `directory`, which has them whole; with a generation_config.json made of `config`
/// where there is none. `config` itself, as config.json, appears last. The names of all.
Result<std::vector<std::string>> write_companions(const std::string& source, const std::string& directory,
                                                  const std::string& config);

/// Of the files that write_companions copies.
std::uint64_t companion_bytes(const std::string& source);

}  // namespace sluice
