#include "io/tokens/tokenize.h"

#include <algorithm>

#include "token_support.h"

namespace sluice {
namespace {

TEST(Tokenize, PlainAndPackedTextGiveTheSameTokens) {
  const ScratchDir dir;
  const std::string text = some_text(3'000'000);
  write_text(dir / "a.txt", text);
  write_text(dir / "a.dz", gzip(text));
  write_text(dir / "a.zst", zstd(text));
  for (const char* name : {"a.txt", "a.dz", "a.zst"}) {
    const auto report = tokenize_file(dir / name, dir / "t");
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->training.tokens, text.size());
    EXPECT_EQ(report->input_bytes, std::filesystem::file_size(dir / name));
    const TokenFile file = open_tokens(dir / "t");
    expect_text(file, text);
    EXPECT_EQ(file.documents(), 1u);
  }
}

TEST(Tokenize, NothingIsLeftOfWhatFails) {
  const ScratchDir dir;
  const std::string good = gzip(some_text(5'000'000));
  write_text(dir / "cut.gz", good.substr(0, good.size() - 20));
  write_text(dir / "short.gz", gzip(some_text(1000)).substr(0, 100));
  write_text(dir / "empty", "");
  write_text(dir / "bad.jsonl", "{\"text\":\"a\"}\n{\"text\":\n");
  const std::size_t before = dir.files();
  for (const int threads : {1, 3}) {
    expect_refused(tokenize_file(dir / "cut.gz", dir / "t", threads), "cut.gz ends in the middle");
    expect_refused(tokenize_file(dir / "bad.jsonl", dir / "t", threads), "bad.jsonl line 2 is not JSON");
    TokenizeOptions both;
    both.texts.paths = {dir / "bad.jsonl", dir / "short.gz"};
    both.output = dir / "t";
    both.threads = threads;
    expect_refused(tokenize(both, byte_encoding()), "bad.jsonl line 2 is not JSON");
    expect_refused(tokenize_file(dir / "empty", dir / "t", threads), "hold no text");
    expect_refused(tokenize_file(dir / "missing", dir / "t", threads), "missing");
    expect_refused(tokenize_file(dir.path(), dir / "t", threads), "is a directory");
  }
  EXPECT_EQ(dir.files(), before);
}

/// Lines of 0 to 3000 characters, of which some are empty documents.
std::vector<std::string> some_documents(std::size_t count) {
  std::mt19937_64 random(3);
  const std::string text = some_text(10'000);
  std::vector<std::string> documents;
  for (std::size_t i = 0; i < count; ++i)
    documents.push_back(text.substr(random() % 5000, random() % 4 ? random() % 3000 : 0));
  return documents;
}

std::string json_lines(const std::vector<std::string>& documents) {
  std::string lines;
  for (const std::string& d : documents) {
    lines += "{\"text\": \"";
    // The bytes of some_text are fine in JSON; characters cut in two are not.
    for (const char c : d) lines += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    lines += "\"}\n";
  }
  return lines;
}

class TokenizeDocuments : public testing::Test {
 protected:
  void SetUp() override {
    const auto documents = some_documents(3000);
    write_text(dir_ / "a.jsonl.zst", zstd(json_lines(documents)));
    write_text(dir_ / "b.txt", some_text(2'500'000));
    options_.texts.paths = {dir_ / "a.jsonl.zst", dir_ / "b.txt"};
    options_.output = dir_ / "out.tokens";
    for (const std::string& d : documents) {
      lengths_.push_back(d.size());
      empty_ += d.empty() ? 1 : 0;
    }
    lengths_.push_back(std::filesystem::file_size(dir_ / "b.txt"));
  }
  TokenizeReport run() {
    const auto report = tokenize(options_, byte_encoding());
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
    return report.ok() ? *report : TokenizeReport();
  }

  const ScratchDir dir_;
  TokenizeOptions options_;
  std::vector<std::size_t> lengths_;
  std::size_t empty_ = 0;
};

TEST_F(TokenizeDocuments, KnowsTheirEndsAndLeavesEmptyOnesOut) {
  const TokenizeReport report = run();
  std::erase(lengths_, 0u);
  EXPECT_EQ(document_lengths(open_tokens(dir_ / "out.tokens")), lengths_);
  EXPECT_EQ(report.training.documents, lengths_.size());
  EXPECT_GT(empty_, 100u);
  EXPECT_EQ(report.empty_documents, empty_);
}

TEST_F(TokenizeDocuments, ThreadsChangeNoByte) {
  options_.held_out = 0.2;
  for (const TokenFormat format : {TokenFormat::sluice, TokenFormat::megatron}) {
    options_.format = format;
    options_.output = dir_ / "serial";
    options_.threads = 1;
    run();
    for (const int threads : {2, 5}) {
      options_.output = dir_ / "parallel";
      options_.threads = threads;
      run();
      const std::vector<std::string> endings =
          format == TokenFormat::sluice ? std::vector<std::string>{""} : std::vector<std::string>{".bin", ".idx"};
      for (const std::string& ending : endings)
        for (const char* part : {"", ".eval"})
          EXPECT_TRUE(read_text(dir_ / ("serial" + (part + ending))) ==
                      read_text(dir_ / ("parallel" + (part + ending))))
              << threads << part << ending;
    }
  }
}

TEST_F(TokenizeDocuments, HoldsOutWholeDocumentsBySeedAndNumber) {
  options_.held_out = 0.1;
  options_.seed = 7;
  const TokenizeReport report = run();
  EXPECT_EQ(report.held_out.path, dir_ / "out.eval.tokens");
  std::vector<std::size_t> training, held_out;
  for (std::size_t d = 0; d < lengths_.size(); ++d)
    if (lengths_[d] > 0) (is_held_out(7, d, 0.1) ? held_out : training).push_back(lengths_[d]);
  EXPECT_EQ(document_lengths(open_tokens(dir_ / "out.tokens")), training);
  EXPECT_EQ(document_lengths(open_tokens(dir_ / "out.eval.tokens")), held_out);
  // 3001 draws of 0.1: six standard deviations are 99.
  EXPECT_NEAR(static_cast<double>(held_out.size()), 0.1 * static_cast<double>(lengths_.size() - empty_), 99);
  const std::string before = read_text(dir_ / "out.eval.tokens");
  run();
  EXPECT_TRUE(read_text(dir_ / "out.eval.tokens") == before);
  options_.seed = 8;
  run();
  EXPECT_FALSE(read_text(dir_ / "out.eval.tokens") == before);
}

TEST_F(TokenizeDocuments, ARefusedSplitLeavesNoFile) {
  options_.texts.paths = {dir_ / "b.txt"};
  options_.held_out = 1e-9;
  expect_refused(tokenize(options_, byte_encoding()), "out.eval.tokens");
  EXPECT_EQ(dir_.files(), 2u);
}

TEST_F(TokenizeDocuments, EndOfTextFollowsEachDocument) {
  TextEncoding encoding = byte_encoding();
  encoding.vocabulary = 257;
  options_.end_of_text = 256;
  const auto report = tokenize(options_, encoding);
  ASSERT_TRUE(report.ok()) << report.error().message;
  const TokenFile file = open_tokens(dir_ / "out.tokens");
  const auto tokens = all_tokens(file);
  EXPECT_EQ(static_cast<std::uint64_t>(std::count(tokens.begin(), tokens.end(), 256)), file.documents());
  for (std::uint64_t d = 0; d < file.documents(); ++d) {
    const auto document = file.document(d);
    ASSERT_TRUE(document.ok());
    ASSERT_EQ(tokens[document->end - 1], 256) << d;
  }
}

/// Words as tokens: their lengths. Wants whole documents; refuses a text with a tab.
class WordEncoder final : public TextEncoder {
 public:
  Status encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    if (text.find('\t') != std::string_view::npos) return bad_request("a tab is no word");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at), text.size());
      tokens.push_back(static_cast<std::int32_t>(end - at));
      at = end + 1;
    }
    return success();
  }
};

