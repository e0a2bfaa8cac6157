#include "src/comm/in_process.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "src/comm/tree_sum.h"

namespace sluice {
namespace {

/// A barrier with a published pointer per member. Every collective meets twice: once when all have published, once when
/// all have finished reading, so that no one touches its buffer while another still reads from it.
class Channel {
 public:
  explicit Channel(std::size_t members) : published_(members, nullptr) {}

  void publish(std::size_t position, const void* data) { published_[position] = data; }
  template <class T>
  const T* of(std::size_t position) const {
    return static_cast<const T*>(published_[position]);
  }
  std::size_t members() const { return published_.size(); }

  Status meet(std::chrono::seconds deadline, RankId rank, std::int32_t group) {
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
    return wait(
        lock, [&] { return round_ != round; }, deadline, rank, group);
  }

  /// A message lies here until its receiver has taken it.
  void post(std::size_t from, const Outgoing& message) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back({from, message.to, message.data, false});
    }
    changed_.notify_all();
  }
  /// The oldest one of its sender.
  Status take(std::size_t to, const Incoming& message, std::chrono::seconds deadline, RankId rank, std::int32_t group) {
    std::unique_lock lock(mutex_);
    if (cancelled_) return Error{ErrorCode::cancelled, *cancelled_};
    const auto find = [&] {
      return std::ranges::find_if(posted_, [&](const Posted& p) { return p.from == message.from && p.to == to; });
    };
    SLUICE_TRY(wait(
        lock, [&] { return find() != posted_.end(); }, deadline, rank, group));
    const std::span<const std::byte> data = find()->data;
    if (data.size() != message.data.size())
      return fault("rank " + std::to_string(rank) + " expects " + std::to_string(message.data.size()) +
                   " bytes in group " + std::to_string(group) + ", and member " + std::to_string(message.from) +
                   " sends " + std::to_string(data.size()));
    find()->is_taken = true;
    lock.unlock();
    if (!data.empty()) std::memcpy(message.data.data(), data.data(), data.size());
    lock.lock();
    posted_.erase(find());
    lock.unlock();
    changed_.notify_all();
    return success();
  }
  /// Until nothing that a member has posted lies here. Who gives up takes back what nobody is taking: its memory may
  /// go.
  Status delivered(std::size_t from, std::chrono::seconds deadline, RankId rank, std::int32_t group,
                   const Status& taken) {
    std::unique_lock lock(mutex_);
    const auto is_own = [&](const Posted& p) { return p.from == from; };
    Status status = taken;
    if (status.ok())
      status = wait(
          lock, [&] { return std::ranges::none_of(posted_, is_own); }, deadline, rank, group);
    if (status.ok()) return status;
    std::erase_if(posted_, [&](const Posted& p) { return is_own(p) && !p.is_taken; });
    changed_.wait(lock, [&] { return std::ranges::none_of(posted_, is_own); });
    return status;
  }

  void cancel(const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!cancelled_) cancelled_ = reason;
    }
    changed_.notify_all();
  }

 private:
  template <class Done>
  Status wait(std::unique_lock<std::mutex>& lock, Done done, std::chrono::seconds deadline, RankId rank,
              std::int32_t group) {
    changed_.wait_for(lock, deadline, [&] { return done() || cancelled_; });
    if (done()) return success();
    if (cancelled_) return Error{ErrorCode::cancelled, *cancelled_};
    return fault("rank " + std::to_string(rank) + " waited " + std::to_string(deadline.count()) +
                 " s for the other ranks in group " + std::to_string(group));
  }

  struct Posted {
    std::size_t from = 0, to = 0;
    std::span<const std::byte> data;
    bool is_taken = false;
  };
  std::vector<const void*> published_;
  std::vector<Posted> posted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::optional<std::string> cancelled_;
};

/// What the ranks have between one prepare() and the next.
class Session {
 public:
  /// The same for all members of a group.
  std::shared_ptr<Channel> channel(std::size_t group, const std::vector<RankId>& members) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Channel>& found = channels_[{group, members}];
    if (!found) found = std::make_shared<Channel>(members.size());
    if (cancelled_) found->cancel(*cancelled_);
    return found;
  }
  std::optional<std::string> cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  void cancel(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!cancelled_) cancelled_ = reason;
    for (const auto& [key, channel] : channels_) channel->cancel(*cancelled_);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::vector<RankId>>, std::shared_ptr<Channel>> channels_;
  std::optional<std::string> cancelled_;
};

