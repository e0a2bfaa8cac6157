#include "io/tokenizer/tokenizer_hash.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/checksum.h"
#include "io/tokens/token_file.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

class Sum {
 public:
  void add(std::uint64_t number) { sum_.add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text) {
    add(text.size());
    sum_.add(std::as_bytes(std::span(text)));
  }
  std::uint64_t value() const { return sum_.value(); }

 private:
  StreamingChecksum sum_;
};

/// What older files leave out and newer ones spell is one thing. `skip_unset`: false and "" are what is left out.
Json plain(const Json& json, bool skip_unset) {
  if (json.is_array()) {
    Json list = Json::array();
    for (const Json& each : json) list.push_back(plain(each, skip_unset));
    return list;
  }
  if (!json.is_object()) return json;
  Json object = Json::object();
  for (const auto& [key, value] : json.items()) {
    const bool unset = value.is_null() || (skip_unset && (value == false || value == ""));
    if (!unset && key != "trim_offsets") object[key] = plain(value, skip_unset);
  }
  if (object.value("type", Json()) == "ByteLevel")
    for (const char* otherwise_on : {"add_prefix_space", "use_regex"})
      if (!object.contains(otherwise_on)) object[otherwise_on] = true;
  return object;
}

const Json& part(const Json& json, const char* name) {
  static const Json none;
  return json.is_object() && json.contains(name) ? json[name] : none;
}

/// "a b", or ["a", "b"].
void add_merges(const Json& merges, Sum& sum) {
  sum.add(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      sum.add(both.substr(0, space));
      sum.add(space == std::string_view::npos ? std::string_view() : both.substr(space + 1));
      continue;
    }
    for (const Json& side : merge)
      if (side.is_string()) sum.add(std::string_view(side.get_ref<const std::string&>()));
  }
}

/// Of added tokens only how they are found in a text: that some are special decides nothing there.
void add_added(const Json& added, Sum& sum) {
  std::map<std::uint64_t, std::string> by_id;
  for (const Json& token : added) {
    std::string how;
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
      how += part(token, flag) == true ? '1' : '0';
    by_id[token["id"].get<std::uint64_t>()] = how;
  }
  sum.add(by_id.size());
  for (const auto& [id, how] : by_id) {
    sum.add(id);
    sum.add(how);
  }
}

}  // namespace

std::uint64_t hash_of_tokenizer(const Json& json, std::span<const std::string> tokens) {
  Sum sum;
  sum.add(tokens.size());
  for (const std::string& token : tokens) sum.add(token);
  Json options{{"type", "BPE"}};  // older files have no type
  for (const auto& [key, value] : json["model"].items())
    if (key != "merges" && key != "vocab") options[key] = value;
  add_merges(part(json["model"], "merges"), sum);
  add_added(part(json, "added_tokens"), sum);
  // Bytes that are no UTF-8 can not be in what was parsed, and are replaced where they are.
  const auto text = [](const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); };
  sum.add(text(plain(options, true)));
  sum.add(text(plain(part(json, "normalizer"), false)));
  sum.add(text(plain(part(json, "pre_tokenizer"), false)));
  const std::uint64_t value = sum.value();
  return value == 0 || value == byte_tokenizer ? 1 : value;
}

}  // namespace sluice
