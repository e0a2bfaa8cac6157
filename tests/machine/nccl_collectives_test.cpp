// Collectives of ranks that have a modelled GPU each: the bits of those in host memory, and an end whatever others do.
#include "src/device/cuda/nccl_collectives.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "sluice/dtype.h"
#include "src/comm/in_process.h"
#include "src/comm/tree_sum.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

/// A rank with its GPU, in a plan of one group whose collectives are the device's.
struct NcclRank {
  NcclRank(RankId rank, RankId ranks, World& world) : communicator(world.communicator(rank)) {
    plan.topology = Topology::of({{"dp", ranks}}, rank);
    plan.groups = {1};
    plan.lanes = {{LaneKind::comm, false, -1}};
    plan.ops.emplace_back().group = 0;
    device = std::move(*CudaDevice::open(rank));
    collectives = std::move(*NcclCollectives::create(*device));
  }
  ~NcclRank() {
    for (std::byte* p : memory) device->free(p, 0);
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  Status connect() {
    SLUICE_TRY(communicator.prepare(plan.topology, plan.groups));
    marks = 0;
    return collectives->connect(plan, 0, communicator);
  }
  template <class T>
  Operand put(Role role, const std::vector<T>& values) {
    const std::uint64_t bytes = values.size() * sizeof(T);
    std::byte* const to = *device->allocate(bytes);
    memory.push_back(to);
    EXPECT_TRUE(device->copy(to, reinterpret_cast<const std::byte*>(values.data()), bytes).ok());
    return {role, Mode::read_write, to, bytes};
  }
  template <class T>
  std::vector<T> get(const Operand& from) const {
    std::vector<T> values(from.bytes / sizeof(T));
    EXPECT_TRUE(device->copy(reinterpret_cast<std::byte*>(values.data()), from.data, from.bytes).ok());
    return values;
  }
  /// Into the queue; run() also until it has run.
  Status put_in(OpKind kind, std::vector<Operand> operands, RankSums sums = RankSums::tree, int pieces = 1) {
    Op op{};
    op.kind = kind;
    op.group = 0;
    op.sums = sums;
    op.pieces = pieces;
    const Status put = collectives->put_in(op, operands);
    SLUICE_TRY(collectives->queue().mark(++marks));
    return put;
  }
  Status run(OpKind kind, std::vector<Operand> operands, RankSums sums = RankSums::tree, int pieces = 1) {
    SLUICE_TRY(put_in(kind, std::move(operands), sums, pieces));
    return await();
  }
  Status await() {
    const auto ran = collectives->queue().await(marks);
    return ran.ok() ? success() : Status(ran.error());
  }

  Communicator& communicator;
  StepPlan plan;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<NcclCollectives> collectives;
  std::vector<std::byte*> memory;
  std::uint64_t marks = 0;
};

class NcclTransport : public CardTest {
 protected:
  using Work = std::function<void(NcclRank&, RankId)>;
  static void on_ranks(RankId ranks, const Work& work, std::chrono::seconds deadline = std::chrono::seconds(60)) {
    put_in({.devices = ranks});
    InProcessWorld world(ranks, deadline);
    std::vector<std::thread> threads;
    for (RankId r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        NcclRank rank(r, ranks, world);
        work(rank, r);
      });
    for (std::thread& thread : threads) thread.join();
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.error().message; }
  static std::vector<float> numbers(RankId rank, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>((i * 7919 + rank * 104729u) % 2003) / 17.0f - 50.0f;
    return values;
  }
};

TEST_F(NcclTransport, GathersAndExchanges) {
  for (const RankId ranks : {2, 3, 4})
    on_ranks(ranks, [&](NcclRank& self, RankId r) {
      expect_ok(self.connect());
      constexpr std::size_t part = 60;
      std::vector<std::uint8_t> full(part * ranks);
      for (std::size_t i = 0; i < part; ++i) full[r * part + i] = static_cast<std::uint8_t>(r + i);
      const Operand gathered = self.put(Role::dst, full);
      expect_ok(self.run(OpKind::all_gather, {gathered}));
      const auto got = self.get<std::uint8_t>(gathered);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], static_cast<std::uint8_t>(i / part + i % part)) << "rank " << r << " of " << ranks;

      constexpr std::size_t pieces = 2, share = 5;
      std::vector<std::int32_t> from(pieces * share * ranks);
      std::iota(from.begin(), from.end(), 1000 * r);
      const Operand src = self.put(Role::src, from), dst = self.put(Role::dst, std::vector<std::int32_t>(from.size()));
      expect_ok(self.run(OpKind::all_to_all, {src, dst}, RankSums::tree, pieces));
      const auto taken = self.get<std::int32_t>(dst);
      for (std::size_t p = 0; p < pieces; ++p)
        for (std::size_t m = 0; m < ranks; ++m)
          for (std::size_t i = 0; i < share; ++i)
            ASSERT_EQ(taken[(p * ranks + m) * share + i],
                      static_cast<std::int32_t>(1000 * m + (p * ranks + r) * share + i));

      expect_ok(self.run(OpKind::ring_shift, {src, dst}));
      const auto shifted = self.get<std::int32_t>(dst);
      for (std::size_t i = 0; i < shifted.size(); ++i)
        ASSERT_EQ(shifted[i], static_cast<std::int32_t>(1000 * ((r + ranks - 1) % ranks) + i));
    });
}

