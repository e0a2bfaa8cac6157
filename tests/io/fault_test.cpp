// Everything that can go wrong below the queue is continued, retried, reported or found by checksums.
#include "io/drives/fault.h"

#include <time.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "io/checksum.h"
#include "support.h"

namespace sluice {
namespace {

constexpr std::uint64_t fault_block_bytes = 64 << 10;
constexpr std::size_t fault_block_count = 24;

class FaultTest : public testing::TestWithParam<IoBackendKind> {
 protected:
  FaultTest()
      : swap_(make_swap({dir_.path()}, fault_block_bytes * fault_block_count)),
        out_(swap_.bytes()),
        in_(swap_.bytes()) {
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
    return memory.span().subspan(i * fault_block_bytes, fault_block_bytes);
  }

  /// Every block once through the window; how many requests failed, and the last failure.
  std::size_t pass(IoQueue& queue, IoOp op, const AlignedBytes& memory, int* error = nullptr) {
    std::array<IoRequest, fault_block_count> requests;
    std::array<IoRequest*, 4> done;
    std::size_t failures = 0, completed = 0, next = 0;
    std::vector<bool> seen(fault_block_count, false);
    while (completed < fault_block_count) {
      while (next < fault_block_count) {
        requests[next] = request_of(op, next * fault_block_bytes, block(memory, next));
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
          EXPECT_EQ(done[i]->done_bytes, fault_block_bytes);
        }
      }
      completed += *count;
    }
    return failures;
  }

