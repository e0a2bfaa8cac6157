// From a RunConfig to everything that is decided before memory is touched: what `sluice plan` prints and `train` runs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/plan/simulate.h"
#include "sluice/profile.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/search.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// What the ranks of a pipeline's stage run; without a pipeline there is one stage. Of its first rank: the others'
/// differ in which parts of buffers are their own.
struct StagePlans {
  StepPlan main;               ///< train, evaluate or decode
  StepPlan ahead;              ///< of schedules with both orders: the steps of Schedule::ahead
  StepPlan flush;              ///< where all updates may wait for the norm
  StepPlan flush_late;         ///< of schedules with updates in both passes: of those that wait
  StepPlan evaluate;           ///< training only
  TierBytes needs;             ///< arenas of a rank
  Simulation predicted;        ///< of main; its steps take as long as those of all stages
  Simulation predicted_ahead;  ///< likewise of `ahead`
  Simulation predicted_flush;  ///< likewise of `flush`, where steps are repaired by it
};
inline constexpr std::array plans_of_stage{&StagePlans::main, &StagePlans::ahead, &StagePlans::flush,
                                           &StagePlans::flush_late, &StagePlans::evaluate};

/// Of the schedule with updates ahead, whatever the run's main one has.
inline bool goes_ahead(StepPlan StagePlans::*plan) { return plan == &StagePlans::ahead || plan == &StagePlans::flush; }

/// A run on paper. Heap-allocated and immovable, because the workload points at the model.
struct Prepared {
  RunConfig config;
  ModelSpec model;
  std::optional<SplitModel> split;  ///< where its sublayers are cut over ranks
  Workload workload;
  HardwareProfile profile;
  SearchResult search;
  std::vector<StagePlans> stages;  ///< none where nothing fits
  KernelChoices kernels;  ///< of a GPU: what its profile has for the plans' ops, or what a run that goes on began with
  double model_flop_per_token = 0;  ///< 6 N + attention, without recompute
  ScheduleWish wish;                ///< the configuration's, with what follows from the optimizer
  bool is_given = false;            ///< the schedule was given, not searched
  std::string durability;           ///< why steps are, or are not, durable: for people

  /// Of a phase of a run with a schedule of lengths: in the plan of the next one states are not where they are in this.
  bool states_move = false;
  /// Another phase came before in this process, which has checked the data of all.
  bool follows_phase = false;

  /// Updates work in the backward pass with the clip factor that is expected, see UpdateOrder::speculative.
  bool speculates() const {
    return !workload.inference && !search.schedule.update_ahead && config.optimizer.clip_norm > 0;
  }
  /// Steps may be run in the other order where they clip often.
  bool changes_order() const { return !stages.empty() && !stages.front().ahead.ops.empty(); }
  const StagePlans& stage_of_rank(RankId rank) const {
    return stages[static_cast<std::size_t>(rank / workload.ranks_of_stage())];
  }
  /// How many of the ranks of a machine are of a stage.
  std::uint64_t ranks_here(RankId stage) const;
  /// Rank 0's.
  const StepPlan& main() const { return stages.front().main; }
  const Simulation& predicted() const { return stages.front().predicted; }
  double step_seconds() const { return stages.empty() ? 0 : predicted().step_seconds; }
  /// Of those that steps run, where they may be run in either order.
  const StepPlan& plan(bool ahead) const { return ahead ? stages.front().ahead : main(); }
  const Simulation& predicted(bool ahead) const { return ahead ? stages.front().predicted_ahead : predicted(); }
  /// Of a tier: the arenas of the ranks of a machine together; on the device the largest of a rank.
  Arena arena_of_machine(Tier tier) const;
};

using Tell = std::function<void(const std::string&)>;

/// What the run is for.
enum class Purpose : std::uint8_t { train, evaluate, decode };

/// Model and workload alone, with the options checked against each other and against the model; nothing is measured.
Result<std::unique_ptr<Prepared>> describe_request(const RunConfig& config, Purpose purpose);

