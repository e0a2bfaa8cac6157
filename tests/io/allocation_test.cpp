// Submitting and waiting allocate nothing: counted at operator new.
#include <array>
#include <cstdlib>

#include "support.h"

namespace sluice {
namespace {

class AllocationTest : public testing::TestWithParam<std::tuple<IoBackendKind, bool>> {};

TEST_P(AllocationTest, HotPathHasNone) {
  const auto [backend, with_faults] = GetParam();
  const ScratchDir dir;
  SwapFile swap = make_swap({dir.path()}, 1 << 20);
  const AlignedBytes memory(1 << 20);
  QueueOptions options;
  options.backend = backend;
  options.depth = 8;
  options.files = swap.files();
  options.buffers = {memory.span()};
  if (with_faults) {
    options.faults.emplace();
    options.faults->short_probability = 0.3;
    options.faults->hold_max = 4;
    options.faults->fail_nth = 5;
    options.faults->latency_random_us = 20;
    options.faults->bytes_per_second = 8ull << 30;
  }
  auto queue = open_queue(options);
  std::array<IoRequest, 8> requests;
  std::array<IoRequest*, 8> done;
  std::size_t completed = 0;
  const std::uint64_t before = allocation_count();
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < 8; ++i) {
      const SwapPiece piece = swap.piece(i * 65536, 65536);
      requests[i] = request_of(round % 2 == 0 ? IoOp::write : IoOp::read, piece.offset,
                               memory.span().subspan(i * 65536, 65536), piece.file);
      if (!queue->submit(&requests[i])) std::abort();
    }
    while (queue->in_flight() > 0) completed += *queue->wait(1, done);
  }
  EXPECT_EQ(allocation_count() - before, 0u);
  EXPECT_EQ(completed, 400u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AllocationTest,
                         testing::Combine(testing::Values(IoBackendKind::io_uring, IoBackendKind::libaio,
                                                          IoBackendKind::threads),
                                          testing::Bool()));

}  // namespace
}  // namespace sluice
