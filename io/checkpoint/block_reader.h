// Blocks of a checkpoint, read ahead and verified: each once, however many ask for it while it is there.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "io/aligned_memory.h"
#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"

namespace sluice {

struct BlockId {
  std::uint32_t file = 0, unit = 0, state = 0;
  std::uint64_t block = 0;
  auto operator<=>(const BlockId&) const = default;
};

/// One thread. Memory is taken block by block and kept for the next ones; it is never more than what was held at once.
class BlockReader {
 public:
  /// Of these files of the checkpoint, which outlives it; they are opened here. Of `queue` files and buffers are filled
  /// in here.
  static Result<std::unique_ptr<BlockReader>> create(Checkpoint& checkpoint, std::span<const std::uint32_t> files,
                                                     QueueOptions queue);
  ~BlockReader();  ///< waits for what is in flight
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  /// Begins to read the block, if nobody has wanted it yet.
  Status want(const BlockId& id);
  /// A block that is wanted, verified. bad_request, naming file, tensor and block, where it is not what was written;
  /// fault where it can not be read.
  Result<std::span<const std::byte>> get(const BlockId& id);
  /// As often as it was wanted.
  void release(const BlockId& id);

  bool holds(const BlockId& id) const { return blocks_.contains(id); }
  /// Of the blocks that are wanted, each as long as the longest of its state.
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t read_bytes() const { return queue_->counters().read_bytes; }

 private:
  struct Block {
    BlockId id;
    IoRequest request;
    AlignedMemory memory;
    std::size_t wanted = 0;
    bool done = false, verified = false;
  };
  explicit BlockReader(Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  const StoredState& stored(const BlockId& id) const {
    return checkpoint_.manifest().files[id.file].units[id.unit].states[id.state];
  }
  Status reap();
  std::unique_ptr<Block> block_of(std::uint64_t bytes);

  Checkpoint& checkpoint_;
  std::vector<std::uint32_t> queue_file_;  ///< by file of the checkpoint
  std::map<BlockId, std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Block>> free_, given_up_;
  std::uint64_t held_bytes_ = 0;
  std::unique_ptr<IoQueue> queue_;  ///< goes first: nothing is in flight when what it reads into does
};

}  // namespace sluice
