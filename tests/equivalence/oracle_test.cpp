// Models that are cut over ranks in every way, against PyTorch and transformers in double precision: every gradient of
// the first step, and the losses of 20 steps (tests/fixtures/make_oracles.py).
#include <cmath>
#include <map>

#include "io/weights/safetensors.h"
#include "tests/equivalence/runs.h"

namespace sluice::test {
namespace {

struct Cut {
  const char* name;
  int stages, data, context, tensor;
  ContextAttention attention = ContextAttention::ulysses;
  bool trains = false;  ///< for 20 steps too
};
constexpr auto ulysses = ContextAttention::ulysses, ring = ContextAttention::ring;
constexpr std::array cuts{Cut{"dp2", 1, 2, 1, 1},
                          Cut{"pp2", 2, 1, 1, 1},
                          Cut{"tp2", 1, 1, 1, 2},
                          Cut{"tp4", 1, 1, 1, 4, ulysses, true},
                          Cut{"cp2", 1, 1, 2, 1},
                          Cut{"cp4", 1, 1, 4, 1},
                          Cut{"ring2", 1, 1, 2, 1, ring},
                          Cut{"ring4", 1, 1, 4, 1, ring, true},
                          Cut{"cp2tp2", 1, 1, 2, 2, ulysses, true},
                          Cut{"ring2tp2", 1, 1, 2, 2, ring},
                          Cut{"pp2dp2tp2", 2, 2, 1, 2, ulysses, true},
                          Cut{"pp2ring2tp2", 2, 1, 2, 2, ring, true}};

using Doubles = std::vector<double>;

class Oracle : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string fixtures = SLUICE_FIXTURES;
    folder_ = fixtures + "/golden/" + GetParam();
    auto oracle = SafeTensors::open(fixtures + "/oracle/" + GetParam() + ".safetensors");
    ASSERT_TRUE(oracle.ok()) << oracle.error().message;
    oracle_ = std::move(oracle).value();
    auto writer = TokenWriter::create(bench_.path("tokens"), 128);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(read<std::int32_t>("tokens")).ok() && writer->finish().ok());
  }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const TensorEntry* entry = oracle_.find(name);
    EXPECT_NE(entry, nullptr) << name;
    if (entry == nullptr) return {};
    std::vector<T> data(entry->numel);
    EXPECT_EQ(entry->bytes, data.size() * sizeof(T)) << name;
    EXPECT_TRUE(oracle_.read(*entry, 0, std::as_writable_bytes(std::span(data))).ok());
    return data;
  }

  /// Every step's batch is all windows of the file.
  std::unique_ptr<Prepared> prepared(const Cut& cut, std::int64_t steps) const {
    RunConfig c = bench_.config(1, false, Dtype::f32, steps);
    c.model = c.init = folder_;
    c.data = bench_.path("tokens");
    c.eval_split = 0.0;
    c.batch = 8;
    c.micro_batch = 2;
    c.lots = 2;
    c.optimizer.lr = c.optimizer.lr_end = 1e-3;
    c.optimizer.schedule = LrSchedule::constant;
    c.optimizer.warmup_steps = 0;
    c.stages = cut.stages;
    c.context = cut.context;
    c.context_attention = cut.attention;
    c.tensor = cut.tensor;
    c.ranks = cut.stages * cut.data * cut.context * cut.tensor;
    Schedule s;
    s.group = 2;
    s.tile_numel = 1 << 13;
    s.units.assign(6, UnitChoice{});
    if (cut.stages > 1) s.cut = {3};
    return prepared_with(c, s);
  }

  /// The mean over the first step, of all tensors as the fixture names them: exp_avg is a tenth of it.
  std::map<std::string, Doubles> gradients(const Cut& cut) const {
    std::map<std::string, Doubles> found;
    const auto run = prepared(cut, 1);
    if (!run) return found;
    Outcome out;
    Recorder recorder(out);
    auto trainer = Trainer::create(*run, recorder);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message;
    if (!trainer.ok()) return found;
    const std::atomic<bool> stop{false};
    const auto result = (*trainer)->run(stop);
    EXPECT_TRUE(result.ok()) << result.error().message;
    const ShardMap map = run->workload.shard_map();
    std::vector<std::vector<float>> flat;
    for (UnitId u = 0; u < static_cast<UnitId>(run->model.units.size()); ++u)
      flat.emplace_back(map.parts() * map.full_numel(u));
    const auto visited = (*trainer)->engine().states().visit_states(
        std::array{StateKind::exp_avg}, [&](UnitId u, std::uint64_t first, std::span<const std::byte> data) {
          std::memcpy(flat[static_cast<std::size_t>(u)].data() + first, data.data(), data.size());
          return success();
        });
    EXPECT_TRUE(visited.ok()) << visited.error().message;
    for (std::size_t u = 0; u < flat.size(); ++u) take(*run, map, u, flat[u], found);
    return found;
  }
  static void take(const Prepared& run, const ShardMap& map, std::size_t u, const std::vector<float>& flat,
                   std::map<std::string, Doubles>& found) {
    const auto unit = static_cast<UnitId>(u);
    const std::vector<TensorSpec>& tensors = run.model.units[u].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const StoredPlace& stored = tensors[i].stored;
      Doubles& whole = found[stored.name];
      std::uint64_t numel = 1;
      for (const std::int64_t extent : stored.shape) numel *= static_cast<std::uint64_t>(extent);
      whole.resize(numel);
      const auto copy = [&](std::uint64_t from, std::uint64_t to, std::uint64_t count) {
        for (std::uint64_t k = 0; k < count; ++k)
          whole[stored.first + to + k] = 10.0 * static_cast<double>(flat[from + k]);
      };
      if (run.split) {
        for (RankId part = 0; part < map.parts(); ++part)
          run.split->each_run(unit, i, part, [&](const SplitModel::Run& r) {
            copy(part * map.full_numel(unit) + run.split->part().units[u].tensors[i].offset + r.of_part, r.of_whole,
                 r.numel);
          });
      } else {
        copy(tensors[i].offset, 0, tensors[i].numel);
      }
    }
  }
  /// Of each tensor: norm of the difference over the norm of what is expected.
  std::map<std::string, double> errors(const Cut& cut) const {
    std::map<std::string, double> list;
    for (const auto& [name, got] : gradients(cut)) {
      const Doubles expected = read<double>("grad." + name);
      EXPECT_EQ(got.size(), expected.size()) << name;
      if (got.size() != expected.size()) continue;
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        difference += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
      }
      list[name] = std::sqrt(difference / norm);
    }
    return list;
  }

  Bench bench_;
  std::string folder_;
  SafeTensors oracle_;
};

