#include "offload/run/store.h"

#include <algorithm>
#include <array>
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

Result<std::unique_ptr<SwapStore>> SwapStore::create(SwapFile& file, std::uint64_t base, std::uint64_t bytes,
                                                     const Memory& memory, QueueOptions queue) {
  if (file.bytes() < base + bytes)
    return bad_request("the swap file has " + std::to_string(file.bytes()) + " bytes, the plan needs " +
                       std::to_string(base + bytes));
  std::unique_ptr<SwapStore> store(new SwapStore(file, base, bytes));
  queue.files = file.files();
  queue.buffers.clear();
  if (const std::uint64_t host = memory.bytes(Tier::host); host > 0)
    queue.buffers.emplace_back(memory.at(Tier::host, 0), host);
  SLUICE_ASSIGN(store->reads_, make_queue(queue));
  SLUICE_ASSIGN(store->writes_, make_queue(queue));
  QueueOptions syncs = queue;
  syncs.depth = 1;
  syncs.buffers.clear();
  syncs.sqpoll = syncs.iopoll = false;
  SLUICE_ASSIGN(store->syncs_, make_queue(syncs));
  store->sync_requests_.resize(queue.files.size());
  return store;
}

Status SwapStore::learn(const Buffer& buffer, BufferSums** sums) {
  if (buffer.offset + footprint_bytes(buffer) > bytes_)
    return bad_request("buffer " + buffer.name + " ends at " + std::to_string(buffer.offset + footprint_bytes(buffer)) +
                       " in an nvme arena of " + std::to_string(bytes_) + " bytes");
  if (buffer.block_bytes == 0 || buffer.block_bytes % buffer_alignment_bytes != 0)
    return bad_request("buffer " + buffer.name + " has blocks of " + std::to_string(buffer.block_bytes) +
                       " bytes; they must be multiples of 4096");
  if (buffer.life != Life::persistent) {
    transient_.push_back(std::make_unique<BufferSums>(make_sums(buffer)));
    *sums = transient_.back().get();
    return success();
  }
  auto [place, is_new] = persistent_.try_emplace(buffer.offset);
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

std::vector<BufferSums*> SwapStore::durable_sums() {
  std::vector<BufferSums*> tables;
  for (auto& [offset, sums] : persistent_)
    if (sums.slots.size() == 2) tables.push_back(&sums);
  return tables;
}

std::uint64_t SwapStore::file_offset(BufferId buffer, std::uint8_t physical_slot, std::uint64_t offset_bytes) const {
  const Buffer& b = plan_->buffers[buffer];
  return base_ + b.offset + physical_slot * padded_bytes(b.bytes) + offset_bytes;
}

std::vector<SwapPiece> SwapStore::places(BufferId buffer, Slot slot, std::uint64_t offset_bytes,
                                         std::uint64_t bytes) const {
  return pieces(file_offset(buffer, physical_slot(buffer, slot), offset_bytes), bytes);
}

std::vector<SwapPiece> SwapStore::pieces(std::uint64_t begin, std::uint64_t bytes) const {
  std::vector<SwapPiece> all;
  for (std::uint64_t at = 0; at < bytes; at += all.back().bytes) all.push_back(file_.piece(begin + at, bytes - at));
  return all;
}

const BufferSums& SwapStore::durable(std::uint64_t arena_offset) const {
  const auto known = persistent_.find(arena_offset);
  SLUICE_CHECK(known != persistent_.end() && known->second.slots.size() == 2, "(nothing durable lies at %llu)",
               static_cast<unsigned long long>(arena_offset));
  return known->second;
}

std::vector<SwapPiece> SwapStore::places_of_slot(std::uint64_t arena_offset, std::uint8_t physical_slot,
                                                 std::uint64_t offset_bytes, std::uint64_t bytes) const {
  return pieces(base_ + arena_offset + physical_slot * padded_bytes(durable(arena_offset).bytes) + offset_bytes, bytes);
}

std::span<const std::uint64_t> SwapStore::sums_of_slot(std::uint64_t arena_offset, std::uint8_t physical_slot) const {
  return durable(arena_offset).slots[physical_slot].values();
}

std::uint8_t SwapStore::physical_slot(BufferId buffer, Slot slot) const {
  const Buffer& b = plan_->buffers[buffer];
  if (b.slots == 1) return 0;
  return slot == Slot::current ? parity() : static_cast<std::uint8_t>(1 - parity());
}

Status SwapStore::read(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data) {
  SwapTransfer transfer;
  SLUICE_TRY(start(IoOp::read, buffer, slot, offset_bytes, data, transfer));
  return finish(transfer);
}

Status SwapStore::write(BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<const std::byte> data) {
  // The queue's requests carry one kind of pointer; a write does not change what it points to.
  const std::span<std::byte> from(const_cast<std::byte*>(data.data()), data.size());
  SwapTransfer transfer;
  SLUICE_TRY(start(IoOp::write, buffer, slot, offset_bytes, from, transfer));
  return finish(transfer);
}

Status SwapStore::start(IoOp op, BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::span<std::byte> data,
                        SwapTransfer& t) {
  BufferSums& table = sums(buffer);
  const Buffer& b = plan_->buffers[buffer];
  const std::uint64_t end = offset_bytes + data.size();
  SLUICE_CHECK(offset_bytes % b.block_bytes == 0 && end <= b.bytes && (end == b.bytes || end % b.block_bytes == 0),
               "(%s: %llu bytes at %llu)", b.name.c_str(), static_cast<unsigned long long>(data.size()),
               static_cast<unsigned long long>(offset_bytes));
  SLUICE_CHECK(t.in_flight_ == 0, "(%s: %zu requests in flight)", b.name.c_str(), t.in_flight_);
  t.op_ = op;
  t.buffer_ = buffer;
  t.physical_slot_ = physical_slot(buffer, slot);
  t.offset_bytes_ = offset_bytes;
  t.data_ = data;
  t.status_ = success();
  t.requests_.clear();
  const std::uint64_t padded = padded_bytes(data.size());
  for (std::uint64_t at = 0; at < padded; at += t.requests_.back().bytes) {
    const SwapPiece piece = file_.piece(file_offset(buffer, t.physical_slot_, offset_bytes) + at, padded - at);
    IoRequest& request = t.requests_.emplace_back();
    request.op = op;
    request.file = piece.file;
    request.offset = piece.offset;
    request.bytes = piece.bytes;
    request.data = data.data() + at;
    request.user = &t;
  }
  for (std::uint64_t at = 0; op == IoOp::write && at < data.size(); at += b.block_bytes)
    table.slots[t.physical_slot_].set((offset_bytes + at) / b.block_bytes,
                                      data.subspan(at, std::min<std::uint64_t>(b.block_bytes, data.size() - at)));
  for (IoRequest& request : t.requests_) {
    while (!queue(op).submit(&request)) SLUICE_TRY(reap(queue(op)));
    ++t.in_flight_;
  }
  queue(op).flush();
  return success();
}

Status SwapStore::finish(SwapTransfer& t) {
  if (t.data_.empty()) return success();
  const Buffer& b = plan_->buffers[t.buffer_];
  while (t.in_flight_ > 0) SLUICE_TRY(reap(queue(t.op_)));
  const std::span<std::byte> data = std::exchange(t.data_, {});
  SLUICE_TRY(t.status_);
  const BlockChecksums& checks = sums(t.buffer_).slots[t.physical_slot_];
  for (std::uint64_t at = 0; t.op_ == IoOp::read && at < data.size(); at += b.block_bytes)
    SLUICE_TRY(checks.verify((t.offset_bytes_ + at) / b.block_bytes,
                             data.subspan(at, std::min<std::uint64_t>(b.block_bytes, data.size() - at)),
                             b.name.c_str()));
  return success();
}

Status SwapStore::reap(IoQueue& queue) {
  std::array<IoRequest*, 16> done;
  SLUICE_ASSIGN(const std::size_t count, queue.wait(1, done));
  for (IoRequest* request : std::span(done).first(count)) {
    auto* const transfer = static_cast<SwapTransfer*>(request->user);
    --transfer->in_flight_;
    if (transfer->status_.ok()) transfer->status_ = queue.status(*request);
  }
  return success();
}

void SwapStore::drain() {
  // Nobody wants what is dropped here, nor its failures.
  for (IoQueue* each : {reads_.get(), writes_.get(), syncs_.get()}) static_cast<void>(each->drain());
}

void SwapStore::assume_zero(BufferId buffer, Slot slot) {
  const Buffer& b = plan_->buffers[buffer];
  BlockChecksums& checks = sums(buffer).slots[physical_slot(buffer, slot)];
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(b.block_bytes, b.bytes));
  checks.set(0, zeros);
  std::fill(checks.values().begin(), checks.values().end(), checks.values()[0]);
  if (const std::uint64_t rest = b.bytes % zeros.size(); rest > 0)
    checks.set(checks.values().size() - 1, std::span(zeros).first(rest));
}