/// In as many blocks as there is room for, also where the sum comes to the rank's own part.
TEST_F(NcclTransport, AddsUpWithTheBitsOfRanksInHostMemory) {
  constexpr std::size_t part = 700;
  for (const RankId ranks : {2, 3, 4})
    for (const std::size_t room_numel : {std::size_t{300}, part})
      for (const RankSums sums : {RankSums::tree, RankSums::bf16})
        on_ranks(ranks, [&](NcclRank& self, RankId r) {
          TreeSum tree;
          std::vector<std::vector<float>> all;
          for (RankId m = 0; m < ranks; ++m) all.push_back(numbers(m, part * ranks));
          std::vector<float> want(part);
          const auto term = [&](std::size_t m) { return all[m].data() + r * part; };
          if (sums == RankSums::tree)
            tree.add_up(ranks, want, term);
          else
            tree.add_up_loaded(ranks, want, [&](std::size_t m, std::size_t begin, std::size_t count) {
              return tree.rounded(term(m) + begin, count);
            });
          expect_ok(self.connect());
          const Operand full = self.put(Role::src, all[r]), apart = self.put(Role::dst, std::vector<float>(part)),
                        room = self.put(Role::workspace, std::vector<float>(room_numel * (ranks - 1u)));
          expect_ok(self.run(OpKind::reduce_scatter, {full, apart, room}, sums));
          EXPECT_EQ(self.get<float>(apart), want) << "rank " << r << " of " << ranks;
          const Operand inside{Role::dst, Mode::write, full.data + r * part * sizeof(float), part * sizeof(float)};
          expect_ok(self.run(OpKind::reduce_scatter, {full, inside, room}, sums));
          EXPECT_EQ(self.get<float>(inside), want) << "in place, rank " << r << " of " << ranks;
        });
}

TEST_F(NcclTransport, LeavesSumsToTheLibraryWhereThatIsAskedFor) {
  on_ranks(3, [&](NcclRank& self, RankId r) {
    expect_ok(self.connect());
    const Operand full = self.put(Role::src, numbers(r, 300)), part = self.put(Role::dst, std::vector<float>(100));
    expect_ok(self.run(OpKind::reduce_scatter, {full, part}, RankSums::native));
    const auto got = self.get<float>(part);
    for (std::size_t i = 0; i < 100; ++i) {
      float want = 0;
      for (RankId m = 0; m < 3; ++m) want += numbers(m, 300)[r * 100 + i];
      EXPECT_NEAR(got[i], want, 1e-4);
    }
  });
}

/// Rank 1 does not come. Who waits is woken, what was put in ends, and the next plan finds all of them again.
TEST_F(NcclTransport, EndsWhatOthersDoNotComeTo) {
  for (const bool is_cancelled : {true, false}) {
    std::atomic<bool> has_ended{false};
    on_ranks(
        2,
        [&](NcclRank& self, RankId r) {
          expect_ok(self.connect());
          const Operand full = self.put(Role::dst, std::vector<std::byte>(200));
          if (r == 0) {
            expect_ok(self.put_in(OpKind::all_gather, {full}));
            const Status ended = self.await();
            ASSERT_FALSE(ended.ok());
            EXPECT_EQ(ended.error().message, is_cancelled ? "enough" : "rank 0 waited 1 s for the other ranks");
            self.collectives->queue().abandon();
            EXPECT_FALSE(self.put_in(OpKind::all_gather, {full}).ok()) << "nothing follows";
            has_ended = true;
            has_ended.notify_all();
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            if (is_cancelled) self.communicator.cancel("enough");
            has_ended.wait(false);
          }
          expect_ok(self.connect());
          expect_ok(self.run(OpKind::all_gather, {full}));
        },
        std::chrono::seconds(is_cancelled ? 60 : 1));
  }
}

/// One rank's kept communicators are of no use where another has none.
TEST_F(NcclTransport, KeepsCommunicatorsForTheNextPlan) {
  on_ranks(2, [&](NcclRank& self, RankId r) {
    const Operand full = self.put(Role::dst, std::vector<std::byte>(200));
    for (int plan = 0; plan < 4; ++plan) {
      expect_ok(self.connect());
      expect_ok(self.run(OpKind::all_gather, {full}));
      if (plan == 1 && r == 1) self.collectives->queue().abandon();
    }
  });
}

TEST_F(NcclTransport, TwoRanksOnOneGpuAreRefused) {
  put_in({.devices = 1});
  InProcessWorld world(2);
  std::array<Status, 2> connected;
  std::vector<std::thread> threads;
  for (RankId r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      const auto device = CudaDevice::open(0);
      const auto collectives = NcclCollectives::create(**device);
      StepPlan plan;
      plan.topology = Topology::of({{"dp", 2}}, r);
      plan.groups = {1};
      plan.lanes = {{LaneKind::comm, false, -1}};
      plan.ops.emplace_back().group = 0;
      ASSERT_TRUE(world.communicator(r).prepare(plan.topology, plan.groups).ok());
      connected[r] = (*collectives)->connect(plan, 0, world.communicator(r));
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : connected) {
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("Duplicate GPU"), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace sluice::test
