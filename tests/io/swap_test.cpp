#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "io/drives/swap_file.h"
#include "support.h"

namespace sluice {
namespace {

TEST(SwapFile, IsReservedPrivateAndGoneAfterwards) {
  const ScratchDir dir;
  {
    SwapFile swap = make_swap({dir.path()}, (3 << 20) + 5);
    ASSERT_EQ(swap.files().size(), 1u);
    EXPECT_EQ(swap.bytes(), (3u << 20) + 4096);
    struct stat st {};
    ASSERT_EQ(fstat(swap.files()[0].fd, &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    EXPECT_EQ(static_cast<std::uint64_t>(st.st_size), swap.bytes());
    EXPECT_GE(static_cast<std::uint64_t>(st.st_blocks) * 512, swap.bytes()) << "not preallocated";
    EXPECT_EQ(dir.files(), 1u);
    EXPECT_TRUE(swap.sync().ok());
    SwapFile moved = std::move(swap);
    EXPECT_EQ(dir.files(), 1u);
  }
  EXPECT_EQ(dir.files(), 0u);
}

// The map from logical to file offsets is a bijection, and pieces do not cross stripes.
TEST(SwapFile, StripesCoverEveryByteOnce) {
  const ScratchDir a, b, c;
  constexpr std::uint64_t stripe = 8192;
  SwapFile swap = make_swap({a.path(), b.path(), c.path()}, 100 * 4096, true, {}, stripe);
  std::vector<std::vector<int>> hits(3, std::vector<int>(60 * 4096, 0));
  for (std::uint64_t at = 0; at < swap.bytes();) {
    const SwapPiece piece = swap.piece(at, std::min<std::uint64_t>(swap.bytes() - at, 20480));
    ASSERT_GT(piece.bytes, 0u);
    ASSERT_EQ(piece.offset / stripe, (piece.offset + piece.bytes - 1) / stripe);
    EXPECT_EQ(piece.file, at / stripe % 3);
    for (std::uint64_t i = 0; i < piece.bytes; ++i) ++hits[piece.file][piece.offset + i];
    at += piece.bytes;
  }
  std::uint64_t total = 0;
  for (std::size_t f = 0; f < 3; ++f) {
    struct stat st {};
    ASSERT_EQ(fstat(swap.files()[f].fd, &st), 0);
    for (std::size_t i = 0; i < hits[f].size(); ++i) {
      ASSERT_LE(hits[f][i], 1);
      if (hits[f][i] == 1) {
        ASSERT_LT(i, static_cast<std::size_t>(st.st_size));
      }
      total += static_cast<std::uint64_t>(hits[f][i]);
    }
  }
  EXPECT_EQ(total, swap.bytes());
}

// A drive of three times the bandwidth holds three times the bytes of every turn.
TEST(SwapFile, StripesFollowTheWeights) {
  const ScratchDir a, b, c;
  SwapOptions options;
  options.directories = {a.path(), b.path(), c.path()};
  options.bytes = 24 << 20;
  options.stripe_bytes = 1 << 20;
  options.weights = {1.5e9, 4.5e9, 3e9};
  auto swap = SwapFile::create(options);
  ASSERT_TRUE(swap.ok()) << swap.error().message;
  std::array<std::uint64_t, 3> bytes{}, ends{};
  for (std::uint64_t at = 0; at < swap->bytes();) {
    const SwapPiece piece = swap->piece(at, std::min<std::uint64_t>(swap->bytes() - at, 100 * 4096));
    ASSERT_GT(piece.bytes, 0u);
    EXPECT_EQ(piece.offset, bytes[piece.file]) << "each file is filled in order, without gaps";
    bytes[piece.file] += piece.bytes;
    ends[piece.file] = std::max(ends[piece.file], piece.offset + piece.bytes);
    at += piece.bytes;
  }
  for (std::size_t f = 0; f < 3; ++f) {
    EXPECT_NEAR(static_cast<double>(bytes[f]), options.weights[f] / 9e9 * (24 << 20), 3 * (64 << 10)) << f;
    struct stat st {};
    ASSERT_EQ(fstat(swap->files()[f].fd, &st), 0);
    EXPECT_LE(ends[f], static_cast<std::uint64_t>(st.st_size));
  }
  // What is written comes back, across stripes and turns.
  const AlignedBytes out(9 << 20), in(9 << 20);
  fill(out.span(), 11);
  QueueOptions queue_options;
  queue_options.files = swap->files();
  auto queue = open_queue(queue_options);
  for (const IoOp op : {IoOp::write, IoOp::read}) {
    const AlignedBytes& memory = op == IoOp::write ? out : in;
    for (std::uint64_t at = 0; at < memory.span().size();) {
      const SwapPiece piece = swap->piece((5 << 20) + at, memory.span().size() - at);
      ASSERT_TRUE(transfer_now(*queue, op, piece.file, piece.offset, memory.span().subspan(at, piece.bytes)).ok());
      at += piece.bytes;
    }
  }
  EXPECT_EQ(std::memcmp(out.data(), in.data(), 9 << 20), 0);
  options.weights = {1, 2};
  EXPECT_EQ(SwapFile::create(options).error().code, ErrorCode::bad_request);
  options.weights = {1, 0, 2};
  EXPECT_EQ(SwapFile::create(options).error().code, ErrorCode::bad_request);
}

TEST(SwapFile, DirectWhereTheFileSystemHasItAndSaysSo) {
  for (const char* parent : {".", "/dev/shm"}) {
    const ScratchDir dir(parent);
    SwapFile swap = make_swap({dir.path()}, 1 << 20);
    const bool direct = (fcntl(swap.files()[0].fd, F_GETFL) & O_DIRECT) != 0;
    EXPECT_EQ(swap.files()[0].alignment_bytes, direct ? 4096u : 1u);
    EXPECT_NE(swap.description().find(direct ? "O_DIRECT" : "buffered (no O_DIRECT"), std::string::npos);
    const AlignedBytes out(1 << 20), in(1 << 20);
    fill(out.span(), 4);
    QueueOptions options;
    options.files = swap.files();
    auto queue = open_queue(options);
    ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, out.span()).ok());
    ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, in.span()).ok());
    EXPECT_EQ(0, memcmp(out.data(), in.data(), 1 << 20));
  }
  const ScratchDir dir;
  SwapFile swap = make_swap({dir.path()}, 1 << 20, false);
  EXPECT_EQ(swap.files()[0].alignment_bytes, 1u);
  EXPECT_NE(swap.description().find("buffered as asked"), std::string::npos);
}

