#include "io/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/tokenizer/json_fields.h"

namespace sluice {
namespace {

/// GPT-2's, which ByteLevel brings along.
constexpr const char* gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Result<PreTokenizer> PreTokenizer::from(const nlohmann::json& json) {
  PreTokenizer p;
  if (!json.is_null()) SLUICE_TRY(p.add(json));
  return p;
}

Status PreTokenizer::add(const nlohmann::json& json) {
  if (byte_level_) return bad_request("a pre-tokenizer after ByteLevel is not supported");
  SLUICE_ASSIGN(const std::string type, type_of(json, "a pre-tokenizer"));
  if (type == "Sequence") {
    SLUICE_ASSIGN(const nlohmann::json* const parts, list_of(json, "pretokenizers"));
    for (const nlohmann::json& part : *parts) SLUICE_TRY(add(part));
    return success();
  }
  if (type == "ByteLevel") return add_byte_level(json);
  if (type == "Metaspace") return add_metaspace(json);
  if (type == "Split") return add_split(json);
  if (type == "Digits") {
    SLUICE_ASSIGN(const bool each, bool_of(json, "individual_digits", false));
    SLUICE_ASSIGN(Pattern pattern, Pattern::compile(R"(\p{N})"));
    stages_.emplace_back(Split{{"", std::move(pattern)}, each ? Behavior::isolated : Behavior::contiguous, false});
    return success();
  }
  return bad_request("the pre-tokenizer '" + type + "' is not supported");
}

Status PreTokenizer::add_byte_level(const nlohmann::json& json) {
  byte_level_ = true;
  SLUICE_ASSIGN(const bool prefix, bool_of(json, "add_prefix_space", true));
  SLUICE_ASSIGN(const bool use_regex, bool_of(json, "use_regex", true));
  if (prefix) stages_.emplace_back(Prefix{" ", false});
  if (!use_regex) return success();
  SLUICE_ASSIGN(Pattern pattern, Pattern::compile(gpt2_pattern));
  stages_.emplace_back(Split{{"", std::move(pattern)}, Behavior::isolated, false});
  return success();
}

Status PreTokenizer::add_metaspace(const nlohmann::json& json) {
  SLUICE_ASSIGN(const std::string mark, string_of(json, "replacement"));
  if (mark.empty() || utf8_length(mark[0]) != mark.size())
    return bad_request("Metaspace's replacement must be one character");
  SLUICE_ASSIGN(const bool legacy_prefix, bool_of(json, "add_prefix_space", true));
  SLUICE_ASSIGN(const bool cut, bool_of(json, "split", true));
  std::string scheme = legacy_prefix ? "always" : "never";
  if (json.contains("prepend_scheme")) {
    SLUICE_ASSIGN(scheme, string_of(json, "prepend_scheme"));
  }
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return bad_request("Metaspace's prepend_scheme '" + scheme + "' is not known");
  stages_.emplace_back(Swap{" ", mark});
  if (scheme != "never") stages_.emplace_back(Prefix{mark, scheme == "first"});
  if (cut) stages_.emplace_back(Split{{mark, std::nullopt}, Behavior::merged_with_next, false});
  return success();
}

Status PreTokenizer::add_split(const nlohmann::json& json) {
  if (!json.contains("pattern")) return bad_request("Split has no pattern");
  Split split;
  SLUICE_ASSIGN(split.wanted, Wanted::from(json["pattern"]));
  SLUICE_ASSIGN(split.invert, bool_of(json, "invert", false));
  SLUICE_ASSIGN(const std::string behavior, string_of(json, "behavior"));
  constexpr std::pair<const char*, Behavior> known[] = {{"Removed", Behavior::removed},
                                                        {"Isolated", Behavior::isolated},
                                                        {"MergedWithPrevious", Behavior::merged_with_previous},
                                                        {"MergedWithNext", Behavior::merged_with_next},
                                                        {"Contiguous", Behavior::contiguous}};
  const auto* const found =
      std::find_if(std::begin(known), std::end(known), [&](const auto& each) { return behavior == each.first; });
  if (found == std::end(known)) return bad_request("Split's behavior '" + behavior + "' is not known");
  split.behavior = found->second;
  stages_.emplace_back(std::move(split));
  return success();
}

PreTokenizer::Runner::Runner(const PreTokenizer& pre_tokenizer)
    : pre_tokenizer_(pre_tokenizer), scratch_(pre_tokenizer.stages_.size()) {
  for (std::size_t i = 0; i < scratch_.size(); ++i)
    if (const auto* split = std::get_if<Split>(&pre_tokenizer.stages_[i]); split && split->wanted.pattern)
      scratch_[i].matcher.emplace(*split->wanted.pattern);
}

Status PreTokenizer::Runner::run(std::string_view text, bool at_start, TextMarks marks, const Sink& sink) {
  return run_stage(0, text, at_start, marks, sink);
}

Status PreTokenizer::Runner::run_stage(std::size_t stage, std::string_view text, bool at_start, TextMarks marks,
                                       const Sink& sink) {
  if (text.empty()) return success();
  if (stage == scratch_.size()) return sink(text, marks);
  const Stage& what = pre_tokenizer_.stages_[stage];
  std::string& changed = scratch_[stage].text;
  std::vector<TextMark>& moved = scratch_[stage].marks;
  if (const auto* prefix = std::get_if<Prefix>(&what)) {
    if (text.starts_with(prefix->text) || (prefix->only_at_start && !at_start))
      return run_stage(stage + 1, text, at_start, marks, sink);
    changed.assign(prefix->text).append(text);
    moved.assign(marks.begin(), marks.end());
    for (TextMark& mark : moved)
      if (mark.begin > 0) mark.begin += prefix->text.size();  // else the prefix belongs to what it is put before
    return run_stage(stage + 1, changed, at_start, moved, sink);
  }
  if (const auto* swap = std::get_if<Swap>(&what)) {
    changed.clear();
    moved.clear();
    for (std::size_t done = 0; done <= text.size();) {
      const std::size_t at = std::min(text.find(swap->from, done), text.size());
      for (; moved.size() < marks.size() && marks[moved.size()].begin <= at;) {
        moved.push_back(marks[moved.size()]);
        moved.back().begin = changed.size() + std::max(moved.back().begin, done) - done;
      }
      changed.append(text.substr(done, at - done));
      if (at == text.size()) break;
      changed += swap->to;
      done = at + swap->from.size();
    }
    return run_stage(stage + 1, changed, at_start, moved, sink);
  }
  return split(stage, text, at_start, marks, sink);
}

Status PreTokenizer::Runner::split(std::size_t stage, std::string_view text, bool at_start, TextMarks marks,
                                   const Sink& sink) {
  const Split& what = std::get<Split>(pre_tokenizer_.stages_[stage]);
  Scratch& scratch = scratch_[stage];
  const auto emit = [&](TextRange r) {
    cut_marks(marks, r, scratch.marks);
    return run_stage(stage + 1, text.substr(r.begin, r.end - r.begin), at_start && r.begin == 0, scratch.marks, sink);
  };
  bool previous = false;  // whether the part before was a match
  scratch.ranges.clear();
  const auto part = [&](TextRange r, bool match) -> Status {
    match = match != what.invert;
    const bool before = std::exchange(previous, match);
    switch (what.behavior) {
      case Behavior::isolated: return emit(r);
      case Behavior::removed: return match ? success() : emit(r);
      case Behavior::merged_with_previous:
        if (match && !before && !scratch.ranges.empty()) {
          scratch.ranges.back().end = r.end;
          return success();
        }
        break;
      case Behavior::merged_with_next:
        // A match takes the part behind it along, unless that is a match too.
        if (before && !match) {
          scratch.ranges.back().end = r.end;
          return success();
        }
        break;
      case Behavior::contiguous:
        if (match == before && !scratch.ranges.empty()) {
          scratch.ranges.back().end = r.end;
          return success();
        }
        break;
    }
    scratch.ranges.push_back(r);
    return success();
  };
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    TextRange r;
    if (scratch.matcher) {
      SLUICE_ASSIGN(const auto found, scratch.matcher->find(text, from));
      if (!found) break;
      r = *found;
    } else {
      r.begin = text.find(what.wanted.text, from);
      if (r.begin == std::string_view::npos) break;
      r.end = r.begin + what.wanted.text.size();
    }
    if (done < r.begin) SLUICE_TRY(part({done, r.begin}, false));
    if (r.begin < r.end) SLUICE_TRY(part(r, true));
    done = r.end;
    from = r.end > r.begin ? r.end : r.end + (r.end < text.size() ? utf8_length(text[r.end]) : 1);
  }
  if (done < text.size()) SLUICE_TRY(part({done, text.size()}, false));
  for (const TextRange& r : scratch.ranges) SLUICE_TRY(emit(r));
  return success();
}

}  // namespace sluice
