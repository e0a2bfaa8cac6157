// Which tokens count in the loss, and documents packed for sequences.
#include <functional>

#include "io/tokens/token_header.h"
#include "io/tokens/token_survey.h"
#include "token_support.h"

namespace sluice {
namespace {

std::vector<std::uint8_t> random_mask(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> mask(count);
  for (std::uint8_t& m : mask) m = random() % 3 == 0 ? 1 : 0;
  return mask;
}

std::vector<std::uint8_t> mask_of(const TokenFile& file, std::uint64_t start, std::size_t length) {
  std::vector<std::uint8_t> mask(length, 7);
  EXPECT_TRUE(file.read_mask(start, mask).ok());
  return mask;
}

/// Documents of these lengths, each appended in two parts.
void write_masked(const std::string& path, std::uint64_t vocabulary, const TokenFeatures& features,
                  std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask,
                  const std::vector<std::size_t>& lengths) {
  auto writer = TokenWriter::create(path, vocabulary, features);
  ASSERT_TRUE(writer.ok());
  std::size_t at = 0;
  for (const std::size_t length : lengths) {
    for (const std::size_t part : {length / 3, length - length / 3}) {
      ASSERT_TRUE(writer->append(tokens.subspan(at, part), mask.empty() ? mask : mask.subspan(at, part)).ok());
      at += part;
    }
    writer->end_document();
  }
  ASSERT_TRUE(writer->finish().ok());
}

TokenHeader header_of(const std::string& bytes) { return token_header_of<TokenHeader>(bytes); }

TEST(TokenMask, RoundTripOfEveryWidthAndLength) {
  const ScratchDir dir("/dev/shm");
  for (const std::uint64_t vocabulary : {200, 50257, 128256})
    for (std::size_t count = 1; count < 40; ++count) {
      const auto tokens = random_tokens(count, vocabulary, count);
      const auto mask = random_mask(count, count);
      write_masked(dir / "t", vocabulary, {.mask = true}, tokens, mask, {count / 2, 0, count - count / 2});
      const TokenFile file = open_tokens(dir / "t");
      EXPECT_TRUE(file.has_mask());
      EXPECT_EQ(file.packed_sequence(), 0u);
      EXPECT_EQ(all_tokens(file), tokens);
      EXPECT_EQ(document_lengths(file), (std::vector<std::size_t>{count / 2, 0, count - count / 2}));
      for (std::size_t start = 0; start <= count; ++start)
        for (std::size_t length = 0; start + length <= count; ++length)
          ASSERT_TRUE(std::ranges::equal(mask_of(file, start, length), std::span(mask).subspan(start, length)));
      const auto survey = survey_tokens(file);
      ASSERT_TRUE(survey.ok());
      EXPECT_EQ(survey->loss_tokens, static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1)));
    }
}

TEST(TokenMask, LiesBehindTheTableOfDocuments) {
  const ScratchDir dir;
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<std::uint8_t> mask = {0, 1, 0, 0, 0, 0, 0, 1, 1};
  write_masked(dir / "t", 256, {.mask = true, .sequence = 3}, tokens, mask, {3, 3, 3});
  const std::string bytes = read_text(dir / "t");
  ASSERT_EQ(bytes.size(), 72u + 9 + 7 + 3 * 8 + 2 + 6 + 8);
  EXPECT_EQ(header_of(bytes).schema_version, 4u);
  EXPECT_EQ(header_of(bytes).flags, 1u);
  EXPECT_EQ(header_of(bytes).sequence, 3u);
  EXPECT_EQ(bytes.substr(bytes.size() - 16, 8), std::string("\x82\x01\0\0\0\0\0\0", 8)) << "before the checksum";
}

TEST(TokenMask, FilesWithoutEitherHaveNoMoreThanTheOldVersions) {
  const ScratchDir dir;
  const auto tokens = random_tokens(50, 300, 1);
  for (const std::vector<std::size_t>& lengths : {std::vector<std::size_t>{50}, {20, 30}}) {
    auto writer = TokenWriter::create(dir / "t", 300);
    ASSERT_TRUE(writer.ok());
    write_documents(*writer, tokens, lengths);
    const TokenHeader h = header_of(read_text(dir / "t"));
    EXPECT_EQ(unsealed(h).schema_version, lengths.size());
    EXPECT_EQ(h.documents, lengths.size() > 1 ? lengths.size() : 0);
    EXPECT_EQ(h.flags, 0u);
    EXPECT_EQ(h.sequence, 0u);
    const TokenFile file = open_tokens(dir / "t");
    EXPECT_FALSE(file.has_mask());
    EXPECT_EQ(file.packed_sequence(), 0u);
    EXPECT_EQ(mask_of(file, 3, 40), std::vector<std::uint8_t>(40, 1)) << "all tokens count";
    EXPECT_EQ(survey_tokens(file)->loss_tokens, 50u);
  }
}

TEST(TokenMask, SequencesNeedNoMaskAndAMaskNoSequences) {
  const ScratchDir dir;
  const auto tokens = random_tokens(24, 300, 1);
  write_masked(dir / "packed", 300, {.sequence = 8}, tokens, {}, {3, 5, 8, 0, 8});
  const TokenFile packed = open_tokens(dir / "packed");
  EXPECT_FALSE(packed.has_mask());
  EXPECT_EQ(packed.packed_sequence(), 8u);
  EXPECT_EQ(mask_of(packed, 0, 24), std::vector<std::uint8_t>(24, 1));
  write_masked(dir / "all", 300, {.mask = true}, tokens, {}, {24});
  const TokenFile all = open_tokens(dir / "all");
  EXPECT_TRUE(all.has_mask());
  EXPECT_EQ(mask_of(all, 0, 24), std::vector<std::uint8_t>(24, 1)) << "appended without a mask, all count";
  EXPECT_EQ(all.documents(), 1u);
}

