// A run with its memory, swap file and lanes: what the trainer drives.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/drives/swap_file.h"
#include "offload/run/rank_team.h"
#include "offload/state/commit_log.h"
#include "src/comm/world.h"
#include "src/device/device.h"
#include "src/device/numa.h"
#include "src/train/request/prepare.h"
#include "src/train/states/states.h"
#include "src/train/states/tile_saver.h"

namespace sluice {

/// The ranks of this process. Reserves everything that the plans need and nothing later: owned memory is frozen at
/// create(). What says so is for all processes of the run together.
class Engine {
 public:
  /// `run` and `source` must outlive it. Errors: bad_request when the machine or the drive lacks the room.
  struct Options {
    bool record_timeline = false;
    CommitSink* commit_sink = nullptr;         ///< of durable runs; outlives the engine
    std::optional<std::uint64_t> swap_run_id;  ///< of a durable run, whose swap files are kept; none: temporary ones
    bool swap_exists = false;                  ///< opened instead of made anew
    World* world = nullptr;                    ///< outlives the engine; null: all ranks are this process's
  };
  static Result<std::unique_ptr<Engine>> create(const Prepared& run, StepSource& source, const Options& options);
  /// Only to read what a run has left, of all ranks: no arenas, no lanes, and of the drive the kept swap files, opened,
  /// where the run has any. Only what States says of such serves. With a `world`, of the ranks of this process.
  static Result<std::unique_ptr<Engine>> open_states(const Prepared& run, std::optional<std::uint64_t> swap_run_id,
                                                     World* world = nullptr);
  ~Engine();

  /// Whether the kept swap files of these ranks can be opened: bad_request when one is missing, cut off or in use.
  static Status check_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks);

  /// Make the kept swap files of these ranks as large as the run's plans need them: see SwapFile::grow.
  static Status grow_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks);

  /// Bind these plans to the executors of the ranks. All processes: where others have used the memory of parameters
  /// that stay on the device (Schedule::waiting), these are loaded first.
  Status begin(StepPlan StagePlans::*plan);
  RankTeam& team() { return *team_; }
  States& states() { return *states_; }
  RankRange here() const { return here_; }
  SwapStore* store(RankId rank) { return at(rank).store.get(); }
  /// Where what the rank's steps save goes, see Workload::saves.
  TileSaver& saver(RankId rank) { return *at(rank).saver; }
  std::byte* host(RankId rank, const Buffer& b) const { return at(rank).memory->at(Tier::host, b.offset); }

  World* world() const { return world_; }  ///< null of one that only reads
  /// With the other processes, see World.
  Status agree_on(const Status& own) const { return world_ == nullptr ? own : agree(*world_, own); }
  /// The run is over: its kept swap files go with the engine.
  void discard_swap() {
    for (Rank& rank : ranks_) rank.swap.discard();
  }

  /// What swap files have behind what the plans need is given back.
  Status trim_swap() {
    for (Rank& rank : ranks_) SLUICE_TRY(rank.swap.trim());
    return success();
  }

  const std::string& storage() const { return storage_; }  ///< where the drive tier lies and how, for people

 private:
  struct Rank {
    Device* device = nullptr;
    std::optional<NumaNode> node;  ///< none: it works anywhere
    SwapFile swap;
    std::unique_ptr<Memory> memory;
    std::unique_ptr<SwapStore> store;  ///< null where the plan has nothing on the drive
    std::unique_ptr<TileSaver> saver;  ///< null where steps do not save
    std::unique_ptr<ComputeBackend> backend;
    std::unique_ptr<DeviceCollectives> collectives;  ///< null where ranks meet in host memory
  };
  Engine(const Prepared& run, RankRange here, World* world, bool only_reads)
      : run_(run), here_(here), world_(world), only_reads_(only_reads) {}
  Status reserve(const Options& options);
  Status open_devices();
  Status open_stores();
  Result<RopeView> put_rope(RankId rank);
  void build_ranks();
  Status build_executors(StepSource& source, const Options& options);
  /// Does something where the rank is to work: memory that is filled there is next to those cores.
  static Status at_place(const Rank& rank, const std::function<Status()>& work);

  const Prepared& run_;
  RankRange here_;
  std::unique_ptr<World> own_world_;
  World* world_;  ///< null: see open_states
  bool only_reads_;
  Rope rope_;
  std::vector<std::unique_ptr<Device>> devices_;
  Rank& at(RankId rank) { return ranks_[static_cast<std::size_t>(rank - here_.first)]; }
  const Rank& at(RankId rank) const { return ranks_[static_cast<std::size_t>(rank - here_.first)]; }
  std::vector<Rank> ranks_;                                                ///< of here
  std::vector<std::unique_ptr<StepPlan>> other_plans_;                     ///< of ranks but the first, whose are run_'s
  std::array<std::vector<const StepPlan*>, plans_of_stage.size()> plans_;  ///< [kind][rank of here]
  std::unique_ptr<States> states_;
  std::unique_ptr<RankTeam> team_;
  bool lacks_residents_ = false;  ///< plans that need none have run
  std::string storage_;
};

}  // namespace sluice
