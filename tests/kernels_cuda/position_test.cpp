// Rotary embedding and the embedding of tokens and positions.
#include "device.h"
#include "kernels/cuda/elementwise.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::test {
namespace {

template <class T>
class RopeTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(RopeTest, Storage);
template <class T>
class EmbeddingTest : public TypedDeviceTest<T> {};
TYPED_TEST_SUITE(EmbeddingTest, Storage);

std::vector<std::int32_t> some_words(std::int64_t count, std::uint32_t words, std::uint64_t seed) {
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < count; ++t)
    out.push_back(static_cast<std::int32_t>(philox(seed, static_cast<std::uint64_t>(t), 0)[0] % words));
  return out;
}

TYPED_TEST(RopeTest, TurnsAndTurnsBack) {
  using T = TypeParam;
  const std::int64_t tokens = 38, sequence = 19, heads = 3, position0 = 4;
  for (const std::int64_t head_dim : {2, 6, 64, 128})
    for (const std::int64_t gap : {0, 5})
      for (const bool packed : {false, true}) {
        const std::int64_t half = head_dim / 2, stride = heads * head_dim + gap;
        std::vector<float> cos, sin;
        for (std::int64_t p = 0; p < sequence + position0; ++p)
          for (std::int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(p) / std::pow(1e4, static_cast<double>(i) / static_cast<double>(half));
            cos.push_back(static_cast<float>(std::cos(angle)));
            sin.push_back(static_cast<float>(std::sin(angle)));
          }
        const auto places = some_words(tokens, static_cast<std::uint32_t>(sequence + position0), 5);
        const auto x = normal<T>(tokens * stride, 1);
        DeviceArray<float> co(cos), si(sin);
        DeviceArray<std::int32_t> positions(places);
        for (const bool inverse : {false, true}) {
          DeviceArray<T> y(x);
          cuda::rope(y.data(), stride, tokens, sequence, position0, heads, head_dim, co.data(), si.data(), inverse,
                     packed ? positions.data() : nullptr, *this->stream);
          const auto got = y.read();
          for (std::int64_t t = 0; t < tokens; ++t) {
            const std::int64_t p = packed ? places[static_cast<std::size_t>(t)] : position0 + t % sequence;
            for (std::int64_t c = 0; c < heads * head_dim; ++c) {
              const std::int64_t i = c % half, head = t * stride + c / head_dim * head_dim;
              const double a = value(x[head + i]), b = value(x[head + half + i]);
              const double turn_cos = cos[p * half + i], turn_sin = (inverse ? -1.0 : 1.0) * sin[p * half + i];
              const double want = c % head_dim < half ? a * turn_cos - b * turn_sin : b * turn_cos + a * turn_sin;
              expect_near(want, got[t * stride + c], 3e-7, 3e-7, "rope", c);
            }
            for (std::int64_t c = heads * head_dim; c < stride; ++c)
              ASSERT_EQ(value(x[t * stride + c]), value(got[t * stride + c])) << "touched the gap between tokens";
          }
        }
      }
}

TEST_F(DeviceTest, MakesRowsOfCosinesAndSines) {
  const std::int64_t rows = 45, sequence = 15, position0 = 70'000, words = 9'000'000;
  const auto places = some_words(rows, words, 5);
  DeviceArray<std::int32_t> positions(places);
  for (const std::int64_t half : {1, 3, 32, 64}) {
    std::vector<float> frequencies;
    for (std::int64_t i = 0; i < half; ++i)
      frequencies.push_back(static_cast<float>(std::pow(5e5, -static_cast<double>(i) / static_cast<double>(half))));
    DeviceArray<float> of(frequencies);
    for (const bool packed : {false, true}) {
      DeviceArray<float> cos(rows * half), sin(rows * half);
      cuda::rope_rows(of.data(), half, 1.25, sequence, position0, rows, cos.data(), sin.data(),
                      packed ? positions.data() : nullptr, *stream);
      const auto got_cos = cos.read(), got_sin = sin.read();
      for (std::int64_t t = 0; t < rows; ++t) {
        const std::int64_t p = packed ? places[static_cast<std::size_t>(t)] : position0 + t % sequence;
        for (std::int64_t i = 0; i < half; ++i) {
          const auto angle = static_cast<double>(static_cast<float>(p) * frequencies[static_cast<std::size_t>(i)]);
          const auto at = static_cast<std::size_t>(t * half + i);
          expect_near(1.25 * std::cos(angle), got_cos[at], 1e-7, 1e-7, "cos", i);
          expect_near(1.25 * std::sin(angle), got_sin[at], 1e-7, 1e-7, "sin", i);
        }
      }
    }
  }
}

