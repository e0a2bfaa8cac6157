// Everything that a run is, wherever it lies: made, visited, saved, hashed, restored.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/state_writer.h"
#include "offload/plan/state_table.h"
#include "offload/run/memory.h"
#include "offload/run/store.h"
#include "offload/run/swap_window.h"
#include "offload/state/commit_log.h"
#include "offload/state/moment_layout.h"
#include "src/comm/world.h"
#include "src/device/device.h"
#include "src/schedule/stages.h"
#include "src/train/request/prepare.h"
#include "src/train/states/weight_pieces.h"

namespace sluice {

/// The states of the ranks of this process. Nothing may run meanwhile. What says so is for all processes of the run
/// together.
class States {
 public:
  /// Where a rank has its own. `device` is null where arenas are not there; `store` where nothing is on the drive.
  struct RankPlace {
    Device* device = nullptr;
    Memory* memory = nullptr;
    SwapStore* store = nullptr;
  };
  /// All of these outlive it. Where what a run has left is only read (`only_reads`) restore, take_slots, scan_states,
  /// files and copy_out serve, and nothing is written; `world` may be null then: all ranks are here.
  States(const Prepared& run, RankRange here, World* world, std::vector<RankPlace> ranks, bool only_reads);

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
  /// All processes. Back to the last commit, after an iteration was given up: fills what lives in memory from the
  /// slots.
  Status roll_back(bool keeps_gradients);
  /// All processes. Copies of whole units on the devices, where something else has been: from the slots.
  Status load_residents();

  /// As checkpoints have them: what the states are, the whole model's tensors, and of all ranks what each of them
  /// writes, with pieces and sizes and no places yet. Files of ranks that write nothing have no units.
  StoredFormats formats() const;
  std::vector<StoredTensor> tensors() const;
  std::vector<StoredFile> files() const;
  std::uint64_t checkpoint_bytes() const;  ///< of the states in those
  /// Copies what the writer's file has of a rank of here, verified as it is read. `watch` hears of bytes.
  Status copy_out(RankId rank, StateWriter& writer, const std::function<Status(std::uint64_t bytes)>& watch);
  /// Where steps are durable and the writer's file can share blocks with the swap file of a rank of here: what it has
  /// not been given is shared, from a physical slot that nothing writes meanwhile. Called while steps go on.
  bool shares_slots(RankId rank, const StateWriter& writer) const;
  Status share_slot(RankId rank, std::uint8_t physical_slot, StateWriter& writer) const;
  /// Fills the states of the ranks of here, whatever layout and formats the checkpoint has. Every block is verified
  /// before it is used. bad_request, naming tensor or block, when it is another model's, or damaged.
  Status load_checkpoint(Checkpoint& checkpoint, const QueueOptions& queue, bool with_moments, const Watch& watch);
  RankRange here() const { return here_; }
  /// Of the name that it has in a checkpoint.
  UnitId unit_of(const std::string& stored) const;

  /// The weights of the ranks of this process in pieces of whole blocks of every state.
  WeightPieces pieces() const;
  /// Calls `visit` with these states of each piece from the slots that were taken, one kind after the other, verified,
  /// and while the next ones are read; padding included.
  using VisitPiece = std::function<Status(const StatePiece& piece, std::span<const std::byte> data)>;
  Status scan_states(std::span<const StateKind> kinds, const VisitPiece& visit);

  /// Calls `visit` with consecutive pieces of each unit's flat states of these kinds in their storage types, padding of
  /// the shards left out, the same wherever they lie (8-bit moments: codes and scales page by page). Nothing may run
  /// meanwhile. Where there are other processes, within lead_visits.
  using Visit = std::function<Status(UnitId unit, std::uint64_t first_element, std::span<const std::byte> data)>;
  Status visit_states(std::span<const StateKind> kinds, const Visit& visit);
  /// All processes call it: the leader does its work, which visits states, and the others send theirs. The same status
  /// on all.
  Status lead_visits(const std::function<Status()>& work);
  /// fault where replicas differ. Of every parameter and optimizer state: the sum of what blocks of 4096 elements of
  /// each unit's flat states hash to, each with its place, so that it is the same wherever they lie and however many
  /// ranks have parts of them. All processes call it.
  Result<std::uint64_t> state_hash();

  /// What visits states ends early, with ErrorCode::cancelled, when `stop`, which may be null, is true.
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  /// Of the values of this process, in their order, those that all have.
  Result<std::vector<std::uint64_t>> common(std::vector<std::uint64_t> own) const;

 private:
  bool is_alone() const { return world_ == nullptr || world_->is_alone(); }
  const RankPlace& at(RankId rank) const { return ranks_[static_cast<std::size_t>(rank - here_.first)]; }
  SwapStore* store(RankId rank) const { return at(rank).store; }
  /// Of the stage that has the unit.
  const StateTable& table(UnitId unit) const { return tables_[stages_.stage_of(unit)]; }
  const Buffer& buffer(UnitId unit, BufferId id) const { return run_.stages[stages_.stage_of(unit)].main.buffers[id]; }
  std::byte* host(RankId rank, const Buffer& b) const { return at(rank).memory->at(Tier::host, b.offset); }
  bool grouped(StateKind kind) const;                                     ///< 8-bit moments: not element after element
  std::uint64_t state_bytes(StateKind kind, std::uint64_t numel) const;   ///< of the first elements of a shard
  std::uint64_t stream_bytes(StateKind kind, std::uint64_t numel) const;  ///< of the same as `visit` gets them
  /// Every shard of a state that the run has, here or elsewhere, in logical order, with the first rank that has it.
  Status each_shard(const std::function<Status(UnitId, StateKind, RankId)>& visit);
  Status visit_shard(UnitId unit, StateKind kind, RankId rank, const Visit& visit, SwapWindow& window);
  Result<Status> send_shard(UnitId unit, StateKind kind, RankId rank, SwapWindow& window);
  Status receive_shard(UnitId unit, RankId rank, const Visit& visit);
  Status write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                     SwapWindow::Piece& piece, SwapWindow& window);
  std::byte* only_home(UnitId unit, StateKind kind, RankId rank, std::uint64_t first);
  Status store_weights(UnitId unit, RankId rank, std::uint64_t first, const WeightValues& weights, SwapWindow& window);
  Status clear_states(bool gradients_only);
  /// What of a rank's committed slots is read: all, which verifies it; what lives in memory; what lives on the device.
  enum class Load : std::uint8_t { all, copies, residents };
  Status load_slots(RankId rank, Load load, const Watch& watch);
  RankId saver_of(UnitId unit, RankId shard) const;
  Status copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters);

  const Prepared& run_;
  RankRange here_;
  World* world_;
  std::vector<RankPlace> ranks_;  ///< of here
  bool only_reads_;
  Stages stages_;
  std::vector<StateTable> tables_;  ///< by stage
  MomentLayout moments_;
  std::uint64_t piece_numel_;  ///< elements moved at a time: whole blocks of every state
  const std::atomic<bool>* stop_ = nullptr;
};

}  // namespace sluice