/// Sessions by number: ranks that have prepared as often share one.
class Sessions {
 public:
  explicit Sessions(RankId ranks) : ranks_(ranks) {}
  std::shared_ptr<Session> get(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    Open& open = open_[number];
    if (!open.session) open.session = std::make_shared<Session>();
    const std::shared_ptr<Session> found = open.session;
    if (++open.taken == ranks_) open_.erase(number);
    return found;
  }

 private:
  struct Open {
    std::shared_ptr<Session> session;
    RankId taken = 0;
  };
  RankId ranks_;
  std::mutex mutex_;
  std::map<std::uint64_t, Open> open_;
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Sessions> sessions, RankId rank, RankId ranks, std::chrono::seconds deadline)
      : sessions_(std::move(sessions)), rank_(rank), ranks_(ranks), deadline_(deadline) {}

  RankId rank() const override { return rank_; }
  RankId ranks() const override { return ranks_; }

  Status prepare(const Topology& topology, std::span<const AxisSet> groups, bool) override {
    if (topology.ranks() != ranks_ || topology.rank() != rank_)
      return bad_request("the plan is of rank " + std::to_string(topology.rank()) + " of " +
                         std::to_string(topology.ranks()) + ", the communicator of rank " + std::to_string(rank_) +
                         " of " + std::to_string(ranks_));
    const std::shared_ptr<Session> fresh = sessions_->get(++prepared_);
    std::vector<Place> places;
    for (std::size_t g = 0; g < groups.size(); ++g)
      places.push_back({fresh->channel(g, topology.members(groups[g])),
                        topology.position(groups[g]),
                        std::make_unique<TreeSum>(),
                        {},
                        {}});
    const std::lock_guard lock(mutex_);
    session_ = fresh;
    places_ = std::move(places);
    return success();
  }

  Status all_gather(std::int32_t group, std::span<std::byte> full) override {
    const Place& p = place(group);
    const auto& [shared, own] = std::tie(p.channel, p.position);
    const std::size_t members = shared->members();
    SLUICE_CHECK(full.size() % members == 0, "(%zu bytes, %zu members)", full.size(), members);
    const std::size_t part = full.size() / members;
    shared->publish(own, full.data());
    SLUICE_TRY(shared->meet(deadline_.load(), rank_, group));
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t other = (own + step) % members;  // each rank starts at another's part, so that they spread
      std::memcpy(full.data() + other * part, shared->of<std::byte>(other) + other * part, part);
    }
    return shared->meet(deadline_.load(), rank_, group);
  }

  Status reduce_scatter(std::int32_t group, std::span<const float> full, std::span<float> part, std::span<std::byte>,
                        RankSums sums) override {
    const Place& p = place(group);
    const auto& [shared, own] = std::tie(p.channel, p.position);
    const std::size_t members = shared->members(), numel = part.size();
    SLUICE_CHECK(full.size() == numel * members, "(%zu elements, %zu in %zu parts)", full.size(), numel, members);
    shared->publish(own, full.data());
    SLUICE_TRY(shared->meet(deadline_.load(), rank_, group));
    // Part may lie inside full: nobody else reads there.
    const auto term = [&](std::size_t m) { return shared->of<float>(m) + own * numel; };
    switch (sums) {
      case RankSums::tree: p.tree->add_up(members, part, term); break;
      case RankSums::bf16:
        p.tree->add_up_loaded(members, part, [&](std::size_t m, std::size_t begin, std::size_t count) {
          return p.tree->rounded(term(m) + begin, count);
        });
        break;
      case RankSums::native: TreeSum::add_up_in_turn(members, part, term); break;
      case RankSums::int4: SLUICE_CHECK(false, "sums of %zu ranks in bits are ops of a plan", members);
    }
    return shared->meet(deadline_.load(), rank_, group);
  }

  Status sum(std::int32_t group, std::span<std::int64_t> values) override {
    Place& p = place(group);
    const auto& [shared, own] = std::tie(p.channel, p.position);
    std::vector<std::int64_t>& scratch = p.scratch;
    scratch.resize(std::max(scratch.size(), values.size()));  // the same for every step of a plan
    // A copy: where the sum is called off others may still read it, and the caller's may be gone.
    p.given.resize(scratch.size());
    std::copy_n(values.begin(), values.size(), p.given.begin());
    shared->publish(own, p.given.data());
    SLUICE_TRY(shared->meet(deadline_.load(), rank_, group));
    std::fill_n(scratch.begin(), values.size(), std::int64_t{0});
    for (std::size_t m = 0; m < shared->members(); ++m)
      for (std::size_t i = 0; i < values.size(); ++i) scratch[i] += shared->of<std::int64_t>(m)[i];
    SLUICE_TRY(shared->meet(deadline_.load(), rank_, group));
    std::copy_n(scratch.begin(), values.size(), values.begin());
    return success();
  }

  Status exchange(std::int32_t group, std::span<const Outgoing> out, std::span<const Incoming> in) override {
    const Place& p = place(group);
    for (const Outgoing& message : out) p.channel->post(p.position, message);
    Status taken;
    for (const Incoming& message : in)
      if (taken.ok()) taken = p.channel->take(p.position, message, deadline_.load(), rank_, group);
    // Another thread may be sending.
    return out.empty() ? taken : p.channel->delivered(p.position, deadline_.load(), rank_, group, taken);
  }

  Status still_waits(std::chrono::duration<double> waited) override {
    std::shared_ptr<Session> session;
    {
      const std::lock_guard lock(mutex_);
      session = session_;
    }
    if (const auto reason = session->cancelled()) return Error{ErrorCode::cancelled, *reason};
    const std::chrono::seconds deadline = deadline_.load();
    if (waited <= deadline) return success();
    return fault("rank " + std::to_string(rank_) + " waited " + std::to_string(deadline.count()) +
                 " s for the other ranks");
  }

  std::size_t members(std::int32_t group) const override { return place(group).channel->members(); }
  std::size_t position(std::int32_t group) const override { return place(group).position; }

  void set_deadline(std::chrono::seconds deadline) { deadline_ = deadline; }
  void cancel(const std::string& reason) override {
    std::shared_ptr<Session> session;
    {
      const std::lock_guard lock(mutex_);
      session = session_;
    }
    if (session) session->cancel(reason);
  }

 private:
  struct Place {
    std::shared_ptr<Channel> channel;
    std::size_t position = 0;
    // Of collectives of this group, which one thread calls; those of other groups run beside it.
    std::unique_ptr<TreeSum> tree;
    std::vector<std::int64_t> given, scratch;
  };
  Place& place(std::int32_t group) { return const_cast<Place&>(std::as_const(*this).place(group)); }
  const Place& place(std::int32_t group) const {
    SLUICE_CHECK(group >= 0 && static_cast<std::size_t>(group) < places_.size(), "(group %d of %zu)", group,
                 places_.size());
    return places_[static_cast<std::size_t>(group)];
  }

  std::shared_ptr<Sessions> sessions_;
  RankId rank_, ranks_;
  std::atomic<std::chrono::seconds> deadline_;
  std::uint64_t prepared_ = 0;
  std::mutex mutex_;  ///< guards the session against cancel from other threads
  std::shared_ptr<Session> session_;
  std::vector<Place> places_;
};

}  // namespace

