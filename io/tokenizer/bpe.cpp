#include "io/tokenizer/bpe.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/unicode.h"

namespace sluice {
namespace {

constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr std::uint32_t no_rank = ~0u;
/// Up to here looking at every pair again is faster than a heap.
constexpr std::size_t short_symbols = 48;
/// Of an encoder's memory: words are kept up to this length, and forgotten when there are too many.
constexpr std::size_t known_word_bytes = 64, known_places_min = 1u << 9, known_places_max = 1u << 17;

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> all = [] {
    std::array<std::string, 256> made;
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      append_utf8(itself ? b : next++, made[b]);
    }
    return made;
  }();
  return all;
}

bool bytes_of_characters(std::string_view token, std::string& bytes) {
  static const std::array<std::int16_t, 0x200> byte_of = [] {
    std::array<std::int16_t, 0x200> made;
    made.fill(-1);
    for (unsigned b = 0; b < 256; ++b) made[utf8_at(byte_characters()[b], 0)] = static_cast<std::int16_t>(b);
    return made;
  }();
  bytes.clear();
  for (std::size_t i = 0; i < token.size(); i += utf8_length(token[i])) {
    const char32_t c = utf8_at(token, i);
    if (c >= byte_of.size() || byte_of[c] < 0) return false;
    bytes += static_cast<char>(byte_of[c]);
  }
  return true;
}

Result<Bpe> Bpe::from(const nlohmann::json& json, bool byte_level) {
  if (!json.is_object()) return bad_request("the model must be an object");
  // Older files have no type; BPE alone has merges.
  const std::string type = json.contains("type") && json["type"].is_string() ? json["type"].get<std::string>()
                           : json.contains("merges")                         ? "BPE"
                                                                             : "without a type";
  if (type != "BPE") return bad_request("the model '" + type + "' is not supported, BPE is");
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (json.contains(field) && json[field].is_string() && !json[field].get_ref<const std::string&>().empty())
      return bad_request(std::string("a model with ") + field + " is not supported");
  if (json.contains("dropout") && json["dropout"].is_number() && json["dropout"].get<double>() > 0)
    return bad_request("a model with dropout is not supported");
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  SLUICE_ASSIGN(const bool byte_fallback, bool_of(json, "byte_fallback", false));
  SLUICE_ASSIGN(bpe.ignore_merges_, bool_of(json, "ignore_merges", false));
  SLUICE_ASSIGN(bpe.fuse_unknown_, bool_of(json, "fuse_unk", false));
  if (!json.contains("vocab") || !json["vocab"].is_object()) return bad_request("the model's vocab must be an object");
  for (const auto& [token, id] : json["vocab"].items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7ffffffeu)
      return bad_request("the id of token '" + token + "' is not a number of a token");
    const auto number = static_cast<std::int32_t>(id.get<std::uint64_t>());
    bpe.vocabulary_.emplace(token, number);
    std::string bytes;
    if (!byte_level)
      bpe.words_.emplace(token, number);
    else if (bytes_of_characters(token, bytes))
      bpe.words_.emplace(bytes, number);
  }
  if (json.contains("unk_token") && json["unk_token"].is_string()) {
    const auto unknown = bpe.vocabulary_.find(json["unk_token"].get<std::string>());
    if (unknown == bpe.vocabulary_.end()) return bad_request("unk_token is not in the vocabulary");
    bpe.unknown_ = unknown->second;
  }
  bpe.read_bytes(byte_fallback);
  SLUICE_ASSIGN(const nlohmann::json* const merges, list_of(json, "merges"));
  SLUICE_TRY(bpe.add_merges(*merges));
  return bpe;
}

void Bpe::read_bytes(bool byte_fallback) {
  bytes_.fill(-1);
  all_bytes_ = byte_fallback && !byte_level_;
  for (unsigned b = 0; b < 256; ++b) {
    const std::string name = byte_level_ ? std::string(1, static_cast<char>(b)) : fmt::format("<0x{:02X}>", b);
    if (const auto it = words_.find(name); it != words_.end()) bytes_[b] = it->second;
  }
}