Status SwapStore::clear(BufferId buffer) {
  const Buffer& b = plan_->buffers[buffer];
  SLUICE_CHECK(b.slots == 1, "(%s has %d slots)", b.name.c_str(), b.slots);
  const std::uint64_t end = file_offset(buffer, 0, 0) + padded_bytes(b.bytes);
  for (std::uint64_t at = file_offset(buffer, 0, 0); at < end;) {
    const SwapPiece piece = file_.piece(at, end - at);
    SLUICE_TRY(file_.zero(piece));
    at += piece.bytes;
  }
  assume_zero(buffer, Slot::current);
  return success();
}

// All files at once: drives of a stripe flush their caches beside each other.
Status SwapStore::sync() {
  for (std::size_t i = 0; i < sync_requests_.size(); ++i) {
    IoRequest& request = sync_requests_[i] = IoRequest{};
    request.op = IoOp::sync;
    request.file = static_cast<std::uint32_t>(i);
    SLUICE_CHECK(syncs_->submit(&request), "a sync of file %zu was refused", i);
  }
  Status status;
  for (std::size_t left = sync_requests_.size(); left > 0;) {
    std::array<IoRequest*, 16> done;
    SLUICE_ASSIGN(const std::size_t count, syncs_->wait(1, done));
    for (IoRequest* request : std::span(done).first(count))
      if (status.ok()) status = syncs_->status(*request);
    left -= count;
  }
  return status;
}

std::uint64_t SwapStore::read_bytes() const { return reads_->counters().read_bytes; }

std::uint64_t SwapStore::written_bytes() const { return writes_->counters().write_bytes; }

}  // namespace sluice
