// Gradients of tiles in bf16: however a shard is cut into tiles, and whoever works on them, elements are rounded alike,
// by step and tensor, and nothing is left over of what no update reads.
#include <gtest/gtest.h>

#include <vector>

#include "offload/state/optimizer.h"
#include "sluice/random.h"

namespace sluice {
namespace {

constexpr std::uint64_t numel = 300'000 / 4096 * 4096;

/// Two tensors with a gap between them, one that does not train, padding at the end.
OptimizerUnit some_unit() {
  OptimizerUnit unit;
  unit.segments = {{.offset = 0, .numel = 100'000, .tensor = 7},
                   {.offset = 100'352, .numel = 50'000, .trainable = false, .tensor = 8},
                   {.offset = 150'528, .numel = 140'001, .tensor = 9}};
  return unit;
}

std::vector<float> some_gradient() {
  std::vector<float> x(numel);
  for (std::uint64_t i = 0; i < numel; ++i) x[i] = 1e-3f * static_cast<float>(philox_normal(3, i, 0));
  return x;
}

std::vector<std::uint16_t> rounded(const std::vector<float>& x, std::uint64_t tile_numel, int threads,
                                   std::uint64_t seed, std::uint64_t step) {
  WorkerTeam team(threads);
  std::vector<bf16> to(numel, bf16{0x1234});
  for (std::uint64_t at = 0; at < numel; at += tile_numel) {
    const std::uint64_t n = std::min(tile_numel, numel - at);
    std::vector<UpdateChunk> chunks;
    append_chunks(some_unit(), at, n, chunks);
    round_tile(std::span(x).subspan(at, n), chunks, seed, step, team, to.data() + at);
  }
  std::vector<std::uint16_t> bits;
  for (const bf16 b : to) bits.push_back(b.bits);
  return bits;
}

TEST(RoundTile, TilesAndThreadsChangeNoBit) {
  const std::vector<float> x = some_gradient();
  const std::vector<std::uint16_t> whole = rounded(x, numel, 1, 1, 5);
  for (const std::uint64_t tile : {1u << 12, 1u << 14, 1u << 17})
    for (const int threads : {1, 3}) EXPECT_EQ(rounded(x, tile, threads, 1, 5), whole) << tile << " " << threads;
}

TEST(RoundTile, WhatIsNotUpdatedIsZero) {
  const std::vector<std::uint16_t> got = rounded(some_gradient(), 1u << 14, 1, 1, 5);
  for (std::uint64_t i = 0; i < numel; ++i) {
    const bool updated = i < 100'000 || (i >= 150'528 && i < 290'529);
    ASSERT_EQ(got[i] != 0, updated) << i;
  }
}

/// By the seed, the step and the tensor; from another stream than what rounds moments.
TEST(RoundTile, EachStepSeedAndTensorHasBitsOfItsOwn) {
  const std::vector<float> same(numel, 1 + 0x1p-8f);  // half way to the next
  const std::vector<std::uint16_t> base = rounded(same, numel, 1, 1, 5);
  const auto differing = [&](const std::vector<std::uint16_t>& other, std::uint64_t from, std::uint64_t to,
                             std::uint64_t apart = 0) {
    double count = 0;
    for (std::uint64_t i = from; i < to; ++i) count += base[i] != other[i + apart] ? 1 : 0;
    return count / static_cast<double>(to - from);
  };
  constexpr double expected = 0.5;
  EXPECT_NEAR(differing(rounded(same, numel, 1, 1, 6), 0, 100'000), expected, 0.01) << "step";
  EXPECT_NEAR(differing(rounded(same, numel, 1, 2, 5), 0, 100'000), expected, 0.01) << "seed";
  EXPECT_NEAR(differing(base, 0, 100'000, 150'528), expected, 0.01) << "tensor";
  const auto words = philox(1, 5, 7);
  const std::uint64_t of_moments = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
  std::vector<bf16> as_moments(100'000);
  round_gradient(of_moments, 0, same.data(), 100'000, as_moments.data());
  std::vector<std::uint16_t> bits;
  for (const bf16 b : as_moments) bits.push_back(b.bits);
  EXPECT_NEAR(differing(bits, 0, 100'000), expected, 0.01) << "moments";
}

}  // namespace
}  // namespace sluice