/// Reads the model's config and the profile (measuring what is missing), searches a schedule and builds its plans.
/// Touches no file but the profile. Does not fail when nothing fits: search.fits tells, and the plans are then empty.
/// `layout` replaces the profile's: for a swap file that exists. Of machines that are not here, and where it is asked
/// to be quick, schedules of large workloads are found on samples (src/schedule/quick.h).
enum class Effort : std::uint8_t { quick, thorough };
struct DriveLayout;
Result<std::unique_ptr<Prepared>> prepare(const RunConfig& config, Purpose purpose, const Tell& progress,
                                          Effort effort = Effort::thorough, const DriveLayout* layout = nullptr);

/// The same up to the search: with budgets, profile and wishes, and no schedule. No op of the workload is measured, and
/// none is in the profile: of other workloads some would be and some not.
Result<std::unique_ptr<Prepared>> prepare_to_estimate(const RunConfig& config, Purpose purpose, const Tell& progress);
/// The same of another arrangement of as many ranks, for training.
Result<std::unique_ptr<Prepared>> arranged(const Prepared& other, const RunConfig& config);

/// What of the drive's profile decides where things lie in a swap file.
struct DriveLayout {
  std::uint32_t block_bytes = 0;
  std::vector<double> stripe_weights;
};

/// The same for a schedule that is given instead of searched. The configuration's wishes are not looked at; budgets
/// that the schedule does not keep are refused through search.fits. Durable only where the configuration says on.
/// `layout` replaces the profile's: for a swap file that exists.
Result<std::unique_ptr<Prepared>> prepare_with(const RunConfig& config, Purpose purpose, const Schedule& schedule,
                                               const DriveLayout* layout = nullptr, const Tell& progress = {});

/// Only where things lie in a run that has been planned before: model, workload and main plan, with nothing measured,
/// predicted or written. Budgets are not looked at.
Result<std::unique_ptr<Prepared>> prepare_stored(const RunConfig& config, const Schedule& schedule,
                                                 const DriveLayout& layout);

/// What a run's leader has decided, for the other processes: everything that plans follow from.
struct Decided {
  RunConfig config;
  Purpose purpose = Purpose::train;
  Schedule schedule;
  HardwareProfile profile;  ///< with its drive
  std::string device;       ///< Device::kind
  KernelChoices kernels;
  std::array<std::uint64_t, 3> budget_bytes{};  ///< of a rank
  int threads = 1;                              ///< of a rank
  bool durable = false, saves = false;
};
/// The same run, with nothing measured, searched, proven or printed.
Result<std::unique_ptr<Prepared>> prepare_decided(const Decided& decided);

/// Parameters and optimizer states of all ranks, one slot of each, wherever they lie.
std::uint64_t state_bytes(const Prepared& run);

/// Bytes of swap file that the second slots take, of the ranks of a machine; 0 where the run is not durable.
std::uint64_t durable_slot_bytes(const Prepared& run);

/// The smallest budgets of a run, as --device-memory (of a rank), --host-memory and --nvme-space (of all ranks) take
/// them: where `--durable auto` leaves it open, without second slots.
struct SmallestBudgets {
  LeastBytes least;  ///< of each tier, with the others as they are
  TierBytes corner;  ///< that fits: the least device memory, then the least host memory, then the least of the drive
  bool is_estimated = false;  ///< of a large workload: not to the page
};
/// For a schedule that is given: what that takes. Takes seconds for a large model.
SmallestBudgets smallest_budgets(const Prepared& run);

/// One line for a run that does not fit, with budgets that would do.
Error does_not_fit(const Prepared& run, const SmallestBudgets& smallest);
inline Error does_not_fit(const Prepared& run) { return does_not_fit(run, smallest_budgets(run)); }

/// Sum over the plan's ops of the bytes on each link: of one rank.
LinkBytes plan_link_bytes(const StepPlan& plan);
/// Of a step of all ranks, and of those of a machine.
LinkBytes step_link_bytes(const Prepared& run);
LinkBytes machine_link_bytes(const Prepared& run);

}  // namespace sluice
