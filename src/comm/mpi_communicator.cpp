#include "src/comm/mpi_communicator.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "sluice/exchange.h"

namespace sluice {

MpiCommunicator::MpiCommunicator(MPI_Comm data, MPI_Comm notices, int tag_max, Alarm& alarm)
    : data_(data), notices_(notices), tag_max_(tag_max), alarm_(alarm) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(data, &rank);
  MPI_Comm_size(data, &ranks);
  rank_ = static_cast<RankId>(rank);
  ranks_ = static_cast<RankId>(ranks);
}

Status MpiCommunicator::prepare(const Topology& topology, std::span<const AxisSet> groups, bool sums_natively) {
  if (topology.ranks() != ranks_ || topology.rank() != rank_)
    return bad_request("the plan is of rank " + std::to_string(topology.rank()) + " of " +
                       std::to_string(topology.ranks()) + ", the communicator of rank " + std::to_string(rank_) +
                       " of " + std::to_string(ranks_));
  SLUICE_CHECK(groups.size() <= channels_max, "(%zu groups)", groups.size());
  begin_session(topology, groups);
  for (std::size_t g = 0; g < groups.size() && sums_natively; ++g) SLUICE_TRY(meet_alone(static_cast<std::int32_t>(g)));
  return success();
}

void MpiCommunicator::begin_session(const Topology& topology, std::span<const AxisSet> groups) {
  const std::lock_guard lock(mutex_);
  ++session_;
  cancelled_.erase(cancelled_.begin(), cancelled_.lower_bound(session_));
  const int sessions = (tag_max_ - 1) / channels_max;
  channels_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Channel channel;
    channel.members = topology.members(groups[g]);
    channel.position = topology.position(groups[g]);
    channel.tag =
        static_cast<int>(session_ % static_cast<std::uint64_t>(sessions)) * channels_max + static_cast<int>(g);
    channel.messages.reset(new std::array<Messages, exchange_blocks>{Messages(alarm_), Messages(alarm_)});
    channel.arriving = std::make_unique<Messages>(alarm_);
    channels_.push_back(std::move(channel));
  }
}

const MpiCommunicator::Channel& MpiCommunicator::at(std::int32_t number) const {
  SLUICE_CHECK(number >= 0 && static_cast<std::size_t>(number) < channels_.size(), "(group %d of %zu)", number,
               channels_.size());
  return channels_[static_cast<std::size_t>(number)];
}

Status MpiCommunicator::finish(Messages& messages, const char* what, const Channel& channel) {
  Status finished = messages.finish(deadline_.load(), [this] { return interrupted(); });
  if (finished.ok() && met_) met_();
  if (finished.ok() || finished.error().code == ErrorCode::cancelled) return finished;
  return finished.error().in(std::string(what) + " of " + std::to_string(channel.members.size()) + " ranks");
}

Status MpiCommunicator::all_gather(std::int32_t number, std::span<std::byte> full) {
  const Channel& c = at(number);
  const std::size_t members = c.members.size();
  SLUICE_CHECK(full.size() % members == 0, "(%zu bytes, %zu members)", full.size(), members);
  const std::size_t part = full.size() / members;
  SLUICE_TRY(check_cancelled());
  for (std::size_t begin = 0; begin < part; begin += message_bytes_max) {
    const std::size_t count = std::min(message_bytes_max, part - begin);
    const auto piece = [&](std::size_t member) { return full.subspan(member * part + begin, count); };
    Call call(c);
    Messages& messages = call[0];
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t from = (c.position + members - step) % members;
      SLUICE_TRY(messages.receive(data_, c.members[from], c.tag, piece(from)));
    }
    for (std::size_t step = 1; step < members; ++step)
      SLUICE_TRY(messages.send(data_, c.members[(c.position + step) % members], c.tag, piece(c.position)));
    SLUICE_TRY(finish(messages, "all_gather", c));
  }
  return success();
}

Status MpiCommunicator::reduce_scatter(std::int32_t number, std::span<const float> full, std::span<float> part,
                                       std::span<std::byte> room, RankSums sums) {
  const Channel& c = at(number);
  SLUICE_CHECK(full.size() == part.size() * c.members.size(), "(%zu elements, %zu in %zu parts)", full.size(),
               part.size(), c.members.size());
  SLUICE_CHECK(room.size() >= exchange_bytes(c.members.size(), part.size_bytes()), "(%zu bytes)", room.size());
  SLUICE_TRY(check_cancelled());
  switch (sums) {
    case RankSums::tree: return reduce_by_messages<float>(c, full, part, room);
    case RankSums::bf16: return reduce_by_messages<bf16>(c, full, part, room);
    case RankSums::native: return reduce_natively(number, full, part);
    case RankSums::int4: SLUICE_CHECK(false, "sums of %zu ranks in bits are ops of a plan", c.members.size());
  }
  return success();
}

