// What training reads of a token file: inputs, targets that count, places in documents.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "io/tokens/token_sink.h"
#include "src/train/data/batches.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;
  std::vector<std::size_t> documents;  ///< lengths
};

/// Documents that do not cross a multiple of `sequence`, where that is not 0.
Text random_text(std::uint64_t seed, std::size_t count, std::size_t sequence) {
  std::mt19937_64 random(seed);
  Text text;
  while (text.tokens.size() < count) {
    std::size_t length = random() % 40 + (random() % 4 == 0 ? 60 : 1);
    const std::size_t room = sequence == 0 ? length : sequence - text.tokens.size() % sequence;
    length = std::min({length, room, count - text.tokens.size()});
    text.documents.push_back(length);
    for (std::size_t i = 0; i < length; ++i) {
      text.tokens.push_back(static_cast<std::int32_t>(random() % 300));
      text.mask.push_back(static_cast<std::uint8_t>(random() % 3 != 0));
    }
  }
  return text;
}

class WindowsTest : public testing::Test {
 protected:
  TokenFile write(const Text& text, const TokenFeatures& features, bool documents = true) {
    const std::string path = folder_ / "t.tokens";
    auto writer = TokenWriter::create(path, 300, features);
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    std::size_t at = 0;
    for (const std::size_t length : text.documents) {
      const auto tokens = std::span(text.tokens).subspan(at, length);
      const auto mask = std::span(text.mask).subspan(at, length);
      EXPECT_TRUE(writer->append(tokens, features.mask ? mask : std::span<const std::uint8_t>()).ok());
      if (documents) writer->end_document();
      at += length;
    }
    EXPECT_TRUE(writer->finish().ok());
    auto file = TokenFile::open(path);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(*file);
  }

  /// Every window, against the text.
  void check(const Text& text, const TokenFile& file, std::size_t sequence, bool documents) {
    const Windows windows(file, static_cast<std::int64_t>(sequence), documents);
    const bool packed = file.packed_sequence() != 0;
    ASSERT_EQ(windows.count(), packed ? text.tokens.size() / sequence : (text.tokens.size() - 1) / sequence);
    std::vector<std::size_t> begin_of(text.tokens.size());
    std::size_t at = 0;
    for (const std::size_t length : text.documents) {
      std::fill_n(begin_of.begin() + static_cast<std::ptrdiff_t>(at), length, at);
      at += length;
    }
    std::vector<std::int32_t> planes((documents ? 3 : 2) * sequence);
    const BatchRow row = BatchRow::of(planes, 0, 1, sequence);
    for (std::uint64_t w = 0; w < windows.count(); ++w) {
      std::fill(planes.begin(), planes.end(), -7);
      const Status status = windows.read(w, row);
      ASSERT_TRUE(status.ok()) << status.error().message;
      std::uint64_t counted = 0;
      for (std::size_t i = 0; i < sequence; ++i) {
        const std::size_t t = w * sequence + i, next = t + 1;
        ASSERT_EQ(row.inputs[i], text.tokens[t]);
        bool counts = next < text.tokens.size() && (!file.has_mask() || text.mask[next] != 0);
        if (documents) {
          ASSERT_EQ(row.positions[i], static_cast<std::int32_t>(t - std::max(begin_of[t], w * sequence))) << t;
          counts = counts && begin_of[next] != next;
        }
        ASSERT_EQ(row.targets[i], counts ? text.tokens[next] : -1) << "token " << t;
        counted += counts;
      }
      EXPECT_EQ(row.targets_that_count(), counted);
    }
  }

  const ScratchDir folder_;
};

TEST_F(WindowsTest, AreTheTextWithoutDocuments) {
  const Text text = random_text(1, 1000, 0);
  const TokenFile file = write(text, {}, false);
  check(text, file, 32, false);
  EXPECT_TRUE(Windows(file, 32, false).all_count());
}