TEST_F(TokenizeDocuments, AnotherEncodingPlugsIn) {
  const TextEncoding words{.vocabulary = 5000, .make_encoder = [] { return std::make_unique<WordEncoder>(); }};
  for (const int threads : {1, 4}) {
    options_.threads = threads;
    options_.texts.paths = {dir_ / "b.txt"};
    const auto report = tokenize(options_, words);
    ASSERT_TRUE(report.ok()) << report.error().message;
    std::vector<std::int32_t> expected;
    ASSERT_TRUE(WordEncoder().encode(read_text(dir_ / "b.txt"), expected).ok());
    EXPECT_TRUE(all_tokens(open_tokens(dir_ / "out.tokens")) == expected) << "the text came in one piece";
    write_text(dir_ / "c.jsonl", "{\"text\":\"fine\"}\n{\"text\":\"a\\ttab\"}\n{\"text\":3}\n");
    options_.texts.paths = {dir_ / "b.txt", dir_ / "c.jsonl"};
    expect_refused(tokenize(options_, words), "c.jsonl line 2: a tab is no word");
  }
}

TEST(OpenOrTokenize, JsonLinesBecomeDocuments) {
  const ScratchDir dir;
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"three\"}\n";
  write_text(dir / "a.jsonl", lines);
  write_text(dir / "a.txt", lines);
  auto file = open_or_tokenize(dir / "a.jsonl", dir / "cache", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(document_lengths(*file), (std::vector<std::size_t>{3, 5}));
  file = open_or_tokenize(dir / "a.txt", dir / "cache", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_text(*file, lines);
}

}  // namespace
}  // namespace sluice
