// Queues of every backend against memory.
#include "io/drives/queue.h"

#include <array>
#include <cstring>
#include <thread>

#include "support.h"

namespace sluice {
namespace {

struct QueueKind {
  IoBackendKind backend;
  bool direct;
  bool registered;
  const char* directory;
};

std::string kind_name(const testing::TestParamInfo<QueueKind>& info) {
  const QueueKind& k = info.param;
  return std::string(io_backend_names[static_cast<int>(k.backend)]) + (k.direct ? "_direct" : "_buffered") +
         (k.registered ? "_registered" : "_plain") + (std::string(k.directory) == "." ? "_disk" : "_tmpfs");
}

class QueueTest : public testing::TestWithParam<QueueKind> {
 protected:
  std::unique_ptr<IoQueue> open(const SwapFile& swap, std::span<std::byte> memory, std::size_t depth) const {
    QueueOptions options;
    options.backend = GetParam().backend;
    options.depth = depth;
    options.files = swap.files();
    if (GetParam().registered) options.buffers = {memory};
    return open_queue(options);
  }
};

TEST_P(QueueTest, EveryAlignmentAndTail) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 1 << 20, GetParam().direct);
  const std::uint64_t unit = swap.files()[0].alignment_bytes;
  const AlignedBytes out(1 << 19), in(1 << 19);
  auto queue = open(swap, out.span(), 4);
  std::vector<std::uint64_t> lengths{unit, 2 * unit, 17 * unit};
  std::vector<std::uint64_t> starts{0, unit, 5 * unit};
  if (unit == 1) lengths = {1, 2, 511, 513, 4095, 4096, 4097, 65537}, starts = {0, 1, 511, 4095, 4097};
  for (const std::uint64_t length : lengths) {
    for (const std::uint64_t at : starts) {
      for (const std::uint64_t shift : starts) {
        fill(out.span(), length * 31 + at * 7 + shift);
        ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, at, out.span().subspan(shift, length)).ok());
        ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, at, in.span().subspan(shift, length)).ok());
        ASSERT_EQ(0, memcmp(out.data() + shift, in.data() + shift, length)) << length << " at " << at;
      }
    }
  }
}

// Random requests on disjoint blocks, many in flight, against an array in memory.
TEST_P(QueueTest, TenThousandRandomOps) {
  constexpr std::uint64_t block = 4096, blocks = 512;
  constexpr std::size_t depth = 16;
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, blocks * block, GetParam().direct);
  const AlignedBytes memory(depth * block), model(blocks * block);
  auto queue = open(swap, memory.span(), depth);
  fill(model.span(), 1);
  ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, model.span()).ok());

  std::array<IoRequest, depth> requests;
  std::vector<std::size_t> free_slots;
  for (std::size_t i = 0; i < depth; ++i) free_slots.push_back(i);
  std::vector<bool> busy(blocks, false);
  std::mt19937_64 random(7);
  std::array<IoRequest*, depth> done;
  std::size_t completed = 0;
  const auto finish = [&](IoRequest* r) {
    ASSERT_TRUE(queue->status(*r).ok()) << queue->status(*r).error().message;
    if (r->op == IoOp::read) {
      ASSERT_EQ(0, memcmp(r->data, model.data() + r->offset, block));
    }
    busy[r->offset / block] = false;
    free_slots.push_back(static_cast<std::size_t>(r - requests.data()));
    ++completed;
  };
  for (int op = 0; op < 10000; ++op) {
    std::uint64_t at = random() % blocks;
    while (busy[at]) at = (at + 1) % blocks;
    while (free_slots.empty()) {
      auto count = queue->wait(1, done);
      ASSERT_TRUE(count.ok());
      for (std::size_t i = 0; i < *count; ++i) finish(done[i]);
    }
    const std::size_t slot = free_slots.back();
    free_slots.pop_back();
    const auto data = memory.span().subspan(slot * block, block);
    const bool write = random() % 2 == 0;
    if (write) {
      fill(data, random());
      memcpy(model.data() + at * block, data.data(), block);
    }
    requests[slot] = request_of(write ? IoOp::write : IoOp::read, at * block, data);
    busy[at] = true;
    ASSERT_TRUE(queue->submit(&requests[slot]));
    ASSERT_LE(queue->in_flight(), depth);
  }
  while (queue->in_flight() > 0) {
    auto count = queue->wait(1, done);
    ASSERT_TRUE(count.ok());
    for (std::size_t i = 0; i < *count; ++i) finish(done[i]);
  }
  EXPECT_EQ(completed, 10000u);
  const IoCounters counters = queue->counters();
  EXPECT_EQ(counters.requests, 10001u);
  EXPECT_EQ(counters.read_bytes + counters.write_bytes, (10000 + blocks) * block);
  EXPECT_EQ(counters.in_flight_max, depth);
}

