// What of an activation is parked in codes, and what as it is.
#include "src/schedule/parked.h"

#include <gtest/gtest.h>

#include "random_schedule.h"
#include "src/model/workspaces.h"
#include "src/schedule/chain_costs.h"

namespace sluice::test {
namespace {

/// Every byte of it travels once, in codes or as it is.
void expect_whole(const ParkedLayout& layout, const Workload& w) {
  std::vector<SavedPiece> pieces = layout.exact;
  std::uint64_t packed = 0, bytes = 0;
  for (const ParkedLayout::Values& v : layout.values) {
    pieces.push_back(v.of);
    EXPECT_EQ(v.of.bytes, static_cast<std::uint64_t>(v.numel) * dtype_bytes(w.dtype));
    EXPECT_EQ(v.packed.at, packed);
    EXPECT_EQ(v.packed.bytes, quantized_bytes(v.numel, parked_blocks(w.activation_dtype)));
    EXPECT_EQ(v.packed.at % sizeof(float), 0u) << "scales are floats";
    packed += v.packed.bytes;
  }
  std::ranges::sort(pieces, {}, &SavedPiece::at);
  std::uint64_t at = 0;
  for (const SavedPiece& piece : pieces) {
    EXPECT_EQ(piece.at, at);
    EXPECT_GT(piece.bytes, 0u);
    at += piece.bytes;
  }
  EXPECT_EQ(at, layout.whole_bytes);
  for (const SavedPiece& piece : layout.exact) bytes += piece.bytes;
  EXPECT_EQ(layout.packed_bytes, packed);
  EXPECT_EQ(layout.bytes, packed + bytes);
}

std::uint64_t exact_bytes(const ParkedLayout& layout) { return layout.bytes - layout.packed_bytes; }

/// Statistics stay fp32. Of 30 tokens not every piece ends where the next one begins.
TEST(Parked, ValuesAreCodesAndTheRestIsAsItIs) {
  for (const Family family : {Family::llama, Family::gpt2})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
      for (const BatchShape shape : {BatchShape{1, 30}, BatchShape{2, 32}, BatchShape{1, 16, 2},
                                     BatchShape{2, 16, 2, true}, BatchShape{2, 8, 1, false, 4}})
        for (const bool norms : {false, true}) {
          SCOPED_TRACE(std::to_string(static_cast<int>(family)) + " " + dtype_name(dtype) + " " +
                       std::to_string(shape.batch) + " x " + std::to_string(shape.sequence) + " of " +
                       std::to_string(shape.context) + (shape.ring ? " ring" : "") +
                       (shape.slices > 1 ? " slices" : "") + (norms ? " norms of heads" : ""));
          ModelConfig config = tiny_config(family, false);
          config.qk_norm = norms && family == Family::llama;
          const ModelSpec model = build_model(config);
          Workload w;
          w.model = &model;
          w.shape = shape;
          w.dtype = dtype;
          w.activation_dtype = ActivationDtype::int8;
          const auto cost = [&](std::size_t unit) {
            return sublayer_cost(model, model.units[unit], w.shape, w.dtype, *w.kernels);
          };
          const SublayerCost attention = cost(1), mlp = cost(2);
          const ParkedLayout all = parked_saved(w, attention, SavedPart::all),
                             of_mlp = parked_saved(w, mlp, SavedPart::all),
                             rest = parked_saved(w, attention, SavedPart::rest),
                             core = parked_saved(w, attention, SavedPart::core), input = parked_input(w, mlp);
          for (const ParkedLayout& layout : {all, rest, of_mlp, input}) expect_whole(layout, w);
          const bool is_whole = shape.context == 1 && shape.slices == 1;
          if (is_whole) expect_whole(core, w);
          const Dims d(model, shape, dtype, *w.kernels);
          const std::uint64_t padding = 64 * 6;
          const std::uint64_t statistics =
              is_whole ? 4 * static_cast<std::uint64_t>(d.tokens * d.heads) : ContextSaved(d).lse.bytes;
          EXPECT_GE(exact_bytes(all), statistics);
          EXPECT_LT(exact_bytes(all), statistics + padding);
          EXPECT_LT(exact_bytes(of_mlp), 64u);
          EXPECT_EQ(exact_bytes(input), 0u);
          EXPECT_EQ(rest.whole_bytes + (is_whole ? core.whole_bytes : 0), all.whole_bytes);
          if (is_whole) {
            EXPECT_EQ(rest.bytes + core.bytes, all.bytes);
          }
        }
}

TEST(Parked, ExactOnesAreOnePiece) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false));
  Workload w;
  w.model = &model;
  w.shape = {1, 30};
  const SublayerCost cost = sublayer_cost(model, model.units[1], w.shape, w.dtype, *w.kernels);
  const ParkedLayout all = parked_saved(w, cost, SavedPart::all);
  EXPECT_TRUE(all.values.empty());
  ASSERT_EQ(all.exact.size(), 1u);
  EXPECT_EQ(all.bytes, cost.saved_bytes);
  EXPECT_EQ(parked_input(w, cost).bytes, cost.boundary_bytes);
}

/// As the search sees it: a link's seconds are those of the bytes, and compute has the packing.
TEST(Parked, CodesTakeTheLinkForHalfAsLongAndSomeCompute) {
  const ModelSpec model = build_model(tiny_config(Family::llama, false));
  Workload w;
  w.model = &model;
  w.shape = {1, 64};
  Schedule s = frugal_schedule(w);
  s.group = 1;
  const auto parking = [&](ActivationDtype dtype) {
    w.activation_dtype = dtype;
    return chains_of(w, s, HardwareProfile()).front().chain[2].parking.front();
  };
  const ParkingUse exact = parking(ActivationDtype::exact), packed = parking(ActivationDtype::fp8);
  const auto up = static_cast<std::size_t>(Resource::link_up), down = static_cast<std::size_t>(Resource::link_down),
             compute = static_cast<std::size_t>(Resource::compute);
  EXPECT_NEAR(packed.away[up] / exact.away[up], (1 + 4.0 / 128) / 2, 1e-3);
  EXPECT_NEAR(packed.back[down] / exact.back[down], (1 + 4.0 / 128) / 2, 1e-3);
  EXPECT_EQ(exact.away[compute] + exact.back[compute], 0);
  EXPECT_GT(packed.away[compute], 0);
  EXPECT_GT(packed.back[compute], 0);
}

}  // namespace
}  // namespace sluice::test
