// ZeRO-3 over in-process ranks trains as one rank does; the order of sums differs, so to rounding.
#include <fstream>

#include "runs.h"

namespace sluice::test {
namespace {

Schedule streamed(bool ahead, std::size_t units) {
  Schedule s;
  s.group = 2;
  s.update_ahead = ahead;
  s.tile_numel = 4096;
  UnitChoice c;
  c.boundary = c.accumulator = Place::host;
  s.units.assign(units, c);
  s.units[1].resident = true;
  s.units[2].parameter_home = s.units[2].state_home = Place::host;
  s.units[3].gradient = Place::nvme;
  return s;
}

TEST(Ranks, TrainAsOneDoes) {
  Bench bench;
  for (bool tied : {false, true}) {
    RunConfig c = bench.config(2, tied, Dtype::f32, 20);
    const auto alone = prepared_with(c, streamed(true, 6));
    ASSERT_TRUE(alone);
    const Outcome one = run(*alone);
    ASSERT_EQ(one.losses.size(), 20u);
    for (int ranks : {2, 4}) {
      c.ranks = ranks;
      std::uint64_t hash = 0;
      for (bool ahead : {true, false}) {
        SCOPED_TRACE(std::to_string(ranks) + (ahead ? " ranks, ahead" : " ranks, backward") + (tied ? ", tied" : ""));
        const auto prepared = prepared_with(c, streamed(ahead, 6));
        ASSERT_TRUE(prepared);
        const Outcome many = run(*prepared);
        ASSERT_EQ(many.losses.size(), one.losses.size());
        for (std::size_t i = 0; i < one.losses.size(); ++i)
          EXPECT_NEAR(many.losses[i], one.losses[i], 1e-6 * one.losses[i]) << "step " << i + 1;
        EXPECT_EQ(many.moved.collective,
                  static_cast<std::uint64_t>(ranks) * (plan_link_bytes(prepared->main()).collective * 20 +
                                                       plan_link_bytes(prepared->stages.front().flush).collective +
                                                       plan_link_bytes(prepared->stages.front().evaluate).collective));
        if (!ahead) {
          EXPECT_EQ(many.state_hash, hash) << "one layout, two schedules";
        }
        hash = many.state_hash;
      }
    }
  }
}

std::uint64_t io_of_process(const std::string& field) {
  std::ifstream in("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (in >> name >> value)
    if (name == field + ":") return value;
  return 0;
}

// What the program counts is what the operating system counts, where the drive is driven past the page cache.
TEST(Counters, AgreeWithTheOperatingSystem) {
  Bench bench;
  RunConfig c = bench.config(2, false, Dtype::bf16, 20);
  c.io_backend = "threads";
  const auto prepared = prepared_with(c, frugal_schedule([&] {
                                        Workload w;
                                        static ModelSpec model = build_model(*load_config(c.model));
                                        w.model = &model;
                                        return w;
                                      }()));
  ASSERT_TRUE(prepared);
  Outcome ignored;
  Recorder recorder(ignored);
  auto trainer = Trainer::create(*prepared, recorder);
  ASSERT_TRUE(trainer.ok()) << trainer.error().message;
  if ((*trainer)->engine().storage().find("O_DIRECT") == std::string::npos)
    GTEST_SKIP() << "no direct I/O here: " << (*trainer)->engine().storage();
  const std::uint64_t read = io_of_process("read_bytes"), written = io_of_process("write_bytes");
  const std::atomic<bool> stop{false};
  ASSERT_TRUE((*trainer)->run(stop).ok());
  const MovedBytes moved = (*trainer)->engine().team().moved();
  // The zeros of a new file, which the first step reads, do not come from the drive; the text and a few pages of
  // metadata come on top.
  std::uint64_t zeros = 0;
  for (const Buffer& b : prepared->main().buffers)
    if (b.tier == Tier::nvme && b.life == Life::persistent && b.state != StateKind::parameter &&
        b.state != StateKind::remainder)
      zeros += b.bytes;
  constexpr std::uint64_t slack = 256 * 1024;
  EXPECT_GE(io_of_process("read_bytes") - read, moved.nvme_read - zeros);
  EXPECT_LE(io_of_process("read_bytes") - read, moved.nvme_read + slack);
  EXPECT_GE(io_of_process("write_bytes") - written, moved.nvme_write);
  EXPECT_LE(io_of_process("write_bytes") - written, moved.nvme_write + slack);
}

}  // namespace
}  // namespace sluice::test
