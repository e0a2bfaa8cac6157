// Everything that can go wrong below the queue is continued, retried, reported or found by checksums.
#include "io/fault.h"

#include <array>
#include <cstring>

#include "io/checksum.h"
#include "support.h"

namespace sluice {
namespace {

constexpr std::uint64_t block_bytes = 64 << 10;
constexpr std::size_t block_count = 24;

class FaultTest : public testing::TestWithParam<IoBackendKind> {
 protected:
  FaultTest() : swap_(make_swap({dir_.path()}, block_bytes * block_count)), out_(swap_.bytes()), in_(swap_.bytes()) {
    fill(out_.span(), 11);
  }

  std::unique_ptr<IoQueue> open(const FaultOptions& faults) const {
    QueueOptions options;
    options.backend = GetParam();
    options.depth = 6;
    options.files = swap_.files();
    options.buffers = {out_.span(), in_.span()};
    options.faults = faults;
    return open_queue(options);
  }

  std::span<std::byte> block(const AlignedBytes& memory, std::size_t i) const {
    return memory.span().subspan(i * block_bytes, block_bytes);
  }

  /// Every block once through the window; how many requests failed, and the last failure.
  std::size_t pass(IoQueue& queue, IoOp op, const AlignedBytes& memory, int* error = nullptr) {
    std::array<IoRequest, block_count> requests;
    std::array<IoRequest*, 4> done;
    std::size_t failures = 0, completed = 0, next = 0;
    std::vector<bool> seen(block_count, false);
    while (completed < block_count) {
      while (next < block_count) {
        requests[next] = request_of(op, next * block_bytes, block(memory, next));
        if (!queue.submit(&requests[next])) break;
        ++next;
      }
      auto count = queue.wait(1, done);
      EXPECT_TRUE(count.ok());
      for (std::size_t i = 0; i < *count; ++i) {
        const auto index = static_cast<std::size_t>(done[i] - requests.data());
        EXPECT_FALSE(seen[index]) << "completed twice";
        seen[index] = true;
        if (done[i]->error != 0) {
          ++failures;
          if (error != nullptr) *error = done[i]->error;
        } else {
          EXPECT_EQ(done[i]->done_bytes, block_bytes);
        }
      }
      completed += *count;
    }
    return failures;
  }

  std::size_t changed_blocks(IoQueue& queue) {
    BlockChecksums sums(block_count);
    for (std::size_t i = 0; i < block_count; ++i) sums.set(i, block(out_, i));
    EXPECT_EQ(pass(queue, IoOp::read, in_), 0u);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < block_count; ++i) changed += !sums.verify(i, block(in_, i), "swap").ok();
    return changed;
  }

  ScratchDir dir_;
  SwapFile swap_;
  AlignedBytes out_, in_;
};

TEST_P(FaultTest, NthTransferFailsOnceOrFromThenOn) {
  for (const int cause : {EIO, ENOSPC, EDQUOT}) {
    for (const auto& [target, op] :
         {std::pair(FaultOptions::Target::write, IoOp::write), std::pair(FaultOptions::Target::read, IoOp::read)}) {
      for (std::uint64_t n = 1; n <= block_count + 1; ++n) {
        for (const bool persistent : {false, true}) {
          FaultOptions faults;
          faults.fail_target = target;
          faults.fail_nth = n;
          faults.fail_errno = cause;
          faults.fail_persistent = persistent;
          auto queue = open(faults);
          int error = 0;
          const std::size_t failures = pass(*queue, op, op == IoOp::write ? out_ : in_, &error);
          const std::size_t after = block_count + 1 - n;
          EXPECT_EQ(failures, persistent ? after : std::min<std::size_t>(after, 1));
          EXPECT_EQ(error, failures > 0 ? cause : 0);
          EXPECT_EQ(queue->in_flight(), 0u);
        }
      }
    }
  }
}

TEST_P(FaultTest, FailureIsOneLineWithEverything) {
  FaultOptions faults;
  faults.fail_nth = 1;
  faults.fail_errno = ENOSPC;
  auto queue = open(faults);
  const Status status = transfer_now(*queue, IoOp::write, 0, 4096, block(out_, 0));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, swap_.files()[0].path +
                                        ": write of 65536 bytes at offset 4096 failed after 0 bytes: No space left on "
                                        "device");
  EXPECT_TRUE(transfer_now(*queue, IoOp::write, 0, 4096, block(out_, 0)).ok());
}

