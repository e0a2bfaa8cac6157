// NCCL on the GPUs that are here: one rank of its own on one of them, and runs over two. They skip without a GPU,
// without NCCL, and with fewer GPUs.
#include <array>
#include <numeric>

#include "src/comm/in_process.h"
#include "src/device/device.h"
#include "tests/equivalence/runs.h"

namespace sluice::test {
namespace {

class NcclOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = Device::open("cuda");
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    if (const Status there = check_device_collectives(); !there.ok()) GTEST_SKIP() << there.error().message;
    bench_.know_device((*device)->kind());
  }
  Bench bench_;
};

TEST_F(NcclOnGpus, OneRankMeetsItself) {
  const auto device = Device::open("cuda");
  const auto collectives = (*device)->make_collectives();
  ASSERT_TRUE(collectives.ok()) << collectives.error().message;
  StepPlan plan;
  plan.topology = Topology::of({{"dp", 1}}, 0);
  plan.groups = {1};
  plan.lanes = {{LaneKind::comm, false, -1}};
  Op& op = plan.ops.emplace_back();
  op.kind = OpKind::all_gather;
  op.group = 0;
  InProcessWorld world(1);
  Communicator& ranks = world.communicator(0);
  ASSERT_TRUE(ranks.prepare(plan.topology, plan.groups).ok());
  const Status connected = (*collectives)->connect(plan, 0, ranks);
  ASSERT_TRUE(connected.ok()) << connected.error().message;
  std::vector<std::byte> bytes(4096);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  DeviceMemory& memory = (*device)->memory();
  std::byte* const full = *memory.allocate(bytes.size());
  ASSERT_TRUE(memory.copy(full, bytes.data(), bytes.size()).ok());
  const Operand operand{Role::dst, Mode::read_write, full, bytes.size()};
  for (std::uint64_t mark = 1; mark <= 3; ++mark) {
    const Status put = (*collectives)->put_in(op, std::span(&operand, 1));
    ASSERT_TRUE(put.ok()) << put.error().message;
    ASSERT_TRUE((*collectives)->queue().mark(mark).ok());
    const auto ran = (*collectives)->queue().await(mark);
    ASSERT_TRUE(ran.ok()) << ran.error().message;
  }
  std::vector<std::byte> after(bytes.size());
  ASSERT_TRUE(memory.copy(after.data(), full, after.size()).ok());
  EXPECT_TRUE(after == bytes);
  memory.free(full, bytes.size());
}

TEST_F(NcclOnGpus, TwoRanksHaveTheBitsOfRanksThatMeetInHostMemory) {
  if (*count_devices("cuda") < 2) GTEST_SKIP() << "one GPU, and NCCL takes one for each rank";
  for (const bool cut : {false, true}) {
    std::vector<Outcome> outcomes;
    for (const Transport transport : {Transport::staged, Transport::nccl}) {
      RunConfig c = bench_.config(1, false, Dtype::bf16, 3);
      c.device = "cuda";
      c.ranks = 2;
      if (cut) c.tensor = 2;
      c.transport = transport;
      Schedule s;
      s.units.resize(4);
      const auto prepared = prepared_with(c, s);
      ASSERT_TRUE(prepared);
      outcomes.push_back(run(*prepared));
      ASSERT_EQ(outcomes.back().losses.size(), 3u);
    }
    expect_same(outcomes[0], outcomes[1]);
  }
}

}  // namespace
}  // namespace sluice::test
