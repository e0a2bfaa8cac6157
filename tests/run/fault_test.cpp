// The drive fails, one request after the other, and other threads stop the run at any time: the error is reported,
// lanes wind down, and what is committed is never wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <thread>

#include "io/drives/power_cut.h"
#include "tests/run/rig.h"
#include "tests/run/toy_plan.h"

namespace sluice::test {
namespace {

using Target = FaultOptions::Target;

struct Outcome {
  bool set_up = false, ran = false;
  bool clean = false;  ///< what the run left could be read back as well
  std::string message;
};

/// Two iterations with these faults. Whatever happens, the executor comes back.
Outcome run_with(const ToyTraining& toy, const FaultOptions& faults, IoBackendKind backend = IoBackendKind::automatic) {
  RigOptions options;
  options.queue.faults = faults;
  options.queue.backend = backend;
  options.queue.depth = 8;
  Reference reference(toy.plans, toy.units, options.content_seed);
  for (std::uint64_t i = 0; i < 2; ++i) reference.iterate(Rig::params(i));
  Rig rig(toy.plans, toy.units, options);
  Outcome outcome;
  const Status ready = rig.initialise();
  outcome.set_up = ready.ok();
  if (!ready.ok()) return outcome;
  const Status done = rig.iterate(2);
  outcome.ran = done.ok();
  if (done.ok()) {
    // Empty, or the report of a failed read: never the name of a buffer that differs.
    const std::string difference = rig.difference(reference);
    outcome.clean = difference.empty();
    EXPECT_TRUE(outcome.clean || difference.find(' ') != std::string::npos) << "unnoticed in " << difference;
  } else {
    outcome.message = done.error().message;
    EXPECT_GE(rig.team().errors(), 1u);
  }
  return outcome;
}

TEST(Faults, EveryFailingRequestIsReported) {
  const ToyTraining toy = toy_training(1, 1, 1);
  constexpr int causes[] = {EIO, ENOSPC, EDQUOT};
  for (const Target target : {Target::read, Target::write, Target::sync}) {
    int failed = 0;
    for (std::uint64_t n = 1;; ++n) {
      const int cause = target == Target::read ? EIO : causes[n % std::size(causes)];
      const Outcome outcome =
          run_with(toy, {.fail_target = target, .fail_nth = n, .fail_errno = cause, .fail_persistent = n % 2 == 0});
      if (outcome.clean) break;  // there are fewer requests than n
      if (!outcome.set_up || outcome.ran) continue;
      ++failed;
      ASSERT_NE(outcome.message.find(std::strerror(cause)), std::string::npos) << outcome.message;
      ASSERT_NE(outcome.message.find("#"), std::string::npos) << "does not name the op: " << outcome.message;
      ASSERT_LT(n, 500u);
    }
    EXPECT_GE(failed, 2);
  }
}

TEST(Faults, WrongDataIsNeverUsed) {
  const ToyTraining toy = toy_training(1, 2, 1);
  // Each kind of silent damage, at each request of two iterations; what is read back later must be refused. Writes of
  // the last iteration are not read again within the run.
  for (std::uint64_t n = 1; n <= 16; ++n) {
    const Outcome flipped = run_with(toy, {.flip_read_nth = n});
    EXPECT_TRUE(!flipped.ran) << "read " << n;
    EXPECT_TRUE(!flipped.set_up || flipped.message.find("#") != std::string::npos) << flipped.message;
    run_with(toy, {.lost_write_nth = n});
    run_with(toy, {.torn_write_nth = n});
    run_with(toy, {.misdirect_write_nth = n});
    if (HasFailure()) return;
  }
}

TEST(Faults, ExecutorCanBeginAgainAfterAFailure) {
  const ToyTraining toy = toy_training(2, 2, 1);
  RigOptions options;
  options.queue.faults = FaultOptions{.fail_target = Target::read, .fail_nth = 9};
  Rig rig(toy.plans, toy.units, options);
  ASSERT_TRUE(rig.initialise().ok());
  EXPECT_FALSE(rig.iterate(3).ok());
  // Each rank's queue has its own ninth read.
  EXPECT_LE(!rig.iterate(3).ok(), 1);
  const Status again = rig.iterate(3);
  EXPECT_TRUE(again.ok()) << again.error().message;
}

TEST(Faults, FailedRunLeavesTheCommittedSlotAlone) {
  const ToyTraining toy = toy_training(1, 2, 1);
  int failed = 0;
  for (std::uint64_t n = 20; n < 60; n += 3) {
    RigOptions options;
    options.queue.faults = FaultOptions{.fail_target = Target::write, .fail_nth = n};
    Rig rig(toy.plans, toy.units, options);
    ASSERT_TRUE(rig.initialise().ok());
    if (rig.iterate(4).ok()) continue;
    ++failed;
    // Durable buffers hold exactly what the last commit made.
    Reference reference(toy.plans, toy.units, options.content_seed);
    for (std::uint64_t i = 0; i < rig.commits().size(); ++i) reference.iterate(Rig::params(i));
    auto bounce = map_pages(1 << 20);
    ASSERT_TRUE(bounce.ok());
    for (BufferId b = 0; b < toy.plan().buffers.size(); ++b) {
      const Buffer& buffer = toy.plan().buffers[b];
      if (buffer.slots < 2) continue;
      const Status read = rig.store()->read(b, Slot::current, 0, {*bounce, buffer.bytes});
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(std::memcmp(*bounce, reference.content(0, b).data(), buffer.bytes), 0) << buffer.name;
    }
    unmap_pages(*bounce, 1 << 20);
  }
  EXPECT_GE(failed, 8);
}

/// Durable buffers against what the last commit of their rank made, read past the queues: those are off.
void expect_committed_slots(const ToyTraining& toy, Rig& rig, std::uint64_t content_seed) {
  auto bounce = map_pages(1 << 20);
  ASSERT_TRUE(bounce.ok());
  for (RankId rank = 0; rank < rig.ranks(); ++rank) {
    const SwapStore& store = *rig.store(rank);
    const StepPlan& plan = toy.plans[rank];
    Reference reference(toy.plans, toy.units, content_seed);
    std::uint64_t iterations = 0;
    for (const auto& [who, parity] : rig.commits())
      if (who == rank) reference.iterate(Rig::params(iterations++));
    for (BufferId b = 0; b < plan.buffers.size(); ++b) {
      const Buffer& buffer = plan.buffers[b];
      if (buffer.slots < 2) continue;
      const std::uint64_t offset = store.file_offset(b, store.parity(), 0), bytes = padded_bytes(buffer.bytes);
      ASSERT_EQ(pread(store.file().files()[0].fd, *bounce, bytes, static_cast<off_t>(offset)),
                static_cast<ssize_t>(bytes));
      EXPECT_EQ(std::memcmp(*bounce, reference.content(rank, b).data(), buffer.bytes), 0)
          << buffer.name << " after " << iterations << " commits";
    }
  }
  unmap_pages(*bounce, 1 << 20);
}

/// The power goes at the n-th transfer. Whether the run was over before.
bool power_goes_at(std::uint64_t n, const ToyTraining& toy, std::uint64_t seed) {
  RigOptions options;
  const auto cut = std::make_shared<PowerCut>(seed, n);
  options.queue.faults = FaultOptions{.power_cut = cut};
  Rig rig(toy.plans, toy.units, options);
  // Until the initial content is durable, nothing is promised.
  const auto sync_all = [&] {
    for (RankId r = 0; r < rig.ranks(); ++r)
      if (!transfer_now(rig.store(r)->queue(IoOp::write), IoOp::sync, 0, 0, {}).ok()) return false;
    return true;
  };
  if (!rig.initialise().ok() || !sync_all()) return false;
  const Status done = rig.iterate(3);
  EXPECT_EQ(cut->happened(), !done.ok());
  if (!done.ok()) {
    EXPECT_NE(done.error().message.find("Input/output error"), std::string::npos) << done.error().message;
  }
  cut->cut_now();
  EXPECT_TRUE(cut->happened());
  expect_committed_slots(toy, rig, options.content_seed);
  return done.ok();
}

TEST(Faults, PowerCutLeavesTheCommittedSlotAlone) {
  for (const RankId ranks : {1, 2}) {
    const ToyTraining toy = toy_training(ranks, 1, 1);
    // Every moment twice with one rank; with two ranks the seeds share them out.
    const std::uint64_t seeds = ranks == 1 ? 2 : 3, step = ranks == 1 ? 1 : 3;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      std::uint64_t n = seed;
      while (!power_goes_at(n, toy, seed * 1000 + n)) {
        ASSERT_FALSE(HasFailure()) << "at " << n << ", " << ranks << " ranks, seed " << seed;
        n += step;
        ASSERT_LT(n, 1000u);
      }
      EXPECT_GT(n, 60u * ranks);
    }
  }
}

TEST(Stop, FromAnotherThreadAtAnyTime) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const RankId ranks = round % 3 == 0 ? 2 : 1;
    const ToyTraining toy = toy_training(ranks, 2, 1);
    Rig rig(toy.plans, toy.units, {.executor = {.delay_seed = static_cast<std::uint64_t>(round % 2)}});
    ASSERT_TRUE(rig.initialise().ok());
    std::atomic<bool> go{false};
    std::thread stopper([&, microseconds = random() % 8000] {
      while (!go) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      rig.team().stop({ErrorCode::cancelled, "asked to stop"});
    });
    go = true;
    const Status done = rig.iterate(6);
    stopper.join();
    if (!done.ok()) {
      EXPECT_EQ(done.error().message, "asked to stop");
      EXPECT_EQ(done.error().code, ErrorCode::cancelled);
    }
    const Status again = rig.iterate(2);
    EXPECT_TRUE(again.ok()) << again.error().message;
  }
}

