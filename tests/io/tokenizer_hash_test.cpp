// Which tokenizer made tokens: known by what it does, kept with them, and asked for before they are used again.
#include <nlohmann/json.hpp>

#include "token_support.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr const char* kinds[] = {"gpt2", "llama2", "llama3", "metaspace", "mistral", "options", "qwen2", "smollm"};

json fixture(const std::string& name) {
  return json::parse(read_text(SLUICE_FIXTURES "/tokenizers/" + name + ".json"));
}

std::uint64_t hash_of(const json& tokenizer) {
  const auto t = Tokenizer::parse(tokenizer.dump(), "tokenizer.json");
  EXPECT_TRUE(t.ok()) << t.error().message;
  return t.ok() ? t->hash() : 0;
}

TEST(TokenizerHash, IsOfWhatItDoesAndNotOfHowItIsWritten) {
  for (const char* kind : kinds) {
    SCOPED_TRACE(kind);
    const json tokenizer = fixture(kind);
    const std::uint64_t hash = hash_of(tokenizer);
    EXPECT_NE(hash, 0u);
    json same = tokenizer;
    same["decoder"] = {{"type", "Fuse"}};
    same["post_processor"] = nullptr;
    same["truncation"] = {{"max_length", 512}};
    same["model"]["dropout"] = nullptr;
    same["model"]["fuse_unk"] = tokenizer["model"].value("fuse_unk", false);
    for (json& merge : same["model"]["merges"]) {
      if (!merge.is_string()) continue;
      const auto both = merge.get<std::string>();
      merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
    }
    for (json& token : same["added_tokens"]) token["special"] = !token.value("special", false);
    EXPECT_EQ(hash_of(same), hash);

    json other = tokenizer;
    other["model"]["merges"].erase(other["model"]["merges"].size() - 1);
    EXPECT_NE(hash_of(other), hash) << "a merge less";
    other = tokenizer;
    other["added_tokens"].push_back({{"id", 20'000}, {"content", "<new>"}, {"special", true}, {"normalized", false}});
    EXPECT_NE(hash_of(other), hash) << "a token more";
    other = tokenizer;
    other["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "q"}}}, {"content", "k"}};
    EXPECT_NE(hash_of(other), hash) << "another normalizer";
  }
}

TEST(TokenizerHash, NoTwoKindsHaveTheSame) {
  std::vector<std::uint64_t> hashes{byte_tokenizer};
  for (const char* kind : kinds) hashes.push_back(hash_of(fixture(kind)));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
}

TEST(TokenizerHash, TheTemplateCountsForDocumentsAlone) {
  const json with = fixture("llama3");
  json without = with;
  without["post_processor"] = nullptr;
  const auto a = Tokenizer::parse(with.dump(), "a"), b = Tokenizer::parse(without.dump(), "b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->hash(), b->hash());
  EXPECT_NE(a->hash_with_template(), b->hash_with_template());
}

TEST(TokenizerHash, VocabularyAndMergesAloneHaveOneToo) {
  const auto files = Tokenizer::load(SLUICE_FIXTURES "/tokenizers/gpt2_files");
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_NE(files->hash(), 0u);
  EXPECT_NE(files->hash(), hash_of(fixture("qwen2")));
}

/// The tokens of a text by a model's tokenizer, as a run keeps them.
class TokenizedText : public testing::Test {
 protected:
  static std::shared_ptr<const Tokenizer> tokenizer(const json& text) {
    auto t = Tokenizer::parse(text.dump(), "tokenizer.json");
    EXPECT_TRUE(t.ok());
    return std::make_shared<const Tokenizer>(std::move(*t));
  }
  TokenFile open(std::shared_ptr<const Tokenizer> by, const std::string& text = "a.txt") {
    notes_.clear();
    auto file =
        open_or_tokenize(dir_ / text, dir_ / "cache", {},
                         {.tokenizer = std::move(by), .note = [this](const std::string& n) { notes_.push_back(n); }});
    EXPECT_TRUE(file.ok()) << file.error().message;
    return file.ok() ? std::move(*file) : TokenFile();
  }
  const ScratchDir dir_{"/dev/shm"};
  std::vector<std::string> notes_;
};

TEST_F(TokenizedText, IsThatOfDataTokenizeAndKept) {
  const auto by = tokenizer(fixture("llama3"));
  write_text(dir_ / "a.txt", some_text(50'000));
  write_text(dir_ / "d.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two words\"}\n");
  for (const char* text : {"a.txt", "d.jsonl"}) {
    const TokenFile file = open(by, text);
    EXPECT_EQ(notes_.size(), 1u) << "what takes long is said";
    EXPECT_EQ(file.tokenizer(), by->hash());
    TokenizeOptions options;
    options.texts.paths = {dir_ / text};
    options.output = dir_ / "made.tokens";
    ASSERT_TRUE(tokenize(options, tokenizer_encoding(by, true)).ok());
    EXPECT_EQ(read_text(file.path()), read_text(dir_ / "made.tokens")) << "to the byte";
    EXPECT_EQ(open(by, text).path(), file.path());
    EXPECT_TRUE(notes_.empty()) << "kept";
  }
}

TEST_F(TokenizedText, IsMadeAgainByAnotherTokenizer) {
  write_text(dir_ / "a.txt", some_text(5'000));
  json changed = fixture("llama3");
  const TokenFile first = open(tokenizer(changed)), bytes = open(nullptr);
  expect_text(bytes, some_text(5'000));
  EXPECT_EQ(bytes.tokenizer(), byte_tokenizer);
  changed["post_processor"] = nullptr;
  const TokenFile bare = open(tokenizer(changed));
  EXPECT_NE(bare.path(), first.path());
  EXPECT_EQ(bare.count() + 1, first.count()) << "without the beginning of the text";
  changed["model"]["merges"].erase(changed["model"]["merges"].size() - 1);
  const TokenFile other = open(tokenizer(changed));
  EXPECT_NE(other.path(), bare.path());
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_NE(other.tokenizer(), first.tokenizer());
}

TEST_F(TokenizedText, CanBeStoppedAndLeavesNothing) {
  write_text(dir_ / "a.txt", some_text(5'000));
  const auto stopped = open_or_tokenize(dir_ / "a.txt", dir_ / "cache", {},
                                        {.tokenizer = tokenizer(fixture("gpt2")), .watch = [](double) -> Status {
                                           return Error{ErrorCode::cancelled, "stopped"};
                                         }});
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "cache"));
}

TEST(TokenizedTexts, BytesOfRunsThatBeganBeforeHaveTheirName) {
  const ScratchDir dir;
  const std::string text = "the text";
  write_text(dir / "a.txt", text);
  const auto file = open_or_tokenize(dir / "a.txt", dir / "cache", {});
  ASSERT_TRUE(file.ok());
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.tokens",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(text)))));
  EXPECT_EQ(std::filesystem::path(file->path()).filename(), name);
}

}  // namespace
}  // namespace sluice
