// Token files of version 4: no bit of one changes unseen, and what is damaged is made again or named.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "io/tokens/token_survey.h"
#include "token_support.h"

namespace sluice {
namespace {

struct TokenFileKind {
  std::uint64_t vocabulary;
  std::size_t count;
  std::vector<std::size_t> lengths;
  TokenFeatures features;
};

/// Every width with and without documents, mask and sequences.
std::vector<TokenFileKind> small_kinds() {
  std::vector<TokenFileKind> kinds;
  for (const std::uint64_t vocabulary : {256, 300, 70000}) {
    kinds.push_back({vocabulary, 21, {21}, {}});
    kinds.push_back({vocabulary, 21, {5, 0, 16}, {}});
    kinds.push_back({vocabulary, 21, {21}, {.mask = true}});
    kinds.push_back({vocabulary, 21, {5, 0, 16}, {.mask = true}});
    kinds.push_back({vocabulary, 24, {5, 3, 8, 0, 8}, {.sequence = 8}});
    kinds.push_back({vocabulary, 24, {5, 3, 8, 0, 8}, {.mask = true, .sequence = 8}});
  }
  kinds.push_back({300, 21, {5, 0, 16}, {.tokenizer = 0x1234'5678'9abc'def0}});
  kinds.push_back({256, 24, {5, 3, 8, 0, 8}, {.mask = true, .sequence = 8, .tokenizer = byte_tokenizer}});
  kinds.push_back({300, 0, {}, {}});
  kinds.push_back({300, 0, {0, 0}, {}});
  kinds.push_back({300, 0, {}, {.mask = true}});
  return kinds;
}

std::string written(const ScratchDir& dir, const TokenFileKind& kind) {
  const auto tokens = random_tokens(kind.count, kind.vocabulary, kind.count);
  std::vector<std::uint8_t> mask(kind.features.mask ? kind.count : 0);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  auto writer = TokenWriter::create(dir / "t", kind.vocabulary, kind.features);
  EXPECT_TRUE(writer.ok());
  std::size_t at = 0;
  for (const std::size_t length : kind.lengths) {
    const auto part = mask.empty() ? std::span<const std::uint8_t>() : std::span(mask).subspan(at, length);
    EXPECT_TRUE(writer->append(std::span(tokens).subspan(at, length), part).ok());
    writer->end_document();
    at += length;
  }
  EXPECT_TRUE(writer->finish().ok());
  return read_text(dir / "t");
}

/// Opening a file of these bytes and reading all of it, as training does.
Status read_all(const std::string& path, const std::string& bytes) {
  write_text(path, bytes);
  SLUICE_ASSIGN(const TokenFile file, TokenFile::open(path));
  const auto survey = survey_tokens(file);
  return survey.ok() ? success() : Status(survey.error());
}

void expect_one_line(const Status& status, const std::string& path, const std::string& what) {
  ASSERT_FALSE(status.ok()) << what;
  EXPECT_EQ(status.error().code, ErrorCode::bad_request);
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find(path), std::string::npos) << status.error().message;
}

TEST(TokenSums, EveryBitOfEveryKindOfFile) {
  const ScratchDir dir("/dev/shm");
  for (const TokenFileKind& kind : small_kinds()) {
    const std::string good = written(dir, kind);
    ASSERT_TRUE(read_all(dir / "m", good).ok());
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      const Status status = read_all(dir / "m", bad);
      expect_one_line(status, dir / "m", "bit " + std::to_string(bit) + " of " + std::to_string(good.size() * 8));
    }
  }
}

TEST(TokenSums, CutOffAppendedAndZeroed) {
  const ScratchDir dir("/dev/shm");
  for (const TokenFileKind& kind : small_kinds()) {
    const std::string good = written(dir, kind);
    for (std::size_t length = 0; length < good.size(); ++length)
      expect_one_line(read_all(dir / "m", good.substr(0, length)), dir / "m", "cut to " + std::to_string(length));
    for (std::size_t more = 1; more < 20; ++more)
      expect_one_line(read_all(dir / "m", good + std::string(more, '\0')), dir / "m", "and zeros");
    for (std::size_t at = 0; at < good.size(); at += 8)
      for (const std::size_t length : {std::size_t{8}, good.size() - at}) {
        std::string bad = good;
        std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at), length, '\0');
        if (bad != good) expect_one_line(read_all(dir / "m", bad), dir / "m", "zeros at " + std::to_string(at));
      }
  }
}

TEST(TokenSums, RemainderOfEveryLengthIsVerified) {
  const ScratchDir dir("/dev/shm");
  // Around where blocks, and what is written at once, begin and end.
  for (const std::size_t border : {65536ul, 131072ul, 1048576ul})
    for (const std::size_t count : {border - 9, border - 8, border - 1, border, border + 1, border + 8}) {
      const std::string good = written(dir, {256, count, {count}, {}});
      ASSERT_TRUE(read_all(dir / "t", good).ok()) << count;
      std::string bad = good;
      bad[72 + count - 1] ^= 1;
      expect_one_line(read_all(dir / "t", bad), "block " + std::to_string((count - 1) / 65536) + " of ", "last token");
    }
}

constexpr std::size_t many = 600'000;

/// 600,000 tokens of 2 bytes and documents of 3: tokens, documents and mask have several blocks each.
std::string many_blocks(const ScratchDir& dir) {
  return written(dir, {300, many, std::vector<std::size_t>(many / 3, 3), {.mask = true}});
}

TEST(TokenSums, WhatIsDamagedIsRefusedAndTheRestIsRead) {
  const ScratchDir dir("/dev/shm");
  const std::string good = many_blocks(dir);
  std::string bad = good;
  bad[72 + 2 * 100'000] ^= 4;                 // block 3 of the tokens
  const std::size_t table = 72 + 2 * many;    // divides by 8
  bad[table + 8 * 50'000] ^= 1;               // an end
  bad[table + 8 * (many / 3) + 20'000] ^= 1;  // the mask
  write_text(dir / "t", bad);
  const TokenFile file = open_tokens(dir / "t");
  std::vector<std::int32_t> out(1000);
  std::vector<std::uint8_t> mask(1000);
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_TRUE(file.read(0, out).ok());
    EXPECT_TRUE(file.read(200'000, out).ok());
    expect_refused(file.read(99'500, out),
                   "t is damaged: its bytes 196680 to 262215 are not those that were written (block 3 of 44); make it "
                   "again, or put a copy of it back");
    EXPECT_TRUE(file.document(10).ok());
    expect_refused(file.document(50'000), "(block 24 of 44)");
    expect_refused(file.document(50'001), "(block 24 of 44)");
    EXPECT_TRUE(file.read_mask(90'000, mask).ok());
    expect_refused(file.read_mask(20'000 * 8 - 500, mask), "(block 43 of 44)");
    expect_refused(file.documents_in(150'000, 100), "(block 24 of 44)");
    EXPECT_FALSE(file.verify().ok());
    EXPECT_FALSE(file.hash().ok());
  }
  expect_refused(survey_tokens(file), "(block 3 of 44)");
}

TEST(TokenSums, ManyThreadsReadAFileThatNoneHasReadBefore) {
  const ScratchDir dir("/dev/shm");
  const std::string good = many_blocks(dir);
  const auto expected = all_tokens(open_tokens(dir / "t"));
  std::string bad = good;
  bad[72 + 2 * 250'000] ^= 4;
  write_text(dir / "bad", bad);
  const TokenFile whole = open_tokens(dir / "t"), damaged = open_tokens(dir / "bad");
  std::atomic<int> wrong = 0, refused = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<std::int32_t> out(300);
      for (int i = 0; i < 2000; ++i) {
        const std::uint64_t start = random() % (many - out.size());
        const auto document = whole.document(start / 3);
        const auto range = whole.documents_in(start, 1);
        if (!document.ok() || !range.ok() || range->first != start / 3) ++wrong;
        if (!whole.read(start, out).ok() ||
            !std::equal(out.begin(), out.end(), expected.begin() + static_cast<std::ptrdiff_t>(start)))
          ++wrong;
        if (!damaged.read(start, out).ok()) ++refused;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(refused, 0);
}

TEST(TokenSums, ReadingAllocatesNothing) {
  const ScratchDir dir("/dev/shm");
  many_blocks(dir);
  const TokenFile file = open_tokens(dir / "t");
  std::vector<std::int32_t> out(500);
  std::vector<std::uint8_t> mask(500);
  const std::uint64_t before = allocation_count();
  bool ok = true;
  for (std::uint64_t at = 0; at + 500 <= many; at += 500) {
    ok = ok && file.read(at, out).ok() && file.read_mask(at, mask).ok() && file.documents_in(at, 500).ok() &&
         file.document(at / 3).ok();
  }
  EXPECT_EQ(allocation_count(), before);
  EXPECT_TRUE(ok);
}

TEST(TokenSums, TheHashIsThatOfTheFileWithoutThem) {
  const ScratchDir dir("/dev/shm");
  std::vector<TokenFileKind> kinds = small_kinds();
  kinds.push_back({300, many, {many}, {}});
  kinds.push_back({256, 200'003, {3, 200'000}, {.mask = true}});
  for (const TokenFileKind& kind : kinds) {
    const std::string old = without_sums(written(dir, kind));
    write_text(dir / "old", old);
    const TokenFile with = open_tokens(dir / "t"), without = open_tokens(dir / "old");
    EXPECT_EQ(*with.hash(), checksum(std::as_bytes(std::span(old))));
    EXPECT_EQ(*without.hash(), *with.hash());
    EXPECT_TRUE(with.has_checksums());
    EXPECT_FALSE(without.has_checksums());
    EXPECT_EQ(with.version(), kind.features.tokenizer == 0 ? 4u : 5u);
    EXPECT_EQ(with.tokenizer(), kind.features.tokenizer);
    EXPECT_EQ(without.tokenizer(), 0u);
    EXPECT_LT(without.version(), 4u);
    EXPECT_EQ(all_tokens(with), all_tokens(without));
    EXPECT_EQ(document_lengths(with), document_lengths(without));
    EXPECT_TRUE(without.verify().ok());
  }
}

TEST(TokenSums, HashesAreThoseOfRunsThatBeganBefore) {
  const ScratchDir dir;
  std::string lines;
  for (int i = 1; i <= 3; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  write_text(dir / "d.jsonl", lines);
  write_text(dir / "t.txt", "the text");
  ASSERT_TRUE(tokenize_file(dir / "t.txt", dir / "one").ok());
  ASSERT_TRUE(tokenize_file(dir / "d.jsonl", dir / "documents").ok());
  TokenizeOptions packed;
  packed.texts.paths = {dir / "d.jsonl"};
  packed.output = dir / "packed";
  packed.pack = PackOptions{.sequence = 32};
  packed.end_of_text = 256;
  TextEncoding bytes = byte_encoding();
  bytes.vocabulary = 257;
  ASSERT_TRUE(tokenize(packed, bytes).ok());
  // By the program that wrote versions 1, 2 and 3.
  EXPECT_EQ(*open_tokens(dir / "one").hash(), 0x63b8f499b425911aull);
  EXPECT_EQ(*open_tokens(dir / "documents").hash(), 0x9a70d029792215c0ull);
  EXPECT_EQ(*open_tokens(dir / "packed").hash(), 0x76d311fc3eee850bull);
}

TEST(TokenSums, WhatIsLeftOfATokenFileIsNoText) {
  const ScratchDir dir;
  write_text(dir / "zeroed.tokens", std::string(4096, '\0'));
  expect_refused(open_or_tokenize(dir / "zeroed.tokens", dir / "cache", {}), "is not a token file");
  EXPECT_FALSE(std::filesystem::exists(dir / "cache"));
}

/// A text in a cache, and what it said of it.
class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    write_text(text_, content_);
    cached_ = open().path();
    ASSERT_TRUE(notes_.empty());
  }
  TokenFile open() {
    auto file =
        open_or_tokenize(text_, dir_ / "cache", {}, {.note = [this](const std::string& n) { notes_.push_back(n); }});
    EXPECT_TRUE(file.ok()) << file.error().message;
    return file.ok() ? std::move(*file) : TokenFile();
  }
  const ScratchDir dir_{"/dev/shm"};
  const std::string text_ = dir_ / "a.txt", content_ = some_text(150'000);
  std::string cached_;
  std::vector<std::string> notes_;
};

TEST_F(CacheTest, WhatIsDamagedIsMadeAgainWithOneNote) {
  const std::string good = read_text(cached_);
  std::vector<std::string> damage = {good.substr(0, good.size() / 2), good + "x", std::string(good.size(), '\0'), ""};
  // Of the header, of each block, of the checksums.
  for (const std::size_t at : {0ul, 9ul, 30ul, 66ul, 72ul, 70'000ul, 149'000ul, good.size() - 1}) {
    damage.push_back(good);
    damage.back()[at] ^= 8;
  }
  damage.push_back(good.substr(0, 80'000) + std::string(8192, '\0') + good.substr(88'192));
  for (const std::string& bad : damage) {
    write_text(cached_, bad);
    notes_.clear();
    expect_text(open(), content_);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_NE(notes_[0].find(cached_), std::string::npos) << notes_[0];
    EXPECT_NE(notes_[0].find("; it is made again from " + text_), std::string::npos) << notes_[0];
    EXPECT_EQ(notes_[0].find('\n'), std::string::npos);
    EXPECT_TRUE(read_text(cached_) == good);
    open();
    EXPECT_EQ(notes_.size(), 1u) << "once";
  }
}

TEST_F(CacheTest, WhatHasNoChecksumsIsMadeAgainAndIsTheSameData) {
  const std::string good = read_text(cached_);
  const std::uint64_t hash = *open().hash();
  write_text(cached_, without_sums(good));
  EXPECT_EQ(*open_tokens(cached_).hash(), hash);
  EXPECT_EQ(*open().hash(), hash);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("has no checksums; it is made again"), std::string::npos) << notes_[0];
  EXPECT_TRUE(read_text(cached_) == good);
}

TEST_F(CacheTest, WhatCanNotBeMadeAgainIsNamed) {
  std::filesystem::remove(cached_);
  std::filesystem::create_directories(cached_ + "/in the way");
  const auto refused = open_or_tokenize(text_, dir_ / "cache", {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(cached_ + " is not a regular file, and can not be made again from " + text_),
            std::string::npos)
      << refused.error().message;
}

TEST_F(CacheTest, WhatIsDamagedLaterSaysWhatToRemove) {
  const TokenFile file = open();
  std::string bad = read_text(cached_);
  bad[sizeof(NamedTokenHeader)] ^= 1;
  write_text(cached_, bad);  // the same file, whose bytes are mapped
  std::vector<std::int32_t> out(10);
  expect_refused(file.read(0, out), "remove it, and it is made again from " + text_);
}

}  // namespace
}  // namespace sluice