TEST_P(QueueTest, WindowRefusesBeyondDepth) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 1 << 16, GetParam().direct);
  const AlignedBytes memory(1 << 16);
  auto queue = open(swap, memory.span(), 3);
  std::array<IoRequest, 4> requests;
  for (std::size_t i = 0; i < 4; ++i) {
    requests[i] = request_of(IoOp::write, i * 4096, memory.span().subspan(i * 4096, 4096));
    EXPECT_EQ(queue->submit(&requests[i]), i < 3);
  }
  std::array<IoRequest*, 1> done;
  ASSERT_EQ(*queue->wait(1, done), 1u);
  EXPECT_TRUE(queue->submit(&requests[3]));
  EXPECT_TRUE(queue->drain().ok());
  EXPECT_EQ(queue->in_flight(), 0u);
}

TEST_P(QueueTest, ReadsAndWritesHaveAWindowEach) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 1 << 16, GetParam().direct);
  const AlignedBytes memory(1 << 16);
  auto queue = open(swap, memory.span(), 2);
  std::array<IoRequest, 6> requests;
  for (std::size_t i = 0; i < 6; ++i) {
    const IoOp op = i < 3 ? IoOp::write : IoOp::read;
    requests[i] = request_of(op, i * 4096, memory.span().subspan(i * 4096, 4096));
    EXPECT_EQ(queue->submit(&requests[i]), i % 3 < 2) << i;
  }
  EXPECT_EQ(queue->in_flight(), 4u);
  EXPECT_TRUE(queue->drain().ok());
}

// More than one file's window is taken and waits its turn, whichever file it is for.
TEST_P(QueueTest, SeveralFilesHaveAWindowEach) {
  const ScratchDir dir(GetParam().directory), other(GetParam().directory);
  SwapFile swap = make_swap({dir.path(), other.path()}, 1 << 20, GetParam().direct);
  const AlignedBytes memory(1 << 17);
  auto queue = open(swap, memory.span(), 4);
  ASSERT_EQ(queue->capacity(), 8u);
  fill(memory.span(), 9);
  std::array<IoRequest, 9> requests;
  for (std::size_t i = 0; i < 9; ++i) {
    requests[i] = request_of(IoOp::write, i * 4096, memory.span().subspan(i * 4096, 4096), i < 7 ? 0 : 1);
    EXPECT_EQ(queue->submit(&requests[i]), i < 8);
  }
  std::array<IoRequest*, 8> done;
  ASSERT_EQ(*queue->wait(8, done), 8u);
  for (const IoRequest* r : done) EXPECT_TRUE(queue->status(*r).ok());
  const AlignedBytes back(4096 * 7);
  ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, back.span()).ok());
  EXPECT_EQ(std::memcmp(back.data(), memory.data(), 4096 * 7), 0);
  EXPECT_EQ(queue->counters().in_flight_max, 8u);
}

// Each of the requests ends, as done or as cancelled, and no memory is touched afterwards.
TEST_P(QueueTest, CancelEndsEveryRequest) {
  const ScratchDir dir(GetParam().directory);
  constexpr std::size_t count = 64, block = 1 << 18;
  SwapFile swap = make_swap({dir.path(), dir.path()}, 2 * count * block, GetParam().direct);
  const AlignedBytes memory(count * block);
  auto queue = open(swap, memory.span(), count / 2);
  std::array<IoRequest, count> requests;
  std::array<IoRequest*, count> done;
  for (int round = 0; round < 8; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      requests[i] = request_of(round % 2 ? IoOp::read : IoOp::write, i * block, memory.span().subspan(i * block, block),
                               round < 4 ? 0 : 1);
      ASSERT_TRUE(queue->submit(&requests[i]));
    }
    if (round % 4 > 1) queue->flush();
    queue->cancel();
    std::size_t ended = 0;
    while (ended < count) {
      const auto got = queue->wait(1, done);
      ASSERT_TRUE(got.ok());
      for (std::size_t i = 0; i < *got; ++i) {
        if (done[i]->error == 0) {
          EXPECT_EQ(done[i]->done_bytes, block);
        } else {
          EXPECT_EQ(done[i]->error, ECANCELED);
        }
      }
      ended += *got;
    }
    EXPECT_EQ(ended, count);
    EXPECT_EQ(queue->in_flight(), 0u);
  }
  // Half of them waited for the window: those at least were given up. The queue is of use afterwards.
  EXPECT_TRUE(transfer_now(*queue, IoOp::write, 1, 0, memory.span().first(block)).ok());
}

