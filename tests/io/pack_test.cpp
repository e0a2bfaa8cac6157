// Documents packed whole into sequences.
#include "io/tokens/pack.h"

#include <map>
#include <numeric>
#include <set>

#include "io/tokens/token_survey.h"
#include "token_support.h"

namespace sluice {
namespace {

constexpr std::uint64_t vocabulary = 60000;

struct Packed {
  PackReport report;
  std::string path;
};

/// Documents of these lengths, of tokens that are not 0, each handed over in `parts`.
Packed pack(const std::string& path, const std::vector<std::size_t>& lengths, const PackOptions& options,
            std::size_t part = 1000, const std::vector<std::uint8_t>& mask = {}) {
  auto sink = TokenWriter::create(path, vocabulary, {.mask = true, .sequence = options.sequence});
  EXPECT_TRUE(sink.ok());
  SequencePacker packer(*sink, options);
  std::size_t at = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::vector<std::int32_t> tokens(lengths[d], static_cast<std::int32_t>(d % (vocabulary - 1) + 1));
    for (std::size_t i = 0; i < tokens.size(); i += part) {
      const std::size_t n = std::min(part, tokens.size() - i);
      EXPECT_TRUE(packer
                      .add(std::span(tokens).subspan(i, n),
                           mask.empty() ? std::span<const std::uint8_t>() : std::span(mask).subspan(at + i, n))
                      .ok());
    }
    at += lengths[d];
    EXPECT_TRUE(packer.end_document().ok());
  }
  EXPECT_TRUE(packer.finish().ok());
  EXPECT_TRUE(sink->finish().ok());
  return {packer.report(), path};
}

/// Every document is there once and whole, none crosses a sequence, padding is 0 and does not count.
void expect_packed(const Packed& packed, const std::vector<std::size_t>& lengths, std::uint64_t sequence) {
  const TokenFile file = open_tokens(packed.path);
  ASSERT_EQ(file.packed_sequence(), sequence);
  ASSERT_EQ(file.count(), packed.report.sequences * sequence);
  std::map<std::int32_t, std::size_t> seen;
  std::uint64_t padding = 0, begin = 0;
  for (std::uint64_t d = 0; d < file.documents(); ++d) {
    const auto document = file.document(d);
    ASSERT_TRUE(document.ok()) << document.error().message;
    ASSERT_EQ(document->begin, begin);
    begin = document->end;
    ASSERT_GT(document->count(), 0u);
    std::vector<std::int32_t> tokens(document->count());
    std::vector<std::uint8_t> mask(document->count());
    ASSERT_TRUE(file.read(document->begin, tokens).ok());
    EXPECT_TRUE(file.read_mask(document->begin, mask).ok());
    EXPECT_EQ(std::set<std::int32_t>(tokens.begin(), tokens.end()).size(), 1u);
    EXPECT_EQ(mask[0], 0) << "nothing stands before the first token";
    std::vector<std::uint8_t> expected(mask.size(), tokens[0] == 0 ? 0 : 1);
    expected[0] = 0;
    EXPECT_EQ(mask, expected);
    if (tokens[0] == 0) {
      padding += tokens.size();
      EXPECT_EQ(document->end % sequence, 0u) << "padding is the end of a sequence";
    } else {
      EXPECT_EQ(seen.count(tokens[0]), 0u);
      seen[tokens[0]] = tokens.size();
    }
  }
  EXPECT_EQ(padding, packed.report.padding_tokens);
  std::size_t there = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    if (lengths[d] == 0) continue;
    ++there;
    EXPECT_EQ(seen[static_cast<std::int32_t>(d + 1)], lengths[d]) << d;
  }
  EXPECT_EQ(seen.size(), there);
  EXPECT_EQ(packed.report.documents, there);
}

