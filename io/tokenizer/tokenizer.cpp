#include "io/tokenizer/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checksum.h"
#include "io/files/json_guard.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/gpt2_files.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/tokenizer_hash.h"
#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

constexpr std::size_t message_bytes_max = 400;

const nlohmann::json& field(const nlohmann::json& json, const char* name) {
  static const nlohmann::json none;
  return json.contains(name) ? json[name] : none;
}

/// What stands around a text.
struct Template {
  std::vector<std::int32_t> before, after;
};

Status add_template(const nlohmann::json& json, Template& out) {
  SLUICE_ASSIGN(const nlohmann::json* const items, list_of(json, "single"));
  bool seen_text = false;
  for (const nlohmann::json& item : *items) {
    if (item.is_object() && item.contains("Sequence")) {
      if (seen_text) return bad_request("a template that has the text twice is not supported");
      seen_text = true;
      continue;
    }
    const nlohmann::json& special = item.is_object() ? field(item, "SpecialToken") : item;
    const std::string name =
        special.is_object() && field(special, "id").is_string() ? special["id"].get<std::string>() : "";
    const nlohmann::json& known = field(json, "special_tokens");
    const nlohmann::json& entry = known.is_object() && known.contains(name) ? known[name] : field(json, "");
    if (!entry.is_object() || !field(entry, "ids").is_array())
      return bad_request("the template's token '" + name + "' is not among its special_tokens");
    for (const nlohmann::json& id : entry["ids"]) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7ffffffeu)
        return bad_request("an id of the template's token '" + name + "' is not a number of a token");
      (seen_text ? out.after : out.before).push_back(static_cast<std::int32_t>(id.get<std::uint64_t>()));
    }
  }
  return seen_text ? success() : Status(bad_request("the template has no place for the text"));
}

Status add_post_processor(const nlohmann::json& json, Template& out) {
  if (json.is_null()) return success();
  SLUICE_ASSIGN(const std::string type, type_of(json, "a post-processor"));
  if (type == "ByteLevel") return success();  // of offsets alone
  if (type == "TemplateProcessing") return add_template(json, out);
  if (type != "Sequence") return bad_request("the post-processor '" + type + "' is not supported");
  SLUICE_ASSIGN(const nlohmann::json* const parts, list_of(json, "processors"));
  for (const nlohmann::json& part : *parts) SLUICE_TRY(add_post_processor(part, out));
  return success();
}

}  // namespace

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  Template around;
  Decoder decoder;
  std::deque<AddedToken> added;  ///< stay where they are
  AddedTokenFinder in_text, in_normalized;
  StringMap<std::int32_t> ids;
  std::vector<std::string> tokens;  ///< [id]
  std::set<std::int32_t> special;
  std::map<std::int32_t, std::string> normal_forms;  ///< of added tokens that are looked for in one: texts have it
  std::optional<std::int32_t> end_of_text;
  std::uint64_t hash = 0;

  Status read(const nlohmann::json& json);
  Status add_tokens(const nlohmann::json& json);
  Status add_token(const nlohmann::json& json);
  void name(std::int32_t id, const std::string& token);
};

void Tokenizer::Parts::name(std::int32_t id, const std::string& token) {
  const auto place = static_cast<std::size_t>(id);
  if (tokens.size() <= place) tokens.resize(place + 1);
  tokens[place] = token;
  ids[token] = id;
}

Status Tokenizer::Parts::add_tokens(const nlohmann::json& json) {
  if (json.is_null()) return success();
  if (!json.is_array()) return bad_request("added_tokens must be a list");
  for (const nlohmann::json& each : json) SLUICE_TRY(add_token(each));
  return success();
}