TEST_P(QueueTest, FailuresNamePathOperationAndCause) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 1 << 16, GetParam().direct);
  const AlignedBytes memory(1 << 16);
  auto queue = open(swap, memory.span(), 2);
  const Status beyond = transfer_now(*queue, IoOp::read, 0, (1 << 16) - 4096, memory.span().first(8192));
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.error().message.find(swap.files()[0].path + ": read of 8192 bytes at offset 61440"),
            std::string::npos);
  EXPECT_NE(beyond.error().message.find("end of the file after 4096 bytes"), std::string::npos);
  EXPECT_FALSE(transfer_now(*queue, IoOp::read, 7, 0, memory.span().first(4096)).ok());
  if (swap.files()[0].alignment_bytes > 1) {
    const Status crooked = transfer_now(*queue, IoOp::read, 0, 512, memory.span().first(4096));
    ASSERT_FALSE(crooked.ok());
    EXPECT_NE(crooked.error().message.find("not aligned to 4096"), std::string::npos);
  }
  EXPECT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, memory.span().first(0)).ok());
  EXPECT_TRUE(transfer_now(*queue, IoOp::sync, 0, 0, {}).ok());
}

TEST_P(QueueTest, WakeEndsAWaitAndIsKeptForTheNext) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 1 << 16, GetParam().direct);
  const AlignedBytes memory(1 << 16);
  auto queue = open(swap, memory.span(), 2);
  std::array<IoRequest*, 1> done;
  for (int i = 0; i < 3; ++i) {
    queue->wake();
    EXPECT_EQ(*queue->wait(1, done), 0u);
  }
  for (int i = 0; i < 3; ++i) {
    std::thread other([&] { queue->wake(); });
    EXPECT_EQ(*queue->wait(1, done), 0u);
    other.join();
  }
  // Used by one thread first and by another afterwards.
  std::thread([&] { EXPECT_EQ(*queue->wait(1, done, std::chrono::milliseconds(1)), 0u); }).join();
  EXPECT_EQ(*queue->wait(0, done), 0u);
  EXPECT_EQ(*queue->wait(1, done, std::chrono::milliseconds(1)), 0u);
  queue->wake();
  EXPECT_EQ(*queue->wait(1, done), 0u);
  EXPECT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, memory.span()).ok());
}

TEST_P(QueueTest, ClosesWithRequestsInFlight) {
  const ScratchDir dir(GetParam().directory);
  SwapFile swap = make_swap({dir.path()}, 8 << 20, GetParam().direct);
  const AlignedBytes memory(8 << 20), back(8 << 20);
  fill(memory.span(), 3);
  std::array<IoRequest, 8> requests;
  {
    auto queue = open(swap, memory.span(), 8);
    for (std::size_t i = 0; i < 8; ++i) {
      requests[i] = request_of(IoOp::write, i << 20, memory.span().subspan(i << 20, 1 << 20));
      ASSERT_TRUE(queue->submit(&requests[i]));
    }
  }
  auto queue = open(swap, back.span(), 8);
  ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, back.span()).ok());
  EXPECT_EQ(0, memcmp(memory.data(), back.data(), 8 << 20));
}

