// The composition matrix: every way to arrange eight ranks (stages x ranks that share the batch x slices of sequences x
// parts of sublayers), with every stage of ZeRO, from every tier, ends with the bits of one rank, or of as many as
// sequences and sublayers are cut over. Also where each rank takes sequences slice by slice.
// One of its runs in each row is drawn here; SLUICE_EXHAUSTIVE=1 has all of them.
#include "run_command.h"
#include "sluice/random.h"
#include "tests/exhaustive.h"

namespace sluice {
namespace {

constexpr int ranks = 8;

struct Cell {
  int stages, context, tensor, zero, tier, slices;
  bool ring;
  std::string order;
};

class Composition : public RunCommandTest {
 protected:
  std::string options() const {
    return "train --model llama-tiny --seq 32 --prefetch 1 --warmup 3 --eval-batches 1 --lots 8 --batch 16 --steps 2 "
           "--hash 2 --data " +
           path("text") + " ";
  }
  std::string command(const Cell& cell) const {
    const std::array<std::string, 3> tiers{"", "--states host --activations host ",
                                           "--states nvme --activations nvme --nvme " + path("nvme") + " "};
    std::string text = options() + tiers[static_cast<std::size_t>(cell.tier)] + "--ranks " + std::to_string(ranks) +
                       " --zero " + std::to_string(cell.zero);
    if (cell.tensor > 1) text += " --tp " + std::to_string(cell.tensor);
    if (cell.context > 1) text += " --cp " + std::to_string(cell.context);
    if (cell.ring) text += " --cp-attention ring";
    if (cell.slices > 1) text += " --slices " + std::to_string(cell.slices);
    if (cell.stages > 1) text += " --pp " + std::to_string(cell.stages) + " --pipeline " + cell.order;
    return text + " ";
  }
  /// Those that go with the number of stages. ZeRO 2 and 3 have all micro-batches in one group, which orders with
  /// several chunks do not take.
  static std::vector<std::string> orders(int stages, bool is_cut, int zero) {
    std::vector<std::string> list{"gpipe", "1f1b"};
    if (!is_cut) list.push_back("zb-h1");
    if (zero < 2 && stages <= 4) list.push_back("interleaved");
    if (zero < 2 && stages <= 4 && !is_cut) list.push_back("zb-v");
    return list;
  }
  static std::vector<Cell> row(int stages, int context, int tensor, int slices, bool ring) {
    std::vector<Cell> cells;
    for (int zero = 0; zero <= 3; ++zero)
      for (int tier = 0; tier < 3; ++tier)
        for (const std::string& order :
             stages > 1 ? orders(stages, context * tensor * slices > 1, zero) : std::vector<std::string>{""})
          cells.push_back({stages, context, tensor, zero, tier, slices, ring, order});
    return cells;
  }
};

TEST_F(Composition, EveryRunEndsWithTheBitsOfOneRank) {
  const bool all = test::is_exhaustive();
  constexpr std::uint64_t seed = 20261124;
  int number = 0;
  for (const auto& [context, tensor, slices, ring] :
       {std::tuple(1, 1, 1, false), std::tuple(1, 2, 1, false), std::tuple(1, 4, 1, false), std::tuple(2, 1, 1, false),
        std::tuple(4, 1, 1, false), std::tuple(2, 2, 1, false), std::tuple(2, 1, 1, true), std::tuple(4, 1, 1, true),
        std::tuple(2, 2, 1, true), std::tuple(1, 1, 2, false), std::tuple(1, 2, 2, false)}) {
    const std::string one = "one" + std::to_string(context) + "x" + std::to_string(tensor) + "x" +
                            std::to_string(slices) + (ring ? "ring" : "");
    const std::string cut = "--cp " + std::to_string(context) + " --tp " + std::to_string(tensor) + " --slices " +
                            std::to_string(slices) + (ring ? " --cp-attention ring" : "");
    ASSERT_EQ(sluice(options() + run(one) + cut).status, 0);
    const std::vector<json> expected = lines(one);
    for (int stages = 1; stages * context * tensor <= ranks; stages *= 2) {
      const std::vector<Cell> cells = row(stages, context, tensor, slices, ring);
      for (std::size_t i = 0; i < (all ? cells.size() : 1); ++i) {
        const auto drawn = static_cast<std::size_t>(philox_uniform(seed, static_cast<std::uint64_t>(number), 0) *
                                                    static_cast<double>(cells.size()));
        const Cell& cell = cells[all ? i : std::min(drawn, cells.size() - 1)];
        const std::string name = "run" + std::to_string(number++), text = command(cell);
        SCOPED_TRACE(text);
        const Finished f = sluice(text + run(name));
        ASSERT_EQ(f.status, 0) << f.err;
        EXPECT_EQ(lines(name), expected);
        EXPECT_EQ(result(name), result(one));
        EXPECT_EQ(read(path(name) + "/model.safetensors"), read(path(one) + "/model.safetensors"));
        std::filesystem::remove_all(path(name));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