TYPED_TEST(EmbeddingTest, Gathers) {
  using T = TypeParam;
  const std::int64_t words = 11, count = 75, sequence = 25, position0 = 3, places = sequence + position0;
  auto tokens = some_words(count, words, 7);
  tokens[3] = tokens[40] = -1;
  const auto where = some_words(count, static_cast<std::uint32_t>(places), 8);
  DeviceArray<std::int32_t> ids(tokens), token_positions(where);
  for (const std::int64_t width : {1, 7, 64, 130, 700}) {
    const auto table = normal<T>(words * width, 1), positions = normal<T>(places * width, 2);
    DeviceArray<T> rows(table), place_rows(positions), out(count * width);
    for (const int kind : {0, 1, 2}) {  // without positions, with those of sequences, with those of documents
      cuda::embed_forward(ids.data(), count, sequence, position0, rows.data(), kind == 0 ? nullptr : place_rows.data(),
                          width, out.data(), kind == 2 ? token_positions.data() : nullptr, *this->stream);
      const auto got = out.read();
      for (std::int64_t t = 0; t < count; ++t) {
        const auto at = static_cast<std::size_t>(t);
        const std::int64_t p = kind == 2 ? where[at] : position0 + t % sequence;
        for (std::int64_t c = 0; c < width; ++c) {
          const double word = tokens[at] < 0 ? 0 : value(table[tokens[at] * width + c]);
          const double place = kind == 0 ? 0 : value(positions[p * width + c]);
          expect_near(word + place, got[t * width + c], 0, 1e-30, "embed", c);
        }
      }
    }
  }
}

/// The order is part of the contract, so that equality is exact. Words appear from never to in most places, over more
/// tokens than one look takes.
TYPED_TEST(EmbeddingTest, ScattersInTokenOrder) {
  using T = TypeParam;
  for (const std::int64_t count : {1, 75, 1025, 2500})
    for (const std::int64_t width : {1, 7, 64, 1100}) {
      if (count > 1025 && width > 64) continue;
      const std::int64_t words = 1200, sequence = 25, places = 40;
      auto tokens = some_words(count, static_cast<std::uint32_t>(words), 7);
      for (std::size_t t = 0; t < tokens.size(); ++t)
        if (tokens[t] % 3 == 0) tokens[t] = t % 7 == 0 ? -1 : 5;
      const auto where = some_words(count, static_cast<std::uint32_t>(places), 9);
      const auto d_out = normal<T>(count * width, 3);
      const auto table = normal<float>(words * width, 4), positions = normal<float>(places * width, 5);
      DeviceArray<std::int32_t> ids(tokens), token_positions(where);
      DeviceArray<T> gradient(d_out);
      for (const int kind : {0, 1, 2}) {
        auto want_table = table, want_positions = positions;
        for (std::int64_t t = 0; t < count; ++t) {
          const auto at = static_cast<std::size_t>(t);
          const std::int64_t p = kind == 2 ? where[at] : t % sequence;
          for (std::int64_t c = 0; c < width; ++c) {
            const auto d = static_cast<float>(value(d_out[t * width + c]));
            if (tokens[at] >= 0) want_table[tokens[at] * width + c] += d;
            if (kind > 0) want_positions[p * width + c] += d;
          }
        }
        DeviceArray<float> d_table(table), d_positions(positions);
        cuda::embed_backward(ids.data(), count, sequence, gradient.data(), width, d_table.data(),
                             kind == 0 ? nullptr : d_positions.data(), kind == 2 ? token_positions.data() : nullptr,
                             *this->stream);
        ASSERT_TRUE(same_bytes(want_table, d_table.read())) << count << " x " << width;
        ASSERT_TRUE(same_bytes(want_positions, d_positions.read())) << count << " x " << width << ", kind " << kind;
      }
    }
}

}  // namespace
}  // namespace sluice::test
