#include "src/device/cuda/nccl_collectives.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/tree_sum.h"
#include "sluice/dtype.h"

namespace sluice {

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::create(CudaDevice& device) {
  std::unique_ptr<NcclCollectives> made(new NcclCollectives(device));
  SLUICE_ASSIGN(made->library_, kernels::cuda::Nccl::open());
  SLUICE_TRY(device.make_current());
  SLUICE_ASSIGN(made->queue_, device.make_queue(true));
  made->stream_ = std::make_unique<kernels::cuda::Stream>(made->queue_->stream());
  SLUICE_TRY(made->stream_->status());
  made->queue_->set_watch({[self = made.get()](auto waited) { return self->still_waits(waited); },
                           [self = made.get()] { self->abandon(); }});
  return made;
}

NcclCollectives::~NcclCollectives() { abandon(); }

Status NcclCollectives::connect(const StepPlan& plan, LaneId lane, Communicator& ranks) {
  SLUICE_TRY(device_.make_current());
  {
    const std::lock_guard lock(mutex_);
    if (is_broken_) abort_all();
    abandoned_ = is_broken_ = false;
    ranks_ = &ranks;
  }
  std::vector<bool> is_met(plan.groups.size());
  for (const Op& op : plan.ops)
    if (op.lane == lane) is_met[static_cast<std::size_t>(op.group)] = true;
  groups_.assign(plan.groups.size(), nullptr);
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (is_met[g]) {
      SLUICE_ASSIGN(groups_[g], meet(static_cast<std::int32_t>(g), plan.topology.members(plan.groups[g]), ranks));
    }
  return success();
}

Result<NcclCollectives::Nccl*> NcclCollectives::meet(std::int32_t group, const std::vector<RankId>& members,
                                                     Communicator& ranks) {
  std::unique_ptr<Nccl>& kept = communicators_[members];
  std::int64_t have = kept && !kept->is_aborted() ? 1 : 0;
  SLUICE_TRY(ranks.sum(group, std::span(&have, 1)));
  if (have == static_cast<std::int64_t>(members.size())) return kept.get();
  {
    const std::lock_guard lock(mutex_);
    kept.reset();
  }
  kernels::cuda::NcclId id{};
  if (ranks.position(group) == 0) {
    SLUICE_ASSIGN(id, library_->make_id());
  }
  SLUICE_TRY(ranks.broadcast(group, 0, id));
  {
    const std::lock_guard lock(mutex_);
    SLUICE_ASSIGN(kept, Nccl::join(library_, id, members.size(), ranks.position(group)));
  }
  SLUICE_TRY(ask(*kept, [] { return success(); }));
  return kept.get();
}

/// Until what was asked for is in the stream, or all members have joined.
Status NcclCollectives::settle(Nccl& nccl) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point since = Clock::now();;) {
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return Error{ErrorCode::cancelled, "the run has ended"};
      SLUICE_ASSIGN(const bool has_settled, nccl.has_settled());
      if (has_settled) return success();
    }
    SLUICE_TRY(ranks_->still_waits(Clock::now() - since));
    if (Clock::now() - since > std::chrono::milliseconds(1)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// NCCL tells no more than that CUDA failed, where it was not the one to notice first: the device tells how it did.
Error NcclCollectives::explained(const Error& error) const {
  const auto device = device_.free_bytes();
  return error.code == ErrorCode::fault && !device.ok()
             ? Error{error.code, error.message + ": " + device.error().message}
             : error;
}

template <class Ask>
Status NcclCollectives::ask(Nccl& nccl, Ask ask) {
  Status done;
  {
    const std::lock_guard lock(mutex_);
    done = abandoned_ ? Status(Error{ErrorCode::cancelled, "the run has ended"}) : ask();
  }
  if (done.ok()) done = settle(nccl);
  if (done.ok()) return done;
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  return explained(done.error());
}

/// Of who awaits.
Status NcclCollectives::still_waits(std::chrono::duration<double> waited) {
  const std::lock_guard lock(mutex_);
  for (const auto& [members, nccl] : communicators_)
    if (nccl && !nccl->is_aborted())
      if (const auto settled = nccl->has_settled(); !settled.ok()) return explained(settled.error());
  return ranks_->still_waits(waited);
}

void NcclCollectives::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  abort_all();
}

void NcclCollectives::abort_all() {
  for (const auto& [members, nccl] : communicators_)
    if (nccl) nccl->abort();
}

Status NcclCollectives::put_in(const Op& op, std::span<const Operand> operands) {
  SLUICE_TRY(queue_->begin());
  Nccl& nccl = *groups_[static_cast<std::size_t>(op.group)];
  switch (op.kind) {
    case OpKind::all_gather: return all_gather(nccl, gathered(operands));
    case OpKind::reduce_scatter: return reduce_scatter(nccl, op, operands);
    case OpKind::all_to_all: {
      const Operand *src = nullptr, *dst = nullptr;
      for (const Operand& o : operands) (o.role == Role::src ? src : dst) = &o;
      return all_to_all(nccl, static_cast<std::size_t>(op.pieces), {src->data, src->bytes}, {dst->data, dst->bytes});
    }
    case OpKind::ring_shift: return ring_shift(nccl, operands);
    default: break;
  }
  SLUICE_CHECK(false, "(op of kind %d)", static_cast<int>(op.kind));
}