void expect_refused(const SwapOptions& options, const std::string& part) {
  auto swap = SwapFile::create(options);
  ASSERT_FALSE(swap.ok());
  EXPECT_EQ(swap.error().code, ErrorCode::bad_request);
  EXPECT_NE(swap.error().message.find(part), std::string::npos) << swap.error().message;
  EXPECT_EQ(swap.error().message.find('\n'), std::string::npos);
}

TEST(SwapFile, RefusesBadDirectoriesBeforeAnythingIsLeft) {
  const ScratchDir dir;
  write_text(dir / "file", "x");
  const auto options = [&](const std::string& where, std::uint64_t bytes = 4096) {
    SwapOptions o;
    o.directories = {where};
    o.bytes = bytes;
    return o;
  };
  expect_refused(options(dir / "missing"), "missing: No such file");
  expect_refused(options(dir / "file"), "is not a directory");
  expect_refused(options("/proc"), "/proc");
  expect_refused(options(dir.path(), 1ull << 60), "1152921504606846976 bytes");
  expect_refused(options(dir.path(), 0), "0 bytes");
  SwapOptions second = options(dir.path());
  second.directories.push_back(dir / "missing");
  expect_refused(second, "missing");
  SwapOptions twice = options(dir.path(), std::filesystem::space(dir.path()).available / 4 * 5);
  twice.directories.push_back(dir.path());
  expect_refused(twice, "free");
  SwapOptions odd = options(dir.path());
  odd.stripe_bytes = 1000;
  expect_refused(odd, "stripe");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(SwapFile, FilesOfKilledRunsAreRemovedAndThoseInUseAreNot) {
  const ScratchDir dir;
  SwapFile other = make_swap({dir.path()}, 4096);
  const pid_t child = fork();
  if (child == 0) {
    const SwapFile swap = make_swap({dir.path()}, 8192);
    _exit(swap.files().size() == 1 ? 0 : 1);  // without removing its file, as when killed
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  write_text(dir / "notes.txt", "not ours");
  EXPECT_EQ(dir.files(), 3u);
  SwapFile swap = make_swap({dir.path()}, 4096);
  EXPECT_EQ(dir.files(), 3u) << "stale one gone, new one there";
  EXPECT_TRUE(std::filesystem::exists(other.files()[0].path));
  EXPECT_TRUE(std::filesystem::exists(dir / "notes.txt"));
}

/// Files of a MiB in all, which stay when they are closed.
SwapOptions kept_in(const ScratchDir& a, const ScratchDir& b) {
  SwapOptions options;
  options.directories = {a.path(), b.path()};
  options.bytes = 1 << 20;
  options.stripe_bytes = 65536;
  options.name = "run7.swap";
  return options;
}

Status transfer(SwapFile& swap, IoOp op, std::uint64_t offset, std::span<std::byte> data) {
  QueueOptions options;
  options.files = swap.files();
  auto queue = open_queue(options);
  const SwapPiece piece = swap.piece(offset, data.size());
  return transfer_now(*queue, op, piece.file, piece.offset, data);
}

TEST(SwapFile, KeptFilesStayAndOpenAgain) {
  const ScratchDir a, b;
  SwapOptions options = kept_in(a, b);
  EXPECT_FALSE(SwapFile::open_existing(options).ok());
  const AlignedBytes out(65536), in(65536);
  fill(out.span(), 8);
  {
    auto swap = SwapFile::create(options);
    ASSERT_TRUE(swap.ok());
    auto busy = SwapFile::open_existing(options);
    ASSERT_FALSE(busy.ok());
    EXPECT_NE(busy.error().message.find("used by another run"), std::string::npos);
    ASSERT_TRUE(transfer(*swap, IoOp::write, 65536, out.span()).ok());
    ASSERT_TRUE(swap->sync().ok());
  }
  EXPECT_FALSE(SwapFile::create(options).ok()) << "never overwritten";
  {
    auto swap = SwapFile::open_existing(options);
    ASSERT_TRUE(swap.ok());
    ASSERT_TRUE(transfer(*swap, IoOp::read, 65536, in.span()).ok());
    EXPECT_EQ(0, memcmp(out.data(), in.data(), 65536));
  }
  options.bytes = 2 << 20;
  auto other_size = SwapFile::open_existing(options);
  ASSERT_FALSE(other_size.ok());
  EXPECT_NE(other_size.error().message.find("1048576 expected"), std::string::npos) << other_size.error().message;
  EXPECT_EQ(a.files() + b.files(), 2u);
  {
    options.bytes = 1 << 20;
    auto swap = SwapFile::open_existing(options);
    ASSERT_TRUE(swap.ok());
    EXPECT_FALSE(SwapFile::remove(options).ok()) << "in use";
    ASSERT_TRUE(swap->zero(swap->piece(65536, 65536)).ok());
    ASSERT_TRUE(transfer(*swap, IoOp::read, 65536, in.span()).ok());
    const auto bytes = in.span();
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  }
  EXPECT_TRUE(SwapFile::remove(options).ok());
  EXPECT_TRUE(SwapFile::remove(options).ok()) << "nothing left";
  EXPECT_EQ(a.files() + b.files(), 0u);
}

/// What is in kept files stays where it is when a run needs more of them, or less.
TEST(SwapFile, KeptFilesGrowAndAreTrimmed) {
  const ScratchDir a, b;
  SwapOptions options = kept_in(a, b);
  EXPECT_FALSE(SwapFile::grow(options).ok()) << "nothing is there";
  EXPECT_EQ(a.files() + b.files(), 0u);
  const AlignedBytes out(65536), in(65536);
  fill(out.span(), 9);
  const auto sizes = [&] {
    return std::pair(std::filesystem::file_size(a / "run7.swap"), std::filesystem::file_size(b / "run7.swap"));
  };
  {
    auto swap = SwapFile::create(options);
    ASSERT_TRUE(swap.ok());
    ASSERT_TRUE(transfer(*swap, IoOp::write, 3 * 65536, out.span()).ok());
    EXPECT_NE(SwapFile::grow(options).error().message.find("used by another run"), std::string::npos);
  }
  const auto small = sizes();
  SwapOptions larger = options;
  larger.bytes = 3 << 20;
  ASSERT_TRUE(SwapFile::grow(larger).ok());
  EXPECT_EQ(sizes(), std::pair(3 * small.first, 3 * small.second));
  ASSERT_TRUE(SwapFile::grow(options).ok());
  EXPECT_EQ(sizes(), std::pair(3 * small.first, 3 * small.second)) << "never smaller";
  for (const SwapOptions& of : {larger, options}) {
    auto swap = SwapFile::open_existing(of);
    ASSERT_TRUE(swap.ok());
    std::ranges::fill(in.span(), std::byte{0});
    ASSERT_TRUE(transfer(*swap, IoOp::read, 3 * 65536, in.span()).ok());
    EXPECT_EQ(0, memcmp(out.data(), in.data(), 65536));
    ASSERT_TRUE(swap->trim().ok());
    EXPECT_EQ(sizes(), of.bytes == options.bytes ? small : std::pair(3 * small.first, 3 * small.second));
  }
  // What there is no room for leaves the files as they were.
  larger.bytes = 1ull << 60;
  const Status refused = SwapFile::grow(larger);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("needed"), std::string::npos) << refused.error().message;
  EXPECT_EQ(sizes(), small);
}

// A kept file that can not be made in every directory is made in none.
TEST(SwapFile, FailedCreationLeavesNothing) {
  const ScratchDir a, b;
  write_text(b / "run.swap", "in the way");
  SwapOptions options;
  options.directories = {a.path(), b.path()};
  options.bytes = 1 << 20;
  options.name = "run.swap";
  EXPECT_FALSE(SwapFile::create(options).ok());
  EXPECT_EQ(a.files(), 0u);
  EXPECT_EQ(read_text(b / "run.swap"), "in the way");
}

}  // namespace
}  // namespace sluice
