// The nvme arena of a rank: a place in the swap file, a checksum per block, and which of the two durable slots is
// current.
//
// Persistent buffers lie at the same arena offsets in every plan of a run, so their checksums are kept by offset and
// shared between plans; those of transient buffers live while a plan is bound.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/checksum.h"
#include "io/drives/queue.h"
#include "io/drives/swap_file.h"
#include "offload/run/memory.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// Checksums of one buffer, a table per physical slot.
struct BufferSums {
  std::uint64_t bytes = 0;  ///< of one slot
  std::uint32_t block_bytes = 0;
  std::vector<BlockChecksums> slots;
};

/// A transfer between SwapStore::start and finish: it and its memory stay where they are in between.
class SwapTransfer {
 public:
  SwapTransfer() = default;
  SwapTransfer(const SwapTransfer&) = delete;
  SwapTransfer& operator=(const SwapTransfer&) = delete;

 private:
  friend class SwapStore;
  IoOp op_ = IoOp::read;
  BufferId buffer_ = 0;
  std::uint8_t physical_slot_ = 0;
  std::uint64_t offset_bytes_ = 0;
  std::span<std::byte> data_;
  std::vector<IoRequest> requests_;
  std::size_t in_flight_ = 0;
  Status status_;  ///< the first failure
};

/// Threads: bind, transfers and sync are for one thread while no executor runs a plan on the store. An executor's
/// drive lanes use sums and queues as the plan's waits order them.
class SwapStore {
 public:
  /// The rank's nvme arena is [base, base + bytes) of `file`, which is as large and outlives the store, as does
  /// `memory`, whose host arena is registered with the queues: one each for reads, writes and syncs, made from `queue`,
  /// whose files and buffers are filled in here.
  static Result<std::unique_ptr<SwapStore>> create(SwapFile& file, std::uint64_t base, std::uint64_t bytes,
                                                   const Memory& memory, QueueOptions queue);

  /// Learn the plan's nvme buffers: keeps the checksums of persistent buffers that are known, forgets transient ones.
  /// Call it before read and write; buffer ids are then the plan's. Executor::begin binds its own plan and gives the
  /// caller's back when it ends. The plan must outlive the next bind.
  /// Errors: bad_request if an arena is too small or a persistent buffer changed its shape.
  Status bind(const StepPlan& plan);
  const StepPlan* bound_plan() const { return plan_; }

  /// Read or write part of one slot of an nvme buffer of the bound plan, outside a step: initial weights, export,
  /// hashes. offset_bytes is a multiple of the buffer's block_bytes. `data` is 4096-aligned host memory that covers
  /// whole blocks or ends at the buffer's end; where that end is not a multiple of 4096, up to the next one is used
  /// too. Reads are verified.
  Status read(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data);
  Status write(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<const std::byte> data);
  /// The same with others in flight: `transfer` has finished, or is new. finish waits for it and tells how it went;
  /// after an error of start, and to give up, drain waits for all of them.
  Status start(IoOp op, BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data,
               SwapTransfer& transfer);
  Status finish(SwapTransfer& transfer);
  void drain();
  /// Take the slot for written with zeros, which is what a new swap file reads as: nothing may have been written there.
  void assume_zero(BufferId buffer, Slot slot);
  /// The same after whatever was there, for nvme buffers that are not durable: makes the file read as zeros.
  Status clear(BufferId buffer);
  /// fdatasync of every file, through a queue of its own: makes durable what has come back to any queue before. The
  /// commit lane may call it while others transfer.
  Status sync();

  /// Which physical slot is `current` for the next iteration: flipped by commit ops.
  std::uint8_t parity() const { return parity_.load(std::memory_order_acquire); }
  void set_parity(std::uint8_t parity) { parity_.store(parity, std::memory_order_release); }

  /// Of the bound plan's buffers: for drive lanes.
  BufferSums& sums(BufferId buffer);
  /// Of durable buffers by arena offset: for commit records. They stay where they are.
  std::vector<BufferSums*> durable_sums();
  /// Place in the swap file of a byte of one physical slot of a buffer of the bound plan.
  std::uint64_t file_offset(BufferId buffer, std::uint8_t physical_slot, std::uint64_t offset_bytes) const;
  /// Where `bytes` from there on are, of the slot that is current or not: in files().
  std::vector<SwapPiece> places(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::uint64_t bytes) const;
  /// The same of a physical slot of a durable buffer that lies there in the arena, and the checksums of that slot,
  /// whatever plan is bound. They are true as long as no iteration writes the slot.
  std::vector<SwapPiece> places_of_slot(std::uint64_t arena_offset, std::uint8_t physical_slot,
                                        std::uint64_t offset_bytes, std::uint64_t bytes) const;
  std::span<const std::uint64_t> sums_of_slot(std::uint64_t arena_offset, std::uint8_t physical_slot) const;
  IoQueue& queue(IoOp op) { return op == IoOp::read ? *reads_ : *writes_; }
  const SwapFile& file() const { return file_; }
  std::uint64_t arena_bytes() const { return bytes_; }

  /// Moved by the kernel, as the queues counted them.
  std::uint64_t read_bytes() const;
  std::uint64_t written_bytes() const;

 private:
  SwapStore(SwapFile& file, std::uint64_t base, std::uint64_t bytes) : file_(file), base_(base), bytes_(bytes) {}
  std::uint8_t physical_slot(BufferId buffer, Slot slot) const;
  const BufferSums& durable(std::uint64_t arena_offset) const;
  std::vector<SwapPiece> pieces(std::uint64_t begin, std::uint64_t bytes) const;
  Status reap(IoQueue& queue);  ///< waits for a completion
  Status learn(const Buffer& buffer, BufferSums** sums);

  SwapFile& file_;
  std::uint64_t base_, bytes_;  ///< of the arena in the swap file
  std::unique_ptr<IoQueue> reads_, writes_, syncs_;
  std::vector<IoRequest> sync_requests_;            ///< one for each file
  std::map<std::uint64_t, BufferSums> persistent_;  ///< by arena offset
  std::atomic<std::uint8_t> parity_{0};
  const StepPlan* plan_ = nullptr;
  std::vector<BufferSums*> bound_;                      ///< [buffer], null where not on nvme
  std::vector<std::unique_ptr<BufferSums>> transient_;  ///< of the bound plan
};

}  // namespace sluice
