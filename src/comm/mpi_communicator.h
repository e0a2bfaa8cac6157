// A rank's end of the collectives that go by MPI.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/exchange.h"
#include "src/comm/mpi.h"
#include "src/comm/mpi_link.h"
#include "src/comm/tree_sum.h"

namespace sluice {

/// Every collective is messages between each two of its members, but for sums that are to be MPI's own. Each prepare() begins a session, whose messages have
/// tags of their own: what a cancelled session has left under way meets nobody.
class MpiCommunicator final : public Communicator {
 public:
  /// Both are this communicator's alone; tags are at most `tag_max`; the alarm outlives it.
  MpiCommunicator(MPI_Comm data, MPI_Comm notices, int tag_max, Alarm& alarm);
  void set_deadline(std::chrono::seconds deadline) { deadline_ = deadline; }
  /// Called after every meeting, on its thread.
  void on_meeting(std::function<void()> met) { met_ = std::move(met); }

  RankId rank() const override { return rank_; }
  RankId ranks() const override { return ranks_; }
  Status prepare(const Topology& topology, std::span<const AxisSet> groups, bool sums_natively) override;
  Status all_gather(std::int32_t channel, std::span<std::byte> full) override;
  Status reduce_scatter(std::int32_t channel, std::span<const float> full, std::span<float> part,
                        std::span<std::byte> room, RankSums sums) override;
  Status sum(std::int32_t channel, std::span<std::int64_t> values) override;
  Status exchange(std::int32_t channel, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  Status still_waits(std::chrono::duration<double> waited) override;
  std::size_t members(std::int32_t channel) const override { return at(channel).members.size(); }
  std::size_t position(std::int32_t channel) const override { return at(channel).position; }
  void cancel(const std::string& reason) override;

 private:
  static constexpr int channels_max = 64;
  /// What a rank that cancels tells the others.
  struct Notice {
    std::uint64_t session = 0;
    std::array<char, 504> reason{};
  };
  struct Channel {
    std::vector<RankId> members;
    std::size_t position = 0;
    int tag = 0;
    std::vector<std::int64_t> received;           ///< by sum
    std::unique_ptr<TreeSum> tree = std::make_unique<TreeSum>();  ///< of reduce_scatter
    std::unique_ptr<std::array<Messages, exchange_blocks>> messages;  ///< none are under way between two calls
    std::unique_ptr<Messages> arriving;  ///< of a thread that receives while another sends
  };
  /// A call's messages of a channel: what is left when it fails is abandoned.
  class Call {
   public:
    explicit Call(std::span<Messages> messages) : messages_(messages) {}
    explicit Call(const Channel& channel) : messages_(*channel.messages) {}
    ~Call() {
      for (Messages& m : messages_)
        if (!m.is_empty()) m.abandon();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Messages& operator[](std::size_t at) { return messages_[at % messages_.size()]; }

   private:
    std::span<Messages> messages_;
  };
  const Channel& at(std::int32_t channel) const;
  Channel& at(std::int32_t channel) { return const_cast<Channel&>(std::as_const(*this).at(channel)); }
  template <class Wire>
  Status reduce_by_messages(const Channel& channel, std::span<const float> full, std::span<float> part,
                            std::span<std::byte> room);
  Status reduce_natively(std::int32_t number, std::span<const float> full, std::span<float> part);
  void begin_session(const Topology& topology, std::span<const AxisSet> groups);
  Status meet_alone(std::int32_t number);
  Status finish(Messages& messages, const char* what, const Channel& channel);
  Status interrupted();
  Status check_cancelled();
  void hear_notices();

  MPI_Comm data_, notices_;
  int tag_max_;
  Alarm& alarm_;
  std::atomic<std::chrono::seconds> deadline_{std::chrono::seconds(600)};
  std::function<void()> met_;
  RankId rank_ = 0, ranks_ = 1;
  std::vector<Channel> channels_;
  /// By channel and its members: for what MPI adds up itself. Made in prepare(), kept for later sessions.
  std::map<std::pair<std::int32_t, std::vector<RankId>>, MPI_Comm> alone_;
  std::mutex mutex_;  ///< guards what follows
  std::uint64_t session_ = 0;
  std::map<std::uint64_t, std::string> cancelled_;  ///< sessions, this one and later ones, and why
  std::deque<Notice> notices_sent_;                 ///< MPI may still read them
};

}  // namespace sluice
