// A run with its memory, swap file and lanes: what the trainer drives.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/swap_file.h"
#include "offload/run/executor.h"
#include "offload/run/swap_window.h"
#include "src/device/cpu_backend.h"
#include "src/train/prepare.h"

namespace sluice {

/// Reserves everything that the plans need and nothing later. Owned memory is frozen at create().
class Engine {
 public:
  /// `run` and `source` must outlive it. Errors: bad_request when the machine or the drive lacks the room.
  static Result<std::unique_ptr<Engine>> create(const Prepared& run, StepSource& source, bool record_timeline);
  ~Engine();

  /// Random weights, or those of a Hugging Face directory, into every state's home; moments zero. Once, before anything
  /// runs. `watch`, which may be empty, hears the fraction that is done.
  using Watch = std::function<void(double fraction)>;
  Status initialize(const std::string& init, std::uint64_t seed, const Watch& watch);

  Executor& executor() { return *executor_; }
  SwapStore* store() { return store_.get(); }
  std::byte* host(RankId rank, const Buffer& b) const { return memory_->at(Tier::host, rank, b.offset); }
  const RopeTable& rope() const { return rope_; }

  /// Calls `visit` with consecutive pieces of each unit's flat states of these kinds in their storage types, padding of
  /// the shards left out, wherever they lie. Nothing may run meanwhile.
  using Visit = std::function<Status(UnitId unit, std::uint64_t first_element, std::span<const std::byte> data)>;
  Status visit_states(std::span<const StateKind> kinds, const Visit& visit);
  std::uint64_t state_element_bytes(StateKind kind) const;

  /// XXH3 over every parameter and optimizer state in logical order: the same wherever they lie.
  Result<std::uint64_t> state_hash();

  const std::string& storage() const { return storage_; }  ///< where the drive tier lies and how, for people

 private:
  explicit Engine(const Prepared& run) : run_(run) {}
  Status reserve();
  Status build_executor(StepSource& source, bool record_timeline);
  void index_buffers();
  BufferId& home(UnitId unit, StateKind kind, RankId rank);
  Status visit_shard(UnitId unit, StateKind kind, RankId rank, const Visit& visit, SwapWindow& window);
  Status write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                     SwapWindow::Piece& piece, SwapWindow& window);
  Status store_weights(UnitId unit, RankId rank, std::uint64_t first, std::span<const float> weights,
                       SwapWindow& window);
  void clear_states();
  void copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters);

  const Prepared& run_;
  std::uint64_t piece_numel_ = 0;  ///< elements moved at a time outside steps: whole blocks of every state
  RopeTable rope_;
  HostDevice device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Memory> memory_;
  SwapFile swap_;
  std::unique_ptr<SwapStore> store_;
  std::vector<std::unique_ptr<CpuBackend>> backends_;
  std::unique_ptr<Executor> executor_;
  std::vector<BufferId> homes_;      ///< [(unit * 5 + kind) * ranks + rank]
  std::vector<BufferId> residents_;  ///< [unit * ranks + rank]
  std::string storage_;
};

}  // namespace sluice
