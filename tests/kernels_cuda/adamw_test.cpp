// AdamW, master weights and squared norms on the device against those of the CPU, bit for bit.
#include "kernels/cuda/adamw.h"

#include "device.h"
#include "tests/kernels_vec/adamw_support.h"

namespace sluice::test {
namespace {

class AdamwTest : public DeviceTest {
 protected:
  /// Updates a tensor's elements from to to on the device; indices count from `origin`.
  AdamwReport update(Tensor& t, const AdamwStep& s, std::int64_t from, std::int64_t to, std::uint64_t origin = 0) {
    auto& arrays = t.all_arrays();
    DeviceArray<std::uint8_t> parameter(arrays[0]), remainder(arrays[1]), m(arrays[2]), v(arrays[3]), g(arrays[4]);
    DeviceArray<float> scale_m(t.scale_m), scale_v(t.scale_v);
    DeviceArray<std::uint64_t> diverged(std::vector<std::uint64_t>{1000});
    AdamwRange range = t.range(
        {{parameter.data(), remainder.data(), m.data(), v.data(), g.data()}, scale_m.data(), scale_v.data()}, from, to);
    range.first_index += origin;
    cuda::adamw(s, range, diverged.data(), *stream);
    arrays = {parameter.read(), remainder.read(), m.read(), v.read(), g.read()};
    t.scale_m = scale_m.read();
    t.scale_v = scale_v.read();
    return {diverged.read()[0] - 1000};
  }
  AdamwReport update(Tensor& t, const AdamwStep& s) { return update(t, s, 0, t.numel()); }
};

std::vector<std::int64_t> some_lengths() { return {0, 1, 3, 4, 5, 7, 8, 31, 33, 255, 256, 257, 1000, 4101, 20001}; }

TEST_F(AdamwTest, EveryFormatAndLengthHasTheBitsOfTheCpu) {
  for (const Formats& f : all_formats())
    for (const std::int64_t n : some_lengths())
      for (const std::int64_t shift : {0, 1, 4}) {
        SCOPED_TRACE(testing::Message() << f.name() << ", " << n << " elements, shift " << shift);
        Tensor here = some_tensor(f, n, shift), there = here;
        for (const std::uint64_t step : {1ull, 2ull, 1000ull}) {
          const AdamwReport want = here.update(some_step(step)), got = update(there, some_step(step));
          ASSERT_EQ(want.diverged, got.diverged);
          ASSERT_TRUE(here == there) << "step " << step;
          ASSERT_TRUE(there.guards_hold());
        }
      }
}

TEST_F(AdamwTest, ExtremeMagnitudesHaveTheBitsOfTheCpu) {
  for (const Formats& f : all_formats())
    for (const std::uint32_t end : {0x04000000u, 0x20000000u, 0x5e000000u, 0x7f000000u}) {
      SCOPED_TRACE(testing::Message() << f.name() << ", gradients below " << std::hex << end);
      Tensor here = wild_tensor(f, 3000, end), there = here;
      for (const std::uint64_t step : {1ull, 2ull, 3ull}) {
        ASSERT_EQ(here.update(some_step(step, 1)).diverged, update(there, some_step(step, 1)).diverged);
        ASSERT_TRUE(here.same_elements(there) && there.guards_hold()) << "step " << step;
      }
    }
}

/// More than the largest grid of a large device takes at once.
TEST_F(AdamwTest, LongRangesHaveTheBitsOfTheCpu) {
  for (const MomentFormat moments : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8}) {
    const std::int64_t n = moments == MomentFormat::int8 ? 9'000'001 : 5'000'001;
    Tensor here = some_tensor({Dtype::bf16, Dtype::bf16, moments}, n), there = here;
    here.update(some_step(5));
    update(there, some_step(5));
    EXPECT_TRUE(here == there) << moment_format_name(moments);
  }
}

TEST_F(AdamwTest, CutsChangeNoBit) {
  for (const Formats& f : all_formats()) {
    const std::int64_t n = 1100, grain = f.moments == MomentFormat::int8 ? 256 : 1;
    Tensor whole = some_tensor(f, n);
    whole.update(some_step(1));
    for (std::int64_t cut = grain; cut < n; cut += grain == 1 ? 97 : grain) {
      Tensor parts = some_tensor(f, n);
      update(parts, some_step(1), cut, n);
      update(parts, some_step(1), 0, cut);
      ASSERT_TRUE(parts == whole) << f.name() << ", cut at " << cut;
    }
  }
}

/// Two indices far apart in a large tensor: the words of blocks are of 64-bit numbers.
TEST_F(AdamwTest, IndicesBeyond32BitsCount) {
  for (const MomentFormat moments : {MomentFormat::bf16, MomentFormat::int8}) {
    const std::uint64_t origin = (std::uint64_t{1} << 40) - 256;
    Tensor t = some_tensor({Dtype::bf16, Dtype::f32, moments}, 512), there = t;
    Tensor::Memory memory{{}, t.scale_m.data(), t.scale_v.data()};
    for (std::size_t k = 0; k < memory.array.size(); ++k) memory.array[k] = t.all_arrays()[k].data();
    AdamwRange range = t.range(memory, 0, 512);
    range.first_index = origin;
    adamw(some_step(1), range);
    update(there, some_step(1), 0, 512, origin);
    EXPECT_TRUE(t == there) << moment_format_name(moments);
  }
}

TEST_F(AdamwTest, CountsWhatDivergedWhereverItLies) {
  for (const Formats& f : all_formats())
    for (const std::int64_t n : {1, 5, 31, 300})
      for (std::int64_t at = 0; at < n; at += 1 + n / 7)
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
          Tensor here = some_tensor(f, n);
          here.set_gradient(at, bad);
          Tensor there = here;
          ASSERT_EQ(update(there, some_step(1)).diverged, 1u) << f.name() << ", " << n << " elements, at " << at;
          here.update(some_step(1));
          ASSERT_TRUE(here.same_elements(there) && there.guards_hold());
          ASSERT_EQ(here.update(some_step(2)).diverged, update(there, some_step(2)).diverged);
        }
}