Status Bpe::add_merges(const nlohmann::json& merges) {
  std::size_t places = 16;
  while (places < 2 * merges.size()) places *= 2;
  merges_.assign(places, {});
  bool crosses_spaces = false;
  std::uint32_t rank = 0;
  for (const nlohmann::json& each : merges) {
    std::string left, right;
    if (each.is_string()) {
      const auto& text = each.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        return bad_request(fmt::format("merge {} is not a pair of tokens", rank));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (each.is_array() && each.size() == 2 && each[0].is_string() && each[1].is_string()) {
      left = each[0].get<std::string>();
      right = each[1].get<std::string>();
    } else {
      return bad_request(fmt::format("merge {} is not a pair of tokens", rank));
    }
    const auto a = vocabulary_.find(left), b = vocabulary_.find(right), c = vocabulary_.find(left + right);
    if (a == vocabulary_.end() || b == vocabulary_.end() || c == vocabulary_.end())
      return bad_request(
          fmt::format("merge {} ('{}' and '{}') names a token that the vocabulary lacks", rank, left, right));
    insert({pair_of(a->second, b->second), rank, c->second});
    ++rank;
    // a mark that something else than a mark stands before
    const std::string& made = c->first;
    for (std::size_t at = made.find(space_mark); at != std::string::npos; at = made.find(space_mark, at + 1))
      crosses_spaces |= at > 0 && !std::string_view(made).substr(0, at).ends_with(space_mark);
  }
  cut_at_spaces_ = !byte_level_ && !ignore_merges_ && !crosses_spaces && vocabulary_.contains(space_mark);
  return success();
}

void Bpe::insert(const Merge& merge) {
  std::size_t at = XXH3_64bits(&merge.pair, sizeof merge.pair) & (merges_.size() - 1);
  while (merges_[at].rank != no_rank && merges_[at].pair != merge.pair) at = (at + 1) & (merges_.size() - 1);
  merges_[at] = merge;  // of a pair that is listed twice the last counts
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = XXH3_64bits(&pair, sizeof pair) & (merges_.size() - 1); merges_[at].rank != no_rank;
       at = (at + 1) & (merges_.size() - 1))
    if (merges_[at].pair == pair) return &merges_[at];
  return nullptr;
}

void Bpe::Encoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  // Words that no token joins, one by one: so they are short, and known.
  while (bpe_.cut_at_spaces_) {
    std::size_t at = word.find(space_mark);
    while (at != std::string_view::npos && (at == 0 || word.substr(0, at).ends_with(space_mark)))
      at = word.find(space_mark, at + space_mark.size());
    if (at == std::string_view::npos) break;
    const std::string_view first = word.substr(0, at);
    word.remove_prefix(at);
    encode_new(first, ids);
  }
  encode_new(word, ids);
}

void Bpe::Encoder::encode_new(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.empty()) return;
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  const bool short_enough = word.size() <= known_word_bytes;
  if (known_.empty()) known_.resize(known_places_min);
  if (short_enough) {
    const std::size_t mask = known_.size() - 1;
    for (std::size_t at = hash & mask; known_[at].text_bytes > 0; at = (at + 1) & mask) {
      const Known& known = known_[at];
      if (known.hash != hash || known.text_bytes != word.size() ||
          std::memcmp(texts_.data() + known.text, word.data(), word.size()) != 0)
        continue;
      ids.insert(ids.end(), ids_.begin() + known.ids, ids_.begin() + known.ids + known.ids_count);
      return;
    }
  }
  const std::size_t before = ids.size();
  const auto whole = bpe_.ignore_merges_ ? bpe_.words_.find(word) : bpe_.words_.end();
  if (whole != bpe_.words_.end()) {
    ids.push_back(whole->second);
  } else {
    first_ids(word);
    symbols_.size() <= short_symbols ? merge_short(ids) : merge_long(ids);
  }
  if (short_enough) remember(hash, word, ids.data() + before, ids.size() - before);
}

/// A token for each byte or character, as the vocabulary has them.
void Bpe::Encoder::first_ids(std::string_view word) {
  symbols_.clear();
  bool fuses = false;  // the last one is unknown, and what is unknown too joins it
  const auto add = [&](std::int32_t id) {
    if (id >= 0) {
      symbols_.push_back(id);
      fuses = false;
    } else if (bpe_.unknown_ >= 0) {
      if (!(fuses && bpe_.fuse_unknown_)) symbols_.push_back(bpe_.unknown_);
      fuses = true;
    }
  };
  if (bpe_.byte_level_) {
    for (const char c : word) add(bpe_.bytes_[static_cast<unsigned char>(c)]);
    return;
  }
  for (std::size_t i = 0; i < word.size();) {
    const std::string_view character = word.substr(i, utf8_length(word[i]));
    i += character.size();
    const auto it = bpe_.words_.find(character);
    const bool as_bytes = it == bpe_.words_.end() && bpe_.all_bytes_ &&
                          std::all_of(character.begin(), character.end(),
                                      [&](char c) { return bpe_.bytes_[static_cast<unsigned char>(c)] >= 0; });
    if (as_bytes)
      for (const char c : character) add(bpe_.bytes_[static_cast<unsigned char>(c)]);
    else
      add(it == bpe_.words_.end() ? -1 : it->second);
  }
}

