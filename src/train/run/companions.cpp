#include "src/train/run/companions.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "src/train/data/data_tokenizer.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* generation_file = "generation_config.json";
constexpr const char* config_file = "config.json";
constexpr std::array tokenizer_files{"tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json",
                                     "tokenizer.model", "added_tokens.json",     "vocab.json",
                                     "merges.txt",      "chat_template.jinja"};
/// Of config.json: what says nothing of the model's arithmetic and all of its text.
constexpr std::array token_fields{"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr std::uint64_t copied_bytes_max = 256u << 20, config_bytes_max = 1u << 20, settings_bytes_max = 16u << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<Json> read_object(const std::string& path, std::uint64_t bytes_max) {
  SLUICE_ASSIGN(const std::string text, read_json_file(path, bytes_max));
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return bad_request(path + " is not a JSON object");
  return json;
}

Status copy_companion(const fs::path& from, const fs::path& to) {
  SLUICE_ASSIGN(const std::string content, read_file(from.string(), copied_bytes_max));
  return publish_file(to.string(), content);
}

/// Of those names that are there.
Result<std::vector<std::string>> copy_files(std::vector<std::string> names, const fs::path& from, const fs::path& to) {
  std::erase_if(names, [&](const std::string& name) { return from.empty() || !is_there(from / name); });
  for (const std::string& name : names) SLUICE_TRY(copy_companion(from / name, to / name));
  return names;
}

/// A tokenizer and the folder whose other files are about it; empty where they may be about another one.
struct TokenizerFiles {
  std::string path, folder;
};

TokenizerFiles files_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return {path, path};
  const fs::path file(path);
  const bool is_usual =
      std::find(tokenizer_files.begin(), tokenizer_files.end(), file.filename()) != tokenizer_files.end();
  return {path, is_usual ? fs::absolute(file).parent_path().string() : ""};
}

/// A token's name, or an added token with its content, as an id.
Json id_of(const Json& settings, std::string field, const Tokenizer& tokenizer) {
  field.resize(field.size() - 3);  // eos_token of eos_token_id
  if (!settings.contains(field)) return nullptr;
  const Json& token = settings[field];
  const Json& name = token.is_object() && token.contains("content") ? token["content"] : token;
  if (!name.is_string()) return nullptr;
  const auto id = tokenizer.id(name.get<std::string>());
  return id ? Json(*id) : Json(nullptr);
}

/// Of a tokenizer that is not the model's own.
Result<Json> special_tokens(const TokenizerFiles& files) {
  SLUICE_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(files.path));
  Json settings = Json::object();
  if (const std::string path = files.folder + "/tokenizer_config.json"; !files.folder.empty() && is_there(path)) {
    SLUICE_ASSIGN(settings, read_object(path, settings_bytes_max));
  }
  Json ids;
  for (const char* field : token_fields) ids[field] = id_of(settings, field, tokenizer);
  if (ids["eos_token_id"].is_null() && tokenizer.end_of_text()) ids["eos_token_id"] = *tokenizer.end_of_text();
  return ids;
}

/// Whether they make the same tokens; not, where one can not be read.
bool same_tokenizer(const std::string& a, const std::string& b) {
  const auto one = Tokenizer::load(a), other = Tokenizer::load(b);
  return one.ok() && other.ok() && one->hash() == other->hash();
}

/// Where the run's tokenizer is, if it has one.
struct Chosen {
  bool bytes = false;
  bool is_models = true;  ///< the one that lies beside the model, or none
  std::string path;
};

Result<Chosen> choose(const RunConfig& config, const ModelConfig& model, bool of_text, const std::string& source) {
  if (config.tokenizer == bytes_of_texts && !of_text) return Chosen{.path = source};
  SLUICE_ASSIGN(const TokenizerChoice choice, choose_tokenizer(config, model));
  if (choice.kind == TokenizerChoice::Kind::bytes) {
    // A preset's tokens are whatever a token file has; special tokens of a tokenizer are not those of bytes.
    const bool known = of_text || choice.is_said || model.vocabulary == 256;
    return Chosen{known, source.empty() || !Tokenizer::lies_in(source), ""};
  }
  if (choice.kind == TokenizerChoice::Kind::none || choice.path == source) return Chosen{.path = source};
  if (!source.empty() && Tokenizer::lies_in(source) && same_tokenizer(source, choice.path))
    return Chosen{.path = source};
  return Chosen{false, false, choice.path};
}

}  // namespace

