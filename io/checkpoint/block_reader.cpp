#include "io/checkpoint/block_reader.h"

#include <algorithm>
#include <array>

#include "io/checkpoint/sums.h"

namespace sluice {

Result<std::unique_ptr<BlockReader>> BlockReader::create(Checkpoint& checkpoint, std::span<const std::uint32_t> files,
                                                         QueueOptions queue) {
  std::unique_ptr<BlockReader> reader(new BlockReader(checkpoint));
  reader->queue_file_.assign(checkpoint.manifest().files.size(), 0);
  queue.files.clear();
  queue.buffers.clear();
  for (const std::uint32_t index : files) {
    SLUICE_ASSIGN(const Checkpoint::OpenFile* const file, checkpoint.file(index));
    reader->queue_file_[index] = static_cast<std::uint32_t>(queue.files.size());
    queue.files.push_back({file->fd, file->path, file->alignment_bytes});
  }
  SLUICE_ASSIGN(reader->queue_, make_queue(queue));
  return reader;
}

BlockReader::~BlockReader() = default;

/// One that is free, or else a new one, whose memory free ones of other sizes make room for.
std::unique_ptr<BlockReader::Block> BlockReader::block_of(std::uint64_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const auto& b) { return b->memory.bytes() == bytes; });
  if (fits != free_.end()) {
    std::unique_ptr<Block> block = std::move(*fits);
    free_.erase(fits);
    return block;
  }
  for (std::uint64_t room = 0; room < bytes && !free_.empty(); free_.pop_back()) room += free_.back()->memory.bytes();
  auto block = std::make_unique<Block>();
  block->memory = AlignedMemory(bytes);
  return block;
}

Status BlockReader::want(const BlockId& id) {
  std::unique_ptr<Block>& place = blocks_[id];
  if (place != nullptr) {
    ++place->wanted;
    return success();
  }
  const StoredState& s = stored(id);
  const std::uint64_t offset = id.block * s.block_bytes,
                      bytes = std::min<std::uint64_t>(s.block_bytes, s.bytes - offset);
  place = block_of(s.block_bytes);
  held_bytes_ += s.block_bytes;
  Block& block = *place;
  block.id = id;
  block.wanted = 1;
  block.done = block.verified = false;
  block.request = {};
  block.request.op = IoOp::read;
  block.request.file = queue_file_[id.file];
  block.request.offset = s.offset + offset;
  block.request.bytes = bytes;
  block.request.data = block.memory.data();
  block.request.user = &block;
  while (!queue_->submit(&block.request)) SLUICE_TRY(reap());
  queue_->flush();
  return success();
}

Status BlockReader::reap() {
  std::array<IoRequest*, 16> done{};
  SLUICE_ASSIGN(const std::size_t n, queue_->wait(1, done));
  for (std::size_t i = 0; i < n; ++i) static_cast<Block*>(done[i]->user)->done = true;
  return success();
}

Result<std::span<const std::byte>> BlockReader::get(const BlockId& id) {
  const auto found = blocks_.find(id);
  SLUICE_CHECK(found != blocks_.end(), "(block %llu is not wanted)", static_cast<unsigned long long>(id.block));
  Block& block = *found->second;
  while (!block.done) SLUICE_TRY(reap());
  const std::span<const std::byte> data(block.memory.data(), block.request.bytes);
  if (block.verified) return data;
  SLUICE_TRY(queue_->status(block.request));
  SLUICE_ASSIGN(const Checkpoint::OpenFile* const file, checkpoint_.file(id.file));
  if (block_sum(data) != file->sums[stored(id).first_sum + id.block])
    return bad_request(checkpoint_.block_name(id.file, id.unit, id.state, id.block) +
                       " does not have the checksum that was written with it: it is damaged");
  block.verified = true;
  return data;
}

void BlockReader::release(const BlockId& id) {
  const auto found = blocks_.find(id);
  if (--found->second->wanted > 0) return;
  held_bytes_ -= found->second->memory.bytes();
  // What is in flight keeps its memory until it is over.
  (found->second->done ? free_ : given_up_).push_back(std::move(found->second));
  blocks_.erase(found);
}

}  // namespace sluice
