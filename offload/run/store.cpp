#include "offload/run/store.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

BufferSums make_sums(const Buffer& buffer) {
  BufferSums made;
  made.bytes = buffer.bytes;
  made.block_bytes = buffer.block_bytes;
  const std::uint64_t blocks = (buffer.bytes + buffer.block_bytes - 1) / buffer.block_bytes;
  for (int slot = 0; slot < buffer.slots; ++slot) made.slots.emplace_back(blocks);
  return made;
}

}  // namespace

std::uint64_t SwapStore::file_bytes(std::span<const ArenaSpec> arenas) {
  std::uint64_t total = 0;
  for (const ArenaSpec& spec : arenas)
    if (spec.tier == Tier::nvme) total += padded_bytes(spec.bytes);
  return total;
}

Result<std::unique_ptr<SwapStore>> SwapStore::create(SwapFile& file, std::span<const ArenaSpec> arenas,
                                                     const Memory& memory, QueueOptions queue) {
  if (file.bytes() < file_bytes(arenas))
    return bad_request("the swap file has " + std::to_string(file.bytes()) + " bytes, the plan needs " +
                       std::to_string(file_bytes(arenas)));
  std::unique_ptr<SwapStore> store(new SwapStore(file));
  std::uint64_t base = 0;
  for (const ArenaSpec& spec : arenas) {
    if (spec.tier != Tier::nvme) continue;
    auto rank = std::make_unique<RankStore>();
    rank->spec = spec;
    rank->base = base;
    base += padded_bytes(spec.bytes);
    queue.files = file.files();
    queue.buffers.clear();
    if (const std::uint64_t bytes = memory.bytes(Tier::host, spec.rank); bytes > 0)
      queue.buffers.emplace_back(memory.at(Tier::host, spec.rank, 0), bytes);
    SLUICE_ASSIGN(rank->reads, make_queue(queue));
    SLUICE_ASSIGN(rank->writes, make_queue(queue));
    store->ranks_.push_back(std::move(rank));
  }
  return store;
}

SwapStore::RankStore* SwapStore::find(RankId rank) const {
  for (const auto& each : ranks_)
    if (each->spec.rank == rank) return each.get();
  return nullptr;
}

SwapStore::RankStore& SwapStore::rank_at(RankId rank) const {
  RankStore* const found = find(rank);
  SLUICE_CHECK(found != nullptr, "(rank %d has no nvme arena)", static_cast<int>(rank));
  return *found;
}

std::uint64_t SwapStore::arena_bytes(RankId rank) const {
  const RankStore* const found = find(rank);
  return found == nullptr ? 0 : found->spec.bytes;
}

Status SwapStore::learn(const Buffer& buffer, BufferSums** sums) {
  RankStore* const rank = find(buffer.rank);
  if (rank == nullptr || buffer.offset + footprint_bytes(buffer) > rank->spec.bytes)
    return bad_request("buffer " + buffer.name + " ends at " + std::to_string(buffer.offset + footprint_bytes(buffer)) +
                       " in an nvme arena of " + std::to_string(rank == nullptr ? 0 : rank->spec.bytes) + " bytes");
  if (buffer.block_bytes == 0 || buffer.block_bytes % buffer_alignment_bytes != 0)
    return bad_request("buffer " + buffer.name + " has blocks of " + std::to_string(buffer.block_bytes) +
                       " bytes; they must be multiples of 4096");
  if (buffer.life != Life::persistent) {
    transient_.push_back(std::make_unique<BufferSums>(make_sums(buffer)));
    *sums = transient_.back().get();
    return success();
  }
  auto [place, is_new] = rank->persistent.try_emplace(buffer.offset);
  if (is_new) place->second = make_sums(buffer);
  BufferSums& known = place->second;
  if (known.bytes != buffer.bytes || known.block_bytes != buffer.block_bytes || known.slots.size() != buffer.slots)
    return bad_request("persistent buffer " + buffer.name + " at " + std::to_string(buffer.offset) +
                       " is not what an earlier plan had there");
  *sums = &known;
  return success();
}

