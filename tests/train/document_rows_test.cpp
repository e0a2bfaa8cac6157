// Sequences of whole documents: which documents a phase of --seq-schedule takes, and how they lie in its rows.
#include "src/train/data/document_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/tokens/token_sink.h"
#include "src/train/data/batches.h"
#include "src/train/request/seq_schedule.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

using Document = std::vector<std::int32_t>;

class DocumentRowsTest : public testing::Test {
 protected:
  /// Each token says where it is.
  TokenFile write(const std::vector<std::size_t>& lengths, bool mask = false, std::uint64_t packed = 0) {
    const std::string path = scratch_.path() + "/t.tokens";
    auto writer = TokenWriter::create(path, 1 << 22, {.mask = mask, .sequence = packed});
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    documents_.clear();
    counts_.clear();
    std::int32_t next = 1;
    std::mt19937 random(7);
    for (const std::size_t length : lengths) {
      Document document(length);
      std::vector<std::uint8_t> counts(length);
      for (std::size_t i = 0; i < length; ++i) {
        document[i] = next++;
        counts[i] = mask ? random() % 2 : 1;
        counts_.push_back(counts[i]);
      }
      EXPECT_TRUE(
          writer->append(document, mask ? std::span<const std::uint8_t>(counts) : std::span<const std::uint8_t>())
              .ok());
      writer->end_document();
      documents_.push_back(document);
    }
    EXPECT_TRUE(writer->finish().ok());
    auto file = TokenFile::open(path);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(*file);
  }

  static std::vector<std::size_t> drawn(std::size_t count, std::size_t longest) {
    std::mt19937 random(3);
    std::vector<std::size_t> lengths(count);
    for (std::size_t& length : lengths) length = random() % (longest + 1);
    return lengths;
  }

  /// Documents of the range that end before `end`: each is once in some row, whole, and nothing else is.
  void check(const TokenFile& file, const DocumentRange& range) {
    const auto rows = DocumentRows::create(file, range);
    ASSERT_TRUE(rows.ok()) << rows.error().message;
    std::map<std::int32_t, const Document*> expected;  // by their first token
    std::uint64_t end = 0, tokens = 0;
    for (const Document& document : documents_) {
      end += document.size();
      const auto length = static_cast<std::int64_t>(document.size());
      if (end > range.end || length < range.shortest || length > range.longest) continue;
      expected[document.front()] = &document;
      tokens += document.size();
    }
    EXPECT_EQ(rows->documents(), expected.size());
    EXPECT_EQ(rows->tokens(), tokens);
    const auto sequence = static_cast<std::size_t>(range.longest);
    std::vector<std::int32_t> planes(3 * sequence);
    const BatchRow row = BatchRow::of(planes, 0, 1, sequence);
    for (std::uint64_t r = 0; r < rows->count(); ++r) {
      std::ranges::fill(planes, -7);
      ASSERT_TRUE(rows->read(r, row).ok());
      std::size_t at = 0;
      while (at < sequence && row.inputs[at] != 0) {
        const auto found = expected.find(row.inputs[at]);
        ASSERT_NE(found, expected.end()) << "row " << r << " has what is no document at " << at;
        const Document& document = *found->second;
        ASSERT_LE(at + document.size(), sequence);
        for (std::size_t i = 0; i < document.size(); ++i) {
          ASSERT_EQ(row.inputs[at + i], document[i]);
          ASSERT_EQ(row.positions[at + i], static_cast<std::int32_t>(i));
          const bool is_learned =
              i + 1 < document.size() && counts_[static_cast<std::size_t>(document[i + 1]) - 1] != 0;
          ASSERT_EQ(row.targets[at + i], is_learned ? document[i + 1] : -1);
        }
        at += document.size();
        expected.erase(found);
      }
      ASSERT_GT(at, 0u) << "an empty row";
      for (std::size_t i = at; i < sequence; ++i) {
        ASSERT_EQ(row.inputs[i], 0);
        ASSERT_EQ(row.targets[i], -1);
        ASSERT_EQ(row.positions[i], static_cast<std::int32_t>(i - at));
      }
    }
    EXPECT_TRUE(expected.empty()) << expected.size() << " documents are in no row";
  }

  RunConfig config(const std::string& schedule, std::int64_t steps, std::size_t phase = 0) const {
    RunConfig c;
    c.model = "llama-tiny";
    c.data = scratch_.path() + "/t.tokens";
    c.seq_schedule = schedule;
    c.steps = steps;
    c.batch = 4;
    c.eval_split = 0.1;
    c.document_mask = true;
    return at_phase(c, phase);
  }

  ScratchDir scratch_;
  std::vector<Document> documents_;
  std::vector<std::uint8_t> counts_;  ///< by token
};

TEST_F(DocumentRowsTest, HaveEachDocumentOnceAndWhole) {
  for (const bool mask : {false, true}) {
    const TokenFile file = write(drawn(3000, 80), mask);
    for (const auto& [shortest, longest] : {std::pair(2, 16), std::pair(17, 64), std::pair(2, 80), std::pair(80, 80)})
      for (const std::uint64_t end : {file.count(), file.count() / 2}) check(file, {shortest, longest, end});
  }
}

TEST_F(DocumentRowsTest, AreNearlyFull) {
  const TokenFile file = write(drawn(20000, 200));
  const auto rows = DocumentRows::create(file, {2, 200, file.count()});
  ASSERT_TRUE(rows.ok());
  EXPECT_GT(static_cast<double>(rows->tokens()), 0.98 * 200 * static_cast<double>(rows->count()));
}

