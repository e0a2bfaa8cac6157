// Gradients that are rounded to bf16 have the same bits wherever they wait, or do not: tiers, tiles, ranks and groups,
// updates ahead of the forward pass and in the backward pass, on the CPU and on the device.
#include "resume.h"

namespace sluice::test {
namespace {

struct Way {
  const char* name;
  int ranks, group;
  bool ahead;
  Place home, gradient;
  std::uint64_t tile_numel = 1 << 13;
  bool resident = false, update_on_device = false;
  int shard_group = 0;
  Reduction reduction = Reduction::last;
};
const Way ways[] = {
    {"nvme", 1, 2, true, Place::nvme, Place::nvme},
    {"host", 1, 8, true, Place::host, Place::host, 1 << 20},
    {"host over nvme", 1, 3, true, Place::nvme, Place::host, 1 << 12},
    {"nvme under host", 1, 1, true, Place::host, Place::nvme, 1 << 14, true},
    {"in the backward pass", 1, 8, false, Place::nvme, Place::nvme},
    {"in the backward pass, resident", 1, 2, false, Place::host, Place::host, 1 << 12, true},
    {"on the device", 1, 4, true, Place::nvme, Place::nvme, 1 << 13, false, true},
    {"waiting on the device", 1, 2, true, Place::nvme, Place::device},
    {"waiting on the device, group by group, for the device", 1, 1, true, Place::nvme, Place::device, 1 << 12, false,
     true},
    {"waiting on the device, resident", 1, 8, true, Place::host, Place::device, 1 << 14, true},
    {"on the device, resident", 1, 4, true, Place::host, Place::host, 1 << 12, true, true},
    {"on the device, in the backward pass", 1, 4, false, Place::nvme, Place::nvme, 1 << 12, false, true},
    {"on the device, in the backward pass, resident", 1, 4, false, Place::host, Place::nvme, 1 << 14, true, true},
    {"two ranks", 2, 2, true, Place::nvme, Place::nvme},
    {"two ranks, in the backward pass", 2, 4, false, Place::host, Place::host, 1 << 12},
    {"four ranks", 4, 2, true, Place::nvme, Place::host, 1 << 12},
    {"two ranks, waiting on the device", 2, 2, true, Place::nvme, Place::device, 1 << 12},
    {"four ranks, on the device, in the backward pass", 4, 1, false, Place::nvme, Place::nvme, 1 << 13, false, true},
    {"four ranks with replicas", 4, 2, true, Place::nvme, Place::nvme, 1 << 13, false, false, 2},
    {"four replicas", 4, 2, false, Place::host, Place::host, 1 << 13, false, false, 1},
    {"two ranks, added up behind every lot", 2, 2, true, Place::nvme, Place::nvme, 1 << 13, false, false, 0,
     Reduction::pass},
    {"two ranks, added up behind every lot, waiting on the device", 2, 1, true, Place::host, Place::device, 1 << 13,
     false, true, 0, Reduction::pass},
};

class Gradients : public Resume {
 protected:
  Finished trained(const Way& way, Dtype dtype, MomentFormat moments, Dtype gradients, double clip) {
    RunConfig c = config(false);
    c.batch = 8;
    c.lots = 4;
    c.ranks = way.ranks;
    c.shard_group = way.shard_group;
    c.reduction = way.reduction;
    c.dtype = dtype;
    c.moments = moments;
    c.gradient_dtype = gradients;
    c.optimizer.clip_norm = clip;
    Schedule s = schedule(way.ahead, way.home);
    s.group = way.group;
    s.tile_numel = way.tile_numel;
    for (UnitChoice& unit : s.units) {
      unit.gradient = way.gradient;
      unit.resident = way.resident;
      unit.update_on_device = way.update_on_device;
    }
    const std::string path = fresh_directory();
    return finished(path, attempt(c, path, s));
  }
};

TEST_F(Gradients, InBf16HaveTheSameBitsOnEveryWay) {
  for (const auto& [dtype, moments] : {std::pair(Dtype::bf16, MomentFormat::int8), {Dtype::f32, MomentFormat::f32}}) {
    SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + moment_format_name(moments));
    const Finished expected = trained(ways[0], dtype, moments, Dtype::bf16, 0);
    ASSERT_EQ(expected.lines.size(), static_cast<std::size_t>(all_steps));
    for (const Way& way : ways) {
      SCOPED_TRACE(way.name);
      expect_same(trained(way, dtype, moments, Dtype::bf16, 0), expected);
    }
  }
}

TEST_F(Gradients, InBf16AreClippedByTheNormOfThoseInFp32) {
  const auto clipped = [&](const Way& way, Dtype gradients) {
    return trained(way, Dtype::bf16, MomentFormat::f32, gradients, 0.7);
  };
  const Finished rounded = clipped(ways[0], Dtype::bf16), exact = clipped(ways[0], Dtype::f32);
  for (const Way& way : ways)
    if (way.ahead) {
      SCOPED_TRACE(way.name);
      expect_same(clipped(way, Dtype::bf16), rounded);
    }
  EXPECT_EQ(rounded.lines[0]["grad_norm"], exact.lines[0]["grad_norm"]) << "before any update";
  EXPECT_NE(rounded.state_hash, exact.state_hash);
  for (std::size_t i = 0; i < exact.lines.size(); ++i) {
    const double want = exact.lines[i]["loss"], got = rounded.lines[i]["loss"];
    EXPECT_NEAR(got, want, 0.01 * want) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace sluice::test
