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

#include "io/swap_file.h"
#include "offload/run/rank_team.h"
#include "offload/run/swap_window.h"
#include "offload/state/commit_log.h"
#include "src/comm/world.h"
#include "src/device/device.h"
#include "src/train/prepare.h"
#include "src/train/weight_pieces.h"

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
  /// where the run has any. Of this interface restore, take_slots, scan_states, save_states and what tells sizes serve;
  /// nothing is written.
  static Result<std::unique_ptr<Engine>> open_states(const Prepared& run, std::optional<std::uint64_t> swap_run_id);
  ~Engine();

  /// Whether the kept swap files of these ranks can be opened: bad_request when one is missing, cut off or in use.
  static Status check_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks);

  /// Random weights, or those of a Hugging Face directory, into every state's home; moments zero. Once, before anything
  /// runs. `watch`, which may be empty, hears the fraction that is done, and may end the work.
  using Watch = std::function<Status(double fraction)>;
  Status initialize(const std::string& init, std::uint64_t seed, const Watch& watch);

  /// Take the rank's durable slots of this record for its state: every block is read and verified, and what lives in
  /// memory is filled from them. damaged naming the block that is not what was committed.
  Status restore(RankId rank, const CommitRecord& record, const Watch& watch);
  /// The same with nothing read: what is read later is verified then.
  void take_slots(RankId rank, const CommitRecord& record);
  /// Of how many of the rank's states the record's slots hold something else anywhere, and of how many in all.
  struct Changed {
    int states = 0, all = 0;
  };
  Result<Changed> count_changed(RankId rank, const CommitRecord& record);
  /// All processes, when the states of their ranks are in place: copies of whole units on the devices are filled.
  Status share_residents();
  /// All processes. Back to the last commit, after an iteration was given up: fills what lives in memory from the slots.
  Status roll_back();

  /// All states as one stream of bytes in logical order, for snapshots: out, as visit_states does, and back into their
  /// homes, where every process has a source of the whole stream.
  using Sink = std::function<Status(std::span<const std::byte> data)>;
  using Source = std::function<Status(std::span<std::byte> data)>;
  Status save_states(const Sink& sink);
  Status load_states(const Source& source);
  std::uint64_t state_stream_bytes();

  /// Every shard of a state that the run has, here or elsewhere, in logical order, with the first rank that has it, whose
  /// number is the shard's: of the stream too, where it has so many bytes.
  Status each_shard(const std::function<Status(UnitId, StateKind, RankId)>& visit);
  std::uint64_t shard_stream_bytes(UnitId unit, StateKind kind, RankId rank) const;
  /// The weights of the ranks of this process in pieces of whole blocks of every state.
  WeightPieces pieces() const;
  /// Calls `visit` with these states of each piece from the slots that were taken, one kind after the other, verified,
  /// and while the next ones are read; padding included.
  using VisitPiece = std::function<Status(const StatePiece& piece, std::span<const std::byte> data)>;
  Status scan_states(std::span<const StateKind> kinds, const VisitPiece& visit);

  /// Bind the plans of this kind to the executors of the ranks.
  Status begin(PlanKind kind);
  RankTeam& team() { return *team_; }
  RankRange here() const { return here_; }
  SwapStore* store(RankId rank) { return at(rank).store.get(); }
  std::byte* host(RankId rank, const Buffer& b) const { return at(rank).memory->at(Tier::host, b.offset); }
  const RopeTable& rope() const { return rope_; }

  /// Calls `visit` with consecutive pieces of each unit's flat states of these kinds in their storage types, padding of
  /// the shards left out, the same wherever they lie (8-bit moments: codes and scales page by page). Nothing may run
  /// meanwhile. Where there are other processes, within lead_visits.
  using Visit = std::function<Status(UnitId unit, std::uint64_t first_element, std::span<const std::byte> data)>;
  Status visit_states(std::span<const StateKind> kinds, const Visit& visit);
  /// All processes call it: the leader does its work, which visits states, and the others send theirs. The same status
  /// on all.
  Status lead_visits(const std::function<Status()>& work);
  /// fault where replicas differ. Of every parameter and optimizer state: the sum of what blocks of 4096 elements of each unit's flat states hash
  /// to, each with its place, so that it is the same wherever they lie and however many ranks have parts of them. All
  /// processes call it.
  Result<std::uint64_t> state_hash();

  /// What visits states ends early, with ErrorCode::cancelled, when `stop`, which may be null, is true.
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  World* world() const { return world_; }  ///< null of one that only reads
  /// With the other processes, see World.
  Status agree_on(const Status& own) const { return world_ == nullptr ? own : agree(*world_, own); }
  /// Of the values of this process, in their order, those that all have.
  Result<std::vector<std::uint64_t>> common(std::vector<std::uint64_t> own) const;

  /// The run is over: its kept swap files go with the engine.
  void discard_swap() {
    for (Rank& rank : ranks_) rank.swap.discard();
  }

  const std::string& storage() const { return storage_; }  ///< where the drive tier lies and how, for people

 private:
  Engine(const Prepared& run, RankRange here, World* world) : run_(run), here_(here), world_(world) {}
  Status reserve(const Options& options);
  Status open_devices();
  Status open_stores();
  Result<RopeView> put_rope(RankId rank);
  void build_ranks();
  Status build_executors(StepSource& source, const Options& options);
  void index_buffers();
  bool grouped(StateKind kind) const;                                     ///< 8-bit moments: not element after element
  std::uint64_t state_bytes(StateKind kind, std::uint64_t numel) const;   ///< of the first elements of a shard
  std::uint64_t stream_bytes(StateKind kind, std::uint64_t numel) const;  ///< of the same as `visit` gets them
  BufferId& home(UnitId unit, StateKind kind);
  bool is_alone() const { return world_ == nullptr || world_->is_alone(); }
  Status visit_shard(UnitId unit, StateKind kind, RankId rank, const Visit& visit, SwapWindow& window);
  Result<Status> send_shard(UnitId unit, StateKind kind, RankId rank, SwapWindow& window);
  Status receive_shard(UnitId unit, RankId rank, const Visit& visit);
  Status write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                     SwapWindow::Piece& piece, SwapWindow& window);
  std::byte* only_home(UnitId unit, StateKind kind, RankId rank, std::uint64_t first);
  Status store_weights(UnitId unit, RankId rank, std::uint64_t first, const WeightValues& weights, SwapWindow& window);
  Status clear_states(bool gradients_only);
  Status load_slots(RankId rank, bool verify_all, const Watch& watch);
  BufferId kept(UnitId unit, StateKind kind);  ///< the state's buffer on the drive, or none
  Status copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters);

  const Prepared& run_;
  RankRange here_;
  std::unique_ptr<World> own_world_;
  World* world_;  ///< null: see open_states
  bool states_only_ = false;  ///< see open_states
  MomentLayout moments_;
  std::uint64_t piece_numel_ = 0;  ///< elements moved at a time outside steps: whole blocks of every state
  RopeTable rope_;
  std::vector<std::unique_ptr<Device>> devices_;
  struct Rank {
    Device* device = nullptr;
    SwapFile swap;
    std::unique_ptr<Memory> memory;
    std::unique_ptr<SwapStore> store;  ///< null where the plan has nothing on the drive
    std::unique_ptr<ComputeBackend> backend;
  };
  Rank& at(RankId rank) { return ranks_[static_cast<std::size_t>(rank - here_.first)]; }
  const Rank& at(RankId rank) const { return ranks_[static_cast<std::size_t>(rank - here_.first)]; }
  std::vector<Rank> ranks_;  ///< of here
  std::vector<std::unique_ptr<StepPlan>> other_plans_;  ///< of ranks but the first, whose are run_'s
  std::array<std::vector<const StepPlan*>, plan_kind_names.size()> plans_;  ///< [kind][rank of here]
  std::unique_ptr<RankTeam> team_;
  // Buffers are the same in the plans of all ranks.
  std::vector<BufferId> homes_;      ///< [unit * 5 + kind]
  std::vector<BufferId> mirrors_;    ///< the durable copies of homes in host memory, indexed likewise
  std::vector<BufferId> residents_;  ///< [unit]
  std::string storage_;
  const std::atomic<bool>* stop_ = nullptr;
};

}  // namespace sluice
