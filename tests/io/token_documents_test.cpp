#include <algorithm>
#include <numeric>

#include "io/tokens/token_header.h"
#include "io/tokens/token_survey.h"
#include "token_support.h"

namespace sluice {
namespace {

const std::vector<std::size_t> some_lengths = {3, 0, 1, 700, 0, 0, 41, 2};
constexpr std::size_t some_count = 747;

TEST(TokenDocuments, RoundTripOfEveryWidth) {
  const ScratchDir dir;
  for (const std::uint64_t vocabulary : {200, 50257, 128256}) {
    const auto tokens = random_tokens(some_count, vocabulary, 1);
    auto writer = TokenWriter::create(dir / "t", vocabulary);
    ASSERT_TRUE(writer.ok());
    write_documents(*writer, tokens, some_lengths);
    const TokenFile file = open_tokens(dir / "t");
    EXPECT_TRUE(file.documents_known());
    EXPECT_EQ(document_lengths(file), some_lengths);
    EXPECT_EQ(all_tokens(file), tokens);
    EXPECT_EQ(file.vocabulary(), vocabulary);
  }
}

TEST(TokenDocuments, OneDocumentNeedsNoTable) {
  const ScratchDir dir;
  const auto tokens = random_tokens(100, 300, 2);
  write_tokens(dir / "without", 300, tokens);
  auto writer = TokenWriter::create(dir / "with", 300);
  ASSERT_TRUE(writer.ok());
  write_documents(*writer, tokens, {100});
  EXPECT_EQ(read_text(dir / "with"), read_text(dir / "without"));
  const TokenFile file = open_tokens(dir / "with");
  EXPECT_FALSE(file.documents_known());
  EXPECT_EQ(document_lengths(file), std::vector<std::size_t>{100});
}

TEST(TokenDocuments, WhatFollowsTheLastEndIsADocument) {
  const ScratchDir dir;
  auto writer = TokenWriter::create(dir / "t", 300);
  ASSERT_TRUE(writer.ok());
  const auto tokens = random_tokens(10, 300, 3);
  ASSERT_TRUE(writer->append(std::span(tokens).first(4)).ok());
  writer->end_document();
  ASSERT_TRUE(writer->append(std::span(tokens).subspan(4)).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(document_lengths(open_tokens(dir / "t")), (std::vector<std::size_t>{4, 6}));
}

/// Documents that have a token in the window, one by one.
TokenFile::DocumentRange slow_documents_in(const std::vector<std::size_t>& lengths, std::size_t start,
                                           std::size_t length) {
  TokenFile::DocumentRange range{lengths.size(), 0};
  std::size_t begin = 0;
  for (std::size_t d = 0; d < lengths.size(); begin += lengths[d++]) {
    if (std::max(begin, start) >= std::min(begin + lengths[d], start + length)) continue;
    range.first = std::min<std::uint64_t>(range.first, d);
    range.last = d + 1;
  }
  return range;
}

void expect_windows(const TokenFile& file, const std::vector<std::size_t>& lengths) {
  for (std::size_t start = 0; start < some_count; start += start < 10 || start > 700 ? 1 : 37)
    for (std::size_t length = 1; start + length <= some_count; length += length < 8 ? 1 : 61) {
      const auto range = file.documents_in(start, length);
      const auto slow = slow_documents_in(lengths, start, length);
      ASSERT_TRUE(range.ok()) << range.error().message;
      EXPECT_EQ(range->first, slow.first) << start << " + " << length;
      EXPECT_EQ(range->last, slow.last) << start << " + " << length;
    }
}

TEST(TokenDocuments, DocumentsOfEveryWindow) {
  const ScratchDir dir;
  const auto tokens = random_tokens(some_count, 300, 4);
  auto writer = TokenWriter::create(dir / "t", 300);
  ASSERT_TRUE(writer.ok());
  write_documents(*writer, tokens, some_lengths);
  expect_windows(open_tokens(dir / "t"), some_lengths);
  auto megatron = MegatronWriter::create(dir / "m", 300);
  ASSERT_TRUE(megatron.ok());
  write_documents(*megatron, tokens, some_lengths);
  expect_windows(open_tokens(dir / "m"), some_lengths);
  write_tokens(dir / "one", 300, tokens);
  expect_windows(open_tokens(dir / "one"), {some_count});
}

TEST(TokenDocuments, EveryBitCountsInTheHash) {
  const ScratchDir dir("/dev/shm");
  auto writer = TokenWriter::create(dir / "t", 300);
  ASSERT_TRUE(writer.ok());
  write_documents(*writer, random_tokens(45, 300, 5), {3, 0, 41, 1});
  const std::string good = without_sums(read_text(dir / "t"));
  const std::uint64_t hash = *open_tokens(dir / "t").hash();
  std::size_t opened = 0;
  for (std::size_t bit = sizeof(TokenHeader) * 8; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_text(dir / "m", bad);
    const auto file = TokenFile::open(dir / "m");
    if (!file.ok()) continue;
    ++opened;
    EXPECT_NE(*file->hash(), hash) << bit;
  }
  EXPECT_GT(opened, 45u * 16) << "the tokens and all ends but the last are not looked at when the file is opened";
}

TEST(TokenDocuments, MegatronsIndexCountsInTheHash) {
  const ScratchDir dir;
  std::vector<std::uint64_t> hashes;
  for (const std::vector<std::size_t>& lengths : {std::vector<std::size_t>{3, 4}, {4, 3}}) {
    auto writer = MegatronWriter::create(dir / "m", 300);
    ASSERT_TRUE(writer.ok());
    write_documents(*writer, random_tokens(7, 300, 5), lengths);
    hashes.push_back(*open_tokens(dir / "m").hash());
  }
  EXPECT_NE(hashes[0], hashes[1]);
}

TEST(TokenDocuments, RandomMutationsNeverCrash) {
  const ScratchDir dir("/dev/shm");
  const auto tokens = random_tokens(200, 300, 6);
  auto writer = TokenWriter::create(dir / "t", 300);
  auto megatron = MegatronWriter::create(dir / "m", 300);
  ASSERT_TRUE(writer.ok() && megatron.ok());
  write_documents(*writer, tokens, {50, 0, 149, 1});
  write_documents(*megatron, tokens, {50, 0, 149, 1});
  std::mt19937_64 random(7);
  write_text(dir / "old", without_sums(read_text(dir / "t")));
  for (const std::string name : {"t", "old", "m.idx"}) {
    const std::string good = read_text(dir / name);
    std::size_t refused = 0;
    for (int i = 0; i < 5000; ++i) {
      std::string bad = good;
      // Numbers at the tables, so that many get past the header.
      const std::size_t from = bad.size() - 8 * (random() % 6 + 1);
      for (std::uint64_t n = random() % 3 + 1; n-- > 0;)
        bad[random() % 2 == 0 ? from + random() % 8 : random() % bad.size()] = static_cast<char>(random());
      if (random() % 4 == 0) bad.resize(random() % (bad.size() + 20));
      write_text(dir / name, name == "t" ? resealed(bad) : bad);
      const auto file = TokenFile::open(dir / name);
      if (!file.ok() || !survey_tokens(*file).ok()) ++refused;
      if (!file.ok() || file->count() == 0) continue;
      const auto range = file->documents_in(random() % file->count(), 1);
      ASSERT_TRUE(range.ok()) << range.error().message;
      ASSERT_LE(range->last, file->documents());
      ASSERT_LT(range->first, range->last);
    }
    EXPECT_GT(refused, 1000u) << name;
  }
}

TEST(Megatron, IndexIsWhatMegatronWrites) {
  const ScratchDir dir;
  const std::vector<std::int32_t> tokens = {7, 1, 65498, 4, 5};
  auto writer = MegatronWriter::create(dir / "m.bin", 65499);
  ASSERT_TRUE(writer.ok());
  write_documents(*writer, tokens, {2, 3});
  // As _IndexWriter of megatron/core/datasets/indexed_dataset.py packs it: <Q, <B, <Q, <Q, int32, int64, int64.
  const unsigned char index[] = {
      'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,                       // magic
      1,   0,   0,   0,   0,   0,   0,   0, 8,                       // version, uint16
      2,   0,   0,   0,   0,   0,   0,   0, 3, 0, 0, 0, 0, 0, 0, 0,  // sequences, entries of documents
      2,   0,   0,   0,   3,   0,   0,   0,                          // lengths
      0,   0,   0,   0,   0,   0,   0,   0, 4, 0, 0, 0, 0, 0, 0, 0,  // pointers
      0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(read_text(dir / "m.idx"), std::string(reinterpret_cast<const char*>(index), sizeof index));
  EXPECT_EQ(read_text(dir / "m.bin"), std::string("\7\0\1\0\xda\xff\4\0\5\0", 10));
  auto wide = MegatronWriter::create(dir / "w", 65500);
  ASSERT_TRUE(wide.ok());
  write_documents(*wide, tokens, {5});
  EXPECT_EQ(std::filesystem::file_size(dir / "w.bin"), 20u) << "int32 from 65500 on, as Megatron decides";
}

TEST(Megatron, RoundTripsAreEqual) {
  const ScratchDir dir;
  for (const std::uint64_t vocabulary : {300, 128256}) {
    auto writer = TokenWriter::create(dir / "a", vocabulary);
    ASSERT_TRUE(writer.ok());
    write_documents(*writer, random_tokens(some_count, vocabulary, 8), some_lengths);
    auto there = MegatronWriter::create(dir / "m", vocabulary);
    ASSERT_TRUE(there.ok());
    ASSERT_TRUE(copy_tokens(open_tokens(dir / "a"), *there).ok());
    ASSERT_TRUE(there->finish().ok());
    for (const char* name : {"m", "m.bin", "m.idx"}) {
      const TokenFile megatron = open_tokens(dir / name);
      EXPECT_EQ(megatron.format(), TokenFormat::megatron);
      auto back = TokenWriter::create(dir / "b", vocabulary);
      ASSERT_TRUE(back.ok());
      ASSERT_TRUE(copy_tokens(megatron, *back).ok());
      ASSERT_TRUE(back->finish().ok());
      EXPECT_EQ(read_text(dir / "b"), read_text(dir / "a"));
    }
  }
}

/// An index with several sequences in a document, as Megatron's --split-sentences makes them.
std::string index_of(std::uint8_t type, const std::vector<std::int32_t>& lengths, std::uint64_t token_bytes,
                     const std::vector<std::uint64_t>& documents) {
  std::string out("MMIDIDX\0\0", 9);
  const auto add = [&out](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(std::uint64_t{1});
  add(type);
  add(std::uint64_t{lengths.size()});
  add(std::uint64_t{documents.size()});
  for (const std::int32_t length : lengths) add(length);
  std::uint64_t at = 0;
  for (const std::int32_t length : lengths)
    add(std::exchange(at, at + static_cast<std::uint64_t>(length) * token_bytes));
  for (const std::uint64_t first : documents) add(first);
  return out;
}

TEST(Megatron, ReadsEveryTypeAndSeveralSequencesADocument) {
  const ScratchDir dir;
  const std::vector<std::pair<std::uint8_t, std::size_t>> types = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {8, 2}};
  for (const auto& [type, width] : types) {
    std::string data;
    for (char t = 1; t <= 9; ++t) data += t + std::string(width - 1, '\0');
    write_text(dir / "m.bin", data);
    write_text(dir / "m.idx", index_of(type, {2, 3, 0, 4}, width, {0, 2, 2, 4}));
    const TokenFile file = open_tokens(dir / "m", {.vocabulary_limit = 10});
    EXPECT_EQ(document_lengths(file), (std::vector<std::size_t>{5, 0, 4})) << int{type};
    EXPECT_EQ(all_tokens(file), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_FALSE(file.vocabulary_known());
    std::vector<std::int32_t> out(9);
    expect_refused(open_tokens(dir / "m", {.vocabulary_limit = 9}).read(0, out), "token 9 at position 8");
    data.back() = static_cast<char>(0xff);
    write_text(dir / "m.bin", data);
    if (type != 1 && type != 8) {
      expect_refused(open_tokens(dir / "m").read(0, out), "at position 8");
    }
  }
}

std::string llm_c_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic, header[1] = version, header[2] = count;
  return {reinterpret_cast<const char*>(header.data()), 1024};
}

TEST(LlmC, ReadsBothVariants) {
  const ScratchDir dir;
  write_text(dir / "gpt2.bin", llm_c_header(20240520, 1, 3) + std::string("\1\0\2\1\3\0", 6));
  write_text(dir / "llama.bin", llm_c_header(20240801, 7, 2) + std::string("\1\0\1\0\2\0\0\0", 8));
  const TokenFile gpt2 = open_tokens(dir / "gpt2.bin"), llama = open_tokens(dir / "llama.bin");
  EXPECT_EQ(gpt2.format(), TokenFormat::llm_c);
  EXPECT_EQ(all_tokens(gpt2), (std::vector<std::int32_t>{1, 258, 3}));
  EXPECT_EQ(llama.format(), TokenFormat::llm_c);
  EXPECT_EQ(all_tokens(llama), (std::vector<std::int32_t>{65537, 2}));
  EXPECT_EQ(gpt2.documents(), 1u);
  EXPECT_FALSE(gpt2.documents_known());
}

TEST(NanoGpt, ReadsTheStream) {
  const ScratchDir dir;
  write_text(dir / "train.bin", std::string("\1\0\2\1\xff\xff", 6));
  const TokenFile file = open_tokens(dir / "train.bin");
  EXPECT_EQ(file.format(), TokenFormat::nanogpt);
  EXPECT_EQ(all_tokens(file), (std::vector<std::int32_t>{1, 258, 65535}));
  const auto as_data = open_or_tokenize(dir / "train.bin", dir / "unused", {.vocabulary_limit = 50257});
  ASSERT_TRUE(as_data.ok()) << as_data.error().message;
  std::vector<std::int32_t> out(3);
  expect_refused(as_data->read(0, out), "token 65535 at position 2 is not in the vocabulary of 50257");
}

TEST(NanoGpt, AllTokensAreLookedAtAndHowFarThatIsIsTold) {
  const ScratchDir dir;
  constexpr std::size_t count = 200'000;
  std::string data;
  for (std::size_t i = 0; i < count; ++i) data += std::string("\1\0", 2);
  write_text(dir / "train.bin", data);
  std::vector<double> told;
  const auto listen = [&](double fraction) { told.push_back(fraction); };
  EXPECT_TRUE(open_tokens(dir / "train.bin", {.vocabulary_limit = 256}).check_tokens(listen).ok());
  EXPECT_GT(told.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(told.back(), 1.0);
  data[2 * (count - 1) + 1] = 1;
  write_text(dir / "train.bin", data);
  told.clear();
  expect_refused(open_tokens(dir / "train.bin", {.vocabulary_limit = 256}).check_tokens(listen),
                 "token 257 at position 199999");
  EXPECT_LT(told.back(), 1.0);
}

TEST(Survey, FindsTheLargestTokenAndTheLongestDocument) {
  const ScratchDir dir;
  auto writer = TokenWriter::create(dir / "t", 300);
  ASSERT_TRUE(writer.ok());
  write_documents(*writer, std::vector<std::int32_t>{1, 2, 9, 4, 5, 6}, {1, 0, 3, 2});
  const auto survey = survey_tokens(open_tokens(dir / "t"));
  ASSERT_TRUE(survey.ok());
  EXPECT_EQ(survey->largest_token, 9);
  EXPECT_EQ(survey->longest_document, 2u);
  EXPECT_EQ(survey->longest_tokens, 3u);
  EXPECT_EQ(survey->empty_documents, 1u);
}

}  // namespace
}  // namespace sluice