TEST(Stop, DestructionWithoutEnd) {
  const ToyTraining toy = toy_training(2, 2, 1);
  for (int i = 0; i < 10; ++i) {
    Rig rig(toy.plans, toy.units, {});
    ASSERT_TRUE(rig.initialise().ok());
    ASSERT_TRUE(rig.begin().ok());
    const bool released = i > 0 && rig.team().release(Rig::params(0)).ok();
    EXPECT_EQ(released, i > 0);
  }
}

class FailingBackend final : public ComputeBackend {
 public:
  Status run(const StepPlan&, const Op&, std::span<const Operand> operands, const StepParams& params) override {
    for (const Operand& o : operands) {
      if (o.mode == Mode::read) continue;
      std::memset(o.data, 0, o.bytes);
      const float bad = std::numeric_limits<float>::quiet_NaN();
      if (o.role == wrong && params.step == 2) std::memcpy(o.data, &bad, sizeof bad);
      const double bad_loss = std::numeric_limits<double>::infinity();
      if (o.role == wrong && wrong == Role::loss && params.step == 2) std::memcpy(o.data, &bad_loss, sizeof bad_loss);
    }
    if (wrong == Role::workspace && params.step == 2) return fault("no luck");
    return success();
  }
  Role wrong = Role::gradient;
};

TEST(Stop, BadNumbersAndFailingOpsNameTheStep) {
  const ToyTraining toy = toy_training(2, 2, 1);
  for (const auto& [role, expected] :
       {std::pair(Role::gradient, "step 2: the gradient's norm is not finite"),
        std::pair(Role::loss, "step 2: the loss is not finite"), std::pair(Role::workspace, "no luck")}) {
    Rig rig(toy.plans, toy.units, {});
    ASSERT_TRUE(rig.initialise().ok());
    FailingBackend backend;
    backend.wrong = role;
    InProcessWorld world(2);
    RankTeam team = rig.other_team(world, backend, rig, &rig, toy.units, {});
    ASSERT_TRUE(rig.begin(team).ok());
    Status status;
    for (std::uint64_t i = 0; i < 4 && status.ok(); ++i) {
      status = team.release(Rig::params(i));
      if (status.ok()) status = team.wait(i);
    }
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(expected), std::string::npos) << status.error().message;
    EXPECT_FALSE(team.end().ok());
    EXPECT_LE(rig.commits().size(), 4u) << "no rank may have committed what follows from step 2";
  }
}

}  // namespace
}  // namespace sluice::test
