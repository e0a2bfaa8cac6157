#include "io/tokenizer/gpt2_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using File = Gpt2Files::File;

constexpr std::uint64_t settings_bytes_max = 16u << 20;
constexpr std::uint64_t id_max = 1u << 30;
constexpr const char* gpt2_end = "<|endoftext|>";
constexpr const char* qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// What a class of transformers does when nothing is said.
struct Kind {
  const char* name;
  std::vector<std::pair<const char*, const char*>> named;  ///< special tokens
  bool is_qwen2 = false, is_roberta = false;
};
const std::array<Kind, 3>& kinds() {
  static const std::array<Kind, 3> all = {
      Kind{"GPT2Tokenizer", {{"bos_token", gpt2_end}, {"eos_token", gpt2_end}, {"unk_token", gpt2_end}}},
      Kind{"Qwen2Tokenizer", {{"eos_token", gpt2_end}, {"unk_token", gpt2_end}, {"pad_token", gpt2_end}}, true},
      Kind{"RobertaTokenizer",
           {{"bos_token", "<s>"},
            {"eos_token", "</s>"},
            {"unk_token", "<unk>"},
            {"sep_token", "</s>"},
            {"pad_token", "<pad>"},
            {"cls_token", "<s>"},
            {"mask_token", "<mask>"}},
           false,
           true}};
  return all;
}
/// In the order in which they get ids.
constexpr std::array named_tokens{"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
/// Of config.json, where no class is named.
constexpr std::pair<const char*, const char*> class_of_model[] = {{"gpt2", "GPT2Tokenizer"},
                                                                  {"qwen2", "Qwen2Tokenizer"},
                                                                  {"qwen3", "Qwen2Tokenizer"},
                                                                  {"roberta", "RobertaTokenizer"}};

/// Names and tokens in what is wrong are any text.
Error wrong(const File& file, const std::string& what) { return bad_request(shown(what, 400)).in(file.path); }

/// A null of no file.
Result<Json> object_of(const File& file) {
  if (file.path.empty()) return Json();
  if (const Status sound = check_json(file.text); !sound.ok()) return sound.error().in(file.path);
  Json json = Json::parse(file.text, nullptr, false);
  if (!json.is_object()) return wrong(file, "must be an object");
  return json;
}

/// An id without a token would still take memory.
bool is_far_beyond(std::uint64_t id, std::size_t tokens) { return id > 16 * tokens + 65536; }

/// Tokens and ids, of vocab.json and later of added tokens too.
struct Vocabulary {
  StringMap<std::int32_t> ids;
  std::unordered_map<std::int32_t, std::string> tokens;
  std::int32_t most = -1;

  /// The file as it stands is then in `json`.
  Status read(const File& file, Json& json);
  bool has_holes() const { return static_cast<std::size_t>(most) + 1 != tokens.size(); }
  void add(const std::string& token, std::int32_t id) {
    ids.emplace(token, id);
    tokens.emplace(id, token);
    most = std::max(most, id);
  }
};

Status Vocabulary::read(const File& file, Json& json) {
  SLUICE_ASSIGN(json, object_of(file));
  if (json.empty()) return wrong(file, "has no tokens");
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > id_max)
      return wrong(file, "the id of token '" + token + "' is not a number of a token");
    const auto number = static_cast<std::int32_t>(id.get<std::uint64_t>());
    if (is_far_beyond(id.get<std::uint64_t>(), json.size()))
      return wrong(file, fmt::format("the id of token '{}' is {}, of {} tokens", token, number, json.size()));
    if (const auto other = tokens.find(number); other != tokens.end())
      return wrong(file, fmt::format("tokens '{}' and '{}' both have id {}", other->second, token, number));
    add(token, number);
  }
  return success();
}

/// The lines of a text; the last may end without a line feed. A carriage return before one belongs to it.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  std::optional<std::string_view> next() {
    if (rest_.empty()) return std::nullopt;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_;
    return line;
  }
  std::size_t number() const { return number_; }

 private:
  std::string_view rest_;
  std::size_t number_ = 0;
};