/// In blocks: while one is added up the next arrives. A place in `room` has so many floats: as bf16, what arrives is in
/// one half of it and what is sent in the other.
template <class Wire>
Status MpiCommunicator::reduce_by_messages(const Channel& c, std::span<const float> full, std::span<float> part,
                                           std::span<std::byte> room) {
  constexpr bool is_rounded = std::is_same_v<Wire, bf16>;
  const std::size_t members = c.members.size(), numel = part.size();
  const std::size_t block = exchange_block_bytes(members, part.size_bytes()) / sizeof(float),
                    blocks = numel == 0 ? 0 : (numel + block - 1) / block;
  const auto place = [&](std::size_t at, std::size_t member) {
    const std::size_t index = member - (member > c.position ? 1 : 0);
    return reinterpret_cast<float*>(room.data()) + ((at % exchange_blocks) * (members - 1) + index) * block;
  };
  const auto arrived = [&](std::size_t at, std::size_t member) { return reinterpret_cast<Wire*>(place(at, member)); };
  const auto leaving = [&](std::size_t at, std::size_t to, std::size_t begin, std::size_t count) {
    const float* const own = full.data() + to * numel + begin;
    if constexpr (is_rounded) {
      bf16* const rounded = arrived(at, to) + block;
      for (std::size_t i = 0; i < count; ++i) rounded[i] = to_bf16(own[i]);
      return std::as_bytes(std::span(rounded, count));
    } else {
      return std::as_bytes(std::span(own, count));
    }
  };
  Call under_way(c);
  const auto begin_block = [&](std::size_t at) -> Status {
    Messages& messages = under_way[at];
    const std::size_t begin = at * block, count = std::min(block, numel - begin);
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t from = (c.position + members - step) % members;
      SLUICE_TRY(
          messages.receive(data_, c.members[from], c.tag, std::as_writable_bytes(std::span(arrived(at, from), count))));
    }
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t to = (c.position + step) % members;
      SLUICE_TRY(messages.send(data_, c.members[to], c.tag, leaving(at, to, begin, count)));
    }
    return success();
  };
  if (blocks > 0) SLUICE_TRY(begin_block(0));
  for (std::size_t at = 0; at < blocks; ++at) {
    if (at + 1 < blocks) SLUICE_TRY(begin_block(at + 1));
    SLUICE_TRY(finish(under_way[at], "reduce_scatter", c));
    const std::size_t begin = at * block, count = std::min(block, numel - begin);
    const float* const own = full.data() + c.position * numel + begin;
    const auto load = [&](std::size_t m, std::size_t offset, std::size_t some) -> const float* {
      if constexpr (is_rounded) {
        return m == c.position ? c.tree->rounded(own + offset, some) : c.tree->rounded(arrived(at, m) + offset, some);
      } else {
        return (m == c.position ? own : arrived(at, m)) + offset;
      }
    };
    c.tree->add_up_loaded(members, part.subspan(begin, count), load);
  }
  return success();
}

Status MpiCommunicator::reduce_natively(std::int32_t number, std::span<const float> full, std::span<float> part) {
  const Channel& c = at(number);
  if (part.size() > std::numeric_limits<int>::max())
    return bad_request("--reduce native: MPI counts elements in 31 bits, and a rank's part has " +
                       std::to_string(part.size()) + "; use more ranks, or --reduce tree");
  const int count = static_cast<int>(part.size()), peer = c.members[c.position == 0 ? 1 : 0];
  const auto found = alone_.find({number, c.members});
  SLUICE_CHECK(found != alone_.end(), "(group %d was not prepared for native sums)", number);
  const MPI_Comm alone = found->second;
  // What has begun can not be called off.
  SLUICE_TRY(alarm_.check());
  SLUICE_TRY(interrupted());
  Call call(c);
  Messages& messages = call[0];
  MPI_Request request;
  if (part.data() + part.size() <= full.data() || part.data() >= full.data() + full.size()) {
    SLUICE_TRY(
        mpi_status(MPI_Ireduce_scatter_block(full.data(), part.data(), count, MPI_FLOAT, MPI_SUM, alone, &request),
                   "MPI_Ireduce_scatter_block"));
    messages.join(request, peer);
  } else {
    // In place, which a reduce_scatter of MPI's would have at the beginning of `full`.
    for (std::size_t m = 0; m < c.members.size(); ++m) {
      const bool is_own = m == c.position;
      const float* const from = full.data() + m * part.size();
      SLUICE_TRY(mpi_status(MPI_Ireduce(is_own ? MPI_IN_PLACE : from, is_own ? part.data() : nullptr, count, MPI_FLOAT,
                                        MPI_SUM, static_cast<int>(m), alone, &request),
                            "MPI_Ireduce"));
      messages.join(request, peer);
    }
  }
  return finish(messages, "reduce_scatter", c);
}

