// A drive's lane: a sliding window of requests over the ops of the plan, checksums on both ways, durability.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/run/executor.h"
#include "offload/run/run_state.h"

namespace sluice {

/// Starts ops in order as soon as their waits are over and the window has room, many at once on a windowed lane; makes
/// their completions visible in order. Sync and commit run when everything before them on the lane has finished. One
/// thread.
class DriveLane {
 public:
  DriveLane(RunState& run, LaneId lane, SwapStore& store, CommitSink* sink);

  void run();  ///< until the run halts; nothing is in flight when it returns

 private:
  /// An op that has started and whose completion is not yet visible.
  struct Started {
    const BoundOp* op = nullptr;
    std::uint64_t iteration = 0;
    double time = 0;
    std::uint32_t in_flight = 0;  ///< requests
    bool all_submitted = false;
  };
  struct Request {
    IoRequest io;
    Started* owner = nullptr;
  };

  bool step();             ///< submit and retire what can be; false if nothing could
  bool start_next();       ///< the op at the cursor, if its waits are over
  bool submit();           ///< requests of the newest started op; true when all are submitted
  bool submit_transfer();  ///< of the transfer at the cursor
  bool submit_sync();
  bool retire();  ///< the oldest started op, if it has finished
  Status verify(const Started& started) const;
  Status commit(const Started& started);
  std::size_t wanted_completions() const;
  void sleep();
  void complete(std::span<IoRequest*> finished);
  void fail(const BoundOp& op, const Error& error);
  std::uint8_t physical_slot(const BoundTransfer& transfer, std::uint64_t iteration) const;
  bool start_request(Started& owner, IoOp op, SwapPiece piece, std::byte* data);

  RunState& run_;
  LaneId lane_;
  RankId rank_;
  SwapStore& store_;
  CommitSink* sink_;
  IoQueue& queue_;
  const std::vector<BoundOp>& ops_;
  std::uint8_t first_parity_;
  bool flips_;  ///< the plan commits: slots change places from iteration to iteration

  std::vector<Request> requests_;
  std::vector<Request*> free_;
  std::vector<IoRequest*> finished_;
  std::vector<Started> window_;  ///< ring
  std::size_t oldest_ = 0, started_ = 0;

  // The cursor: which op starts next, and how much of the newest started one is submitted.
  std::uint64_t iteration_ = 0;
  std::size_t next_op_ = 0;
  bool submitting_ = false;
  std::size_t transfer_ = 0;
  std::uint64_t submitted_bytes_ = 0;  ///< of that transfer
  // What the op at the cursor waits for.
  bool blocked_ = false;
  std::size_t blocked_source_ = 0;
  std::uint64_t blocked_threshold_ = 0;
};

}  // namespace sluice