/// What is wrong with a merge; its pair of ids if nothing is.
Result<std::uint64_t> pair_of(std::string_view line, const Vocabulary& vocabulary) {
  if (valid_utf8_prefix(line) != line.size()) return bad_request("is not UTF-8");
  const std::size_t space = line.find(' ');
  if (space == 0 || space + 1 >= line.size() || space == std::string_view::npos ||
      line.find(' ', space + 1) != std::string_view::npos)
    return bad_request("is not two tokens with a space between them");
  const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
  for (const std::string_view part : {left, right})
    if (!vocabulary.ids.contains(part)) return bad_request(fmt::format("'{}' is not in vocab.json", part));
  if (std::string joined = std::string(left).append(right); !vocabulary.ids.contains(joined))
    return bad_request(fmt::format("what it makes, '{}', is not in vocab.json", joined));
  return std::uint64_t{static_cast<std::uint32_t>(vocabulary.ids.find(left)->second)} << 32 |
         static_cast<std::uint32_t>(vocabulary.ids.find(right)->second);
}

Result<Json> read_merges(const File& file, const Vocabulary& vocabulary) {
  const std::uint64_t merges_max = JsonLimits().values_max;
  Json merges = Json::array();
  std::unordered_map<std::uint64_t, std::size_t> lines_of;
  Lines lines(file.text);
  while (const auto line = lines.next()) {
    if (lines.number() == 1 && line->starts_with("#version")) continue;
    const auto refuse = [&](const std::string& why) {
      return wrong(file, fmt::format("line {} {}", lines.number(), why));
    };
    if (merges.size() >= merges_max) return refuse(fmt::format("is one more than the {} that are read", merges_max));
    const Result<std::uint64_t> pair = pair_of(*line, vocabulary);
    if (!pair.ok()) return refuse(pair.error().message);
    if (const auto [it, is_new] = lines_of.try_emplace(*pair, lines.number()); !is_new)
      return refuse(fmt::format("is line {} again", it->second));
    merges.emplace_back(std::string(*line));
  }
  return merges;
}

/// A token as the files beside the vocabulary have it.
struct Entry {
  std::string content;
  std::optional<std::uint64_t> id;
  bool special = true, single_word = false, lstrip = false, rstrip = false, normalized = false;
};

/// A name, or an object with its content. `special`: where the object does not say.
Result<Entry> entry_of(const Json& json, bool special) {
  Entry entry;
  if (json.is_string()) {
    entry.content = json.get<std::string>();
    return entry;
  }
  if (!json.is_object()) return bad_request("must be a string, or an object with a content");
  SLUICE_ASSIGN(entry.content, string_of(json, "content"));
  SLUICE_ASSIGN(entry.special, bool_of(json, "special", special));
  SLUICE_ASSIGN(entry.single_word, bool_of(json, "single_word", false));
  SLUICE_ASSIGN(entry.lstrip, bool_of(json, "lstrip", false));
  SLUICE_ASSIGN(entry.rstrip, bool_of(json, "rstrip", false));
  SLUICE_ASSIGN(entry.normalized, bool_of(json, "normalized", !entry.special));
  return entry;
}

/// What is read from tokenizer_config.json and the files that were there before it.
class Settings {
 public:
  explicit Settings(const Gpt2Files& files) : files_(files) {}
  Status read();

  const Kind& kind() const { return *kind_; }
  /// The file that would say otherwise than the class does; where there is none, the one that has to do with it.
  const File& file() const { return files_.settings.path.empty() ? files_.vocabulary : files_.settings; }
  /// Of a setting that is true or false.
  Result<bool> flag(const char* name) const;
  /// The content of a named special token; empty: none.
  Result<std::string> named(const char* name) const;
  /// Gives all added tokens their ids.
  Status add_tokens(Vocabulary& vocabulary);
  /// As tokenizer.json has them.
  Json added_tokens() const;

 private:
  struct Value {
    const Json* json;
    const File* file;
  };
  bool has_decoder() const { return settings_.contains("added_tokens_decoder"); }
  Status choose_kind();
  Value value_of(const char* name) const;
  Result<Entry> named_entry(const char* name) const;
  Value extra_tokens() const;
  Result<std::vector<Entry>> extra_entries() const;
  Result<std::vector<Entry>> listed_entries() const;
  Status add(const Entry& entry, const File& from, Vocabulary& vocabulary);
  Status add_others(const Json& json, const File& from, Vocabulary& vocabulary);

  const Gpt2Files& files_;
  Json settings_, special_, added_;
  const Kind* kind_ = nullptr;
  std::vector<Entry> entries_;
  StringMap<std::size_t> places_;  ///< in entries_
};