TEST_F(DocumentRowsTest, OfOneLengthSayThatLength) {
  const TokenFile file = write(std::vector<std::size_t>(50, 32));
  const auto rows = DocumentRows::create(file, {2, 128, file.count()});
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->count(), 13u);
  EXPECT_NEAR(static_cast<double>(*rows->document_length()), 33, 2) << "the last row is half empty";
  const auto few = DocumentRows::create(file, {2, 128, file.count()}, 4);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->documents(), 4u);
  EXPECT_EQ(*few->document_length(), 32);
}

TEST_F(DocumentRowsTest, APhaseTrainsOnItsDocumentsAndOnNoneThatIsHeldOut) {
  const TokenFile file = write(drawn(1000, 64));
  std::set<std::int32_t> trained;
  std::uint64_t begin = 0;
  for (std::size_t phase = 0; phase < 3; ++phase) {
    const RunConfig c = config("2-16:10,17-64:5,32:*", 40, phase);
    const auto batches = Batches::for_training(file, c, true);
    ASSERT_TRUE(batches.ok()) << batches.error().message;
    begin = batches->held_out().begin;
    ASSERT_EQ(batches->rows() != nullptr, phase < 2);
    EXPECT_FALSE(batches->all_count());
    if (phase == 2) break;
    // An epoch has every row once.
    std::set<std::uint64_t> seen;
    std::vector<std::int32_t> planes(3 * static_cast<std::size_t>(c.sequence));
    const BatchRow row = BatchRow::of(planes, 0, 1, static_cast<std::uint64_t>(c.sequence));
    for (std::uint64_t sample = 0; sample < batches->rows()->count(); ++sample) {
      seen.insert(batches->training_window(sample));
      ASSERT_TRUE(batches->read(sample, row).ok());
      for (const std::int32_t token : row.inputs) EXPECT_TRUE(token == 0 || trained.insert(token).second) << token;
    }
    EXPECT_EQ(seen.size(), batches->rows()->count());
  }
  EXPECT_LE(static_cast<std::uint64_t>(*trained.rbegin()), begin) << "tokens count from 1";
}

TEST_F(DocumentRowsTest, WhatIsSaidOfThem) {
  const TokenFile file = write(drawn(1000, 64));
  const auto said = [&](const std::string& schedule) {
    const RunConfig c = config(schedule, 40);
    const auto batches = Batches::for_training(file, c, true);
    return *shown_left_out(c, *batches) + "|" + shown_documents(c, *batches);
  };
  EXPECT_NE(said("2-16:10,20-64:5,...")
                .find(" documents for training have lengths that --seq-schedule 2-16:10,20-64:5,... takes nowhere"),
            std::string::npos);
  EXPECT_EQ(said("2-16:10,20-64:5,32:*").find("|"), 0u) << "windows take all";
  EXPECT_NE(said("2-16:10,17-64:5,...").find("whole documents of 2 to 16 tokens: "), std::string::npos);
  EXPECT_NE(said("2-16:10,17-64:5,...").find("; 30 steps see "), std::string::npos) << said("2-16:10,17-64:5,...");
  EXPECT_NE(said("2-16:1,17-64:39").find("; 1 steps see "), std::string::npos) << said("2-16:1,17-64:39");
  EXPECT_NE(said("2-16:1,17-64:39").find("% of them"), std::string::npos) << said("2-16:1,17-64:39");
  // A gap between two.
  std::vector<std::size_t> lengths(100, 10);
  for (std::size_t i = 0; i < 20; ++i) lengths[i] = 30;
  const TokenFile gap = write(lengths);
  const RunConfig c = config("2-20:10,40-64:*", 40);
  const auto batches = Batches::for_training(gap, c, true);
  ASSERT_TRUE(batches.ok()) << batches.error().message;
  std::uint64_t ends = 0, training = 0;
  for (const std::size_t length : lengths) training += (ends += length) <= batches->held_out().begin;
  EXPECT_EQ(*shown_left_out(c, *batches),
            "20 of the " + std::to_string(training) +
                " documents for training have lengths that --seq-schedule 2-20:10,40-64:* "
                "takes nowhere: nothing is learned from them");
}

TEST_F(DocumentRowsTest, DataWithoutSuchDocumentsIsRefused) {
  const auto refused = [&](const TokenFile& file, const std::string& schedule, const std::string& what) {
    const auto batches = Batches::for_training(file, config(schedule, 40), true);
    ASSERT_FALSE(batches.ok());
    EXPECT_EQ(batches.error().code, ErrorCode::bad_request);
    EXPECT_NE(batches.error().message.find(what), std::string::npos) << batches.error().message;
  };
  const TokenFile file = write(drawn(1000, 64));
  refused(file, "65-70:10,2-16:*", "no document that is trained on has 65 to 70 tokens");
  // Those that there are are held out.
  std::vector<std::size_t> lengths(100, 20);
  lengths.back() = 30;
  refused(write(lengths), "21-30:10,2-20:*", "no document that is trained on has 21 to 30 tokens");
  refused(write(std::vector<std::size_t>(100, 32), true, 32), "2-32:10,2-20:*", "packed into sequences of 32 already");
}

TEST_F(DocumentRowsTest, TheMaskFollows) {
  const TokenFile file = write(drawn(1000, 64));
  RunConfig c = config("32:10,2-64:*", 40);
  c.document_mask.reset();
  const auto decided = with_document_mask(c);
  ASSERT_TRUE(decided.ok()) << decided.error().message;
  EXPECT_EQ(decided->document_mask, true);
  const auto later = with_document_mask(at_phase(*decided, 1));
  ASSERT_TRUE(later.ok());
  EXPECT_GT(later->document_length, decided->document_length) << "windows of 32 cut them";
  c.document_mask = false;
  const auto refused = with_document_mask(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("leave out --document-mask off"), std::string::npos);
}

}  // namespace
}  // namespace sluice