TEST_F(AdamwTest, MastersSplitAndJoinAsOnTheCpu) {
  std::vector<float> x;
  for (std::uint32_t i = 0; i < (1u << 17); ++i) x.push_back(std::bit_cast<float>(i * 32771u));
  for (std::uint32_t high = 0; high < 0x10000u; high += 7)
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  for (const std::int64_t n : {std::ssize(x), std::ptrdiff_t{3}, std::ptrdiff_t{66}})
    for (const std::int64_t shift : {0, 1}) {
      x.resize(static_cast<std::size_t>(n));
      std::vector<bf16> p(x.size());
      std::vector<std::int16_t> r(x.size());
      split_master(x.data(), p.data(), r.data(), n);
      DeviceArray<float> master(x, shift), back(n, shift);
      DeviceArray<bf16> parameter(n, shift);
      DeviceArray<std::int16_t> remainder(n);
      cuda::split_master(master.data(), parameter.data(), remainder.data(), n, *stream);
      cuda::join_master(parameter.data(), remainder.data(), back.data(), n, *stream);
      ASSERT_TRUE(same_bytes(p, parameter.read()));
      ASSERT_TRUE(same_bytes(r, remainder.read()));
      join_master(p.data(), r.data(), x.data(), n);
      ASSERT_TRUE(same_bytes(x, back.read()));
    }
}

TEST_F(AdamwTest, SquaredNormsHaveTheBitsOfTheCpu) {
  const auto all = normal<float>(300003, 11);
  for (const std::int64_t n : {0, 1, 31, 32, 33, 4095, 4096, 4097, 50000, 300000}) {
    for (const std::int64_t shift : {0, 3}) {
      const std::vector<float> x(all.begin(), all.begin() + n);
      double want = 0.1;
      add_squared_norm(x.data(), n, &want);
      DeviceArray<float> device(x, shift);
      DeviceArray<double> sum(std::vector<double>{0.1});
      DeviceArray<double> workspace(static_cast<std::int64_t>(cuda::squared_norm_workspace_bytes(n) / sizeof(double)));
      cuda::add_squared_norm(device.data(), n, sum.data(), workspace.data(), *stream);
      workspace.read();
      ASSERT_EQ(sum.read()[0], want) << n;
    }
  }
}

/// More blocks than one turn of the last sum takes, and magnitudes that make the order show.
TEST_F(AdamwTest, SquaredNormsOfManyBlocksToo) {
  std::vector<float> x(static_cast<std::size_t>(2100) * 4096 + 77);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::bit_cast<float>((mix_bits(static_cast<std::uint32_t>(i)) & 0x807fffffu) |
                                (100 + static_cast<std::uint32_t>(i / 4096) % 40) << 23);
  double want = 0;
  add_squared_norm(x.data(), std::ssize(x), &want);
  DeviceArray<float> device(x);
  DeviceArray<double> sum(std::vector<double>{0});
  DeviceArray<double> workspace(
      static_cast<std::int64_t>(cuda::squared_norm_workspace_bytes(std::ssize(x)) / sizeof(double)));
  cuda::add_squared_norm(device.data(), std::ssize(x), sum.data(), workspace.data(), *stream);
  EXPECT_EQ(sum.read()[0], want);
}

}  // namespace
}  // namespace sluice::test