Status Settings::read() {
  SLUICE_ASSIGN(settings_, object_of(files_.settings));
  SLUICE_TRY(choose_kind());
  for (const char* name : {"add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"}) {
    SLUICE_ASSIGN(const bool is_set, flag(name));
    if (is_set && name == std::string_view("split_special_tokens"))
      return wrong(files_.settings, "split_special_tokens is not supported");
  }
  // What has been written since added_tokens_decoder came has all tokens there.
  if (has_decoder()) return success();
  SLUICE_ASSIGN(special_, object_of(files_.special_tokens));
  SLUICE_ASSIGN(added_, object_of(files_.added));
  return success();
}

Status Settings::choose_kind() {
  std::string name = "GPT2Tokenizer", model;
  if (settings_.contains("tokenizer_class") && !settings_["tokenizer_class"].is_null()) {
    const auto given = string_of(settings_, "tokenizer_class");
    if (!given.ok()) return wrong(files_.settings, given.error().message);
    name = *given;
  } else {
    SLUICE_ASSIGN(const Json config, object_of(files_.config));
    if (config.contains("model_type") && config["model_type"].is_string()) model = config["model_type"];
    const auto* const known = std::find_if(std::begin(class_of_model), std::end(class_of_model),
                                           [&](const auto& each) { return model == each.first; });
    if (!model.empty() && known == std::end(class_of_model))
      return wrong(files_.config, fmt::format("model_type '{}' does not say how vocab.json is used; add a "
                                              "tokenizer_config.json with its tokenizer_class",
                                              model));
    if (!model.empty()) name = known->second;
  }
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const auto found = std::find_if(kinds().begin(), kinds().end(), [&](const Kind& k) { return name == k.name; });
  if (found == kinds().end())
    return wrong(files_.settings, fmt::format("tokenizer_class '{}' is not supported without tokenizer.json; "
                                              "GPT2Tokenizer, Qwen2Tokenizer and RobertaTokenizer are",
                                              name));
  kind_ = &*found;
  return success();
}

Result<bool> Settings::flag(const char* name) const {
  const auto value = bool_of(settings_, name, false);
  return value.ok() ? value : wrong(files_.settings, value.error().message);
}

Settings::Value Settings::value_of(const char* name) const {
  if (special_.contains(name)) return {&special_[name], &files_.special_tokens};
  if (settings_.contains(name)) return {&settings_[name], &files_.settings};
  return {nullptr, &file()};
}

/// Without a content where there is none.
Result<Entry> Settings::named_entry(const char* name) const {
  const Value value = value_of(name);
  if (value.json == nullptr) {
    Entry entry;
    for (const auto& [each, content] : kind_->named)
      if (std::string_view(each) == name) entry.content = content;
    return entry;
  }
  if (value.json->is_null()) return Entry();
  Result<Entry> entry = entry_of(*value.json, value.file != &files_.settings);
  if (!entry.ok()) return wrong(*value.file, std::string(name) + ": " + entry.error().message);
  entry->special = true;
  return entry;
}

Result<std::string> Settings::named(const char* name) const {
  SLUICE_ASSIGN(Entry entry, named_entry(name));
  return entry.content;
}

/// The list has had two names, and the newer goes first.
Settings::Value Settings::extra_tokens() const {
  for (const Value& in : {Value{&settings_, &files_.settings}, Value{&special_, &files_.special_tokens}})
    for (const char* name : {"extra_special_tokens", "additional_special_tokens"})
      if (in.json->contains(name) && !(*in.json)[name].empty()) return {&(*in.json)[name], in.file};
  return {nullptr, &file()};
}

Result<std::vector<Entry>> Settings::extra_entries() const {
  const Value extra = extra_tokens();
  std::vector<Entry> entries;
  if (extra.json == nullptr) return entries;
  if (!extra.json->is_array() && !extra.json->is_object())
    return wrong(*extra.file, "the extra special tokens must be a list");
  for (const Json& each : *extra.json) {  // of an object its values
    Result<Entry> entry = entry_of(each, extra.file != &files_.settings);
    if (!entry.ok()) return wrong(*extra.file, "an extra special token " + entry.error().message);
    entry->special = true;
    entries.push_back(std::move(*entry));
  }
  return entries;
}