/// MPI makes a communicator for as long as it takes: the members are there when it begins.
Status MpiCommunicator::meet_alone(std::int32_t number) {
  const Channel& c = at(number);
  const std::pair key{number, c.members};
  if (c.members.size() == 1 || alone_.contains(key)) return success();
  std::int64_t here = 0;
  SLUICE_TRY(sum(number, std::span(&here, 1)));
  const std::vector<int> ranks(c.members.begin(), c.members.end());
  MPI_Group all, some;
  SLUICE_TRY(mpi_status(MPI_Comm_group(data_, &all), "MPI_Comm_group"));
  SLUICE_TRY(mpi_status(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl"));
  MPI_Comm made;
  const Status status = mpi_status(MPI_Comm_create_group(data_, some, number, &made), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  SLUICE_TRY(status);
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  alone_[key] = made;
  return success();
}

Status MpiCommunicator::exchange(std::int32_t number, std::span<const Outgoing> out, std::span<const Incoming> in) {
  const Channel& c = at(number);
  SLUICE_TRY(check_cancelled());
  Call call = out.empty() ? Call(std::span(c.arriving.get(), 1)) : Call(c);
  Messages& messages = call[0];
  const auto in_pieces = [](auto data, auto&& each) -> Status {
    for (std::size_t begin = 0; begin < data.size(); begin += message_bytes_max)
      SLUICE_TRY(each(data.subspan(begin, std::min(message_bytes_max, data.size() - begin))));
    return success();
  };
  for (const Incoming& message : in)
    SLUICE_TRY(in_pieces(message.data, [&](std::span<std::byte> piece) {
      return messages.receive(data_, c.members[message.from], c.tag, piece);
    }));
  for (const Outgoing& message : out)
    SLUICE_TRY(in_pieces(message.data, [&](std::span<const std::byte> piece) {
      return messages.send(data_, c.members[message.to], c.tag, piece);
    }));
  return finish(messages, "exchange", c);
}

Status MpiCommunicator::sum(std::int32_t number, std::span<std::int64_t> values) {
  Channel& c = at(number);
  const std::size_t members = c.members.size(), others = members - 1;
  SLUICE_TRY(check_cancelled());
  c.received.resize(others * values.size());  // the same for every step of a plan
  Call call(c);
  Messages& messages = call[0];
  for (std::size_t i = 0; i < others; ++i) {
    const std::size_t from = (c.position + members - 1 - i) % members;
    SLUICE_TRY(
        messages.receive(data_, c.members[from], c.tag,
                         std::as_writable_bytes(std::span(c.received).subspan(i * values.size(), values.size()))));
  }
  for (std::size_t step = 1; step < members; ++step)
    SLUICE_TRY(messages.send(data_, c.members[(c.position + step) % members], c.tag, std::as_bytes(values)));
  SLUICE_TRY(finish(messages, "sum", c));
  for (std::size_t i = 0; i < c.received.size(); ++i) values[i % values.size()] += c.received[i];
  return success();
}

Status MpiCommunicator::interrupted() {
  hear_notices();
  return check_cancelled();
}

Status MpiCommunicator::still_waits(std::chrono::duration<double> waited) {
  SLUICE_TRY(alarm_.check());
  SLUICE_TRY(interrupted());
  const std::chrono::seconds deadline = deadline_.load();
  if (waited <= deadline) return success();
  return fault("rank " + std::to_string(rank_) + " waited " + std::to_string(deadline.count()) +
               " s for the other ranks");
}

Status MpiCommunicator::check_cancelled() {
  const std::lock_guard lock(mutex_);
  const auto found = cancelled_.find(session_);
  return found == cancelled_.end() ? success() : Status(Error{ErrorCode::cancelled, found->second});
}

/// What other ranks have cancelled, this session or one that this rank has not begun.
void MpiCommunicator::hear_notices() {
  while (!alarm_.is_raised()) {
    int is_there = 0;
    MPI_Message message;
    if (MPI_Improbe(MPI_ANY_SOURCE, 0, notices_, &is_there, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_there)
      return;
    Notice notice;
    if (MPI_Mrecv(&notice, sizeof notice, MPI_BYTE, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    notice.reason.back() = 0;
    const std::lock_guard lock(mutex_);
    if (notice.session >= session_) cancelled_.emplace(notice.session, notice.reason.data());
  }
}

void MpiCommunicator::cancel(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!cancelled_.emplace(session_, reason).second || alarm_.is_raised()) return;
  Notice& notice = notices_sent_.emplace_back();
  notice.session = session_;
  std::copy_n(reason.begin(), std::min(reason.size(), notice.reason.size() - 1), notice.reason.begin());
  for (RankId other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    MPI_Request request;
    if (MPI_Isend(&notice, sizeof notice, MPI_BYTE, other, 0, notices_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

}  // namespace sluice