bool is_companion(const std::string& name) {
  return name == config_file || name == generation_file ||
         std::find(tokenizer_files.begin(), tokenizer_files.end(), name) != tokenizer_files.end();
}

std::string source_directory(const RunConfig& config) {
  const std::vector<std::string> presets = preset_names();
  const bool is_preset = std::find(presets.begin(), presets.end(), config.model) != presets.end();
  const std::string& named = !config.init.empty() ? config.init : is_preset ? config.init : config.model;
  std::error_code ignored;
  return fs::is_regular_file(named, ignored) ? fs::absolute(named).parent_path().string() : named;
}

Status keep_companions(const RunConfig& config, const ModelConfig& model, bool of_text, const std::string& directory) {
  const std::string source = source_directory(config);
  SLUICE_ASSIGN(const Chosen chosen, choose(config, model, of_text, source));
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return bad_request(directory + ": can not be made: " + error.message());
  Json described = Json::object();
  if (!source.empty() && is_there(source + "/" + config_file)) {
    SLUICE_ASSIGN(described, read_object(source + "/" + config_file, config_bytes_max));
  }
  const std::vector<std::string> of_tokenizer(tokenizer_files.begin(), tokenizer_files.end());
  if (!chosen.path.empty()) {
    const TokenizerFiles files = files_of(chosen.path);
    SLUICE_TRY(copy_files(of_tokenizer, files.folder, directory));
    if (files.folder.empty()) SLUICE_TRY(copy_companion(files.path, fs::path(directory) / "tokenizer.json"));
    if (!chosen.is_models) {
      SLUICE_ASSIGN(const Json ids, special_tokens(files));
      described.update(ids);
    }
  }
  if (chosen.is_models) SLUICE_TRY(copy_files({generation_file}, source, directory));
  if (chosen.bytes && !chosen.is_models)
    for (const char* field : token_fields) described[field] = nullptr;
  described.erase(tokenizer_field);
  if (chosen.bytes) described[tokenizer_field] = bytes_are_tokens;
  return publish_file(directory + "/" + config_file, described.dump(2) + "\n");
}

Result<std::string> config_with_companions(const ModelConfig& model, Dtype dtype, const std::string& source,
                                           const Json& marks) {
  Json config = Json::parse(hf_config_json(model, dtype));
  for (const char* field : token_fields) config[field] = nullptr;
  if (!source.empty() && is_there(source + "/" + config_file)) {
    SLUICE_ASSIGN(const Json began, read_object(source + "/" + config_file, config_bytes_max));
    config.update(special_tokens_of(began));
  }
  config.update(marks);
  return config.dump(2) + "\n";
}

Json special_tokens_of(const Json& config) {
  Json tokens = Json::object();
  for (const char* field : token_fields)
    if (config.contains(field)) tokens[field] = config[field];
  if (config.contains(tokenizer_field)) tokens[tokenizer_field] = config[tokenizer_field];
  return tokens;
}

Result<std::vector<std::string>> write_companions(const std::string& source, const std::string& directory,
                                                  const std::string& config) {
  std::vector<std::string> names(tokenizer_files.begin(), tokenizer_files.end());
  names.emplace_back(generation_file);
  SLUICE_ASSIGN(names, copy_files(std::move(names), source, directory));
  if (std::find(names.begin(), names.end(), generation_file) == names.end()) {
    // That the defaults are those of config.json.
    const Json model = Json::parse(config);
    Json generation{{"_from_model_config", true}};
    for (const char* field : token_fields)
      if (!model[field].is_null()) generation[field] = model[field];
    SLUICE_TRY(publish_file(directory + "/" + generation_file, generation.dump(2) + "\n"));
    names.emplace_back(generation_file);
  }
  SLUICE_TRY(publish_file(directory + "/" + config_file, config));
  names.insert(names.begin(), config_file);
  return names;
}

std::uint64_t companion_bytes(const std::string& source) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(source, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    const std::uint64_t size = fs::file_size(entry->path(), unknown);
    if (!unknown && is_companion(entry->path().filename().string())) bytes += size;
  }
  return bytes;
}

}  // namespace sluice