TEST_F(WindowsTest, HideWhatTheMaskHides) {
  for (const std::size_t sequence : {1u, 32u, 700u}) {
    const Text text = random_text(2, 3001, 0);
    const TokenFile file = write(text, {.mask = true});
    check(text, file, sequence, false);
    check(text, file, sequence, true);
    EXPECT_FALSE(Windows(file, 32, false).all_count());
  }
}

TEST_F(WindowsTest, KeepDocumentsApartAlsoWhereWindowsCutThem) {
  for (const std::size_t sequence : {1u, 7u, 64u, 500u}) {
    const Text text = random_text(3, 2000, 0);
    check(text, write(text, {}), sequence, true);
  }
}

TEST_F(WindowsTest, ServeEverySequenceOfAPackedFile) {
  for (const bool mask : {false, true}) {
    const Text text = random_text(4, 64 * 20, 64);
    const TokenFile file = write(text, {.mask = mask, .sequence = 64});
    check(text, file, 64, true);
    check(text, file, 64, false);  // as --document-mask off asks for
  }
}

TEST_F(WindowsTest, PackedForOneSequenceAndTrainedWithAnotherIsRefused) {
  write(random_text(5, 64 * 4, 64), {.sequence = 64});
  RunConfig config;
  config.data = folder_ / "t.tokens";
  config.sequence = 32;
  ModelConfig model;
  model.vocabulary = 300;
  const auto refused = open_data(config, model);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("give --seq 64"), std::string::npos) << refused.error().message;
  config.sequence = 64;
  EXPECT_TRUE(open_data(config, model).ok());
}

TEST_F(WindowsTest, TheMaskIsDecidedByTheFileWhereItIsLeftOpen) {
  RunConfig config;
  config.data = folder_ / "t.tokens";
  const auto decided = [&] {
    const auto c = with_document_mask(config);
    EXPECT_TRUE(c.ok()) << c.error().message;
    return c.ok() && *c->document_mask;
  };
  config.sequence = 64;
  write(random_text(6, 64 * 4, 64), {.sequence = 64});
  EXPECT_TRUE(decided());
  config.document_mask = false;
  EXPECT_FALSE(decided());
  config.document_mask.reset();
  write(random_text(6, 300, 0), {});
  EXPECT_FALSE(decided());
}

// Against the keys that tokens see, counted one by one.
TEST_F(WindowsTest, TheLengthOfDocumentsIsThatOfEqualOnesWithAsManyKeys) {
  RunConfig config;
  config.data = folder_ / "t.tokens";
  for (const std::int64_t sequence : {16, 64, 300}) {
    config.sequence = sequence;
    for (const bool packed : {false, true}) {
      const auto row_numel = static_cast<std::size_t>(sequence);
      const Text text = random_text(8, row_numel * 20, packed ? row_numel : 0);
      write(text, {.sequence = packed ? static_cast<std::uint32_t>(sequence) : 0});
      config.document_mask = true;
      const RunConfig decided = *with_document_mask(config);
      const TokenFile tokens = *TokenFile::open(config.data);
      const Windows windows(tokens, sequence, true);
      double keys = 0;
      std::vector<std::int32_t> planes(static_cast<std::size_t>(3 * sequence));
      const BatchRow row = BatchRow::of(planes, 0, 1, static_cast<std::uint64_t>(sequence));
      for (std::uint64_t w = 0; w < windows.count(); ++w) {
        ASSERT_TRUE(windows.read(w, row).ok());
        for (const std::int32_t before : row.positions) keys += before + 1.0;
      }
      const double mean = keys / static_cast<double>(windows.count() * static_cast<std::uint64_t>(sequence));
      EXPECT_NEAR(static_cast<double>(decided.document_length) / (2 * mean - 1), 1, 0.05) << sequence;
      EXPECT_LE(decided.document_length, sequence);
    }
  }
}

TEST_F(WindowsTest, DocumentsThatAreNotKnownCanNotBeKeptApart) {
  write(random_text(7, 300, 0), {}, false);
  RunConfig config;
  config.data = folder_ / "t.tokens";
  config.document_mask = true;
  config.sequence = 32;
  ModelConfig model;
  model.vocabulary = 300;
  const auto refused = open_data(config, model);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--document-mask on"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace sluice
