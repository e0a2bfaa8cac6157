#include "src/train/data/data_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/tokens/text_check.h"
#include "io/tokens/token_file.h"
#include "src/train/run/run_directory.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Kind = TokenizerChoice::Kind;

constexpr std::int64_t byte_vocabulary = 256;
constexpr std::uint64_t config_bytes_max = 1u << 20;

bool is_preset(const std::string& model) {
  const std::vector<std::string> presets = preset_names();
  return std::find(presets.begin(), presets.end(), model) != presets.end();
}

/// Where a configuration lies; empty for a preset.
std::string directory_of(const std::string& model) {
  if (model.empty() || is_preset(model)) return {};
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) return model;
  const std::string parent = fs::path(model).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// Of a model that sluice has trained.
bool says_bytes(const std::string& directory) {
  std::error_code ignored;
  const std::string path = directory + "/config.json";
  if (directory.empty() || !fs::is_regular_file(path, ignored)) return false;
  const auto text = read_json_file(path, config_bytes_max);
  if (!text.ok()) return false;  // who reads the model says what is wrong with it
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  return json.is_object() && json.contains(tokenizer_field) && json[tokenizer_field] == bytes_are_tokens;
}

std::string named(const TokenizerChoice& choice) {
  return choice.kind == Kind::bytes ? "bytes as tokens" : "the tokenizer in " + choice.path;
}

Result<std::shared_ptr<const Tokenizer>> load(const TokenizerChoice& choice) {
  SLUICE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(choice.path));
  return std::make_shared<const Tokenizer>(std::move(tokenizer));
}

/// "book.tokens" of "texts/book.txt.gz".
std::string tokens_of(const std::string& text) {
  fs::path name = fs::path(text).filename();
  if (name.extension() == ".gz" || name.extension() == ".zst" || name.extension() == ".dz") name = name.stem();
  return name.stem().string() + ".tokens";
}

}  // namespace

Result<TokenizerChoice> choose_tokenizer(const RunConfig& config, const ModelConfig& model) {
  TokenizerChoice choice;
  const std::string& said = config.tokenizer;
  choice.is_preset = is_preset(config.model) && config.init.empty();
  choice.is_said = !said.empty();
  choice.kind = Kind::bytes;
  if (said == bytes_are_tokens || said == bytes_of_texts) return choice;
  choice.kind = Kind::files;
  choice.path = said;
  // The user's may have gone, or be another one by now.
  if (const std::string own = config.run + "/" + began_from; !config.run.empty() && Tokenizer::lies_in(own))
    choice.path = own;
  if (!choice.path.empty()) return choice;
  for (const std::string& directory : {config.init, directory_of(config.model)}) {
    if (directory.empty() || !Tokenizer::lies_in(directory)) continue;
    choice.path = directory;
    return choice;
  }
  choice.is_said = says_bytes(config.init) || says_bytes(directory_of(config.model));
  const bool bytes = choice.is_said || choice.is_preset || model.vocabulary == byte_vocabulary;
  choice.kind = bytes ? Kind::bytes : Kind::none;
  return choice;
}

Result<std::shared_ptr<const Tokenizer>> text_tokenizer(const std::string& path, const RunConfig& config,
                                                        const ModelConfig& model) {
  SLUICE_ASSIGN(const TokenizerChoice choice, choose_tokenizer(config, model));
  if (choice.kind == Kind::none) {
    const std::string where = config.init.empty() ? config.model : config.init;
    return bad_request(
        fmt::format("{} is a text, and {} has no tokenizer beside it (tokenizer.json, or vocab.json with merges.txt): "
                    "give --tokenizer FILE, or --tokenizer bytes; or make tokens of it with the one it was trained "
                    "with: sluice data tokenize --input {} --tokenizer FILE --output {}",
                    path, where, path, tokens_of(path)));
  }
  if (choice.kind == Kind::bytes && model.vocabulary < byte_vocabulary)
    return bad_request(fmt::format("{}: bytes need a vocabulary of 256, and that of {} is {}; give --tokenizer FILE",
                                   path, config.model, model.vocabulary));
  if (choice.kind == Kind::bytes) return std::shared_ptr<const Tokenizer>();
  auto tokenizer = load(choice);
  if (!tokenizer.ok())
    return bad_request(fmt::format("{}; it is needed for {}: give another --tokenizer, or a token file",
                                   tokenizer.error().message, path));
  if ((*tokenizer)->vocabulary() > static_cast<std::uint64_t>(model.vocabulary))
    return bad_request(fmt::format("{} has tokens up to {}, and the vocabulary of {} is {}; give its own --tokenizer",
                                   choice.path, (*tokenizer)->vocabulary() - 1, config.model, model.vocabulary));
  return tokenizer;
}

Result<bool> check_token_file(const std::string& path, std::uint64_t tokenizer, const RunConfig& config,
                              const ModelConfig& model) {
  if (tokenizer == 0 || config.tokenizer == bytes_of_texts) return false;
  SLUICE_ASSIGN(const TokenizerChoice choice, choose_tokenizer(config, model));
  // A model that nobody has given a tokenizer may learn any.
  if (choice.kind == Kind::none || (choice.kind == Kind::bytes && !choice.is_said)) return tokenizer == byte_tokenizer;
  std::uint64_t expected = byte_tokenizer;
  if (choice.kind == Kind::files) {
    const auto loaded = load(choice);
    // The tokens are there: nothing is asked of one beside the model that can not be read.
    if (!loaded.ok() && choice.is_said) return loaded.error();
    if (!loaded.ok()) return false;
    expected = (*loaded)->hash();
  }
  if (tokenizer == expected) return true;
  const std::string made = tokenizer == byte_tokenizer
                               ? "has bytes as tokens"
                               : fmt::format("was made by another tokenizer ({:016x})", tokenizer);
  const std::string own =
      choice.kind == Kind::files ? fmt::format("{} ({:016x})", named(choice), expected) : named(choice);
  const std::string how = choice.kind == Kind::files ? " --tokenizer " + choice.path : "";
  return bad_request(fmt::format(
      "{} {}, and the model's is {}; make it anew (sluice data tokenize --input TEXT{} --output NEW.tokens), or "
      "if the model is to learn these tokens name what made them: --tokenizer {}",
      path, made, own, how, tokenizer == byte_tokenizer ? "bytes" : "FILE"));
}

Result<RunConfig> with_tokenizer(const RunConfig& config) {
  RunConfig decided = config;
  if (config.data.empty() || config.model.empty()) return decided;
  SLUICE_ASSIGN(const auto format, recognize_tokens(config.data));
  if (!format) SLUICE_TRY(check_text_file(config.data));
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  bool is_known = true;
  if (format) {
    SLUICE_ASSIGN(const TokenFile tokens, TokenFile::open(config.data));
    SLUICE_ASSIGN(is_known, check_token_file(config.data, tokens.tokenizer(), config, model));
  } else {
    SLUICE_TRY(text_tokenizer(config.data, config, model));
  }
  SLUICE_ASSIGN(const TokenizerChoice choice, choose_tokenizer(config, model));
  if (is_known) decided.tokenizer = choice.kind == Kind::files ? choice.path : bytes_are_tokens;
  return decided;
}

std::string note_on_bytes(const std::string& path, const RunConfig& config) {
  const bool bytes = config.tokenizer.empty() || config.tokenizer == bytes_are_tokens;
  if (!bytes || !is_preset(config.model) || !config.init.empty()) return {};
  return fmt::format("{} is a text, and {} is a preset without a tokenizer: bytes are its tokens", path, config.model);
}

}  // namespace sluice