TEST_P(FaultTest, FailedSyncIsReported) {
  FaultOptions faults;
  faults.fail_target = FaultOptions::Target::sync;
  faults.fail_nth = 2;
  auto queue = open(faults);
  EXPECT_TRUE(transfer_now(*queue, IoOp::sync, 0, 0, {}).ok());
  const Status status = transfer_now(*queue, IoOp::sync, 0, 0, {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("sync failed"), std::string::npos);
}

TEST_P(FaultTest, ShortInterruptedAndReorderedTransfersArriveWhole) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FaultOptions faults;
    faults.seed = seed;
    faults.short_probability = 0.5;
    faults.interrupt_probability = 0.3;
    faults.hold_max = 5;
    auto queue = open(faults);
    fill(out_.span(), seed);
    ASSERT_EQ(pass(*queue, IoOp::write, out_), 0u) << "seed " << seed;
    ASSERT_EQ(pass(*queue, IoOp::read, in_), 0u) << "seed " << seed;
    ASSERT_EQ(0, memcmp(out_.data(), in_.data(), swap_.bytes())) << "seed " << seed;
    const IoCounters counters = queue->counters();
    EXPECT_EQ(counters.write_bytes, swap_.bytes());
    EXPECT_EQ(counters.read_bytes, swap_.bytes());
    EXPECT_GT(counters.transfers, counters.requests);
    EXPECT_LE(counters.in_flight_max, 6u);
  }
}

TEST_P(FaultTest, EndlessInterruptionIsAFailure) {
  FaultOptions faults;
  faults.interrupt_probability = 1;
  auto queue = open(faults);
  EXPECT_FALSE(transfer_now(*queue, IoOp::read, 0, 0, block(in_, 0)).ok());
}

TEST_P(FaultTest, ChecksumsFindSilentFaults) {
  auto clean = open({});
  for (std::uint64_t n = 1; n <= block_count; ++n) {
    for (int kind = 0; kind < 4; ++kind) {
      fill(out_.span(), n * 4 + static_cast<std::uint64_t>(kind));
      FaultOptions faults;
      faults.seed = n;
      (kind == 0   ? faults.flip_read_nth
       : kind == 1 ? faults.lost_write_nth
       : kind == 2 ? faults.torn_write_nth
                   : faults.misdirect_write_nth) = n;
      auto queue = open(faults);
      ASSERT_EQ(pass(*queue, IoOp::write, out_), 0u);
      const std::size_t changed = changed_blocks(*queue);
      EXPECT_GE(changed, 1u) << "fault " << kind << " at " << n;
      EXPECT_LE(changed, 2u);
      if (kind == 0) {
        EXPECT_EQ(changed_blocks(*clean), 0u) << "the drive itself was right";
      }
    }
  }
}

TEST_P(FaultTest, SameSeedSameFaults) {
  FaultOptions faults;
  faults.seed = 99;
  faults.short_probability = 0.7;
  faults.interrupt_probability = 0.2;
  std::uint64_t transfers[2];
  for (std::uint64_t& t : transfers) {
    auto queue = open(faults);
    for (std::size_t i = 0; i < block_count; ++i)
      ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, i * block_bytes, block(out_, i)).ok());
    t = queue->counters().transfers;
  }
  EXPECT_EQ(transfers[0], transfers[1]);
}

INSTANTIATE_TEST_SUITE_P(Backends, FaultTest,
                         testing::Values(IoBackendKind::io_uring, IoBackendKind::libaio, IoBackendKind::threads),
                         [](const auto& kind) { return io_backend_names[static_cast<int>(kind.param)]; });

TEST(Checksums, EveryFlippedBitIsFound) {
  std::vector<std::byte> data(512);
  fill(data, 5);
  BlockChecksums sums(2);
  EXPECT_FALSE(sums.verify(0, data, "x").ok()) << "never set";
  sums.set(0, data);
  ASSERT_TRUE(sums.verify(0, data).ok());
  for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(sums.verify(0, data).ok());
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  EXPECT_TRUE(sums.verify(0, data).ok());
}

TEST(Checksums, StreamingEqualsWhole) {
  std::vector<std::byte> data(100'003);
  fill(data, 6);
  for (const std::size_t step : {1u, 7u, 4096u, 65536u, 200'000u}) {
    StreamingChecksum stream;
    for (std::size_t at = 0; at < data.size(); at += step)
      stream.add(std::span(data).subspan(at, std::min(step, data.size() - at)));
    EXPECT_EQ(stream.value(), checksum(data));
  }
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2u) << "XXH3-64 of nothing, by its specification";
}

}  // namespace
}  // namespace sluice