void Bpe::Encoder::merge_short(std::vector<std::int32_t>& ids) {
  const auto rank_at = [&](std::size_t i) {
    const Merge* const merge = bpe_.find(symbols_[i], symbols_[i + 1]);
    return merge == nullptr ? no_rank : merge->rank;
  };
  ranks_.clear();
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) ranks_.push_back(rank_at(i));
  while (!ranks_.empty()) {
    const auto least = std::min_element(ranks_.begin(), ranks_.end());
    if (*least == no_rank) break;
    const auto i = static_cast<std::size_t>(least - ranks_.begin());
    symbols_[i] = bpe_.find(symbols_[i], symbols_[i + 1])->id;
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks_.erase(least);
    if (i > 0) ranks_[i - 1] = rank_at(i - 1);
    if (i < ranks_.size()) ranks_[i] = rank_at(i);
  }
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
}

void Bpe::Encoder::merge_long(std::vector<std::int32_t>& ids) {
  constexpr std::int32_t none = -1, merged = -2;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.place > b.place;
  };
  const auto n = static_cast<std::int32_t>(symbols_.size());
  chain_.clear();
  heap_.clear();
  for (std::int32_t i = 0; i < n; ++i)
    chain_.push_back({symbols_[static_cast<std::size_t>(i)], i - 1, i + 1 < n ? i + 1 : none});
  const auto symbol = [&](std::int32_t i) -> Symbol& { return chain_[static_cast<std::size_t>(i)]; };
  const auto merge_at = [&](std::int32_t i) { return bpe_.find(symbol(i).id, symbol(symbol(i).next).id); };
  for (std::int32_t i = 0; i + 1 < n; ++i)
    if (const Merge* const merge = merge_at(i)) heap_.push_back({merge->rank, i, merge->id});
  std::make_heap(heap_.begin(), heap_.end(), later);
  const auto offer = [&](std::int32_t i) {
    if (i < 0 || symbol(i).next < 0) return;
    if (const Merge* const merge = merge_at(i)) {
      heap_.push_back({merge->rank, i, merge->id});
      std::push_heap(heap_.begin(), heap_.end(), later);
    }
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbol(best.place);
    if (left.next < 0) continue;
    const Merge* const merge = merge_at(best.place);
    if (merge == nullptr || merge->id != best.id) continue;  // one of the two has changed since
    Symbol& right = symbol(left.next);
    left.id = best.id;
    left.next = right.next;
    right.next = merged;
    if (left.next >= 0) symbol(left.next).previous = best.place;
    offer(left.previous);
    offer(best.place);
  }
  for (std::int32_t i = 0; i >= 0 && i < n; i = symbol(i).next) ids.push_back(symbol(i).id);
}

/// A place for more words: in twice the memory, or in that of all that were known.
void Bpe::Encoder::make_room() {
  std::vector<Known> old(known_.size() < known_places_max ? 2 * known_.size() : known_.size());
  old.swap(known_);
  if (old.size() < known_.size()) {
    for (const Known& known : old)
      if (known.text_bytes > 0) known_[free_place(known.hash)] = known;
    return;
  }
  known_count_ = 0;
  texts_.clear();
  ids_.clear();
}

std::size_t Bpe::Encoder::free_place(std::uint64_t hash) const {
  std::size_t at = hash & (known_.size() - 1);
  while (known_[at].text_bytes > 0) at = (at + 1) & (known_.size() - 1);
  return at;
}

void Bpe::Encoder::remember(std::uint64_t hash, std::string_view word, const std::int32_t* ids, std::size_t count) {
  if (2 * known_count_ >= known_.size()) make_room();
  known_[free_place(hash)] = {hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(word.size()),
                              static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint32_t>(count)};
  texts_ += word;
  ids_.insert(ids_.end(), ids, ids + count);
  ++known_count_;
}

}  // namespace sluice