INSTANTIATE_TEST_SUITE_P(Kinds, QueueTest,
                         testing::Values(QueueKind{IoBackendKind::io_uring, true, true, "."},
                                         QueueKind{IoBackendKind::io_uring, true, false, "."},
                                         QueueKind{IoBackendKind::io_uring, false, true, "."},
                                         QueueKind{IoBackendKind::io_uring, false, false, "/dev/shm"},
                                         QueueKind{IoBackendKind::libaio, true, false, "."},
                                         QueueKind{IoBackendKind::libaio, false, false, "."},
                                         QueueKind{IoBackendKind::threads, true, false, "."},
                                         QueueKind{IoBackendKind::threads, false, false, "."},
                                         QueueKind{IoBackendKind::threads, true, false, "/dev/shm"}),
                         kind_name);

std::uint64_t proc_io(const std::string& key) {
  std::ifstream in("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (in >> name >> value)
    if (name == key + ":") return value;
  return 0;
}

// With O_DIRECT the kernel's own count of this process is exact.
TEST(QueueCounters, AgreeWithTheKernels) {
  const ScratchDir dir;
  for (const IoBackendKind kind : {IoBackendKind::io_uring, IoBackendKind::libaio, IoBackendKind::threads}) {
    SwapFile swap = make_swap({dir.path()}, 16 << 20);
    if (swap.files()[0].alignment_bytes == 1) GTEST_SKIP() << "no O_DIRECT in the build folder";
    const AlignedBytes memory(16 << 20);
    QueueOptions options;
    options.backend = kind;
    options.files = swap.files();
    options.buffers = {memory.span()};
    auto queue = open_queue(options);
    const std::uint64_t reads = proc_io("read_bytes"), writes = proc_io("write_bytes");
    ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, memory.span()).ok());
    ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, memory.span().first(5 << 20)).ok());
    EXPECT_EQ(proc_io("write_bytes") - writes, queue->counters().write_bytes);
    EXPECT_EQ(proc_io("read_bytes") - reads, queue->counters().read_bytes);
    EXPECT_EQ(queue->counters().write_bytes, 16u << 20);
    EXPECT_EQ(queue->counters().read_bytes, 5u << 20);
  }
}

TEST(MakeQueue, SaysWhatItChoseAndRefusesNonsense) {
  QueueOptions options;
  options.depth = 0;
  EXPECT_FALSE(make_queue(options).ok());
  options.depth = 8;
  auto queue = open_queue(options);
  EXPECT_NE(queue->description().find("depth 8"), std::string::npos);
  options.backend = IoBackendKind::threads;
  options.threads = 2;
  EXPECT_EQ(open_queue(options)->description(), "threads, 2 workers, depth 8");
  EXPECT_EQ(*parse_io_backend("io_uring"), IoBackendKind::io_uring);
  EXPECT_EQ(*parse_io_backend("libaio"), IoBackendKind::libaio);
  EXPECT_FALSE(parse_io_backend("aio").ok());
}

TEST(MakeQueue, PollingIsOfIoUringAndOfDrivesThatHaveIt) {
  const ScratchDir dir;
  SwapFile swap = make_swap({dir.path()}, 1 << 20);
  QueueOptions options;
  options.files = swap.files();
  options.backend = IoBackendKind::threads;
  options.sqpoll = true;
  EXPECT_EQ(make_queue(options).error().code, ErrorCode::bad_request);
  options.backend = IoBackendKind::automatic;
  const AlignedBytes memory(1 << 20);
  fill(memory.span(), 5);
  auto queue = open_queue(options);
  EXPECT_NE(queue->description().find("sqpoll"), std::string::npos);
  ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, memory.span()).ok());
  const AlignedBytes back(1 << 20);
  ASSERT_TRUE(transfer_now(*queue, IoOp::read, 0, 0, back.span()).ok());
  EXPECT_EQ(std::memcmp(back.data(), memory.data(), back.span().size()), 0);
  // Few machines have queues for polled I/O: either it works or it is refused with the reason.
  options.sqpoll = false;
  options.iopoll = true;
  auto polled = make_queue(options);
  if (!polled.ok()) {
    EXPECT_EQ(polled.error().code, ErrorCode::bad_request);
    EXPECT_NE(polled.error().message.find("no queues for polled I/O"), std::string::npos) << polled.error().message;
    return;
  }
  ASSERT_TRUE(transfer_now(**polled, IoOp::write, 0, 0, memory.span()).ok());
  ASSERT_TRUE(transfer_now(**polled, IoOp::sync, 0, 0, {}).ok());
}

}  // namespace
}  // namespace sluice