Status SwapStore::bind(const StepPlan& plan) {
  plan_ = nullptr;
  transient_.clear();
  bound_.assign(plan.buffers.size(), nullptr);
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].tier == Tier::nvme) SLUICE_TRY(learn(plan.buffers[b], &bound_[b]));
  plan_ = &plan;
  return success();
}

BufferSums& SwapStore::sums(BufferId buffer) {
  SLUICE_CHECK(plan_ != nullptr && buffer < bound_.size() && bound_[buffer] != nullptr, "(buffer %u)", buffer);
  return *bound_[buffer];
}

std::uint64_t SwapStore::file_offset(BufferId buffer, std::uint8_t physical_slot, std::uint64_t offset_bytes) const {
  const Buffer& b = plan_->buffers[buffer];
  return rank_at(b.rank).base + b.offset + physical_slot * padded_bytes(b.bytes) + offset_bytes;
}

Status SwapStore::read(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data) {
  return transfer(IoOp::read, buffer, slot, offset_bytes, data);
}

Status SwapStore::write(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<const std::byte> data) {
  // The queue's requests carry one kind of pointer; a write does not change what it points to.
  return transfer(IoOp::write, buffer, slot, offset_bytes, {const_cast<std::byte*>(data.data()), data.size()});
}

Status SwapStore::transfer(IoOp op, BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data) {
  BufferSums& table = sums(buffer);
  const Buffer& b = plan_->buffers[buffer];
  const std::uint64_t end = offset_bytes + data.size();
  SLUICE_CHECK(offset_bytes % b.block_bytes == 0 && end <= b.bytes && (end == b.bytes || end % b.block_bytes == 0),
               "(%s: %llu bytes at %llu)", b.name.c_str(), static_cast<unsigned long long>(data.size()),
               static_cast<unsigned long long>(offset_bytes));
  const std::uint8_t current = b.slots == 2 ? parity(b.rank) : 0;
  const auto physical = static_cast<std::uint8_t>(slot == Slot::current || b.slots == 1 ? current : 1 - current);
  BlockChecksums& checks = table.slots[physical];
  const auto each_block = [&](auto&& visit) -> Status {
    for (std::uint64_t at = 0; at < data.size(); at += b.block_bytes)
      SLUICE_TRY(visit((offset_bytes + at) / b.block_bytes,
                       data.subspan(at, std::min<std::uint64_t>(b.block_bytes, data.size() - at))));
    return success();
  };
  if (op == IoOp::write)
    SLUICE_TRY(each_block([&](std::uint64_t block, std::span<const std::byte> bytes) {
      checks.set(block, bytes);
      return success();
    }));
  const std::uint64_t padded = padded_bytes(data.size());
  for (std::uint64_t at = 0; at < padded;) {
    const SwapPiece piece = file_.piece(file_offset(buffer, physical, offset_bytes) + at, padded - at);
    SLUICE_TRY(transfer_now(queue(b.rank, op), op, piece.file, piece.offset, {data.data() + at, piece.bytes}));
    at += piece.bytes;
  }
  if (op == IoOp::write) return success();
  return each_block([&](std::uint64_t block, std::span<const std::byte> bytes) {
    return checks.verify(block, bytes, b.name.c_str());
  });
}

Status SwapStore::sync() { return file_.sync(); }

std::uint64_t SwapStore::read_bytes() const {
  std::uint64_t total = 0;
  for (const auto& rank : ranks_) total += rank->reads->counters().read_bytes;
  return total;
}

std::uint64_t SwapStore::written_bytes() const {
  std::uint64_t total = 0;
  for (const auto& rank : ranks_) total += rank->writes->counters().write_bytes;
  return total;
}

}  // namespace sluice
