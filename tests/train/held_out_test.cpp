// Which windows training leaves out, of every kind of file.
#include "src/train/data/held_out.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "io/tokens/token_sink.h"
#include "src/train/data/batches.h"
#include "src/train/data/eval_sets.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

class HeldOutTest : public testing::Test {
 protected:
  /// Documents of those lengths; `ends`: the file knows them.
  TokenFile write(const std::vector<std::size_t>& documents, bool ends = true, std::uint64_t packed = 0) {
    auto writer = TokenWriter::create(path_, 300, {.mask = false, .sequence = packed});
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    for (const std::size_t length : documents) {
      EXPECT_TRUE(writer->append(std::vector<std::int32_t>(length, 7)).ok());
      if (ends) writer->end_document();
    }
    EXPECT_TRUE(writer->finish().ok());
    auto file = TokenFile::open(path_);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(*file);
  }
  static HeldOut held_out(const TokenFile& file, std::int64_t sequence, std::optional<double> share) {
    const auto result = hold_out(file, sequence, share);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? *result : HeldOut{};
  }

  const ScratchDir scratch_;
  const std::string path_ = scratch_.path() + "/c4.tokens";
};

// The twentieth that runs began with, however many windows there are.
TEST_F(HeldOutTest, TheDefaultOfAFileOfOneDocumentIsThatOfEarlyVersions) {
  for (std::size_t windows = 2; windows < 200; ++windows) {
    const TokenFile file = write({windows * 8 + 1});
    const HeldOut now = held_out(file, 8, 0.05), before = held_out(file, 8, std::nullopt);
    EXPECT_EQ(now.windows, std::max<std::size_t>(1, windows / 20)) << windows;
    EXPECT_EQ(now.training, windows - now.windows);
    EXPECT_EQ(now.begin, now.training * 8);
    EXPECT_FALSE(now.document);
    EXPECT_EQ(before.windows, now.windows);
    EXPECT_EQ(before.begin, now.begin);
  }
}

TEST_F(HeldOutTest, RunsOfEarlyVersionsKeepTheirWindows) {
  const TokenFile file = write(std::vector<std::size_t>(50, 17));
  const HeldOut early = held_out(file, 8, std::nullopt);
  EXPECT_EQ(early.training, 101u);
  EXPECT_EQ(early.windows, 5u);
  EXPECT_EQ(early.begin, 101u * 8);
}

TEST_F(HeldOutTest, TheBorderIsTheNearestOfDocuments) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    std::vector<std::size_t> lengths(2 + random() % 30);
    for (std::size_t& length : lengths) length = random() % 3 == 0 ? 0 : random() % 60;
    lengths.push_back(40);
    const std::size_t count = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
    const std::int64_t sequence = 1 + static_cast<std::int64_t>(random() % 8);
    const auto windows = (count - 1) / static_cast<std::size_t>(sequence);
    const double share = static_cast<double>(random() % 50) / 100 + 0.01;
    const TokenFile file = write(lengths);
    const HeldOut h = held_out(file, sequence, share);
    const auto wanted = std::max<std::size_t>(1, static_cast<std::size_t>(share * static_cast<double>(windows)));
    const std::size_t target = (windows - wanted) * static_cast<std::size_t>(sequence);
    std::size_t nearest = count, at = 0;
    const auto distance = [&](std::size_t border) { return border > target ? border - target : target - border; };
    for (const std::size_t length : lengths) {
      const std::size_t held = at + 1 > count ? 0 : (count - at - 1) / static_cast<std::size_t>(sequence);
      const bool serves = at > static_cast<std::size_t>(sequence) && held > 0 && held <= windows / 2;
      if (serves && (nearest == count || distance(at) < distance(nearest))) nearest = at;
      at += length;
    }
    EXPECT_EQ(h.document.has_value(), nearest < count);
    EXPECT_EQ(h.begin, nearest < count ? nearest : target);
    EXPECT_EQ(h.windows, (count - h.begin - 1) / static_cast<std::size_t>(sequence));
    // With its last target, which is the token behind it.
    if (h.document) {
      EXPECT_LE(h.training * static_cast<std::size_t>(sequence) + 1, h.begin);
      EXPECT_EQ(file.document(*h.document)->begin, h.begin);
    }
    EXPECT_GT(h.training, 0u);
    EXPECT_GT(h.windows, 0u);
  }
}