TEST(TokenMask, ADocumentAcrossSequencesIsNamed) {
  const ScratchDir dir;
  write_masked(dir / "t", 300, {.sequence = 8}, random_tokens(24, 300, 1), {}, {3, 6, 7, 8});
  const TokenFile file = open_tokens(dir / "t");
  EXPECT_TRUE(file.document(0).ok());
  expect_refused(file.document(1), "document 1 has the tokens [3, 9), which lie in more than one sequence of 8");
  expect_refused(survey_tokens(file), "document 1");
}

TEST(TokenMask, WhatContradictsTheFileIsRefused) {
  const ScratchDir dir("/dev/shm");
  const auto tokens = random_tokens(20, 300, 1);
  write_masked(dir / "t", 300, {.mask = true, .sequence = 10}, tokens, random_mask(20, 2), {10, 10});
  const std::string good = without_sums(read_text(dir / "t"));
  const auto refused = [&](const std::string& what, const std::function<void(TokenHeader&, std::string&)>& change) {
    TokenHeader h = header_of(good);
    std::string bytes = good;
    change(h, bytes);
    h.checksum = header_checksum(h);
    std::memcpy(bytes.data(), &h, sizeof h);
    write_text(dir / "bad", bytes);
    expect_refused(TokenFile::open(dir / "bad"), what);
  };
  refused("schema version 6", [](TokenHeader& h, std::string&) { h.schema_version = 6; });
  refused("the flags 0x3", [](TokenHeader& h, std::string&) { h.flags = 3; });
  refused("the flags 0x8000000000000001", [](TokenHeader& h, std::string&) { h.flags |= 1ull << 63; });
  refused("sequences of 7 tokens and has 20", [](TokenHeader& h, std::string&) { h.sequence = 7; });
  refused("sequences of 18446744073709551615", [](TokenHeader& h, std::string&) { h.sequence = ~0ull; });
  refused("2 of 3 bytes of its mask", [](TokenHeader&, std::string& b) { b.pop_back(); });
  refused("0 of 3 bytes of its mask", [](TokenHeader&, std::string& b) { b.resize(b.size() - 3); });
  refused("the ends of 1 of 2 documents", [](TokenHeader&, std::string& b) { b.resize(b.size() - 4); });
  refused("bytes after its mask", [](TokenHeader&, std::string& b) { b += '\0'; });
  refused("bytes after its last document", [](TokenHeader& h, std::string&) { h.flags = 0; });
  refused("more than its 20 tokens", [](TokenHeader&, std::string& b) { b.back() = '\x10'; });
  refused("documents are there", [](TokenHeader& h, std::string&) { h.documents = 1ull << 61; });
}

TEST(TokenMask, EveryBitCountsInTheHash) {
  const ScratchDir dir("/dev/shm");
  write_masked(dir / "t", 300, {.mask = true}, random_tokens(80, 300, 1), random_mask(80, 2), {30, 50});
  const std::string good = without_sums(read_text(dir / "t"));
  const std::uint64_t hash = *open_tokens(dir / "t").hash();
  for (std::size_t bit = (good.size() - 10) * 8; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_text(dir / "m", bad);
    EXPECT_NE(*open_tokens(dir / "m").hash(), hash) << bit;
  }
}

TEST(TokenMask, RandomMutationsNeverCrash) {
  const ScratchDir dir("/dev/shm");
  write_masked(dir / "t", 300, {.mask = true, .sequence = 50}, random_tokens(200, 300, 6), random_mask(200, 7),
               {50, 0, 49, 1, 50, 50});
  const std::string good = read_text(dir / "t");
  std::mt19937_64 random(8);
  std::size_t refused = 0, opened = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (std::uint64_t n = random() % 3 + 1; n-- > 0;)
      bad[random() % 2 == 0 ? random() % sizeof(TokenHeader) : random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(sizeof(TokenHeader) + random() % bad.size());
    TokenHeader h = header_of(bad);
    std::memcpy(h.magic, token_magic, 8);
    h.schema_version = 4;
    put_token_header(bad, h);
    write_text(dir / "m", resealed(bad));
    const auto file = TokenFile::open(dir / "m");
    if (!file.ok() || !survey_tokens(*file).ok()) ++refused;
    if (!file.ok()) continue;
    ++opened;
    mask_of(*file, 0, file->count());
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(opened, 1000u);
}

TEST(TokenMask, IsCopiedBetweenFilesAndNotToMegatron) {
  const ScratchDir dir;
  write_masked(dir / "a", 300, {.mask = true, .sequence = 25}, random_tokens(100, 300, 1), random_mask(100, 2),
               {25, 20, 5, 25, 0, 25});
  const TokenFile file = open_tokens(dir / "a");
  const TokenFeatures features{file.has_mask(), file.packed_sequence()};
  auto copy = make_token_sink(TokenFormat::sluice, dir / "b", 300, features);
  ASSERT_TRUE(copy.ok());
  ASSERT_TRUE(copy_tokens(file, **copy).ok());
  ASSERT_TRUE((*copy)->finish().ok());
  EXPECT_EQ(read_text(dir / "b"), read_text(dir / "a"));
  expect_refused(make_token_sink(TokenFormat::megatron, dir / "m", 300, features), "which tokens count in the loss");
  expect_refused(make_token_sink(TokenFormat::megatron, dir / "m", 300, {.sequence = 25}), "packed for sequences");
}

}  // namespace
}  // namespace sluice
