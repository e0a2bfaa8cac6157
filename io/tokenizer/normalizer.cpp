#include "io/tokenizer/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/tokenizer/json_fields.h"

namespace sluice {
namespace {

void strip(std::string& text, bool left, bool right) {
  std::size_t begin = 0, end = text.size();
  while (left && begin < end && is_white_space(utf8_at(text, begin))) begin += utf8_length(text[begin]);
  while (right && end > begin) {
    std::size_t before = end - 1;
    while ((static_cast<unsigned char>(text[before]) & 0xc0u) == 0x80u) --before;
    if (!is_white_space(utf8_at(text, before))) break;
    end = before;
  }
  text = text.substr(begin, end - begin);
}

}  // namespace

Result<Wanted> Wanted::from(const nlohmann::json& json) {
  Wanted wanted;
  const bool is_string = json.is_object() && json.contains("String") && json["String"].is_string();
  const bool is_regex = json.is_object() && json.contains("Regex") && json["Regex"].is_string();
  if (!is_string && !is_regex) return bad_request("a pattern must be {\"String\": ...} or {\"Regex\": ...}");
  wanted.text = json[is_string ? "String" : "Regex"].get<std::string>();
  if (is_string && wanted.text.empty()) return bad_request("a pattern is empty");
  if (is_regex) {
    SLUICE_ASSIGN(wanted.pattern, Pattern::compile(wanted.text));
  }
  return wanted;
}

Result<std::string> replaced(std::string_view text, const Wanted& wanted, std::string_view by) {
  std::string out;
  std::size_t done = 0;
  std::optional<Pattern::Matcher> matcher;
  if (wanted.pattern) matcher.emplace(*wanted.pattern);
  for (std::size_t from = 0; from <= text.size();) {
    TextRange r;
    if (matcher) {
      SLUICE_ASSIGN(const auto found, matcher->find(text, from));
      if (!found) break;
      r = *found;
    } else {
      r.begin = text.find(wanted.text, from);
      if (r.begin == std::string_view::npos) break;
      r.end = r.begin + wanted.text.size();
    }
    out.append(text.substr(done, r.begin - done)).append(by);
    done = r.end;
    from = r.end > r.begin ? r.end : r.end + (r.end < text.size() ? utf8_length(text[r.end]) : 1);
  }
  return out.append(text.substr(done));
}

Result<Normalizer> Normalizer::from(const nlohmann::json& json) {
  Normalizer n;
  if (!json.is_null()) SLUICE_TRY(n.add(json));
  return n;
}

Status Normalizer::add(const nlohmann::json& json) {
  SLUICE_ASSIGN(const std::string type, type_of(json, "a normalizer"));
  if (type == "Sequence") {
    SLUICE_ASSIGN(const nlohmann::json* const parts, list_of(json, "normalizers"));
    for (const nlohmann::json& part : *parts) SLUICE_TRY(add(part));
    return success();
  }
  if (type == "NFC") return steps_.emplace_back(NormalForm::nfc), success();
  if (type == "NFD") return steps_.emplace_back(NormalForm::nfd), success();
  if (type == "NFKC") return steps_.emplace_back(NormalForm::nfkc), success();
  if (type == "NFKD") return steps_.emplace_back(NormalForm::nfkd), success();
  if (type == "Prepend") {
    SLUICE_ASSIGN(std::string text, string_of(json, "prepend"));
    return steps_.emplace_back(Prepend{std::move(text)}), success();
  }
  if (type == "Replace") {
    if (!json.contains("pattern")) return bad_request("Replace has no pattern");
    SLUICE_ASSIGN(Wanted wanted, Wanted::from(json["pattern"]));
    SLUICE_ASSIGN(std::string by, string_of(json, "content"));
    return steps_.emplace_back(Replace{std::move(wanted), std::move(by)}), success();
  }
  if (type == "Strip") {
    SLUICE_ASSIGN(const bool left, bool_of(json, "strip_left", false));
    SLUICE_ASSIGN(const bool right, bool_of(json, "strip_right", false));
    return steps_.emplace_back(Strip{left, right}), success();
  }
  return bad_request("the normalizer '" + type + "' is not supported");
}

Status Normalizer::apply(std::string& text) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<NormalForm>(&step)) text = normalized(text, *form);
    if (const auto* prepend = std::get_if<Prepend>(&step); prepend && !text.empty()) text.insert(0, prepend->text);
    if (const auto* s = std::get_if<Strip>(&step)) strip(text, s->left, s->right);
    if (const auto* replace = std::get_if<Replace>(&step)) {
      SLUICE_ASSIGN(text, replaced(text, replace->wanted, replace->by));
    }
  }
  return success();
}

// What stands before a mark has the same normal form alone: marks lie at the borders of messages, behind white space
// and punctuation of a template, where nothing composes.
Status Normalizer::move_marks(std::string_view text, std::size_t normal_bytes, std::vector<TextMark>& marks) const {
  std::string before;
  std::size_t least = 0;
  for (TextMark& mark : marks) {
    before.assign(text.substr(0, mark.begin));
    SLUICE_TRY(apply(before));
    mark.begin = least = std::clamp(before.size(), least, normal_bytes);
  }
  return success();
}

}  // namespace sluice
