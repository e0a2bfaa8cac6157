// The nvme arenas of a run: places in one swap file, a checksum per block, and which of the two durable slots is
// current.
//
// Persistent buffers lie at the same arena offsets in every plan of a run, so their checksums are kept by offset and
// shared between plans; those of transient buffers live while a plan is bound.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/run/memory.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

class SwapFile;  // io/swap_file.h

/// Checksums of one buffer's blocks: [slot][block]; 0 is "never written".
struct BlockSums {
  std::uint64_t bytes = 0;  ///< of one slot
  std::uint32_t block_bytes = 0;
  std::uint64_t blocks = 0;  ///< per slot
  std::vector<std::uint64_t> sums;
};

/// Thread-safety: bind, read and write are for one thread while no executor runs; everything else is what the drive
/// lanes of an executor use, ordered by the plan's waits.
class SwapStore {
 public:
  /// Bytes of swap file that the nvme specs need (others are ignored).
  static std::uint64_t file_bytes(std::span<const ArenaSpec> arenas);
  /// `file` must outlive the store and have file_bytes(arenas).
  static Result<std::unique_ptr<SwapStore>> create(SwapFile& file, std::span<const ArenaSpec> arenas);
  ~SwapStore();

  /// Learn the plan's nvme buffers: keeps the checksums of persistent buffers that are known, forgets transient ones.
  /// Called by Executor::begin; call it yourself before read and write. Errors: bad_request if an arena is too small or
  /// a persistent buffer changed its shape.
  Status bind(const StepPlan& plan);

  /// Read or write part of one slot of a persistent or transient nvme buffer of the bound plan, outside a step: initial
  /// weights, export, hashes. offset_bytes is a multiple of block_bytes; `data` is 4096-aligned host memory and covers
  /// whole blocks, or ends at the buffer's end (then its allocation is padded to 4096). Reads are verified.
  Status read(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data);
  Status write(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<const std::byte> data);
  Status sync();  ///< fdatasync

  /// Which of the two slots is `current` for the next iteration: flipped by commit ops.
  std::uint8_t parity(RankId rank) const;
  void set_parity(RankId rank, std::uint8_t parity);

  /// Checksums of the bound plan's buffers, for commit records and the executor.
  BlockSums& sums(BufferId buffer);
  /// Place in the file of byte 0 of a slot. physical_slot is 0 or 1.
  std::uint64_t file_offset(const Buffer& buffer, std::uint8_t physical_slot) const;
  SwapFile& file() { return *file_; }

  std::uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t written_bytes() const { return written_bytes_.load(std::memory_order_relaxed); }
  void count(bool write, std::uint64_t bytes);

 private:
  struct Impl;
  SwapStore(SwapFile& file, std::unique_ptr<Impl> impl);

  SwapFile* file_;
  std::unique_ptr<Impl> impl_;
  std::atomic<std::uint64_t> read_bytes_{0}, written_bytes_{0};
};

}  // namespace sluice