Status Tokenizer::Parts::add_token(const nlohmann::json& json) {
  if (!json.is_object()) return bad_request("an added token must be an object");
  AddedToken t;
  SLUICE_ASSIGN(t.content, string_of(json, "content"));
  const auto in_token = [&](const Error& error) { return error.in("added token '" + t.content + "'"); };
  const nlohmann::json& id = field(json, "id");
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() > (1u << 30))
    return in_token(bad_request("its id is not a number of a token"));
  t.id = static_cast<std::int32_t>(id.get<std::uint64_t>());
  for (const auto& [name, to] :
       {std::pair("special", &t.special), std::pair("single_word", &t.single_word), std::pair("lstrip", &t.lstrip),
        std::pair("rstrip", &t.rstrip), std::pair("normalized", &t.normalized)}) {
    const auto value = bool_of(json, name, false);
    if (!value.ok()) return in_token(value.error());
    *to = *value;
  }
  if (const auto known = ids.find(t.content); known != ids.end() && known->second != t.id)
    return in_token(
        bad_request("its id is " + std::to_string(t.id) + ", in the vocabulary " + std::to_string(known->second)));
  if (t.content.empty()) return success();
  this->name(t.id, t.content);
  if (t.special) special.insert(t.id);
  added.push_back(std::move(t));
  const AddedToken& token = added.back();
  if (!token.normalized || normalizer.empty()) {
    (token.normalized ? in_normalized : in_text).add(&token, token.content);
    return success();
  }
  std::string form = token.content;
  SLUICE_TRY(normalizer.apply(form));
  in_normalized.add(&token, form);
  normal_forms[token.id] = std::move(form);
  return success();
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

/// What tokenizer.json holds, or would.
Status Tokenizer::Parts::read(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("model")) return bad_request("is not a tokenizer: it has no model");
  SLUICE_ASSIGN(normalizer, Normalizer::from(field(json, "normalizer")));
  SLUICE_ASSIGN(pre_tokenizer, PreTokenizer::from(field(json, "pre_tokenizer")));
  SLUICE_ASSIGN(bpe, Bpe::from(json["model"], pre_tokenizer.byte_level()));
  SLUICE_ASSIGN(decoder, Decoder::from(field(json, "decoder")));
  SLUICE_TRY(add_post_processor(field(json, "post_processor"), around));
  std::int32_t most = -1;
  for (const auto& [token, id] : bpe.vocabulary()) most = std::max(most, id);
  // A file of a hundred bytes could ask for the memory of two thousand million names.
  if (most >= 0 && static_cast<std::uint64_t>(most) > 16 * bpe.vocabulary().size() + 65536)
    return bad_request("token ids go up to " + std::to_string(most) + ", of " +
                       std::to_string(bpe.vocabulary().size()) + " tokens");
  for (const auto& [token, id] : bpe.vocabulary()) name(id, token);
  const nlohmann::json& listed = field(json, "added_tokens");
  for (const nlohmann::json& each : listed.is_array() ? listed : nlohmann::json::array())
    if (each.is_object() && field(each, "id").is_number_unsigned() &&
        each["id"].get<std::uint64_t>() > 16 * (tokens.size() + listed.size()) + 65536)
      return bad_request("the id of an added token is far beyond the others");
  SLUICE_TRY(add_tokens(listed));
  hash = hash_of_tokenizer(json, tokens);
  return success();
}

namespace {

/// Why nothing was found in `path`, and what would do.
Error no_tokenizer(const std::string& path) {
  std::error_code ignored;
  const std::string accepted =
      "a tokenizer.json, a vocab.json with merges.txt beside it, or the directory that holds them";
  const std::filesystem::file_status found = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(found)) return bad_request("there is no " + path + "; give " + accepted);
  if (!std::filesystem::is_directory(found))
    return bad_request(path + " is neither a file nor a directory; give " + accepted);
  const bool sentencepiece = std::filesystem::exists(path + "/tokenizer.model", ignored);
  return bad_request(path + " holds no tokenizer.json, and no vocab.json with merges.txt" +
                     (sentencepiece ? "; its tokenizer.model is SentencePiece's, which is not read: save_pretrained of "
                                      "transformers' fast tokenizer writes a tokenizer.json"
                                    : "; give the directory that holds them, or the file"));
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  std::string file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file += "/tokenizer.json";
    const bool any = std::filesystem::exists(path + "/vocab.json", ignored) ||
                     std::filesystem::exists(path + "/merges.txt", ignored);
    if (!std::filesystem::exists(file, ignored) && any) file = path + "/merges.txt";
  }
  const std::filesystem::path name(file);
  if (name.filename() == "merges.txt" || name.filename() == "vocab.json") {
    const std::filesystem::path folder = name.parent_path();
    SLUICE_ASSIGN(const Gpt2Files files, Gpt2Files::read(folder.empty() ? "." : folder.string()));
    return parse(files);
  }
  if (!std::filesystem::is_regular_file(file, ignored)) return no_tokenizer(path);
  if (std::filesystem::file_size(file, ignored) > tokenizer_bytes_max)
    return bad_request(file + " is larger than 256 MiB; no tokenizer is");
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) return bad_request("can not read " + file + ": " + std::strerror(errno));
  return parse(text, file);
}

