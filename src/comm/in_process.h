// Collectives between the ranks of one process, each on threads of its own: they publish their buffers, meet, and copy
// or sum from one another.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "src/comm/world.h"

namespace sluice {

class InProcessWorld final : public World {
 public:
  explicit InProcessWorld(RankId ranks, std::chrono::seconds deadline = std::chrono::seconds(600));
  ~InProcessWorld() override;

  RankId ranks() const override { return static_cast<RankId>(ends_.size()); }
  RankRange here() const override { return {0, ranks()}; }
  RankId ranks_of_node() const override { return ranks(); }
  RankId place_on_node(RankId rank) const override { return rank; }
  std::size_t processes() const override { return 1; }
  Communicator& communicator(RankId rank) override { return *ends_[rank]; }
  bool shares_memory() const override { return true; }
  Result<std::vector<std::string>> exchange(std::string_view own) override { return std::vector{std::string(own)}; }
  Status native(Collective collective, RankId rank, std::span<float> full, std::span<float> other) override;
  void set_deadline(std::chrono::seconds deadline) override;
  Status send(RankId to, std::span<const std::byte> data) override;
  Status receive(RankId from, std::span<std::byte> data) override;

 private:
  std::vector<std::unique_ptr<Communicator>> ends_;
};

}  // namespace sluice