/// Tokens with ids: of added_tokens_decoder, else of added_tokens.json.
Result<std::vector<Entry>> Settings::listed_entries() const {
  std::vector<Entry> entries;
  if (has_decoder()) {
    const Json& listed = settings_["added_tokens_decoder"];
    if (!listed.is_object()) return wrong(files_.settings, "added_tokens_decoder must be an object");
    for (const auto& [key, value] : listed.items()) {
      const auto refuse = [&, &key = key](const std::string& why) {
        return wrong(files_.settings, fmt::format("added_tokens_decoder: '{}' {}", key, why));
      };
      std::uint64_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || std::to_string(id) != key)
        return refuse("is not a number of a token");
      Result<Entry> entry = entry_of(value, false);
      if (!value.is_object() || !entry.ok()) return refuse(entry.ok() ? "must be an object" : entry.error().message);
      entry->id = id;
      entries.push_back(std::move(*entry));
    }
  } else if (added_.is_object()) {
    StringMap<bool> special;
    for (const char* name : named_tokens)
      if (value_of(name).json != nullptr) {
        SLUICE_ASSIGN(const std::string content, named(name));
        special[content] = true;
      }
    SLUICE_ASSIGN(const std::vector<Entry> extra, extra_entries());
    for (const Entry& entry : extra) special[entry.content] = true;
    for (const auto& [content, id] : added_.items()) {
      if (!id.is_number_unsigned())
        return wrong(files_.added, "the id of '" + content + "' is not a number of a token");
      const bool is_special = special.contains(content);
      entries.push_back({content, id.get<std::uint64_t>(), is_special, false, false, false, !is_special});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return *a.id < *b.id; });
  return entries;
}

/// A token that was added before stays as it was, but that it is special.
Status Settings::add(const Entry& entry, const File& from, Vocabulary& vocabulary) {
  if (entry.content.empty()) return success();
  const auto refuse = [&](const std::string& why) {
    return wrong(from, "added token '" + entry.content + "': " + why);
  };
  if (entry.id && *entry.id > id_max) return refuse("its id is not a number of a token");
  const auto [place, is_new] = places_.try_emplace(entry.content, entries_.size());
  if (!is_new) {
    Entry& known = entries_[place->second];
    if (entry.id && *entry.id != *known.id)
      return refuse(fmt::format("its id is {}, and {} too", *known.id, *entry.id));
    known.special |= entry.special;
    return success();
  }
  Entry added = entry;
  if (const auto known = vocabulary.ids.find(entry.content); known != vocabulary.ids.end()) {
    added.id = static_cast<std::uint64_t>(known->second);
    if (entry.id && *entry.id != *added.id)
      return refuse(fmt::format("its id is {}, in vocab.json {}", *entry.id, *added.id));
  } else {
    if (!entry.id && vocabulary.has_holes()) return refuse("it has no id, and there are holes in those of the others");
    if (!entry.id) added.id = static_cast<std::uint64_t>(vocabulary.most) + 1;
    const auto id = static_cast<std::int32_t>(*added.id);
    if (const auto other = vocabulary.tokens.find(id); other != vocabulary.tokens.end())
      return refuse(fmt::format("its id {} is that of '{}'", id, other->second));
    if (is_far_beyond(*added.id, vocabulary.tokens.size()))
      return refuse(fmt::format("its id is {}, of {} tokens", id, vocabulary.tokens.size()));
    vocabulary.add(added.content, id);
  }
  entries_.push_back(std::move(added));
  return success();
}

/// Special tokens under a model's own names, such as "image_token". They have ids already.
Status Settings::add_others(const Json& json, const File& from, Vocabulary& vocabulary) {
  for (const auto& [name, value] : json.items()) {
    const bool is_named = std::find(named_tokens.begin(), named_tokens.end(), name) != named_tokens.end();
    if (is_named || !name.ends_with("_token") || !value.is_string()) continue;
    Entry entry;
    entry.content = value.get<std::string>();
    if (!entry.content.empty() && !vocabulary.ids.contains(entry.content))
      return wrong(from, name + " '" + entry.content + "' is not in the vocabulary");
    SLUICE_TRY(add(entry, from, vocabulary));
  }
  return success();
}

Status Settings::add_tokens(Vocabulary& vocabulary) {
  SLUICE_ASSIGN(const std::vector<Entry> listed, listed_entries());
  for (const Entry& entry : listed) SLUICE_TRY(add(entry, has_decoder() ? files_.settings : files_.added, vocabulary));
  for (const char* name : named_tokens) {
    SLUICE_ASSIGN(const Entry entry, named_entry(name));
    SLUICE_TRY(add(entry, *value_of(name).file, vocabulary));
  }
  SLUICE_ASSIGN(const std::vector<Entry> extra, extra_entries());
  for (const Entry& entry : extra) SLUICE_TRY(add(entry, *extra_tokens().file, vocabulary));
  SLUICE_TRY(add_others(settings_, files_.settings, vocabulary));
  return add_others(special_, files_.special_tokens, vocabulary);
}

