#include "io/weights/stream_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "support.h"

namespace sluice {
namespace {

class NewFile {
 public:
  explicit NewFile(const ScratchDir& dir) : path_(dir / "file") {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  }
  ~NewFile() { close(fd_); }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  std::vector<std::byte> content() const {
    std::vector<std::byte> all(std::filesystem::file_size(path_));
    EXPECT_EQ(pread(fd_, all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
    return all;
  }

 private:
  std::string path_;
  int fd_;
};

StreamWriter::Options small(bool direct) {
  StreamWriter::Options options;
  options.chunk_bytes = 8192;
  options.in_flight = 3;
  options.direct = direct;
  return options;
}

/// In parts of random sizes.
Status append_all(StreamWriter& writer, std::span<const std::byte> data, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!data.empty()) {
    const std::size_t n = std::min<std::size_t>(data.size(), random() % 20'000);
    SLUICE_TRY(writer.append(data.first(n)));
    data = data.subspan(n);
  }
  return writer.finish();
}

TEST(StreamWriter, WritesWhatWasAppended) {
  for (const char* parent : {".", "/dev/shm"})
    for (const bool direct : {true, false})
      for (const std::uint64_t bytes : {0, 1, 4095, 4096, 8191, 8192, 8193, 24'576, 24'577, 300'001}) {
        SCOPED_TRACE(std::string(parent) + (direct ? ", direct, " : ", buffered, ") + std::to_string(bytes));
        const ScratchDir dir(parent);
        const NewFile file(dir);
        std::vector<std::byte> data(bytes);
        fill(data, static_cast<unsigned>(bytes));
        StreamWriter::Options options = small(direct);
        options.queue.faults =
            FaultOptions{.seed = 9, .short_probability = 0.2, .interrupt_probability = 0.2, .hold_max = 2};
        const int flags = fcntl(file.fd(), F_GETFL);
        {
          const auto writer = StreamWriter::create(file.fd(), file.path(), bytes, options);
          ASSERT_TRUE(writer.ok()) << writer.error().message;
          const Status written = append_all(**writer, data, bytes);
          ASSERT_TRUE(written.ok()) << written.error().message;
        }
        EXPECT_EQ(fcntl(file.fd(), F_GETFL), flags) << "the descriptor is as it was";
        EXPECT_EQ(file.content(), data);
      }
}

TEST(StreamWriter, FailuresNameFileAndPlace) {
  const ScratchDir dir;
  const std::vector<std::byte> data(100'000);
  for (std::uint64_t nth = 1; nth <= 13; nth += 3) {
    SCOPED_TRACE(nth);
    const NewFile file(dir);
    StreamWriter::Options options = small(true);
    options.queue.faults =
        FaultOptions{.fail_target = FaultOptions::Target::write, .fail_nth = nth, .fail_errno = ENOSPC};
    const auto writer = StreamWriter::create(file.fd(), file.path(), data.size(), options);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    const Status written = append_all(**writer, data, 1);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::fault);
    EXPECT_NE(written.error().message.find(file.path() + ": write of"), std::string::npos) << written.error().message;
    EXPECT_NE(written.error().message.find("No space left"), std::string::npos) << written.error().message;
  }
}

TEST(StreamWriter, MayEndBeforeItsFile) {
  const ScratchDir dir;
  const NewFile file(dir);
  const std::vector<std::byte> data(40'000);
  const auto writer = StreamWriter::create(file.fd(), file.path(), 1 << 20, small(true));
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_EQ(std::filesystem::file_size(file.path()), 1u << 20) << "the room is taken at once";
  EXPECT_TRUE((*writer)->append(data).ok());
}

}  // namespace
}  // namespace sluice