bool Tokenizer::lies_in(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(directory + "/tokenizer.json", ignored) || Gpt2Files::lie_in(directory);
}

Result<Tokenizer> Tokenizer::parse(std::string_view text, const std::string& name) {
  if (const Status sound = check_json(text); !sound.ok())
    return bad_request(
        name + ": " + sound.error().message +
        (name.ends_with(".json") ? "" : "; a tokenizer is a tokenizer.json, or a vocab.json with merges.txt"));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  auto parts = std::make_unique<Parts>();
  // What is wrong may name tokens, and those are any text.
  if (const Status done = parts->read(json); !done.ok())
    return Error{done.error().code, shown(done.error().message, message_bytes_max)}.in(name);
  return Tokenizer(std::move(parts));
}

Result<Tokenizer> Tokenizer::parse(const Gpt2Files& files) {
  std::string end_of_text;
  SLUICE_ASSIGN(const nlohmann::json made, gpt2_tokenizer(files, end_of_text));
  auto parts = std::make_unique<Parts>();
  if (const Status done = parts->read(made); !done.ok())
    return Error{done.error().code, shown(done.error().message, message_bytes_max)}.in(files.vocabulary.path);
  if (const auto end = parts->ids.find(end_of_text); !end_of_text.empty() && end != parts->ids.end())
    parts->end_of_text = end->second;
  return Tokenizer(std::move(parts));
}

std::uint64_t Tokenizer::vocabulary() const { return parts_->tokens.size(); }

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
  const auto it = parts_->ids.find(token);
  return it == parts_->ids.end() ? std::nullopt : std::optional(it->second);
}

std::string_view Tokenizer::token(std::int32_t id) const {
  const auto place = static_cast<std::size_t>(id);
  return id >= 0 && place < parts_->tokens.size() ? std::string_view(parts_->tokens[place]) : std::string_view();
}

bool Tokenizer::is_special(std::int32_t id) const { return parts_->special.contains(id); }

bool Tokenizer::is_byte(std::int32_t id) const { return parts_->decoder.joins(token(id)); }

std::uint64_t Tokenizer::hash() const { return parts_->hash; }

std::uint64_t Tokenizer::hash_with_template() const {
  const Template& around = parts_->around;
  StreamingChecksum sum;
  for (const std::uint64_t number : {parts_->hash, std::uint64_t{around.before.size()}})
    sum.add(std::as_bytes(std::span(&number, 1)));
  sum.add(std::as_bytes(std::span(around.before)));
  sum.add(std::as_bytes(std::span(around.after)));
  return sum.value();
}

std::optional<std::int32_t> Tokenizer::end_of_text() const { return parts_->end_of_text; }

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const auto form = parts_->normal_forms.find(id);
    const std::string_view name = form == parts_->normal_forms.end() ? token(id) : form->second;
    if (!name.empty() && !(skip_special && is_special(id))) tokens.emplace_back(name);
  }
  return parts_->decoder.decode(std::move(tokens));
}

struct Tokenizer::Encoder::State {
  explicit State(const Parts& p) : parts(p), words(p.pre_tokenizer), bpe(p.bpe) {}

