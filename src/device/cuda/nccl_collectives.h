// Collectives in the memory of GPUs by NCCL: work of one stream, which the thread of the plan's lane issues in its
// order. Sums are messages and a kernel that adds up in the lots' tree, so that no bit depends on NCCL, unless they are
// asked to be its own (RankSums::native).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/nccl.h"
#include "kernels/cuda/stream.h"
#include "offload/run/device_collectives.h"
#include "src/device/cuda/device.h"

namespace sluice {

class NcclCollectives final : public DeviceCollectives {
 public:
  /// `device`, which no other rank of the run has, outlives it.
  static Result<std::unique_ptr<NcclCollectives>> create(CudaDevice& device);
  ~NcclCollectives() override;

  DeviceQueue& queue() override { return *queue_; }
  /// Communicators are kept for the next plan, unless one of their ranks has abandoned its own.
  Status connect(const StepPlan& plan, LaneId lane, Communicator& ranks) override;
  Status put_in(const Op& op, std::span<const Operand> operands) override;

 private:
  using Nccl = kernels::cuda::NcclCommunicator;

  explicit NcclCollectives(CudaDevice& device) : device_(device) {}
  Result<Nccl*> meet(std::int32_t group, const std::vector<RankId>& members, Communicator& ranks);
  template <class Ask>
  Status ask(Nccl& nccl, Ask ask);
  Status settle(Nccl& nccl);
  Error explained(const Error& error) const;
  void abort_all();
  Status still_waits(std::chrono::duration<double> waited);
  void abandon();
  Status all_gather(Nccl& nccl, std::span<std::byte> full);
  Status reduce_scatter(Nccl& nccl, const Op& op, std::span<const Operand> operands);
  template <class Wire>
  Status add_up(Nccl& nccl, std::span<const float> full, std::span<float> part, std::span<std::byte> room);
  Status ring_shift(Nccl& nccl, std::span<const Operand> operands);
  Status all_to_all(Nccl& nccl, std::size_t pieces, std::span<const std::byte> from, std::span<std::byte> to);

  CudaDevice& device_;
  std::shared_ptr<const kernels::cuda::Nccl> library_;
  std::unique_ptr<CudaQueue> queue_;
  std::unique_ptr<kernels::cuda::Stream> stream_;
  std::vector<Nccl::Outgoing> out_;  ///< of the call under way: room that is kept
  std::vector<Nccl::Incoming> in_;
  std::vector<Nccl*> groups_;      ///< of the plan, null for those that are not met here
  Communicator* ranks_ = nullptr;  ///< of the plan's session
  // NCCL is one thread's at a time, and who awaits calls off what who puts in has begun.
  std::mutex mutex_;
  bool abandoned_ = false;
  bool is_broken_ = false;  ///< a call failed: nobody knows which of them the other ranks have seen
  std::map<std::vector<RankId>, std::unique_ptr<Nccl>> communicators_;  ///< by members
};

}  // namespace sluice
