// A run whose drive misbehaves at its n-th request, n = 1, 2, ... until it is never reached: either the run ends with a
// message that names the place, or its result has the bits of an undisturbed one. Nothing is silently wrong.
#include "runs.h"

namespace sluice::test {
namespace {

using Target = FaultOptions::Target;

struct Ended {
  std::string message;  ///< empty: it went through
  Outcome outcome;
};

Ended attempt(Prepared& prepared, const std::optional<FaultOptions>& faults) {
  prepared.config.faults = faults;
  Ended ended;
  Recorder recorder(ended.outcome);
  const auto failed = [&ended](const Error& error) {
    EXPECT_TRUE(error.code == ErrorCode::fault || error.code == ErrorCode::damaged) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    ended.message = error.message;
    return ended;
  };
  auto trainer = Trainer::create(prepared, recorder);
  if (!trainer.ok()) return failed(trainer.error());
  const std::atomic<bool> stop{false};
  const auto result = (*trainer)->run(stop);
  if (!result.ok()) return failed(result.error());
  const auto hash = (*trainer)->engine().states().state_hash();
  if (!hash.ok()) return failed(hash.error());
  ended.outcome.state_hash = *hash;
  ended.outcome.eval_loss = result->eval_loss().value_or(0);
  return ended;
}

class DriveFaults : public testing::Test {
 protected:
  void SetUp() override {
    RunConfig c = bench_.config(1, false, Dtype::bf16, 2);
    c.batch = 2;
    // Everything on the drive, and gradients and activations too: every kind of request.
    Schedule s;
    s.group = 1;
    s.update_ahead = true;
    s.tile_numel = 1 << 15;
    UnitChoice unit;
    unit.boundary = unit.accumulator = unit.gradient = Place::nvme;
    unit.saved = Saved::nvme;
    s.units.assign(4, unit);
    prepared_ = prepared_with(c, s);
    ASSERT_TRUE(prepared_);
    const Ended clean = attempt(*prepared_, std::nullopt);
    ASSERT_EQ(clean.message, "");
    clean_ = clean.outcome;
  }

  /// How many requests of this kind a run makes, by failing each of them.
  std::uint64_t fail_each(Target target, int error, const char* cause) {
    for (std::uint64_t n = 1;; ++n) {
      FaultOptions faults;
      faults.fail_target = target;
      faults.fail_nth = n;
      faults.fail_errno = error;
      faults.fail_persistent = n % 2 == 0;
      const Ended ended = attempt(*prepared_, faults);
      if (ended.message.empty()) {
        expect_same(ended.outcome, clean_);
        return n - 1;
      }
      EXPECT_NE(ended.message.find("sluice-swap"), std::string::npos) << ended.message;
      EXPECT_NE(ended.message.find("offset"), std::string::npos) << ended.message;
      EXPECT_NE(ended.message.find(cause), std::string::npos) << ended.message;
      if (HasFailure()) return n;
    }
  }

  /// Each kind of damage that the drive reports as success. How many were noticed.
  std::uint64_t damage_each(std::uint64_t FaultOptions::*nth, std::uint64_t count) {
    std::uint64_t noticed = 0;
    for (std::uint64_t n = 1; n <= count; ++n) {
      FaultOptions faults;
      faults.*nth = n;
      const Ended ended = attempt(*prepared_, faults);
      if (ended.message.empty()) {
        expect_same(ended.outcome, clean_);  // what was damaged was never needed again
      } else {
        ++noticed;
        EXPECT_NE(ended.message.find("block "), std::string::npos) << ended.message;
      }
      EXPECT_FALSE(HasFailure()) << "n = " << n;
      if (HasFailure()) break;
    }
    return noticed;
  }

  Bench bench_;
  std::unique_ptr<Prepared> prepared_;
  Outcome clean_;
};

TEST_F(DriveFaults, AFailingRequestEndsTheRunWithItsPlace) {
  const std::uint64_t reads = fail_each(Target::read, EIO, "Input/output error");
  const std::uint64_t writes = fail_each(Target::write, ENOSPC, "No space left on device");
  EXPECT_GT(reads, 20u);
  EXPECT_GT(writes, 20u);
}

TEST_F(DriveFaults, SilentDamageIsNoticedOrWithoutConsequence) {
  const std::uint64_t reads = fail_each(Target::read, EIO, "error"), writes = fail_each(Target::write, EDQUOT, "quota");
  // A bit may also flip in the padding of a last page.
  EXPECT_GT(damage_each(&FaultOptions::flip_read_nth, reads), reads * 9 / 10);
  for (const auto nth :
       {&FaultOptions::lost_write_nth, &FaultOptions::torn_write_nth, &FaultOptions::misdirect_write_nth})
    EXPECT_GT(damage_each(nth, writes), writes / 2);
}

TEST_F(DriveFaults, ShortInterruptedReorderedAndSlowTransfersChangeNothing) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    FaultOptions faults;
    faults.seed = seed;
    faults.short_probability = 0.3;
    faults.interrupt_probability = 0.2;
    faults.hold_max = 4;
    faults.latency_us = seed % 3 == 0 ? 200 : 0;
    faults.latency_random_us = seed % 3 == 1 ? 500 : 0;
    const Ended ended = attempt(*prepared_, faults);
    EXPECT_EQ(ended.message, "") << "seed " << seed;
    expect_same(ended.outcome, clean_);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::test
