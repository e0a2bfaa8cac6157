// A checkpoint of any layout and tiers begins a run in any other: states to the bit, and steps behind it to the bit
// where lots, parts of sublayers, slices and micro-batches stay.
#include "cut_runs.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/diff_checkpoints.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

constexpr std::int64_t saved_step = 2;

class Restores : public CutRuns {
 protected:
  struct Layout {
    const char* name;
    int stages = 1, data = 1, tensor = 1, context = 1, shard_group = 0;
    std::vector<UnitId> cut;
    int group = 2;
    Places places;
    bool durable = false;
    PipelineChoice pipeline = {};
  };
  static std::vector<Layout> layouts() {
    const Places host{Place::host}, resident{Place::host, Place::device, Place::device, true};
    std::vector<Layout> all;
    all.push_back({.name = "drive", .cut = {}, .places = {}});
    all.push_back({.name = "host", .cut = {}, .group = 8, .places = host});
    all.push_back({.name = "device", .cut = {}, .group = 4, .places = resident});
    all.push_back({.name = "durable", .cut = {}, .places = {}, .durable = true});
    all.push_back({.name = "dp 2", .data = 2, .cut = {}, .places = {}});
    all.push_back({.name = "dp 4 durable", .data = 4, .cut = {}, .group = 1, .places = {}, .durable = true});
    all.push_back({.name = "dp 4 in groups of 2", .data = 4, .shard_group = 2, .cut = {}, .group = 1, .places = host});
    all.push_back({.name = "pp 2", .stages = 2, .cut = {3}, .places = {}});
    all.push_back(
        {.name = "pp 2 dp 2", .stages = 2, .data = 2, .cut = {1, 3, 5}, .places = host, .pipeline = interleaved});
    all.push_back({.name = "tp 2", .tensor = 2, .cut = {}, .places = resident});
    all.push_back(
        {.name = "tp 2 pp 2 dp 2", .stages = 2, .data = 2, .tensor = 2, .cut = {4}, .places = {}, .durable = true});
    all.push_back({.name = "cp 2", .context = 2, .cut = {}, .places = host});
    return all;
  }
  RunConfig config(const Layout& l, Dtype dtype) const {
    RunConfig c = Resume::config(l.durable);
    c.model = bench_.model(2, true);
    c.dtype = dtype;
    c.steps = 2 * saved_step;
    c.batch = 8;
    c.lots = 4;
    c.hash_every = 0;
    c.stages = l.stages;
    c.tensor = l.tensor;
    c.context = l.context;
    c.shard_group = l.shard_group;
    c.ranks = l.stages * l.data * l.tensor * l.context;
    c.pipeline = l.pipeline;
    return c;
  }
  Schedule schedule_of(const Layout& l, const RunConfig& c) const { return schedule(c, l.cut, l.group, l.places); }

  /// What a run of the layout has saved behind step 2, and how the run ended.
  std::pair<std::string, Finished> saved(const Layout& l, Dtype dtype) {
    RunConfig c = config(l, dtype);
    c.save_every = saved_step;
    const std::string path = fresh_directory();
    const Finished f = finished(path, attempt(c, path, schedule_of(l, c)));
    return {path + "/checkpoints/" + checkpoint_name(saved_step), f};
  }
  Attempt restored(const Layout& l, Dtype dtype, const std::string& from, const std::string& path,
                   std::int64_t stop_after = 0) const {
    RunConfig c = config(l, dtype);
    c.restore = from;
    return attempt(c, path, schedule_of(l, c), stop_after);
  }
  /// States, step, position and settings are those that were saved.
  void expect_as_saved(const std::string& from, const std::string& run) {
    auto directory = RunDirectory::open(run);
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    const RestoreListener silent{[](const std::string&) {},
                                 [](const std::string&) { return [](double) { return success(); }; }};
    const auto path = save_stopped(*directory, run + "/again", silent);
    ASSERT_TRUE(path.ok()) << path.error().message;
    auto before = Checkpoint::open(from), after = Checkpoint::open(*path);
    ASSERT_TRUE(before.ok() && after.ok());
    const auto diff = diff_checkpoints(*before, *after, {}, [](double) { return success(); });
    ASSERT_TRUE(diff.ok()) << diff.error().message;
    EXPECT_TRUE(diff->same()) << (diff->differences.empty() ? "" : diff->differences.front().tensor);
    EXPECT_EQ(after->manifest().step, before->manifest().step);
    const auto then = saved_run_from_json(before->manifest().run), now = saved_run_from_json(after->manifest().run);
    ASSERT_TRUE(then.ok() && now.ok());
    EXPECT_EQ(now->run.config.data, then->run.config.data);
    EXPECT_EQ(now->run.config.seed, then->run.config.seed);
  }
  static bool have_one_sum(const Layout& a, const Layout& b) { return a.tensor == b.tensor && a.context == b.context; }
};

/// 144 pairs, or 48 of them: each layout begins four others, and is begun from four.
TEST_F(Restores, OfAnyLayoutInAnyOther) {
  const std::vector<Layout> all = layouts();
  ASSERT_EQ(all.size(), 12u);
  std::vector<std::string> checkpoints;
  std::vector<Finished> ends;
  for (const Layout& l : all) {
    SCOPED_TRACE(l.name);
    auto [checkpoint, end] = saved(l, Dtype::bf16);
    checkpoints.push_back(checkpoint);
    ends.push_back(end);
  }
  for (std::size_t from = 0; from < all.size(); ++from)
    for (std::size_t to = 0; to < all.size(); ++to) {
      constexpr std::array drawn{0u, 1u, 5u, 9u};
      if (!is_exhaustive() && std::find(drawn.begin(), drawn.end(), (from + to) % 12) == drawn.end()) continue;
      SCOPED_TRACE(std::string(all[from].name) + " -> " + all[to].name);
      const std::string path = fresh_directory();
      const Attempt stopped = restored(all[to], Dtype::bf16, checkpoints[from], path, Stopper::when_filled);
      ASSERT_FALSE(stopped.error) << stopped.error->message;
      expect_as_saved(checkpoints[from], path);
      // And goes on.
      const Finished end = finished(path, restored(all[to], Dtype::bf16, checkpoints[from], path));
      ASSERT_EQ(end.lines.size(), static_cast<std::size_t>(saved_step));
      if (have_one_sum(all[from], all[to])) {
        EXPECT_EQ(end.state_hash, ends[from].state_hash);
      }
      std::filesystem::remove_all(path);
    }
}

/// Where sums have another order, by so much.
TEST_F(Restores, LearnTheSameInFp32) {
  const std::vector<Layout> all = layouts();
  for (const std::size_t from : {0u, 9u, 11u}) {
    const auto [checkpoint, end] = saved(all[from], Dtype::f32);
    for (const std::size_t to : {0u, 8u, 9u, 10u, 11u}) {
      SCOPED_TRACE(std::string(all[from].name) + " -> " + all[to].name);
      const std::string path = fresh_directory();
      Finished got = finished(path, restored(all[to], Dtype::f32, checkpoint, path));
      Finished expected = end;
      expected.lines.erase(expected.lines.begin(), expected.lines.begin() + saved_step);
      expect_close(got, expected, 1e-5);
    }
  }
}

}  // namespace
}  // namespace sluice::test
