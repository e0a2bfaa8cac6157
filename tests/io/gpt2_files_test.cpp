// vocab.json and merges.txt: where they lie, what they mean, and what is refused. Ids beside transformers' are in
// tokenizer_test.cpp.
#include "io/tokenizer/gpt2_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer.h"
#include "tests/scratch_dir.h"

namespace sluice::test {
namespace {

using nlohmann::json;

const char* const tokens = R"({"a":0,"b":1,"ab":2,"c":3,"abc":4,"<|endoftext|>":5})";
const char* const merges = "#version: 0.2\na b\nab c\n";

Gpt2Files files_of(const std::string& vocabulary, const std::string& pairs, const std::string& settings = "",
                   const std::string& special = "", const std::string& added = "", const std::string& config = "") {
  Gpt2Files files;
  files.vocabulary = {"d/vocab.json", vocabulary};
  files.merges = {"d/merges.txt", pairs};
  if (!settings.empty()) files.settings = {"d/tokenizer_config.json", settings};
  if (!special.empty()) files.special_tokens = {"d/special_tokens_map.json", special};
  if (!added.empty()) files.added = {"d/added_tokens.json", added};
  if (!config.empty()) files.config = {"d/config.json", config};
  return files;
}

std::vector<std::int32_t> ids_of(const Gpt2Files& files, const std::string& text) {
  const auto tokenizer = Tokenizer::parse(files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  std::vector<std::int32_t> ids;
  const bool done = tokenizer.ok() && Tokenizer::Encoder(*tokenizer).encode(text, true, ids).ok();
  EXPECT_TRUE(done);
  return ids;
}
using Ids = std::vector<std::int32_t>;

TEST(Gpt2Files, MergesAreLinesInTheOrderOfTheirRank) {
  EXPECT_EQ(ids_of(files_of(tokens, merges), "abcab"), (Ids{4, 2}));
  EXPECT_EQ(ids_of(files_of(tokens, "a b\nab c"), "abcab"), (Ids{4, 2})) << "no version, no last line feed";
  EXPECT_EQ(ids_of(files_of(tokens, "#version: 0.2\r\na b\r\nab c\r\n"), "abcab"), (Ids{4, 2}));
  EXPECT_EQ(ids_of(files_of(tokens, "#version: 0.2\n"), "abc"), (Ids{0, 1, 3}));
  EXPECT_EQ(ids_of(files_of(tokens, ""), "abc"), (Ids{0, 1, 3}));
  EXPECT_EQ(ids_of(files_of(R"({"a":0,"b":1,"c":2,"ab":3,"bc":4})", "b c\na b\n"), "abc"), (Ids{0, 4}));
  EXPECT_EQ(ids_of(files_of(R"({"a":0,"b":1,"c":2,"ab":3,"bc":4})", "a b\nb c\n"), "abc"), (Ids{3, 2}));
}

TEST(Gpt2Files, IdsMayHaveHolesButNewOnesNeedAPlace) {
  const std::string holes = R"({"a":0,"b":1,"ab":9,"<|endoftext|>":4})";
  EXPECT_EQ(ids_of(files_of(holes, "a b\n"), "ab<|endoftext|>"), (Ids{9, 4}));
  const auto refused = Tokenizer::parse(files_of(holes, "a b\n", R"({"pad_token": "<pad>"})"));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("'<pad>': it has no id"), std::string::npos) << refused.error().message;
  EXPECT_EQ(ids_of(files_of(holes, "a b\n", "", "", R"({"<pad>": 7})"), "<pad>a"), (Ids{7, 0}));
}

TEST(Gpt2Files, SettingsSayWhichTokensAreSpecial) {
  const auto expect = [](const Gpt2Files& files, const Ids& ids, const char* end) {
    EXPECT_EQ(ids_of(files, "a<s> b"), ids);
    const auto t = Tokenizer::parse(files);
    ASSERT_TRUE(t.ok());
    EXPECT_EQ(t->end_of_text(), *end == '\0' ? std::nullopt : t->id(end));
    EXPECT_TRUE(!t->end_of_text() || t->is_special(*t->end_of_text()));
  };
  expect(files_of(tokens, merges), {0, 1}, "<|endoftext|>");
  expect(files_of(tokens, merges, R"({"eos_token": "<s>"})"), {0, 6, 1}, "<s>");
  expect(files_of(tokens, merges, R"({"eos_token": null})"), {0, 1}, "");
  expect(files_of(tokens, merges, R"({"eos_token": {"content": "<s>", "rstrip": true}, "add_eos_token": true})"),
         {0, 6, 1, 6}, "<s>");
  expect(files_of(tokens, merges, R"({"bos_token": "<s>", "add_bos_token": true})"), {6, 0, 6, 1}, "<|endoftext|>");
  expect(files_of(tokens, merges, R"({"eos_token": "c"})", R"({"eos_token": "<s>"})"), {0, 6, 1}, "<s>");
  expect(files_of(tokens, merges, R"({"eos_token": "c", "added_tokens_decoder": {}})", R"({"eos_token": "<s>"})"),
         {0, 1}, "c");
  expect(files_of(tokens, merges, R"({"additional_special_tokens": ["<s>"]})"), {0, 6, 1}, "<|endoftext|>");
  expect(files_of(tokens, merges, R"({"added_tokens_decoder": {"8": {"content": "<s>"}}})"), {0, 8, 1},
         "<|endoftext|>");
  expect(files_of(tokens, merges, "", "", R"({"<s>": 6})"), {0, 6, 1}, "<|endoftext|>");
  // Cls and sep, and three more that have no id yet.
  expect(files_of(tokens, merges, R"({"tokenizer_class": "RobertaTokenizer"})"), {6, 0, 6, 1, 7}, "</s>");
}

/// 'A' and a ring above it are one character to Qwen2, which normalizes, and digits are words.
TEST(Gpt2Files, TheClassOrTheModelSaysHowTextIsCut) {
  const std::string vocabulary = R"({"A":0,"Ì":1,"Ĭ":2,"Ã":3,"ħ":4,"1":5,"11":6,"<|endoftext|>":7})";
  const std::string text = "A\xcc\x8a", qwen = R"({"tokenizer_class": "Qwen2TokenizerFast"})";
  const auto cut = [&](const std::string& settings, const std::string& config) {
    const auto t = Tokenizer::parse(files_of(vocabulary, "1 1\n", settings, "", "", config));
    EXPECT_TRUE(t.ok()) << t.error().message;
    Ids ids;
    EXPECT_TRUE(Tokenizer::Encoder(*t).encode("11", false, ids).ok());
    return ids;
  };
  const Ids together{6}, apart{5, 5};
  EXPECT_EQ(cut("", ""), together);
  EXPECT_EQ(cut(qwen, ""), apart);
  EXPECT_EQ(cut("", R"({"model_type": "qwen2"})"), apart);
  EXPECT_EQ(cut("{}", R"({"model_type": "gpt2"})"), together);
  EXPECT_EQ(cut(R"({"tokenizer_class": "GPT2Tokenizer"})", R"({"model_type": "qwen2"})"), together);
  EXPECT_EQ(ids_of(files_of(vocabulary, "", qwen), text), (Ids{3, 4}));
  EXPECT_EQ(ids_of(files_of(vocabulary, ""), text), (Ids{0, 1, 2}));
}

struct Wrong {
  Gpt2Files files;
  const char* reason;
};

TEST(Gpt2Files, WhatIsWrongIsOneLineWithItsPlace) {
  const auto with = [](const char* settings) { return files_of(tokens, merges, settings); };
  const auto after = [](const char* pairs) { return files_of(tokens, std::string(merges) + pairs); };
  std::string binary(merges);
  binary += "a \xff\n";
  const Wrong cases[] = {
      {files_of("", merges), "d/vocab.json: it is not JSON"},
      {files_of("[]", merges), "d/vocab.json: must be an object"},
      {files_of("{}", merges), "d/vocab.json: has no tokens"},
      {files_of(R"({"a":0,"b":1,"ab":9})", "a b\n"), "d/vocab.json: added token '<|endoftext|>': it has no id"},
      {files_of(R"({"a":0,"a":1})", merges), "d/vocab.json: key \"a\" appears twice"},
      {files_of(R"({"a":0,"b":0})", ""), "d/vocab.json: tokens 'a' and 'b' both have id 0"},
      {files_of(R"({"a":-1})", ""), "d/vocab.json: the id of token 'a' is not a number"},
      {files_of(R"({"a":1.5})", ""), "d/vocab.json: the id of token 'a' is not a number"},
      {files_of(R"({"a":"0"})", ""), "d/vocab.json: the id of token 'a' is not a number"},
      {files_of(R"({"a":4294967296})", ""), "d/vocab.json: the id of token 'a' is not a number"},
      {files_of(R"({"a\n":1000000})", ""), "d/vocab.json: the id of token 'a?' is 1000000, of 1 tokens"},
      {after("a\n"), "d/merges.txt: line 4 is not two tokens"},
      {after("a b c\n"), "d/merges.txt: line 4 is not two tokens"},
      {after("a  b\n"), "d/merges.txt: line 4 is not two tokens"},
      {after(" b\n"), "d/merges.txt: line 4 is not two tokens"},
      {after("a \n"), "d/merges.txt: line 4 is not two tokens"},
      {after("\n"), "d/merges.txt: line 4 is not two tokens"},
      {after("a\tb\n"), "d/merges.txt: line 4 is not two tokens"},
      {after("x b\n"), "d/merges.txt: line 4 'x' is not in vocab.json"},
      {after("a x\n"), "d/merges.txt: line 4 'x' is not in vocab.json"},
      {after("b a\n"), "d/merges.txt: line 4 what it makes, 'ba', is not in vocab.json"},
      {after("ab c\n"), "d/merges.txt: line 4 is line 3 again"},
      {after("#version: 0.2\n"), "d/merges.txt: line 4 '#version:' is not in vocab.json"},
      {files_of(tokens, binary), "d/merges.txt: line 4 is not UTF-8"},
      {files_of(tokens, "\xef\xbb\xbf#version: 0.2\n"), "d/merges.txt: line 1 "},
      {with("[]"), "d/tokenizer_config.json: must be an object"},
      {with("{"), "d/tokenizer_config.json: it is not JSON"},
      {with(R"({"tokenizer_class": "CLIPTokenizer"})"), "tokenizer_class 'CLIPTokenizer' is not supported"},
      {with(R"({"tokenizer_class": 7})"), "d/tokenizer_config.json: tokenizer_class must be a string"},
      {with(R"({"add_prefix_space": 1})"), "d/tokenizer_config.json: add_prefix_space must be true or false"},
      {with(R"({"add_bos_token": "yes"})"), "d/tokenizer_config.json: add_bos_token must be true or false"},
      {with(R"({"split_special_tokens": true})"), "split_special_tokens is not supported"},
      {with(R"({"eos_token": 3})"), "d/tokenizer_config.json: eos_token: must be a string"},
      {with(R"({"eos_token": {"id": 3}})"), "d/tokenizer_config.json: eos_token: content must be a string"},
      {with(R"({"eos_token": {"content": "e", "lstrip": 1}})"), "eos_token: lstrip must be true or false"},
      {with(R"({"additional_special_tokens": "<s>"})"), "the extra special tokens must be a list"},
      {with(R"({"additional_special_tokens": [7]})"), "an extra special token must be a string"},
      {with(R"({"image_token": "<image>"})"), "image_token '<image>' is not in the vocabulary"},
      {with(R"({"tokenizer_class": "RobertaTokenizer", "cls_token": null})"), "RobertaTokenizer needs a cls_token"},
      {with(R"({"added_tokens_decoder": []})"), "added_tokens_decoder must be an object"},
      {with(R"({"added_tokens_decoder": {"07": {"content": "x"}}})"), "'07' is not a number of a token"},
      {with(R"({"added_tokens_decoder": {"-1": {"content": "x"}}})"), "'-1' is not a number of a token"},
      {with(R"({"added_tokens_decoder": {"7": "x"}})"), "added_tokens_decoder: '7' must be an object"},
      {with(R"({"added_tokens_decoder": {"7": {}}})"), "added_tokens_decoder: '7' content must be a string"},
      {with(R"({"added_tokens_decoder": {"1": {"content": "x"}}})"), "'x': its id 1 is that of 'b'"},
      {with(R"({"added_tokens_decoder": {"7": {"content": "ab"}}})"), "'ab': its id is 7, in vocab.json 2"},
      {with(R"({"added_tokens_decoder": {"7": {"content": "x"}, "8": {"content": "x"}}})"), "its id is 7, and 8 too"},
      {with(R"({"added_tokens_decoder": {"900000": {"content": "x"}}})"), "'x': its id is 900000, of 6 tokens"},
      {with(R"({"added_tokens_decoder": {"99999999999": {"content": "x"}}})"), "'x': its id is not a number"},
      {files_of(tokens, merges, "", "[]"), "d/special_tokens_map.json: must be an object"},
      {files_of(tokens, merges, "", R"({"eos_token": []})"), "d/special_tokens_map.json: eos_token: must be"},
      {files_of(tokens, merges, "", "", "7"), "d/added_tokens.json: must be an object"},
      {files_of(tokens, merges, "", "", R"({"x": "7"})"), "d/added_tokens.json: the id of 'x' is not a number"},
      {files_of(tokens, merges, "", "", R"({"x": 0})"),
       "d/added_tokens.json: added token 'x': its id 0 is that of 'a'"},
      {files_of(tokens, merges, "", "", "", R"({"model_type": "llama"})"), "d/config.json: model_type 'llama'"},
      {files_of(tokens, merges, "", "", "", "{"), "d/config.json: it is not JSON"},
  };
  for (const Wrong& each : cases) {
    const auto refused = Tokenizer::parse(each.files);
    ASSERT_FALSE(refused.ok()) << each.reason;
    const std::string& message = refused.error().message;
    EXPECT_EQ(refused.error().code, ErrorCode::bad_request);
    EXPECT_TRUE(message.starts_with("d/")) << message;
    EXPECT_NE(message.find(each.reason), std::string::npos) << message << "\nand not " << each.reason;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 600u);
  }
}

/// Long lines and long tokens are cut in what is said of them.
TEST(Gpt2Files, WhatIsSaidIsShort) {
  const std::string name(100'000, 'a');
  for (const Gpt2Files& files : {files_of(tokens, "a " + name + "\n"), files_of("{\"" + name + "\":-1}", "")}) {
    const auto refused = Tokenizer::parse(files);
    ASSERT_FALSE(refused.ok());
    EXPECT_LT(refused.error().message.size(), 600u);
  }
}

class Gpt2Directory : public testing::Test {
 protected:
  std::string path(const std::string& name = "") const { return name.empty() ? dir_.path() : dir_ / name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string why(const std::string& where) const {
    const auto refused = Tokenizer::load(where);
    return refused.ok() ? "" : refused.error().message;
  }
  ScratchDir dir_;
};

TEST_F(Gpt2Directory, IsReadWhereThereIsNoTokenizerJson) {
  EXPECT_FALSE(Tokenizer::lies_in(path()));
  EXPECT_NE(why(path()).find("no vocab.json with merges.txt"), std::string::npos) << why(path());
  write("vocab.json", tokens);
  EXPECT_FALSE(Tokenizer::lies_in(path()));
  EXPECT_NE(why(path()).find("merges.txt"), std::string::npos) << why(path());
  write("merges.txt", merges);
  EXPECT_TRUE(Tokenizer::lies_in(path()));
  for (const std::string& where : {path(), path("vocab.json"), path("merges.txt")}) {
    const auto t = Tokenizer::load(where);
    ASSERT_TRUE(t.ok()) << t.error().message;
    EXPECT_EQ(t->vocabulary(), 6u);
  }
  write("tokenizer_config.json", "{");
  EXPECT_NE(why(path()).find("tokenizer_config.json: "), std::string::npos) << why(path());
  std::filesystem::remove(path("tokenizer_config.json"));
  std::filesystem::copy_file(SLUICE_FIXTURES "/tokenizers/gpt2.json", path("tokenizer.json"));
  EXPECT_EQ(Tokenizer::load(path())->vocabulary(), 700u) << "tokenizer.json goes first";
  EXPECT_EQ(Tokenizer::load(path("vocab.json"))->vocabulary(), 6u) << "but for who names the other";
  std::filesystem::remove(path("tokenizer.json"));
  std::filesystem::resize_file(path("merges.txt"), tokenizer_bytes_max + 1);
  EXPECT_NE(why(path()).find("larger than 268435456 bytes"), std::string::npos) << why(path());
  std::filesystem::remove(path("merges.txt"));
  std::filesystem::create_directory(path("merges.txt"));
  EXPECT_NE(why(path()).find("is not a regular file"), std::string::npos) << why(path());
}

}  // namespace
}  // namespace sluice::test