InProcessWorld::InProcessWorld(RankId ranks, std::chrono::seconds deadline) {
  const auto sessions = std::make_shared<Sessions>(ranks);
  for (RankId r = 0; r < ranks; ++r)
    ends_.push_back(std::make_unique<InProcessCommunicator>(sessions, r, ranks, deadline));
}

InProcessWorld::~InProcessWorld() = default;

Status InProcessWorld::native(Collective collective, RankId rank, std::span<float> full, std::span<float> other) {
  const std::size_t part = full.size() / ranks();
  const auto copy_parts = [&](std::span<float> to) {
    for (RankId m = 0; m < ranks(); ++m)
      if (m != rank) std::memcpy(to.data() + m * part, full.data() + rank * part, part * sizeof(float));
  };
  switch (collective) {
    case Collective::all_gather: copy_parts(full); break;
    case Collective::reduce_scatter:
      for (RankId m = 1; m < ranks(); ++m) std::memcpy(other.data(), full.data() + m * part, part * sizeof(float));
      break;
    case Collective::all_reduce:
      copy_parts(full);
      copy_parts(full);
      break;
    case Collective::all_to_all: copy_parts(other); break;
    case Collective::broadcast:
    case Collective::exchange: std::memcpy(other.data(), full.data(), full.size_bytes()); break;
  }
  return success();
}

void InProcessWorld::set_deadline(std::chrono::seconds deadline) {
  for (const auto& end : ends_) static_cast<InProcessCommunicator&>(*end).set_deadline(deadline);
}

Status InProcessWorld::send(RankId, std::span<const std::byte>) { return fault("there is no other process"); }
Status InProcessWorld::receive(RankId, std::span<std::byte>) { return fault("there is no other process"); }

}  // namespace sluice