Json Settings::added_tokens() const {
  Json list = Json::array();
  for (const Entry& e : entries_)
    list.push_back({{"id", *e.id},
                    {"content", e.content},
                    {"special", e.special},
                    {"single_word", e.single_word},
                    {"lstrip", e.lstrip},
                    {"rstrip", e.rstrip},
                    {"normalized", e.normalized}});
  return list;
}

Json pre_tokenizer(const Kind& kind, bool add_prefix_space) {
  Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", !kind.is_qwen2}};
  if (!kind.is_qwen2) return bytes;
  Json split = {{"type", "Split"}, {"pattern", {{"Regex", qwen2_pattern}}}, {"behavior", "Isolated"}};
  return {{"type", "Sequence"}, {"pretokenizers", {std::move(split), std::move(bytes)}}};
}

/// What stands around a text.
Result<Json> template_of(const Settings& settings, const Vocabulary& vocabulary) {
  const bool is_roberta = settings.kind().is_roberta;
  SLUICE_ASSIGN(const bool add_begin, settings.flag("add_bos_token"));
  SLUICE_ASSIGN(const bool add_end, settings.flag("add_eos_token"));
  SLUICE_ASSIGN(std::string begin, settings.named(is_roberta ? "cls_token" : "bos_token"));
  SLUICE_ASSIGN(std::string end, settings.named(is_roberta ? "sep_token" : "eos_token"));
  if (is_roberta && (begin.empty() || end.empty()))
    return wrong(settings.file(), "RobertaTokenizer needs a cls_token and a sep_token");
  if (!is_roberta && !add_begin) begin.clear();
  if (!is_roberta && !add_end) end.clear();
  if (begin.empty() && end.empty()) return Json();
  Json single = Json::array(), special = Json::object();
  const auto add = [&](const std::string& token) {
    if (token.empty()) return;
    single.push_back({{"SpecialToken", {{"id", token}}}});
    special[token] = {{"ids", {static_cast<std::uint32_t>(vocabulary.ids.find(token)->second)}}};
  };
  add(begin);
  single.push_back({{"Sequence", {{"id", "A"}}}});
  add(end);
  return Json{{"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", std::move(special)}};
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

bool Gpt2Files::lie_in(const std::string& directory) {
  return is_file(directory + "/vocab.json") && is_file(directory + "/merges.txt");
}

Result<Gpt2Files> Gpt2Files::read(const std::string& directory) {
  Gpt2Files files;
  for (const auto& [file, name] :
       {std::pair(&files.vocabulary, "vocab.json"), std::pair(&files.merges, "merges.txt")}) {
    file->path = directory + "/" + name;
    SLUICE_ASSIGN(file->text, read_file(file->path, tokenizer_bytes_max));
  }
  for (const auto& [file, name] :
       {std::pair(&files.settings, "tokenizer_config.json"),
        std::pair(&files.special_tokens, "special_tokens_map.json"), std::pair(&files.added, "added_tokens.json"),
        std::pair(&files.config, "config.json")}) {
    std::error_code ignored;
    const std::string path = directory + "/" + name;
    if (!std::filesystem::exists(path, ignored)) continue;
    file->path = path;
    SLUICE_ASSIGN(file->text, read_file(path, settings_bytes_max));
  }
  return files;
}

Result<Json> gpt2_tokenizer(const Gpt2Files& files, std::string& end_of_text) {
  Settings settings(files);
  SLUICE_TRY(settings.read());
  SLUICE_ASSIGN(const bool add_prefix_space, settings.flag("add_prefix_space"));
  Vocabulary vocabulary;
  Json listed;
  SLUICE_TRY(vocabulary.read(files.vocabulary, listed));
  SLUICE_ASSIGN(Json merges, read_merges(files.merges, vocabulary));
  SLUICE_TRY(settings.add_tokens(vocabulary));
  Json made;
  SLUICE_ASSIGN(end_of_text, settings.named("eos_token"));
  SLUICE_ASSIGN(made["post_processor"], template_of(settings, vocabulary));
  made["pre_tokenizer"] = pre_tokenizer(settings.kind(), add_prefix_space);
  if (settings.kind().is_qwen2) made["normalizer"] = {{"type", "NFC"}};
  made["decoder"] = {{"type", "ByteLevel"}};
  made["added_tokens"] = settings.added_tokens();
  made["model"] = {{"type", "BPE"}};
  made["model"]["vocab"] = std::move(listed);
  made["model"]["merges"] = std::move(merges);
  return made;
}

}  // namespace sluice
