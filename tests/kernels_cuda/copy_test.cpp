#include "kernels/cuda/copy.h"

#include "device.h"
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/elementwise.h"

namespace sluice::test {
namespace {

class CopyTest : public DeviceTest {
 protected:
  static std::vector<std::uint8_t> some_bytes(std::int64_t n, std::uint64_t seed) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(philox(seed, i, 0)[0]);
    return out;
  }
};

TEST_F(CopyTest, FillsEveryLength) {
  for (const std::int64_t n : lengths())
    for (const std::int64_t shift : {0, 1}) {
      DeviceArray<float> x(n, shift);
      cuda::fill_f32(x.data(), 1.25f, n, *stream);
      for (const float v : x.read()) ASSERT_EQ(v, 1.25f);
    }
}

TEST_F(CopyTest, RowsOfEveryWidthAndStride) {
  for (const std::int64_t unit : {1, 2, 4, 16})
    for (const std::int64_t width : {0, 1, 5, 64, 1027})
      for (const std::int64_t gap : {0, 3})
        for (const std::int64_t shift : {0, 1}) {
          const std::int64_t rows = 21, bytes = width * unit, from = bytes + gap * unit, to = bytes + 2 * gap * unit;
          const auto src = some_bytes(rows * from, 1), old = some_bytes(rows * to, 2);
          DeviceArray<std::uint8_t> x(src, shift * unit), y(old, unit);
          cuda::copy_rows(x.data(), from, y.data(), to, bytes, rows, *stream);
          const auto got = y.read();
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < to; ++i)
              ASSERT_EQ(got[r * to + i], i < bytes ? src[r * from + i] : old[r * to + i])
                  << width << " x " << unit << " bytes, row " << r << ", byte " << i;
        }
}

TEST_F(CopyTest, PiecesOfManySizes) {
  const auto src = some_bytes(200000, 3), old = some_bytes(200000, 4);
  DeviceArray<std::uint8_t> x(src), y(old);
  auto want = old;
  std::vector<cuda::CopyPiece> pieces;
  std::int64_t at = 0, largest = 0;
  for (const std::int64_t bytes : {0, 1, 16, 20, 4096, 33333, 100000, 7, 64}) {
    const std::int64_t from = 150000 - at - bytes > 0 ? 150000 - at - bytes : 0;
    pieces.push_back({x.data() + from, y.data() + at, bytes});
    std::copy_n(src.begin() + from, bytes, want.begin() + at);
    at += bytes + 32;
    largest = std::max(largest, bytes);
  }
  DeviceArray<cuda::CopyPiece> table(pieces);
  cuda::copy_pieces(table.data(), std::ssize(pieces), largest, *stream);
  EXPECT_TRUE(same_bytes(want, y.read()));
}

TEST_F(CopyTest, MoreThan2To31Elements) {
  const std::int64_t middle = std::int64_t{1} << 31, n = middle + 77;
  std::size_t unused = 0, total = 0;
  expect_success(cudaMemGetInfo(&unused, &total), "cudaMemGetInfo");
  if (unused < (std::size_t{14} << 30)) GTEST_SKIP() << "needs 14 GiB of device memory";
  void *wide_memory = nullptr, *half_memory = nullptr;
  expect_success(cudaMalloc(&wide_memory, static_cast<std::size_t>(n) * sizeof(float)), "cudaMalloc");
  expect_success(cudaMalloc(&half_memory, static_cast<std::size_t>(n) * sizeof(bf16)), "cudaMalloc");
  auto* x = static_cast<float*>(wide_memory);
  auto* half = static_cast<bf16*>(half_memory);
  DeviceArray<double> sum(std::vector<double>{0});
  DeviceArray<double> workspace(static_cast<std::int64_t>(cuda::squared_norm_workspace_bytes(n) / sizeof(double)));
  cuda::fill_f32(x, 3, n, *stream);
  cuda::narrow(x, half, n, *stream);
  cuda::fill_f32(x, 7, n, *stream);
  cuda::widen(half, x, n, *stream);
  cuda::add_squared_norm(x, n, sum.data(), workspace.data(), *stream);
  EXPECT_EQ(sum.read()[0], 9 * static_cast<double>(n));
  for (const std::int64_t at : {std::int64_t{0}, middle - 50, n - 100}) {
    std::vector<float> part(100);
    expect_success(cudaMemcpy(part.data(), x + at, 100 * sizeof(float), cudaMemcpyDeviceToHost), "download");
    for (const float v : part) ASSERT_EQ(v, 3) << "from " << at;
  }
  static_cast<void>(cudaFree(wide_memory));
  static_cast<void>(cudaFree(half_memory));
}

/// No device has 65536 blocks in that direction.
TEST_F(CopyTest, ALaunchThatFailsIsNamedAndStopsTheRest) {
  cuda::Stream failing(nullptr);
  DeviceArray<std::int32_t> tokens(std::vector<std::int32_t>{0});
  DeviceArray<float> rows(1), x(std::vector<float>{1, 2, 3});
  cuda::embed_backward<float>(tokens.data(), 1, 1, rows.data(), std::int64_t{70} << 20, rows.data(), nullptr, nullptr,
                              failing);
  ASSERT_FALSE(failing.status().ok());
  const std::string message = failing.status().error().message;
  EXPECT_NE(message.find("embed_backward (tokens)"), std::string::npos) << message;
  EXPECT_NE(message.find("was not launched"), std::string::npos) << message;
  cuda::fill_f32(x.data(), 7, 3, failing);
  EXPECT_FALSE(failing.synchronize().ok());
  EXPECT_TRUE(same_bytes(x.read(), std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace sluice::test
