#include "io/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/tokenizer/bpe.h"
#include "io/tokenizer/json_fields.h"

namespace sluice {
namespace {

using Tokens = std::vector<std::string>;

/// Tokens that have other characters than those of bytes stand for themselves.
Tokens join_bytes(const Tokens& tokens) {
  std::string all, bytes, storage;
  for (const std::string& token : tokens) all += bytes_of_characters(token, bytes) ? bytes : token;
  return {std::string(valid_utf8(all, storage))};
}

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

/// Runs of byte tokens become text, or a replacement character for each where they are none.
Tokens join_fallen_back(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8_prefix(bytes) == bytes.size())
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), std::string(replacement_character));
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

std::string_view stripped(std::string_view token, std::string_view content, std::size_t start, std::size_t stop) {
  for (std::size_t i = 0; i < start && token.starts_with(content); ++i) token.remove_prefix(content.size());
  for (std::size_t i = 0; i < stop && token.ends_with(content); ++i) token.remove_suffix(content.size());
  return token;
}

std::string without_marks(const std::string& token, const std::string& mark, bool dropped) {
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const bool is_mark = token.compare(i, mark.size(), mark) == 0;
    const std::size_t length = is_mark ? mark.size() : utf8_length(token[i]);
    if (!is_mark)
      out.append(token, i, length);
    else if (!dropped)
      out += ' ';
    i += length;
  }
  return out;
}

}  // namespace

Result<Decoder> Decoder::from(const nlohmann::json& json) {
  Decoder d;
  d.joins_with_spaces_ = json.is_null();
  if (!json.is_null()) SLUICE_TRY(d.add(json));
  return d;
}

Status Decoder::add(const nlohmann::json& json) {
  SLUICE_ASSIGN(const std::string type, type_of(json, "a decoder"));
  if (type == "Sequence") {
    SLUICE_ASSIGN(const nlohmann::json* const parts, list_of(json, "decoders"));
    for (const nlohmann::json& part : *parts) SLUICE_TRY(add(part));
    return success();
  }
  if (type == "ByteLevel") return steps_.emplace_back(ByteLevel{}), success();
  if (type == "ByteFallback") return steps_.emplace_back(ByteFallback{}), success();
  if (type == "Fuse") return steps_.emplace_back(Fuse{}), success();
  if (type == "Replace") {
    if (!json.contains("pattern")) return bad_request("Replace has no pattern");
    SLUICE_ASSIGN(Wanted wanted, Wanted::from(json["pattern"]));
    SLUICE_ASSIGN(std::string by, string_of(json, "content"));
    return steps_.emplace_back(Replace{std::move(wanted), std::move(by)}), success();
  }
  if (type == "Strip") {
    Strip strip;
    SLUICE_ASSIGN(strip.content, string_of(json, "content"));
    for (const auto& [field, to] : {std::pair("start", &strip.start), std::pair("stop", &strip.stop)}) {
      if (!json.contains(field) || !json[field].is_number_unsigned())
        return bad_request(std::string("Strip's ") + field + " must be a number");
      *to = json[field].get<std::size_t>();
    }
    if (strip.content.empty()) return bad_request("Strip's content is empty");
    return steps_.emplace_back(std::move(strip)), success();
  }
  if (type == "Metaspace") {
    Metaspace metaspace;
    SLUICE_ASSIGN(metaspace.mark, string_of(json, "replacement"));
    SLUICE_ASSIGN(metaspace.prefixed, bool_of(json, "add_prefix_space", true));
    if (json.contains("prepend_scheme")) metaspace.prefixed = json["prepend_scheme"] != "never";
    if (metaspace.mark.empty()) return bad_request("Metaspace's replacement is empty");
    return steps_.emplace_back(std::move(metaspace)), success();
  }
  return bad_request("the decoder '" + type + "' is not supported");
}

bool Decoder::joins(std::string_view token) const {
  return byte_of(token) && std::any_of(steps_.begin(), steps_.end(),
                                       [](const Step& step) { return std::holds_alternative<ByteFallback>(step); });
}

std::string Decoder::decode(Tokens tokens) const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) tokens = join_bytes(tokens);
    if (std::holds_alternative<ByteFallback>(step)) tokens = join_fallen_back(tokens);
    if (std::holds_alternative<Fuse>(step)) {
      std::string all;
      for (const std::string& token : tokens) all += token;
      tokens = {std::move(all)};
    }
    if (const auto* strip = std::get_if<Strip>(&step))
      for (std::string& token : tokens) token = std::string(stripped(token, strip->content, strip->start, strip->stop));
    if (const auto* metaspace = std::get_if<Metaspace>(&step))
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = without_marks(tokens[i], metaspace->mark, i == 0 && metaspace->prefixed);
    if (const auto* replace = std::get_if<Replace>(&step))
      for (std::string& token : tokens)
        if (auto by = replaced(token, replace->wanted, replace->by); by.ok()) token = std::move(*by);
  }
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && joins_with_spaces_) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace sluice