TEST(Pack, DocumentsStayWhole) {
  const ScratchDir dir("/dev/shm");
  for (const std::uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    for (const std::uint64_t sequence : {2, 7, 64, 1000}) {
      std::vector<std::size_t> lengths(2000);
      for (std::size_t& n : lengths) n = random() % (sequence + 1);
      const Packed packed = pack(dir / "t", lengths, {.sequence = sequence}, random() % 50 + 1);
      expect_packed(packed, lengths, sequence);
      EXPECT_EQ(packed.report.tokens, std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
      EXPECT_EQ(packed.report.too_long, 0u);
      const std::string bytes = read_text(dir / "t");
      pack(dir / "u", lengths, {.sequence = sequence}, 3);
      EXPECT_TRUE(read_text(dir / "u") == bytes) << "the parts that it comes in change nothing";
    }
  }
}

TEST(Pack, TheBestFitIsTaken) {
  const ScratchDir dir;
  // 6 opens, 7 opens, 3 fits the second, 4 fits the first: two sequences without padding.
  const Packed packed = pack(dir / "t", {6, 7, 3, 4}, {.sequence = 10});
  EXPECT_EQ(packed.report.sequences, 2u);
  EXPECT_EQ(packed.report.padding_tokens, 0u);
  EXPECT_EQ(document_lengths(open_tokens(dir / "t")), (std::vector<std::size_t>{7, 3, 6, 4}));
}

TEST(Pack, LittleIsLeftOfSequences) {
  const ScratchDir dir("/dev/shm");
  std::mt19937_64 random(4);
  std::vector<std::size_t> lengths(20000);
  for (std::size_t& n : lengths) n = 1 + random() % 600;
  const Packed packed = pack(dir / "t", lengths, {.sequence = 2048});
  expect_packed(packed, lengths, 2048);
  EXPECT_LT(static_cast<double>(packed.report.padding_tokens), 0.005 * static_cast<double>(packed.report.tokens));
}

TEST(Pack, OpenSequencesAreBounded) {
  const ScratchDir dir("/dev/shm");
  // With 2^22 tokens only the least number of sequences is open: the ninth pushes one out.
  const std::size_t sequence = 1u << 22;
  std::vector<std::size_t> lengths(9, sequence / 2 + 1);
  lengths[3] = sequence - 1;
  lengths.push_back(1);
  const Packed packed = pack(dir / "t", lengths, {.sequence = sequence}, 1u << 20);
  EXPECT_EQ(packed.report.sequences, 9u);
  const auto there = document_lengths(open_tokens(dir / "t"));
  EXPECT_EQ(there[0], sequence - 1) << "the fullest went first, before the last document could fill it";
  EXPECT_EQ(there[1], 1u);
}

TEST(Pack, LongTextsBecomeSeveralDocuments) {
  const ScratchDir dir;
  const Packed packed = pack(dir / "t", {25, 3, 10, 11}, {.sequence = 10}, 4);
  EXPECT_EQ(packed.report.too_long, 2u);
  EXPECT_EQ(packed.report.lost_tokens, 0u);
  EXPECT_EQ(packed.report.documents, 7u);
  EXPECT_EQ(packed.report.tokens, 49u);
  EXPECT_EQ(document_lengths(open_tokens(dir / "t")), (std::vector<std::size_t>{10, 10, 10, 10, 5, 3, 1, 1}));
}

TEST(Pack, LongConversationsLoseTheirEnd) {
  const ScratchDir dir;
  std::vector<std::uint8_t> mask(12 + 12 + 5, 0);
  mask[5] = 1;            // of the first, stays
  mask[12 + 11] = 1;      // of the second, is cut off with all that it says
  mask[12 + 12 + 2] = 1;  // of the third
  const PackOptions options{.sequence = 10, .keep_rest = false};
  const Packed packed = pack(dir / "t", {12, 12, 5}, options, 4, mask);
  EXPECT_EQ(packed.report.too_long, 2u);
  EXPECT_EQ(packed.report.lost_tokens, 4u);
  EXPECT_EQ(packed.report.unlearned, 1u);
  EXPECT_EQ(packed.report.documents, 2u);
  EXPECT_EQ(packed.report.loss_tokens, 2u);
  EXPECT_EQ(document_lengths(open_tokens(dir / "t")), (std::vector<std::size_t>{10, 5, 5}));
}

TEST(Pack, LongOnesAreDroppedOrRefused) {
  const ScratchDir dir;
  const Packed packed = pack(dir / "t", {25, 3, 10, 11}, {.sequence = 10, .too_long = TooLong::drop}, 4);
  EXPECT_EQ(packed.report.too_long, 2u);
  EXPECT_EQ(packed.report.lost_tokens, 36u);
  EXPECT_EQ(document_lengths(open_tokens(dir / "t")), (std::vector<std::size_t>{10, 3, 7}));
  auto sink = TokenWriter::create(dir / "u", vocabulary, {.mask = true, .sequence = 10});
  ASSERT_TRUE(sink.ok());
  SequencePacker packer(*sink, {.sequence = 10, .too_long = TooLong::refuse});
  EXPECT_TRUE(packer.add(std::vector<std::int32_t>(10, 1), {}).ok());
  const Status refused = packer.add(std::vector<std::int32_t>(1, 1), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("more than 10 tokens; --too-long"), std::string::npos);
}

class PackFiles : public testing::Test {
 protected:
  PackFiles() {
    write_text(dir_ / "a.txt", some_text(100));
    write_text(dir_ / "long.txt", some_text(3u << 20));
    std::string lines;
    std::mt19937_64 random(9);
    for (int i = 0; i < 3000; ++i) lines += "{\"text\":\"" + some_text(random() % 150) + "\"}\n";
    write_text(dir_ / "b.jsonl", lines);
    options_.texts.paths = {dir_ / "a.txt", dir_ / "long.txt", dir_ / "b.jsonl"};
    options_.output = dir_ / "out.tokens";
    options_.pack = PackOptions{.sequence = 128};
  }
  ScratchDir dir_;
  TokenizeOptions options_;
};

TEST_F(PackFiles, OfTextThreadsChangeNoByte) {
  options_.held_out = 0.1;
  options_.end_of_text = 0;
  std::string training, held_out;
  for (const int threads : {1, 3}) {
    options_.threads = threads;
    const auto report = tokenize(options_, byte_encoding());
    ASSERT_TRUE(report.ok()) << report.error().message;
    const TokenFile file = open_tokens(dir_ / "out.tokens");
    EXPECT_TRUE(survey_tokens(file).ok()) << "no document crosses a sequence";
    EXPECT_EQ(report->training.tokens + report->training.pack.padding_tokens, file.count());
    EXPECT_EQ(survey_tokens(file)->loss_tokens, report->training.loss_tokens);
    if (threads == 1) training = read_text(dir_ / "out.tokens"), held_out = read_text(dir_ / "out.eval.tokens");
    EXPECT_TRUE(read_text(dir_ / "out.tokens") == training);
    EXPECT_TRUE(read_text(dir_ / "out.eval.tokens") == held_out);
  }
  EXPECT_EQ(open_tokens(dir_ / "out.eval.tokens").packed_sequence(), 128u);
}

TEST_F(PackFiles, OfTextHoldAllOfIt) {
  const auto report = tokenize(options_, byte_encoding());
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto whole = [&] {
    TokenizeOptions plain = options_;
    plain.pack.reset();
    plain.output = dir_ / "plain.tokens";
    return tokenize(plain, byte_encoding());
  }();
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(report->training.tokens, whole->training.tokens);
  // Byte for byte, in any order.
  std::map<std::int32_t, std::int64_t> bytes;
  for (const std::int32_t t : all_tokens(open_tokens(dir_ / "plain.tokens"))) ++bytes[t];
  for (const std::int32_t t : all_tokens(open_tokens(dir_ / "out.tokens"))) --bytes[t];
  bytes[0] += static_cast<std::int64_t>(report->training.pack.padding_tokens);
  for (const auto& [byte, difference] : bytes) EXPECT_EQ(difference, 0) << byte;
}

TEST_F(PackFiles, ARefusedDocumentIsNamed) {
  options_.pack->too_long = TooLong::refuse;
  expect_refused(tokenize(options_, byte_encoding()), "long.txt: the document has more than 128 tokens");
  options_.texts.paths = {dir_ / "a.txt", dir_ / "b.jsonl"};
  expect_refused(tokenize(options_, byte_encoding()), "b.jsonl line ");
  options_.pack->too_long = TooLong::drop;
  options_.pack->sequence = 2;
  options_.texts.paths = {dir_ / "long.txt"};
  expect_refused(tokenize(options_, byte_encoding()), "no document is left: 1 of more than 2 tokens dropped");
  EXPECT_EQ(dir_.files(), 3u) << "nothing is left of what fails";
}

TEST_F(PackFiles, AreOfSluicesFormat) {
  options_.format = TokenFormat::megatron;
  expect_refused(tokenize(options_, byte_encoding()), "Megatron's format can not say");
}

}  // namespace
}  // namespace sluice