TEST_P(Oracle, GradientsOfCutModelsAreAsExactAsThoseOfOneRank) {
  const auto one = errors({"one", 1, 1, 1, 1});
  ASSERT_EQ(one.size() + 2, oracle_.entries().size()) << "tokens and losses are the others";
  for (const auto& [name, error] : one) EXPECT_LT(error, 2e-6) << name;
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(cut.name);
    const auto cut_errors = errors(cut);
    EXPECT_EQ(cut_errors.size(), one.size());
    // What is below is the rounding of the result.
    for (const auto& [name, error] : cut_errors) EXPECT_LE(error, std::max(2 * one.at(name), 1e-7)) << name;
  }
}

TEST_P(Oracle, LossesOfTwentyStepsAreThoseOfTransformers) {
  const Doubles expected = read<double>("losses");
  for (const Cut& cut : cuts) {
    if (!cut.trains) continue;
    SCOPED_TRACE(cut.name);
    const auto run_of = prepared(cut, 20);
    ASSERT_TRUE(run_of);
    const Outcome out = run(*run_of);
    ASSERT_EQ(out.losses.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(out.losses[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(, Oracle, testing::Values("llama_gqa", "llama_tied", "gpt2", "qwen3", "phi3"),
                         [](const auto& of) { return of.param; });

}  // namespace
}  // namespace sluice::test
