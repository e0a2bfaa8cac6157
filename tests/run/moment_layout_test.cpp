// Where moments lie: every element once, scales apart from codes, whole pages for every tile.
#include "offload/state/moment_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "offload/state/optimizer.h"

namespace sluice {
namespace {

TEST(MomentLayout, CodesAndScalesOfAPartDoNotOverlapAndEndWithIt) {
  for (const std::uint64_t tile : {1u << 12, 1u << 14, 1u << 18, 1u << 19, 1u << 21})
    for (const std::uint64_t pages : {1u, 3u, 64u, 65u, 150u}) {
      const MomentLayout layout = MomentLayout::of(MomentFormat::int8, tile);
      const std::uint64_t numel = pages * 4096;
      std::vector<std::uint8_t> used(layout.bytes(numel), 0);
      for (std::uint64_t at = 0; at < numel; at += moment_block_numel) {
        const MomentLayout::Place place = layout.place(at, numel);
        ASSERT_LE(place.codes + moment_block_numel, used.size());
        ASSERT_LE(place.scales + 4, used.size());
        for (std::uint64_t i = 0; i < moment_block_numel; ++i) ASSERT_EQ(used[place.codes + i]++, 0);
        for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(used[place.scales + i]++, 0);
      }
    }
}

TEST(MomentLayout, TilesAndRequestsAreWholePagesAndGroups) {
  for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8})
    for (std::uint64_t tile = 1u << 12; tile <= 1u << 24; tile *= 2)
      for (const std::uint64_t wanted : {128u << 10, 512u << 10, 1u << 20}) {
        const MomentLayout layout = MomentLayout::of(format, tile);
        const std::uint64_t bytes = layout.bytes(tile), block = layout.block_bytes(wanted, tile);
        EXPECT_EQ(bytes % buffer_alignment_bytes, 0u);
        EXPECT_EQ(block % buffer_alignment_bytes, 0u);
        EXPECT_EQ(bytes % block, 0u) << moment_format_name(format) << " " << tile << " " << wanted;
        EXPECT_EQ(layout.bytes(3 * tile), 3 * bytes) << "tiles lie one after the other";
        EXPECT_LE(block, 1u << 20);
      }
}

TEST(MomentLayout, EightBitsAreSixBytesAParameterWithScales) {
  const MomentLayout layout = MomentLayout::of(MomentFormat::int8, 1u << 20);
  EXPECT_EQ(2 * layout.bytes(1u << 20), (2u << 20) + 2 * 4 * (1u << 20) / 256);
}

TEST(MomentLayout, StreamsAreTheSameForAnyTiles) {
  constexpr std::uint64_t numel = 150 * 4096;
  std::mt19937 random(1);
  std::vector<std::byte> stream(numel / 4096 * MomentLayout::stream_page_bytes), again(stream.size());
  for (std::byte& b : stream) b = static_cast<std::byte>(random());
  for (const std::uint64_t tile : {1u << 12, 1u << 15, 1u << 18, 1u << 20}) {
    const MomentLayout layout = MomentLayout::of(MomentFormat::int8, tile);
    std::vector<std::byte> part(layout.bytes(numel));
    layout.from_stream(stream.data(), numel, part.data(), numel);
    layout.to_stream(part.data(), numel, numel, again.data());
    EXPECT_EQ(stream, again) << tile;
  }
}

// Shards of several ranks begin anywhere on the grid of 4096: chunks count from the tile, as groups do.
TEST(MomentLayout, ChunksOfATileStayInOneGroup) {
  OptimizerUnit unit;
  TensorSegment segment;
  segment.offset = 512;
  segment.numel = 5u << 20;
  unit.segments = {segment};
  for (const std::uint64_t begin : {0u, 253u * 4096, 64u * 4096, 1u << 20}) {
    std::vector<UpdateChunk> chunks;
    constexpr std::uint64_t numel = 1u << 20;
    append_chunks(unit, begin, numel, chunks);
    const MomentLayout layout = MomentLayout::of(MomentFormat::int8, numel);
    std::uint64_t covered = 0;
    for (const UpdateChunk& chunk : chunks) {
      const std::uint64_t last = chunk.begin + chunk.numel - 1;
      EXPECT_EQ(chunk.begin / layout.group_numel, last / layout.group_numel) << begin;
      EXPECT_EQ(layout.place(last, numel).codes - layout.place(chunk.begin, numel).codes, chunk.numel - 1);
      EXPECT_EQ(chunk.first_index, begin + chunk.begin - segment.offset);
      EXPECT_EQ(chunk.first_index % moment_block_numel, 0u);
      covered += chunk.numel;
    }
    EXPECT_EQ(covered, begin == 0 ? numel - 512 : numel);
  }
}

}  // namespace
}  // namespace sluice
