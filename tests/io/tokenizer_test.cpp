// Ids and texts against the `tokenizers` package (fixtures of make_tokenizers.py), and files that are refused.
#include "io/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/tokenizer/pattern.h"
#include "io/tokenizer/streaming_decoder.h"
#include "io/tokenizer/unicode.h"

namespace sluice::test {
namespace {

using nlohmann::json;

const std::string folder = SLUICE_FIXTURES "/tokenizers/";

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xffu);
  }
  return bytes;
}

class Kinds : public testing::TestWithParam<const char*> {};

/// A file, or a directory with vocab.json and merges.txt.
std::string path_of(const std::string& kind) {
  return std::filesystem::is_directory(folder + kind) ? folder + kind : folder + kind + ".json";
}

TEST_P(Kinds, GiveTheIdsAndTextsOfTheReference) {
  const auto tokenizer = Tokenizer::load(path_of(GetParam()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  std::ifstream in(folder + GetParam() + ".cases.json");
  const json cases = json::parse(in);
  ASSERT_GT(cases.size(), 100u);
  // Twice with one encoder, so that words are remembered too.
  Tokenizer::Encoder encoder(*tokenizer);
  for (int round = 0; round < 2; ++round)
    for (const json& c : cases) {
      const std::string text = from_base64(c["text"]);
      for (const auto& [with_special, field] : {std::pair(false, "ids"), std::pair(true, "with_special")}) {
        std::vector<std::int32_t> ids;
        const Status done = encoder.encode(text, with_special, ids);
        ASSERT_TRUE(done.ok()) << done.error().message;
        EXPECT_EQ(ids, c[field].get<std::vector<std::int32_t>>())
            << json(text).dump(-1, ' ', true, json::error_handler_t::replace);
      }
      const auto ids = c["ids"].get<std::vector<std::int32_t>>(),
                 special = c["with_special"].get<std::vector<std::int32_t>>();
      EXPECT_EQ(tokenizer->decode(ids, false), c["decoded"].get<std::string>());
      EXPECT_EQ(tokenizer->decode(special, true), c["decoded_plain"].get<std::string>());
    }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Kinds,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral", "options",
                                         "metaspace", "gpt2_files", "gpt2_added", "qwen2_files", "roberta_files"),
                         [](const auto& kind) { return std::string(kind.param); });

/// Words of any length give what shorter steps give: the heap and the search over all pairs are two ways to one result.
TEST(Tokenizers, LongWordsAndManyWordsAreTheSame) {
  const auto tokenizer = Tokenizer::load(folder + "gpt2.json");
  ASSERT_TRUE(tokenizer.ok());
  std::ifstream in(folder + "gpt2.cases.json");
  Tokenizer::Encoder warm(*tokenizer);
  std::string all;
  for (const json& c : json::parse(in)) all += from_base64(c["text"]);
  for (int i = 0; i < 4; ++i) all += all;
  std::vector<std::int32_t> first, second;
  ASSERT_TRUE(warm.encode(all, false, first).ok());
  ASSERT_TRUE(warm.encode(all, false, second).ok());
  EXPECT_EQ(first, second);
  EXPECT_EQ(tokenizer->decode(first, false), [&] {
    std::string storage;
    return std::string(valid_utf8(all, storage));
  }()) << "byte-level BPE loses nothing";
}

/// Pieces add up to the whole text, and none ends within a character.
TEST_P(Kinds, StreamTextsInWholeCharacters) {
  const auto tokenizer = Tokenizer::load(path_of(GetParam()));
  ASSERT_TRUE(tokenizer.ok());
  std::ifstream in(folder + GetParam() + ".cases.json");
  Tokenizer::Encoder encoder(*tokenizer);
  for (const json& c : json::parse(in)) {
    std::vector<std::int32_t> ids, prompt;
    ASSERT_TRUE(encoder.encode("so:", false, prompt).ok());
    ids = prompt;
    const auto more = c["ids"].get<std::vector<std::int32_t>>();
    ids.insert(ids.end(), more.begin(), more.end());
    StreamingDecoder stream(*tokenizer, prompt);
    std::string text = tokenizer->decode(prompt, true);
    for (const std::int32_t id : more) {
      const std::string piece = stream.push(id);
      EXPECT_EQ(valid_utf8_prefix(piece), piece.size());
      text += piece;
    }
    text += stream.finish();
    EXPECT_EQ(text, tokenizer->decode(ids, true));
  }
}

TEST(StopStrings, EndTheTextBeforeTheFirstOfThem) {
  StopStrings stop({"END", "\n\n", "NDX"});
  EXPECT_EQ(stop.push("a\nb E"), "a\nb ");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_EQ(stop.push("Z\n"), "ENZ");
  EXPECT_FALSE(stop.stopped());
  EXPECT_EQ(stop.push("x\n"), "\nx");
  EXPECT_EQ(stop.push("\nrest END"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
  StopStrings open({"END"});
  EXPECT_EQ(open.push("an EN"), "an ");
  EXPECT_EQ(open.finish(), "EN");
  StopStrings none({});
  EXPECT_EQ(none.push("all"), "all");
}

TEST(Utf8, InvalidPartsBecomeOneReplacementEach) {
  const std::string r(replacement_character);
  const std::pair<std::string, std::string> cases[] = {{"ok", "ok"},
                                                       {"\xff", r},
                                                       {"a\xc3", "a" + r},
                                                       {"\xe2\x82", r},
                                                       {"\xe2\x28\xa1", r + "(" + r},
                                                       {"\xed\xa0\x80", r + r + r},
                                                       {"\xc0\x80", r + r},
                                                       {"\xf0\x9f\x98z", r + "z"},
                                                       {"\xf4\x90\x80\x80", r + r + r + r},
                                                       {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}};
  for (const auto& [given, expected] : cases) {
    std::string storage;
    EXPECT_EQ(valid_utf8(given, storage), expected);
    EXPECT_EQ(valid_utf8_prefix(expected), expected.size());
  }
}

TEST(Patterns, MeanWhatTheyMeanToOniguruma) {
  const auto find = [](const char* expression, std::string_view text) -> std::optional<std::string> {
    const auto pattern = Pattern::compile(expression);
    EXPECT_TRUE(pattern.ok()) << pattern.error().message;
    Pattern::Matcher matcher(*pattern);
    const auto found = matcher.find(text, 0);
    EXPECT_TRUE(found.ok());
    return *found ? std::optional(std::string(text.substr((*found)->begin, (*found)->end - (*found)->begin)))
                  : std::nullopt;
  };
  EXPECT_EQ(find(R"(\s+)", "a\xc2\x85\xe3\x80\x80z"), "\xc2\x85\xe3\x80\x80");
  EXPECT_EQ(find(R"(\s)", "\xe1\xa0\x8e"), std::nullopt) << "U+180E is no white space";
  EXPECT_EQ(find(R"([^\s\p{L}]+)", "ab 12 "), "12");
  EXPECT_EQ(find(R"(\S+)", "  ab "), "ab");
  EXPECT_EQ(find(R"([]a]+)", "x]a"), "]a");
  EXPECT_EQ(find(R"([[:digit:]x]+)", "ab1x"), "1x");
  EXPECT_EQ(find(R"(\p{L}+)", "1\xf0\x93\x9e\x84'"), "\xf0\x93\x9e\x84") << "U+13784, a letter since Unicode 16";
  EXPECT_EQ(find(R"([^\p{L}]+)", "\xf0\x93\x9e\x84'a"), "'");
  EXPECT_EQ(find(R"(\d+)", "a\xf0\x91\xbd\x90z"), "\xf0\x91\xbd\x90") << "U+11F50, a digit since Unicode 15";
  EXPECT_EQ(find(R"(\P{N}+)", "1ab2"), "ab");
  for (const char* refused : {"(", "[a", R"([a\S])", "[a&&b]", "[a[b]]", "(?m:.)", R"(\h)", R"(\C)", R"(\w)", R"(\b)",
                              R"(\p)", R"(\p{No such})", R"([\P{L}])"})
    EXPECT_FALSE(Pattern::compile(refused).ok()) << refused;
  EXPECT_FALSE(Pattern::compile(std::string(70000, 'a')).ok());
}

/// Time and memory of a pattern are bounded.
TEST(Patterns, ThatNeverEndAreAFault) {
  const auto pattern = Pattern::compile("(a|a?)+(b|c)$");
  ASSERT_TRUE(pattern.ok());
  Pattern::Matcher matcher(*pattern);
  const auto found = matcher.find(std::string(60, 'a'), 0);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::fault);
}

TEST(Tokenizers, RefuseWhatTheyDoNotSupportByName) {
  std::ifstream in(folder + "llama3.json");
  const json whole = json::parse(in);
  const auto expect_refused = [&](auto change, const std::string& reason) {
    json j = whole;
    change(j);
    const auto refused = Tokenizer::parse(j.dump(), "file.json");
    ASSERT_FALSE(refused.ok()) << reason;
    EXPECT_EQ(refused.error().code, ErrorCode::bad_request);
    EXPECT_NE(refused.error().message.find(reason), std::string::npos) << refused.error().message;
    EXPECT_TRUE(refused.error().message.starts_with("file.json: "));
    EXPECT_EQ(refused.error().message.find('\n'), std::string::npos);
  };
  expect_refused([](json& j) { j["model"]["type"] = "Unigram"; }, "'Unigram' is not supported");
  expect_refused([](json& j) { j["model"]["type"] = "WordPiece"; }, "'WordPiece' is not supported");
  expect_refused([](json& j) { j.erase("model"); }, "no model");
  expect_refused([](json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
  expect_refused([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  expect_refused([](json& j) { j["model"]["vocab"]["x y"] = -1; }, "'x y'");
  expect_refused([](json& j) { j["model"]["vocab"]["x y"] = 2'000'000'000; }, "2000000000");
  expect_refused([](json& j) { j["model"]["vocab"] = json::array(); }, "vocab");
  expect_refused([](json& j) { j["model"]["merges"].push_back("nothing known"); }, "nothing");
  expect_refused([](json& j) { j["model"]["merges"].push_back("a b c"); }, "not a pair");
  expect_refused([](json& j) { j["model"]["merges"].push_back(7); }, "not a pair");
  expect_refused([](json& j) { j["model"].erase("merges"); }, "merges");
  expect_refused([](json& j) { j["model"]["unk_token"] = "nowhere"; }, "unk_token");
  expect_refused([](json& j) { j["normalizer"] = {{"type", "Precompiled"}}; }, "'Precompiled' is not supported");
  expect_refused([](json& j) { j["normalizer"] = 3; }, "normalizer");
  expect_refused([](json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "'Whitespace' is not supported");
  expect_refused(
      [](json& j) {
        j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
      },
      "after ByteLevel");
  expect_refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }, "pattern '('");
  expect_refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Odd"; }, "'Odd'");
  expect_refused(
      [](json& j) {
        j["post_processor"] = {{"type", "BertProcessing"}};
      },
      "'BertProcessing' is not supported");
  expect_refused([](json& j) { j["post_processor"]["processors"][1]["special_tokens"] = json::object(); },
                 "special_tokens");
  expect_refused([](json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "'WordPiece' is not supported");
  expect_refused([](json& j) { j["added_tokens"][0]["id"] = 5; }, "its id is 5");
  expect_refused([](json& j) { j["added_tokens"][0]["id"] = 1'000'000'000; }, "far beyond");
  expect_refused([](json& j) { j["added_tokens"][0]["lstrip"] = "yes"; }, "lstrip");
  EXPECT_FALSE(Tokenizer::parse("", "empty").ok());
  EXPECT_FALSE(Tokenizer::parse("{\"model\":{}", "cut off").ok());
  EXPECT_FALSE(Tokenizer::parse("{\"model\":{},\"model\":{}}", "twice").ok());
  EXPECT_FALSE(Tokenizer::parse(std::string(100000, '['), "deep").ok());
  EXPECT_FALSE(Tokenizer::load("/nonexistent").ok());
  EXPECT_FALSE(Tokenizer::load("/tmp").ok());
}

TEST(Tokenizers, KnowTheirTokens) {
  const auto t = Tokenizer::load(folder + "llama3.json");
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(t->vocabulary(), 700u);
  const auto begin = t->id("<|begin_of_text|>");
  ASSERT_TRUE(begin.has_value());
  EXPECT_TRUE(t->is_special(*begin));
  EXPECT_EQ(t->token(*begin), "<|begin_of_text|>");
  EXPECT_FALSE(t->is_special(*t->id("a")));
  EXPECT_EQ(t->id("no such token"), std::nullopt);
  EXPECT_EQ(t->token(-1), "");
  EXPECT_EQ(t->token(1 << 20), "");
}

}  // namespace
}  // namespace sluice::test