Status NcclCollectives::all_gather(Nccl& nccl, std::span<std::byte> full) {
  return ask(nccl, [&] { return nccl.all_gather(full.data(), full.size() / nccl.ranks(), queue_->stream()); });
}

Status NcclCollectives::reduce_scatter(Nccl& nccl, const Op& op, std::span<const Operand> operands) {
  std::span<const float> full;
  std::span<float> part;
  std::span<std::byte> room;
  for (const Operand& o : operands) {
    if (o.role == Role::src) full = {reinterpret_cast<const float*>(o.data), o.bytes / sizeof(float)};
    if (o.role == Role::dst) part = {reinterpret_cast<float*>(o.data), o.bytes / sizeof(float)};
    if (o.role == Role::workspace) room = {o.data, o.bytes};
  }
  switch (op.sums) {
    case RankSums::tree: return add_up<float>(nccl, full, part, room);
    case RankSums::bf16: return add_up<bf16>(nccl, full, part, room);
    case RankSums::native:
      return ask(nccl, [&] { return nccl.reduce_scatter(full.data(), part.data(), part.size(), queue_->stream()); });
    case RankSums::int4: break;
  }
  SLUICE_CHECK(false, "sums of %zu ranks in bits are ops of a plan", nccl.ranks());
}

/// Block by block, as large as `room` has places for, one for each other member. As bf16 what arrives is in one half of
/// a place, and what is sent in the other.
template <class Wire>
Status NcclCollectives::add_up(Nccl& nccl, std::span<const float> full, std::span<float> part,
                               std::span<std::byte> room) {
  constexpr bool is_rounded = std::is_same_v<Wire, bf16>;
  const std::size_t members = nccl.ranks(), own = nccl.rank(), numel = part.size();
  const std::size_t block = std::min(numel, room.size() / (members - 1) / sizeof(float));
  SLUICE_CHECK(block > 0, "(%zu bytes for %zu elements of %zu members)", room.size(), numel, members);
  const auto place = [&](std::size_t member) {
    const std::size_t index = member - (member > own ? 1 : 0);
    return reinterpret_cast<Wire*>(reinterpret_cast<float*>(room.data()) + index * block);
  };
  for (std::size_t begin = 0; begin < numel; begin += block) {
    const std::size_t count = std::min(block, numel - begin);
    out_.clear();
    in_.clear();
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t to = (own + step) % members, from = (own + members - step) % members;
      const float* const leaving = full.data() + to * numel + begin;
      if constexpr (is_rounded) {
        kernels::cuda::narrow(leaving, place(to) + block, static_cast<std::int64_t>(count), *stream_);
        out_.push_back({to, std::as_bytes(std::span(place(to) + block, count))});
      } else {
        out_.push_back({to, std::as_bytes(std::span(leaving, count))});
      }
      in_.push_back({from, std::as_writable_bytes(std::span(place(from), count))});
    }
    SLUICE_TRY(stream_->status());
    SLUICE_TRY(ask(nccl, [&] { return nccl.exchange(out_, in_, queue_->stream()); }));
    const auto stride = static_cast<std::int64_t>(block * (is_rounded ? 2 : 1));
    kernels::cuda::tree_sum(full.data() + own * numel + begin, place(own == 0 ? 1 : 0), stride,
                            static_cast<int>(members), static_cast<int>(own), part.data() + begin,
                            static_cast<std::int64_t>(count), *stream_);
    SLUICE_TRY(stream_->status());
  }
  return success();
}

Status NcclCollectives::all_to_all(Nccl& nccl, std::size_t pieces, std::span<const std::byte> from,
                                   std::span<std::byte> to) {
  const std::size_t members = nccl.ranks(), own = nccl.rank(), part = from.size() / members / pieces;
  const auto at = [&](std::size_t piece, std::size_t member) { return (piece * members + member) * part; };
  out_.clear();
  in_.clear();
  for (std::size_t step = 1; step < members; ++step) {
    const std::size_t to_member = (own + step) % members, from_member = (own + members - step) % members;
    for (std::size_t p = 0; p < pieces; ++p) {
      out_.push_back({to_member, from.subspan(at(p, to_member), part)});
      in_.push_back({from_member, to.subspan(at(p, from_member), part)});
    }
  }
  for (std::size_t p = 0; p < pieces; ++p)
    SLUICE_TRY(queue_->copy(to.data() + at(p, own), from.data() + at(p, own), part));
  return ask(nccl, [&] { return nccl.exchange(out_, in_, queue_->stream()); });
}

Status NcclCollectives::ring_shift(Nccl& nccl, std::span<const Operand> operands) {
  const std::size_t members = nccl.ranks(), own = nccl.rank();
  out_.clear();
  in_.clear();
  for (const Operand& o : operands)
    if (o.role == Role::src)
      out_.push_back({(own + 1) % members, {o.data, o.bytes}});
    else
      in_.push_back({(own + members - 1) % members, {o.data, o.bytes}});
  return ask(nccl, [&] { return nccl.exchange(out_, in_, queue_->stream()); });
}

}  // namespace sluice