  std::size_t changed_blocks(IoQueue& queue) {
    BlockChecksums sums(fault_block_count);
    for (std::size_t i = 0; i < fault_block_count; ++i) sums.set(i, block(out_, i));
    EXPECT_EQ(pass(queue, IoOp::read, in_), 0u);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < fault_block_count; ++i) changed += !sums.verify(i, block(in_, i), "swap").ok();
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
      for (std::uint64_t n = 1; n <= fault_block_count + 1; ++n) {
        for (const bool persistent : {false, true}) {
          FaultOptions faults;
          faults.fail_target = target;
          faults.fail_nth = n;
          faults.fail_errno = cause;
          faults.fail_persistent = persistent;
          auto queue = open(faults);
          int error = 0;
          const std::size_t failures = pass(*queue, op, op == IoOp::write ? out_ : in_, &error);
          const std::size_t after = fault_block_count + 1 - n;
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
  for (std::uint64_t n = 1; n <= fault_block_count; ++n) {
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
  faults.hold_max = 3;
  faults.latency_random_us = 50;
  faults.flip_read_nth = 7;
  faults.torn_write_nth = 11;
  faults.fail_nth = 50;
  const auto outcome = [&] {
    auto queue = open(faults);
    std::vector<bool> went_well;
    for (const IoOp op : {IoOp::write, IoOp::read})
      for (std::size_t i = 0; i < fault_block_count; ++i) {
        const AlignedBytes& memory = op == IoOp::write ? out_ : in_;
        went_well.push_back(transfer_now(*queue, op, 0, i * fault_block_bytes, block(memory, i)).ok());
      }
    return std::tuple(queue->counters().transfers, went_well, checksum(in_.span()));
  };
  fill(in_.span(), 1);
  const auto once = outcome();
  fill(in_.span(), 1);
  EXPECT_EQ(outcome(), once);
}

INSTANTIATE_TEST_SUITE_P(Backends, FaultTest,
                         testing::Values(IoBackendKind::io_uring, IoBackendKind::libaio, IoBackendKind::threads),
                         [](const auto& kind) { return io_backend_names[static_cast<int>(kind.param)]; });

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// In memory, so that what takes time is what was asked for.
class SlowDriveTest : public testing::TestWithParam<IoBackendKind> {
 protected:
  static constexpr std::uint64_t request_bytes = 512 << 10;
  static constexpr std::size_t in_flight = 16;

  SlowDriveTest() : swap_(make_swap({dir_.path()}, request_bytes * in_flight, false)), memory_(swap_.bytes()) {}

  std::unique_ptr<IoQueue> open(const FaultOptions& faults) const {
    QueueOptions options;
    options.backend = GetParam();
    options.depth = in_flight;
    options.files = swap_.files();
    options.faults = faults;
    return open_queue(options);
  }

  std::span<std::byte> part(std::size_t i) const { return memory_.span().subspan(i * 4096, 4096); }

  /// `count` requests of request_bytes, all that fit in flight.
  static void stream(IoQueue& queue, const AlignedBytes& memory, std::size_t count) {
    std::array<IoRequest, in_flight> requests;
    std::array<IoRequest*, in_flight> done;
    std::vector<IoRequest*> free;
    for (IoRequest& r : requests) free.push_back(&r);
    for (std::size_t started = 0, completed = 0; completed < count;) {
      for (; started < count && !free.empty(); ++started) {
        const std::size_t i = static_cast<std::size_t>(free.back() - requests.data());
        requests[i] = request_of(started % 2 == 0 ? IoOp::write : IoOp::read, i * request_bytes,
                                 memory.span().subspan(i * request_bytes, request_bytes));
        ASSERT_TRUE(queue.submit(free.back()));
        free.pop_back();
      }
      const std::size_t got = *queue.wait(1, done);
      completed += got;
      free.insert(free.end(), done.begin(), done.begin() + static_cast<std::ptrdiff_t>(got));
    }
  }

  template <class Work>
  static Clock::duration time_of(const Work& work) {
    const auto start = Clock::now();
    work();
    return Clock::now() - start;
  }

  ScratchDir dir_{"/dev/shm"};
  SwapFile swap_;
  AlignedBytes memory_;
};

TEST_P(SlowDriveTest, EveryTransferTakesItsLatency) {
  auto queue = open({.latency_us = 3000, .latency_random_us = 500, .sync_latency_us = 9000});
  for (const IoOp op : {IoOp::write, IoOp::read})
    EXPECT_GE(time_of([&] { EXPECT_TRUE(transfer_now(*queue, op, 0, 0, part(0)).ok()); }), milliseconds(3));
  EXPECT_GE(time_of([&] { EXPECT_TRUE(transfer_now(*queue, IoOp::sync, 0, 0, {}).ok()); }), milliseconds(9));
  auto failing = open({.fail_nth = 1, .latency_us = 3000});
  EXPECT_GE(time_of([&] { EXPECT_FALSE(transfer_now(*failing, IoOp::read, 0, 0, part(0)).ok()); }), milliseconds(3));
}

TEST_P(SlowDriveTest, CompletionsComeWhenTheyAreDue) {
  // Of this seed, the four delays are 80 ms apart or more: 331, 78, 249, 164.
  const FaultOptions faults{.seed = 370, .latency_random_us = 400'000};
  std::vector<std::size_t> orders[2];
  for (auto& order : orders) {
    auto queue = open(faults);
    std::array<IoRequest, 4> requests;
    std::array<IoRequest*, 1> done;
    for (std::size_t i = 0; i < 4; ++i) {
      requests[i] = request_of(IoOp::read, i * 4096, part(i));
      ASSERT_TRUE(queue->submit(&requests[i]));
    }
    while (order.size() < 4) {
      ASSERT_EQ(*queue->wait(1, done), 1u);
      order.push_back(static_cast<std::size_t>(done[0] - requests.data()));
    }
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end()));
}

TEST_P(SlowDriveTest, ASyncIsOvertaken) {
  auto queue = open({.latency_us = 100, .sync_latency_us = 300'000});
  IoRequest sync = request_of(IoOp::sync, 0, {}), read = request_of(IoOp::read, 0, part(0));
  ASSERT_TRUE(queue->submit(&sync));
  ASSERT_TRUE(queue->submit(&read));
  std::array<IoRequest*, 1> done;
  ASSERT_EQ(*queue->wait(1, done), 1u);
  EXPECT_EQ(done[0], &read);
  ASSERT_EQ(*queue->wait(1, done), 1u);
  EXPECT_EQ(done[0], &sync);
}

TEST_P(SlowDriveTest, WakeAndTimeoutEndTheSleep) {
  auto queue = open({.latency_us = 1'000'000});
  std::array<IoRequest*, 2> done;
  const auto sleeps = [&] {
    EXPECT_EQ(*queue->wait(1, done, milliseconds(2)), 0u);
    EXPECT_EQ(*queue->wait(0, done), 0u);
    queue->wake();
    EXPECT_EQ(*queue->wait(1, done), 0u);
    std::thread other([&] { queue->wake(); });
    EXPECT_EQ(*queue->wait(1, done), 0u);
    other.join();
  };
  sleeps();  // nothing in flight
  IoRequest read = request_of(IoOp::read, 0, part(0));
  ASSERT_TRUE(queue->submit(&read));
  sleeps();
  sleeps();  // the inner backend has nothing any more
  // Asleep until then: a wait that polls would take most of a second of this thread.
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_EQ(*queue->wait(1, done), 1u);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  EXPECT_LT((after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec, 300'000'000);
}

TEST_P(SlowDriveTest, NoMoreThanTheRate) {
  constexpr std::size_t count = 64;
  const FaultOptions faults{.bytes_per_second = 512 << 20};
  const auto least = std::chrono::microseconds(1'000'000 * count * request_bytes / faults.bytes_per_second);
  auto queue = open(faults);
  EXPECT_GE(time_of([&] { stream(*queue, memory_, count); }), least);
  // What was not used while idle is gone.
  std::this_thread::sleep_for(milliseconds(80));
  EXPECT_GE(time_of([&] { stream(*queue, memory_, count); }), least);
  FaultOptions far = faults;
  far.latency_us = 30'000;
  queue = open(far);
  EXPECT_GE(time_of([&] { stream(*queue, memory_, count); }), least + milliseconds(30));
}

// Each file has a drive of its own.
TEST_P(SlowDriveTest, TheRateIsOfEachFile) {
  const ScratchDir a("/dev/shm"), b("/dev/shm");
  SwapFile swap = make_swap({a.path(), b.path()}, 1 << 20);
  QueueOptions options;
  options.backend = GetParam();
  options.files = swap.files();
  options.faults = FaultOptions{.bytes_per_second = 16384};
  auto queue = open_queue(options);
  // A quarter of a second, and behind it on the same file another.
  IoRequest first = request_of(IoOp::write, 0, part(0)), second = request_of(IoOp::write, 4096, part(0));
  IoRequest other = request_of(IoOp::write, 0, part(0), 1);
  std::array<IoRequest*, 2> done;
  const auto start = Clock::now();
  for (IoRequest* r : {&first, &other, &second}) ASSERT_TRUE(queue->submit(r));
  ASSERT_EQ(*queue->wait(2, done), 2u);
  EXPECT_GE(Clock::now() - start, milliseconds(250));
  EXPECT_TRUE(done[0] != &second && done[1] != &second);
  ASSERT_EQ(*queue->wait(1, done), 1u);
  EXPECT_GE(Clock::now() - start, milliseconds(500));
}

INSTANTIATE_TEST_SUITE_P(Backends, SlowDriveTest, testing::Values(IoBackendKind::io_uring, IoBackendKind::threads),
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
