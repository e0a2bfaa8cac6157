#include "src/comm/in_process.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

namespace sluice {

/// A barrier with a published pointer per member. Every collective meets twice: once when all have published, once when
/// all have finished reading, so that no one touches its buffer while another still reads from it.
class InProcessCommunicator::Channel {
 public:
  Channel(std::int32_t id, std::size_t members) : id_(id), published_(members, nullptr) {}

  void publish(std::size_t position, const void* data) { published_[position] = data; }
  template <class T>
  const T* of(std::size_t position) const {
    return static_cast<const T*>(published_[position]);
  }
  std::size_t members() const { return published_.size(); }

  Status meet(std::chrono::seconds deadline, const Meeting& meeting) {
    std::unique_lock lock(mutex_);
    if (cancelled_) return Error{ErrorCode::cancelled, *cancelled_};
    const std::uint64_t round = round_;
    if (++arrived_ == published_.size()) {
      arrived_ = 0;
      ++round_;
      lock.unlock();
      changed_.notify_all();
      return success();
    }
    changed_.wait_for(lock, deadline, [&] { return round_ != round || cancelled_; });
    if (round_ != round) return success();
    if (cancelled_) return Error{ErrorCode::cancelled, *cancelled_};
    return fault("rank " + std::to_string(meeting.rank) + " waited " + std::to_string(deadline.count()) +
                 " s for the other ranks in " +
                 (id_ == control_channel ? std::string("the step's control") : "group " + std::to_string(id_)));
  }

  void cancel(const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!cancelled_) cancelled_ = reason;
    }
    changed_.notify_all();
  }

 private:
  std::int32_t id_;
  std::vector<const void*> published_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::optional<std::string> cancelled_;
};

namespace {

std::size_t position_of(const Meeting& meeting) {
  const auto it = std::find(meeting.members.begin(), meeting.members.end(), meeting.rank);
  SLUICE_CHECK(it != meeting.members.end(), "(rank %d is not of the group)", static_cast<int>(meeting.rank));
  return static_cast<std::size_t>(it - meeting.members.begin());
}

}  // namespace

InProcessCommunicator::InProcessCommunicator(RankId ranks, std::chrono::seconds deadline)
    : ranks_(ranks), deadline_(deadline) {}
InProcessCommunicator::~InProcessCommunicator() = default;

Status InProcessCommunicator::prepare(const std::vector<std::vector<RankId>>& groups) {
  channels_.clear();
  channels_.push_back(std::make_unique<Channel>(control_channel, ranks_));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const RankId rank : groups[g])
      if (rank >= ranks_)
        return bad_request("group " + std::to_string(g) + " has rank " + std::to_string(rank) + " of " +
                           std::to_string(ranks_));
    channels_.push_back(std::make_unique<Channel>(static_cast<std::int32_t>(g), groups[g].size()));
  }
  return success();
}

InProcessCommunicator::Channel& InProcessCommunicator::channel(const Meeting& meeting) {
  const auto index = static_cast<std::size_t>(std::int64_t{meeting.channel} + 1);
  SLUICE_CHECK(index < channels_.size(), "(channel %d of %zu)", meeting.channel, channels_.size());
  Channel& found = *channels_[index];
  SLUICE_CHECK(found.members() == meeting.members.size(), "(%zu, %zu members)", found.members(),
               meeting.members.size());
  return found;
}

Status InProcessCommunicator::all_gather(const Meeting& meeting, std::span<std::byte> full) {
  Channel& shared = channel(meeting);
  const std::size_t own = position_of(meeting), members = meeting.members.size();
  SLUICE_CHECK(full.size() % members == 0, "(%zu bytes, %zu members)", full.size(), members);
  const std::size_t part = full.size() / members;
  shared.publish(own, full.data());
  SLUICE_TRY(shared.meet(deadline_, meeting));
  for (std::size_t step = 1; step < members; ++step) {
    const std::size_t other = (own + step) % members;  // each rank starts at another's part, so that they spread
    std::memcpy(full.data() + other * part, shared.of<std::byte>(other) + other * part, part);
  }
  return shared.meet(deadline_, meeting);
}

Status InProcessCommunicator::reduce_scatter(const Meeting& meeting, std::span<const float> full,
                                             std::span<float> part) {
  Channel& shared = channel(meeting);
  const std::size_t own = position_of(meeting), members = meeting.members.size(), numel = part.size();
  SLUICE_CHECK(full.size() == numel * members, "(%zu elements, %zu in %zu parts)", full.size(), numel, members);
  shared.publish(own, full.data());
  SLUICE_TRY(shared.meet(deadline_, meeting));
  // Blocks are summed aside first: part may lie inside full.
  std::array<float, 1024> sum;
  for (std::size_t begin = 0; begin < numel; begin += sum.size()) {
    const std::size_t count = std::min(sum.size(), numel - begin);
    std::memcpy(sum.data(), shared.of<float>(0) + own * numel + begin, count * sizeof(float));
    for (std::size_t m = 1; m < members; ++m) {
      const float* const x = shared.of<float>(m) + own * numel + begin;
      for (std::size_t i = 0; i < count; ++i) sum[i] += x[i];
    }
    std::memcpy(part.data() + begin, sum.data(), count * sizeof(float));
  }
  return shared.meet(deadline_, meeting);
}

Status InProcessCommunicator::exchange(const Meeting& meeting, std::span<const double> mine, std::span<double> all) {
  Channel& shared = channel(meeting);
  const std::size_t members = meeting.members.size();
  SLUICE_CHECK(all.size() == mine.size() * members, "(%zu, %zu of %zu)", all.size(), mine.size(), members);
  shared.publish(position_of(meeting), mine.data());
  SLUICE_TRY(shared.meet(deadline_, meeting));
  for (std::size_t m = 0; m < members; ++m)
    std::memcpy(all.data() + m * mine.size(), shared.of<double>(m), mine.size_bytes());
  return shared.meet(deadline_, meeting);
}

void InProcessCommunicator::cancel(const std::string& reason) {
  for (const auto& each : channels_) each->cancel(reason);
}

}  // namespace sluice