  void add(std::int32_t id, TextMarks marks, std::size_t at) {
    ids->push_back(id);
    if (mask != nullptr) mask->push_back(any_wanted(marks, {at, at + 1}) ? 1 : 0);
  }
  /// Bytes of a word that a token stands for.
  std::size_t bytes_of(std::int32_t id) const {
    const std::string& name = parts.tokens[static_cast<std::size_t>(id)];
    if (!parts.pre_tokenizer.byte_level())
      return name.size() == 6 && name.starts_with("<0x") && name.ends_with('>') ? 1 : name.size();
    return static_cast<std::size_t>(std::count_if(
        name.begin(), name.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
  }
  /// The mask of the tokens from `first` on, which are those of `word`.
  void mark_word(std::string_view word, TextMarks marks, std::size_t first) {
    const std::span<const std::int32_t> tokens = std::span(*ids).subspan(first);
    const bool wanted = any_wanted(marks, {0, word.size()});
    const bool border = std::any_of(marks.begin(), marks.end(), [&](const TextMark& m) { return m.wanted != wanted; });
    std::size_t bytes = 0;
    for (const std::int32_t id : tokens) bytes += bytes_of(id);
    // Where a character is unknown to the vocabulary nobody knows which token ends where: then the word counts whole.
    if (!border || bytes != word.size()) {
      mask->insert(mask->end(), tokens.size(), wanted ? 1 : 0);
      return;
    }
    std::size_t at = 0;
    for (const std::int32_t id : tokens) {
      const std::size_t end = at + bytes_of(id);
      mask->push_back(any_wanted(marks, {at, end}) ? 1 : 0);
      at = end;
    }
  }
  Status text(std::string_view piece, bool at_start, TextMarks marks) {
    const PreTokenizer::Sink sink = [&](std::string_view word, TextMarks word_marks) {
      const std::size_t first = ids->size();
      bpe.encode(word, *ids);
      if (mask != nullptr) mark_word(word, word_marks, first);
      return success();
    };
    return words.run(piece, at_start, marks, sink);
  }
  /// Between added tokens of the text as it came.
  Status between(std::string_view piece, bool at_start) {
    if (piece.empty()) return success();
    if (!parts.normalizer.empty()) {
      const std::string_view before = piece;
      normal.assign(piece);
      SLUICE_TRY(parts.normalizer.apply(normal));
      piece = normal;
      SLUICE_TRY(parts.normalizer.move_marks(before, normal.size(), piece_marks));
    }
    parts.in_normalized.find_all(piece, piece_marks, found_normalized);
    std::size_t done = 0;
    const auto part = [&](std::size_t end) {
      cut_marks(piece_marks, {done, end}, part_marks);
      return text(piece.substr(done, end - done), at_start && done == 0, part_marks);
    };
    for (const AddedTokenFinder::Found& f : found_normalized) {
      SLUICE_TRY(part(f.range.begin));
      add(f.token->id, piece_marks, f.at);
      done = f.range.end;
    }
    return part(piece.size());
  }
  Status all(std::string_view whole, TextMarks marks) {
    parts.in_text.find_all(whole, marks, found);
    std::size_t done = 0;
    const auto piece = [&](std::size_t end) {
      cut_marks(marks, {done, end}, piece_marks);
      return between(whole.substr(done, end - done), done == 0);
    };
    for (const AddedTokenFinder::Found& f : found) {
      SLUICE_TRY(piece(f.range.begin));
      add(f.token->id, marks, f.at);
      done = f.range.end;
    }
    return piece(whole.size());
  }

  const Parts& parts;
  PreTokenizer::Runner words;
  Bpe::Encoder bpe;
  std::string valid, normal;
  std::vector<AddedTokenFinder::Found> found, found_normalized;
  std::vector<TextMark> piece_marks, part_marks;
  std::vector<std::int32_t>* ids = nullptr;  ///< of the call
  std::vector<std::uint8_t>* mask = nullptr;
};

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer) : state_(std::make_unique<State>(*tokenizer.parts_)) {}
Tokenizer::Encoder::Encoder(Encoder&&) noexcept = default;
Tokenizer::Encoder::~Encoder() = default;

Status Tokenizer::Encoder::encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids) {
  const Template& around = state_->parts.around;
  if (add_special) ids.insert(ids.end(), around.before.begin(), around.before.end());
  state_->ids = &ids;
  state_->mask = nullptr;
  SLUICE_TRY(state_->all(valid_utf8(text, state_->valid), {}));
  if (add_special) ids.insert(ids.end(), around.after.begin(), around.after.end());
  return success();
}

Status Tokenizer::Encoder::encode(std::string_view text, TextMarks marks, std::vector<std::int32_t>& ids,
                                  std::vector<std::uint8_t>& mask) {
  if (valid_utf8_prefix(text) != text.size()) return bad_request("the text is not UTF-8");
  state_->ids = &ids;
  state_->mask = &mask;
  return state_->all(text, marks);
}

}  // namespace sluice