TEST_F(HeldOutTest, WindowsBeginAtTheBorder) {
  std::vector<std::int32_t> planes(24);
  const TokenFile file = write({100, 43, 57});
  const auto batches = Batches::create(file, 8, 1, true, 0.3);
  ASSERT_TRUE(batches.ok());
  EXPECT_EQ(batches->held_out().begin, 143u);
  EXPECT_EQ(batches->training().count(), 142u / 8);
  ASSERT_EQ(batches->held_out_windows().count(), 56u / 8);
  const BatchRow row = BatchRow::of(planes, 0, 1, 8);
  ASSERT_TRUE(batches->held_out_windows().read(0, row).ok());
  EXPECT_EQ(row.positions[0], 0) << "the first token of a document";
  ASSERT_TRUE(batches->held_out_windows().read(1, row).ok());
  EXPECT_EQ(row.positions[0], 0) << "of the window's part of it";
  for (std::uint64_t sample = 0; sample < 100; ++sample) EXPECT_LT(batches->training_window(sample), 142u / 8);
  EXPECT_EQ(shown(batches->held_out(), file, "data/c4.tokens"),
            "the last 7 of 24 windows of c4.tokens (29.2%, from document 3 of 3 on)");
}

TEST_F(HeldOutTest, PackedFilesAreSplitAtWindows) {
  const TokenFile file = write({8, 5, 3, 8, 2, 6, 8, 8, 4, 4, 8, 8, 8}, true, 8);
  const HeldOut h = held_out(file, 8, 0.3);
  EXPECT_EQ(h.training, 7u);
  EXPECT_EQ(h.windows, 3u);
  ASSERT_TRUE(h.document);
  EXPECT_EQ(file.document(*h.document)->begin, h.begin);
  EXPECT_EQ(h.begin, 7u * 8);
}

TEST_F(HeldOutTest, WhereNoBorderServesItIsAWindows) {
  const TokenFile large = write({10, 1000});
  const HeldOut inside = held_out(large, 8, 0.05);
  EXPECT_FALSE(inside.document);
  EXPECT_EQ(inside.windows, 1009u / 8 / 20);
  EXPECT_NE(shown(inside, large, "c4.tokens").find("from the middle of a document on"), std::string::npos);
  const TokenFile unknown = write({500, 20}, false);
  EXPECT_FALSE(held_out(unknown, 8, 0.05).document);
}

TEST_F(HeldOutTest, NothingIsHeldOutWhereNothingIsAsked) {
  const TokenFile file = write({40, 41});
  const HeldOut none = held_out(file, 8, 0.0);
  EXPECT_EQ(none.training, 10u);
  EXPECT_EQ(none.windows, 0u);
  const auto batches = Batches::create(file, 8, 1, false, 0.0);
  ASSERT_TRUE(batches.ok());
  EXPECT_EQ(batches->held_out_windows().count(), 0u);
}

TEST_F(HeldOutTest, TooFewTokensAreRefusedWithNumbers) {
  const TokenFile file = write({16});
  for (const std::optional<double> share : {std::optional<double>(0.05), std::optional<double>()}) {
    const auto refused = hold_out(file, 8, share);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::bad_request);
    EXPECT_NE(refused.error().message.find("16 tokens are too few for sequences of 8"), std::string::npos);
    EXPECT_NE(refused.error().message.find("at least 17"), std::string::npos) << refused.error().message;
  }
  EXPECT_TRUE(hold_out(file, 8, 0.0).ok());
}

TEST(EvalDataTest, HasTheNameThatIsGivenOrTheFiles) {
  const auto parsed = [](const std::string& text) {
    const auto data = parse_eval_data(text);
    return data.ok() ? data->name + "|" + data->path : "refused";
  };
  EXPECT_EQ(parsed("wiki=/data/val.tokens"), "wiki|/data/val.tokens");
  EXPECT_EQ(parsed("/data/val.tokens"), "val|/data/val.tokens");
  EXPECT_EQ(parsed("val.jsonl.zst"), "val|val.jsonl.zst");
  EXPECT_EQ(parsed("c4.eval.tokens"), "c4.eval|c4.eval.tokens");
  EXPECT_EQ(parsed("./lr=3/val.txt"), "val|./lr=3/val.txt") << "a slash before it: no name";
  EXPECT_EQ(parsed("=val.txt"), "refused");
  EXPECT_EQ(parsed("wiki="), "refused");
  EXPECT_EQ(parsed("a\nb=c"), "refused");
}

}  // namespace
}  // namespace sluice
