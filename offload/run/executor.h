// Runs a StepPlan on real memory, threads and drive.
//
//   Executor executor({...});                 // memory, store, backends, communicator, units
//   SLUICE_TRY(executor.begin(plan));         // resolves every operand; the plan must outlive end()
//   for (k = 0; k < steps; ++k) {
//     SLUICE_TRY(executor.release(params));   // every lane may run one more iteration,
//     SLUICE_TRY(executor.wait(k));           // and k + 1 may be released before k is waited for
//   }
//   SLUICE_TRY(executor.end());               // all released iterations are done; ready for another plan
//
// Slots of durable buffers are a property of the iteration: in a plan with commit ops, `current` and `next` change
// places between one iteration and the next, for all ops of it wherever they stand; without a commit op they stay.
// Those of buffers that are behind (Buffer::behind) do one iteration later: an iteration that has no update for them
// (StepParams::update_step 0) reads them where they are committed, does not write them, and commits nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/plan/simulate.h"
#include "offload/run/bound_plan.h"
#include "offload/run/communicator.h"
#include "offload/run/device_collectives.h"
#include "offload/run/device_queue.h"
#include "offload/run/memory.h"
#include "offload/run/moved_bytes.h"
#include "offload/run/store.h"
#include "offload/state/optimizer.h"
#include "sluice/dtype.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// An update op of a device: addresses are the device's, chunks last as long as the plan is bound.
struct DeviceUpdate {
  UpdateTile tile;
  std::span<const UpdateChunk> chunks;
  double clip_factor = 1;
  std::uint64_t* diverged = nullptr;  ///< how many parameters of the unit did in this update
  bool first = false;                 ///< of the unit's tiles: sets the count, others add to it
};

/// Runs the compute ops of the plan, except accumulate and update where the device is the host: the executor does those
/// itself. Called on the compute lane's thread only.
class ComputeBackend {
 public:
  virtual ~ComputeBackend() = default;
  /// The device's queue for the ops of such a lane (compute, h2d and d2h), which `run` puts its work into and leaves;
  /// null where an op has been done when its call returns. The same for as long as the backend lives.
  virtual DeviceQueue* queue(LaneKind) { return nullptr; }
  /// On the thread that will call run, before its first op of a plan (set OpenMP threads here).
  virtual void thread_started() {}
  /// Must not allocate. An error stops the run.
  virtual Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                     const StepParams& params) = 0;
  /// AdamW of params.update_step, likewise. Asked of backends with a queue for compute; has the bits of update_tile.
  virtual Status update(const DeviceUpdate&, const StepParams&) { return bad_request("the device can not update"); }
};

/// Where tokens come from and results of steps go: the trainer. Called from lane threads of several ranks.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// On the input lane, into host memory.
  virtual Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                             std::span<std::int32_t> dst) = 0;
  /// On the optimizer lane, after `control`. losses are the rank's own; norm, loss and clip factor of `control` are of
  /// all ranks. Plans of decoding have no such op.
  virtual Status step_end(RankId, const StepParams&, const ControlBlock&, std::span<const double> /*losses*/) {
    return success();
  }
  /// The loss or a gradient of params.step is NaN or infinite: the run stops with ErrorCode::not_finite.
  virtual void step_not_finite(RankId, const StepParams&) {}
  /// Updates of params.step have worked with params.clip_factor, and the true one is in `control`: the run stops with
  /// ErrorCode::mispredicted.
  virtual void step_mispredicted(RankId, const StepParams&, const ControlBlock& /*control*/) {}
};

/// Makes a step durable: writes the commit record and syncs it. On the commit lane, after all durable writes that are
/// listed before it have reached the drive, and after its step_end (that of the one before, where updates run ahead of
/// the forward pass). `parity` is the slot that becomes current; committed_step(params) is what it holds.
class CommitSink {
 public:
  virtual ~CommitSink() = default;
  virtual Status commit(RankId rank, const StepParams& params, std::uint8_t parity) = 0;
};

class SaveSink;  // offload/run/save_lane.h

struct ExecutorOptions {
  int optimizer_threads = 1;
  Dtype dtype = Dtype::f32;  ///< of parameters: f32 or bf16 (+ remainder)
  MomentLayout moments = {};
  Dtype gradient_dtype = Dtype::f32;  ///< as updates read them: f32, or bf16, which grad_norm ops with a dst make
  bool record_timeline = false;
  std::uint64_t delay_seed = 0;  ///< tests: not 0 = random lane delays from this seed
};

/// What an executor works on. All must outlive it.
struct ExecutorParts {
  Memory* memory = nullptr;
  SwapStore* store = nullptr;                       ///< may be null for plans without nvme buffers
  ComputeBackend* backend = nullptr;                ///< may be null for plans that compute nothing
  Communicator* communicator = nullptr;             ///< may be null for plans of one rank
  DeviceCollectives* device_collectives = nullptr;  ///< may be null for plans that have none on a device's lane
  StepSource* source = nullptr;                     ///< may be null for plans without load_tokens and step_end
  CommitSink* commit_sink = nullptr;                ///< may be null: commit ops then only flip the slots
  std::vector<OptimizerUnit> units;                 ///< [unit of the plan]; may be empty for plans without update ops
  SaveSink* save_sink = nullptr;                    ///< may be null: iterations that save then do not
};

/// One rank: a thread per lane of its plan. Public functions are for one controlling thread, but
/// stop() may come from any.
class Executor {
 public:
  Executor(ExecutorParts parts, ExecutorOptions options);
  ~Executor();  ///< stops if a plan is still bound
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Resolve operands, start lanes. Nothing runs yet. Errors: bad_request if the plan does not fit the arenas or lacks
  /// an operand that its ops need.
  Status begin(const StepPlan& plan);
  /// At most max_released iterations may be released and not waited for. Fails with the run's first error if it has
  /// stopped.
  static constexpr std::uint32_t max_released = 4;
  Status release(const StepParams& params);
  /// Until every op of the iteration (0-based since begin) has finished. Returns the run's first error.
  Status wait(std::uint64_t iteration);
  /// Finish what was released, park the lanes. Returns the run's first error; the executor can begin again either way.
  Status end();
  /// All lanes wind down: each finishes the op it is in, requests in flight are drained, nothing new starts. The first
  /// reason stays; later ones are counted. Any thread; does nothing while no plan is bound.
  void stop(const Error& reason);
  std::uint64_t errors() const;  ///< reported since begin, the first included

  /// Since construction, counted where bytes are moved (those of the drive by its queues).
  MovedBytes moved() const;
  /// Of one iteration since begin, after wait(iteration) and before two more were released.
  MovedBytes moved(std::uint64_t iteration) const;
  /// Highest end of any buffer that was alive since begin.
  std::uint64_t peak_bytes(Tier tier) const;
  /// Spans of the last finished iteration, in seconds since begin. Valid after wait or end; empty unless
  /// record_timeline.
  Timeline timeline() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The control block in memory: ControlBlock, double loss[micro_batches]. Role::control operands of control, update and
/// step_end start at the block's first byte (control and step_end: the whole of it); that of grad_norm is the sum
/// alone. Role::loss operands of compute ops are the micro-batch's double.
constexpr std::uint64_t control_loss_offset(std::size_t micro_batch) {
  return sizeof(ControlBlock) + sizeof(double) * micro_batch;
}
constexpr std::uint64_t control_block_bytes(std::size_t micro_batches) { return control_loss_offset(micro_batches); }

}  // namespace sluice
