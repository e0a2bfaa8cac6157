// The update of a plan's tile with CUDA's kernel beside the CPU's, bit for bit, on the model of a device.
#include "src/device/cuda/update.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace sluice {
namespace {

/// Tensors with and without decay, one that does not train, padding at the end.
OptimizerUnit some_unit(std::uint64_t numel) {
  OptimizerUnit unit;
  const std::uint64_t ends[] = {0, 256, numel / 2, numel / 2 + 4096, numel - 1024};
  for (std::size_t i = 0; i + 1 < std::size(ends); ++i)
    unit.segments.push_back({ends[i], ends[i + 1] - ends[i], i % 2 == 0 ? 0.0f : 1.0f, 1, i != 2, 10 + i});
  unit.shard_begin = {0};
  return unit;
}

/// States of a shard in one memory, and updates of its tiles.
struct Shard {
  Shard(Dtype type, MomentFormat format, Dtype of_gradients, std::uint64_t elements, std::uint64_t per_tile)
      : dtype(type),
        gradient_dtype(of_gradients),
        layout(MomentLayout::of(format, per_tile)),
        numel(elements),
        tile_numel(per_tile) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    parameter.resize(numel * dtype_bytes(dtype));
    remainder.resize(numel);
    exp_avg.resize(layout.bytes(numel));
    exp_avg_sq.resize(layout.bytes(numel));
    for (std::uint64_t i = 0; i < numel; ++i) {
      set(i, normal(random));
      gradient.push_back(0.1f * normal(random));
    }
    rounded.resize(numel);
    round_gradient(3, 0, gradient.data(), static_cast<std::int64_t>(numel), rounded.data());
  }
  void set(std::uint64_t i, float value) {
    const auto bytes = dtype_bytes(dtype);
    std::memcpy(&parameter[i * bytes], reinterpret_cast<const std::byte*>(&value) + sizeof value - bytes, bytes);
  }
  DeviceUpdate update(std::uint64_t at, std::vector<UpdateChunk>& chunks) {
    const std::uint64_t n = std::min(tile_numel, numel - at);
    append_chunks(some_unit(numel), at, n, chunks);
    DeviceUpdate u;
    u.tile = {dtype,
              layout,
              n,
              parameter.data() + at * dtype_bytes(dtype),
              dtype == Dtype::bf16 ? remainder.data() + at : nullptr,
              exp_avg.data() + layout.bytes(at),
              exp_avg_sq.data() + layout.bytes(at),
              gradient_dtype == Dtype::f32 ? static_cast<const void*>(gradient.data() + at) : rounded.data() + at,
              gradient_dtype};
    u.chunks = chunks;
    u.clip_factor = 0.7;
    u.diverged = &diverged;
    u.first = at == 0;
    return u;
  }
  bool operator==(const Shard& other) const {
    return parameter == other.parameter && remainder == other.remainder && exp_avg == other.exp_avg &&
           exp_avg_sq == other.exp_avg_sq && diverged == other.diverged;
  }

  Dtype dtype, gradient_dtype;
  MomentLayout layout;
  std::uint64_t numel, tile_numel;
  std::vector<std::byte> parameter, exp_avg, exp_avg_sq;
  std::vector<std::int16_t> remainder;
  std::vector<float> gradient;
  std::vector<bf16> rounded;
  std::uint64_t diverged = 99;
};

class CudaUpdate : public testing::TestWithParam<std::tuple<Dtype, MomentFormat, Dtype>> {};

TEST_P(CudaUpdate, HasTheBitsAndTheCountOfTheCpu) {
  const auto [dtype, format, gradient_dtype] = GetParam();
  for (const std::uint64_t tile_numel : {std::uint64_t{1} << 14, std::uint64_t{1} << 20}) {
    SCOPED_TRACE("tiles of " + std::to_string(tile_numel));
    Shard here(dtype, format, gradient_dtype, 300'000 / 4096 * 4096, tile_numel);
    here.set(77, std::numeric_limits<float>::infinity());
    Shard there = here;
    kernels::cuda::Stream stream(nullptr);
    WorkerTeam alone(1);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      StepParams params;
      params.step = params.update_step = step;
      params.lr = 1e-2f;
      params.seed = 5;
      for (std::uint64_t at = 0; at < here.numel; at += tile_numel) {
        std::vector<UpdateChunk> chunks, same;
        const DeviceUpdate cpu = here.update(at, chunks), cuda = there.update(at, same);
        const std::uint64_t count = update_tile(cpu.tile, cpu.chunks, params, cpu.clip_factor, alone);
        here.diverged = (cpu.first ? 0 : here.diverged) + count;
        const Status status = update_on_cuda(cuda, params, stream);
        ASSERT_TRUE(status.ok()) << status.error().message;
        ASSERT_TRUE(stream.synchronize().ok());
      }
      EXPECT_EQ(here.diverged, 1u);
      ASSERT_TRUE(here == there) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaUpdate,
                         testing::Combine(testing::Values(Dtype::f32, Dtype::bf16),
                                          testing::Values(MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8),
                                          testing::Values(Dtype::f32, Dtype::bf16)),
                         [](const auto& p) {
                           return std::string(dtype_name(std::get<0>(p.param))) + "_" +
                                  moment_format_name(std::get<1>(p.param)) + "_" + dtype_name(std::get<2>(p.param));
                         });

}  // namespace
}  // namespace sluice
