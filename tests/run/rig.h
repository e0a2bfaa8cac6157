// A plan on real memory, threads and drive, with test doubles for model and trainer only.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "offload/run/executor.h"
#include "src/comm/in_process.h"
#include "tests/run/queued_device.h"
#include "tests/run/reference.h"
#include "tests/scratch_dir.h"

namespace sluice::testing {

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

class Rig final : public ComputeBackend, public StepSource, public CommitSink {
 public:
  Rig(const StepPlan& plan, std::vector<OptimizerUnit> units, RigOptions options);
  ~Rig() override;

  /// Errors of set-up (a drive that fails at once).
  Status initialise();             ///< fill persistent buffers as Reference does
  Status iterate(int iterations);  ///< begin, `iterations` steps with two released at a time, end
  /// The first persistent buffer that differs from the reference, or "".
  std::string difference(const Reference& reference);

  static StepParams params(std::uint64_t iteration);
  Executor& executor() { return *executor_; }
  SwapStore* store() { return store_.get(); }
  Memory& memory() { return *memory_; }
  std::vector<StepRecord> records() const;
  std::vector<std::pair<RankId, std::uint8_t>> commits() const;

  /// Of one rank.
  class Device final : public ComputeBackend {
   public:
    Device(Rig& rig, std::uint64_t seed);
    DeviceQueue* queue(LaneKind kind) override;
    Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
               const StepParams& params) override;
    Status update(const DeviceUpdate& update, const StepParams& params) override;

   private:
    Rig& rig_;
    WorkerTeam team_{1};
    ThreadQueue compute_, h2d_, d2h_;
  };

  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override;
  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control, std::span<const double> norms,
                  std::span<const double> losses) override;
  Status commit(RankId rank, const StepParams& params, std::uint8_t parity) override;

 private:
  const StepPlan& plan_;
  RigOptions options_;
  const ScratchDir directory_;
  HostDevice device_;
  std::unique_ptr<Memory> memory_;
  SwapFile file_;
  std::unique_ptr<SwapStore> store_;
  InProcessCommunicator communicator_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Executor> executor_;
  mutable std::mutex mutex_;
  std::vector<StepRecord> records_;
  std::vector<std::pair<RankId, std::uint8_t>> commits_;
};

/// Run the plan and compare with the reference: contents, records, peaks, bytes.
void expect_same_as_reference(const StepPlan& plan, const std::vector<OptimizerUnit>& units, RigOptions options,
                              int iterations);

}  // namespace sluice::testing
