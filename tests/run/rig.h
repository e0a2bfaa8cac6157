// Plans of ranks on real memory, threads and drive, with test doubles for model and trainer only.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "offload/run/rank_team.h"
#include "src/comm/in_process.h"
#include "tests/run/queued_device.h"
#include "tests/run/reference.h"
#include "tests/scratch_dir.h"

namespace sluice::test {

struct RigOptions {
  ExecutorOptions executor{};
  QueueOptions queue{};
  std::uint64_t content_seed = 1;
  bool queued = false;  ///< the device works in queues of its own
  std::uint64_t queue_delay_seed = 0;
  std::function<void(const Op&)> device_takes{};    ///< told as an op is put in, ahead of it
  std::uint64_t diverges_in_step = 0;               ///< a parameter more, by the count of a device in queues
  std::function<Status(const Op&)> device_fault{};  ///< asked as the device runs an op
};

class Rig final : public StepSource, public CommitSink {
 public:
  /// One plan, and its units, for each rank; units may be empty.
  Rig(const std::vector<StepPlan>& plans, std::vector<std::vector<OptimizerUnit>> units, RigOptions options);
  ~Rig() override;

  /// Errors of set-up (a drive that fails at once).
  Status initialise();             ///< fill persistent buffers as Reference does
  Status iterate(int iterations);  ///< begin, `iterations` steps with two released at a time, end
  /// The first persistent buffer that differs from the reference, or "".
  std::string difference(const Reference& reference);

  static StepParams params(std::uint64_t iteration);
  RankTeam& team() { return *team_; }
  Status begin() { return begin(*team_); }
  Status begin(RankTeam& team);  ///< binds the rig's plans
  Executor& executor() { return team_->rank(0); }
  SwapStore* store(RankId rank = 0) { return ranks_[rank].store.get(); }
  Memory& memory(RankId rank = 0) { return *ranks_[rank].memory; }
  RankId ranks() const { return static_cast<RankId>(ranks_.size()); }
  /// Other executors on the same memory and stores.
  RankTeam other_team(InProcessWorld& world, ComputeBackend& backend, StepSource& source, CommitSink* sink,
                      const std::vector<std::vector<OptimizerUnit>>& units, const ExecutorOptions& options);
  std::vector<StepRecord> records() const;
  std::vector<std::pair<RankId, std::uint8_t>> commits() const;

  /// Of one rank: the host, or a device with queues of its own.
  class Host final : public ComputeBackend {
   public:
    explicit Host(RankId rank) : rank_(rank) {}
    Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
               const StepParams& params) override;

   private:
    RankId rank_;
  };
  class Device final : public ComputeBackend {
   public:
    Device(Rig& rig, RankId rank, std::uint64_t seed);
    DeviceQueue* queue(LaneKind kind) override;
    Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
               const StepParams& params) override;
    Status update(const DeviceUpdate& update, const StepParams& params) override;

   private:
    Rig& rig_;
    Host host_;
    WorkerTeam team_{1};
    ThreadQueue compute_, h2d_, d2h_;
  };

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> losses) override;
  Status commit(RankId rank, const StepParams& params, std::uint8_t parity) override;

 private:
  struct Rank {
    std::unique_ptr<Memory> memory;
    std::unique_ptr<SwapStore> store;
    std::unique_ptr<ComputeBackend> backend;
  };
  const std::vector<StepPlan>& plans_;
  RigOptions options_;
  const ScratchDir directory_;
  HostDevice device_;
  SwapFile file_;
  InProcessWorld world_;
  std::vector<Rank> ranks_;
  std::unique_ptr<RankTeam> team_;
  mutable std::mutex mutex_;
  std::vector<StepRecord> records_;
  std::vector<std::pair<RankId, std::uint8_t>> commits_;
};

/// Run the plan and compare with the reference: contents, records, peaks, bytes.
void expect_same_as_reference(const std::vector<StepPlan>& plans, const std::vector<std::vector<OptimizerUnit>>& units,
                              RigOptions options, int iterations);

}  // namespace sluice::test
