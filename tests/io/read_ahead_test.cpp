#include "io/weights/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "support.h"

namespace sluice {
namespace {

/// Files of these sizes whose bytes follow from file and offset, open.
class Files {
 public:
  Files(const ScratchDir& dir, std::vector<std::uint64_t> bytes) : bytes_(std::move(bytes)) {
    for (std::size_t f = 0; f < bytes_.size(); ++f) {
      std::string content(bytes_[f], '\0');
      for (std::uint64_t i = 0; i < bytes_[f]; ++i) content[i] = static_cast<char>(byte(f, i));
      const std::string path = dir / std::to_string(f);
      write_text(path, content);
      files_.push_back({open(path.c_str(), O_RDONLY | O_CLOEXEC), path});
    }
  }
  ~Files() {
    for (const ReadAhead::File& file : files_) close(file.fd);
  }
  static std::byte byte(std::size_t file, std::uint64_t at) {
    return static_cast<std::byte>(at * 31 + at / 4096 * 7 + file * 101);
  }
  const std::vector<ReadAhead::File>& open_files() const { return files_; }

  std::vector<ReadAhead::Range> random_ranges(std::uint64_t seed, std::size_t count, std::uint64_t bytes_max) const {
    std::mt19937_64 random(seed);
    std::vector<ReadAhead::Range> ranges;
    for (std::size_t i = 0; i < count; ++i) {
      ReadAhead::Range r;
      r.file = static_cast<std::uint32_t>(random() % bytes_.size());
      r.bytes = std::min(random() % (bytes_max + 1), bytes_[r.file]);
      r.offset = random() % (bytes_[r.file] - r.bytes + 1);
      if (random() % 3 == 0) r.offset = bytes_[r.file] - r.bytes;  // the end, which direct I/O reads in two parts
      ranges.push_back(r);
    }
    return ranges;
  }

 private:
  std::vector<std::uint64_t> bytes_;
  std::vector<ReadAhead::File> files_;
};

ReadAhead::Next in_order(const std::vector<ReadAhead::Range>& ranges) {
  return [&ranges, at = std::size_t{0}]() mutable -> std::optional<ReadAhead::Range> {
    return at < ranges.size() ? std::optional(ranges[at++]) : std::nullopt;
  };
}

TEST(ReadAhead, DeliversAnyRangesInOrder) {
  for (const char* parent : {".", "/dev/shm"})
    for (const bool direct : {true, false})
      for (const std::size_t ahead : {1, 2, 16}) {
        SCOPED_TRACE(std::string(parent) + (direct ? ", direct, " : ", buffered, ") + std::to_string(ahead));
        const ScratchDir dir(parent);
        const Files files(dir, {1, 4096, 50'001, 300'000, 65'536});
        const auto ranges = files.random_ranges(ahead, 300, 20'000);
        ReadAhead::Options options;
        options.range_bytes_max = 20'000;
        options.ahead = ahead;
        options.direct = direct;
        options.queue.faults =
            FaultOptions{.seed = 3, .short_probability = 0.2, .interrupt_probability = 0.2, .hold_max = 3};
        const auto reader = ReadAhead::create(files.open_files(), in_order(ranges), options);
        ASSERT_TRUE(reader.ok()) << reader.error().message;
        for (const ReadAhead::Range& range : ranges) {
          const auto bytes = (*reader)->take();
          ASSERT_TRUE(bytes.ok()) << bytes.error().message;
          ASSERT_EQ(bytes->size(), range.bytes);
          for (std::uint64_t i = 0; i < range.bytes; ++i)
            ASSERT_EQ((*bytes)[i], Files::byte(range.file, range.offset + i)) << range.offset + i;
        }
      }
}

TEST(ReadAhead, FailuresNameFileAndPlace) {
  const ScratchDir dir;
  const Files files(dir, {100'000});
  for (std::uint64_t nth = 1; nth <= 5; ++nth) {
    const std::vector<ReadAhead::Range> ranges{
        {0, 0, 9000}, {0, 9000, 9000}, {0, 18000, 9000}, {0, 27000, 9000}, {0, 36000, 9000}};
    ReadAhead::Options options;
    options.queue.faults = FaultOptions{.fail_target = FaultOptions::Target::read, .fail_nth = nth};
    const auto reader = ReadAhead::create(files.open_files(), in_order(ranges), options);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    for (std::uint64_t i = 1; i < nth; ++i) ASSERT_TRUE((*reader)->take().ok());
    const auto failed = (*reader)->take();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::fault);
    EXPECT_NE(failed.error().message.find(dir / "0: read of"), std::string::npos) << failed.error().message;
    EXPECT_NE(failed.error().message.find("Input/output error"), std::string::npos) << failed.error().message;
  }
}

TEST(ReadAhead, FilesThatBecomeShorterAreFaults) {
  for (const bool direct : {true, false})
    for (const std::uint64_t left : {0, 5000, 8192, 20'000}) {
      SCOPED_TRACE(left);
      const ScratchDir dir;
      const Files files(dir, {30'000});
      const std::vector<ReadAhead::Range> ranges{{0, 100, 29'900}};
      std::filesystem::resize_file(dir / "0", left);
      ReadAhead::Options options;
      options.direct = direct;
      const auto reader = ReadAhead::create(files.open_files(), in_order(ranges), options);
      ASSERT_TRUE(reader.ok()) << reader.error().message;
      const auto bytes = (*reader)->take();
      ASSERT_FALSE(bytes.ok());
      EXPECT_EQ(bytes.error().code, ErrorCode::fault);
      EXPECT_NE(bytes.error().message.find(dir / "0"), std::string::npos) << bytes.error().message;
    }
}

// What is in flight lands in memory that is still there; the address sanitizer would tell.
TEST(ReadAhead, MayEndBeforeItsRanges) {
  const ScratchDir dir;
  const Files files(dir, {300'000});
  const auto ranges = files.random_ranges(1, 100, 20'000);
  for (std::size_t taken = 0; taken < 5; ++taken) {
    ReadAhead::Options options;
    options.queue.faults = FaultOptions{.hold_max = 3};
    const auto reader = ReadAhead::create(files.open_files(), in_order(ranges), options);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    for (std::size_t i = 0; i < taken; ++i) ASSERT_TRUE((*reader)->take().ok());
  }
}

}  // namespace
}  // namespace sluice
