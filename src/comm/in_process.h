// Collectives between the threads of one process: the ranks publish their buffers, meet, and copy or sum from one
// another.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "offload/run/communicator.h"

namespace sluice {

class InProcessCommunicator final : public Communicator {
 public:
  explicit InProcessCommunicator(RankId ranks, std::chrono::seconds deadline = std::chrono::seconds(600));
  ~InProcessCommunicator() override;

  RankId ranks() const override { return ranks_; }
  Status prepare(const std::vector<std::vector<RankId>>& groups) override;
  Status all_gather(const Meeting& meeting, std::span<std::byte> full) override;
  Status reduce_scatter(const Meeting& meeting, std::span<const float> full, std::span<float> part) override;
  Status exchange(const Meeting& meeting, std::span<const double> mine, std::span<double> all) override;
  void cancel(const std::string& reason) override;

 private:
  class Channel;
  Channel& channel(const Meeting& meeting);

  RankId ranks_;
  std::chrono::seconds deadline_;
  std::vector<std::unique_ptr<Channel>> channels_;  ///< control channel first
};

}  // namespace sluice
