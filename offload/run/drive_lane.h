// A drive's lane: a sliding window of requests over the ops of the plan, checksums on both ways.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/run/executor.h"
#include "offload/run/run_state.h"

namespace sluice {

/// Starts ops in order as soon as their waits are over and the window has room, many at once on a windowed lane; makes
/// their completions visible in order. One thread.
class DriveLane {
 public:
  DriveLane(RunState& run, LaneId lane, SwapStore& store);

  void run();  ///< until the run halts; nothing is in flight when it returns

 private:
  /// An op that has started and whose completion is not yet visible.
  struct Started {
    const BoundOp* op = nullptr;
    std::uint64_t iteration = 0;
    double time = 0;
    std::uint32_t in_flight = 0;   ///< requests
    std::uint32_t unverified = 0;  ///< blocks that were asked for and whose checksums have not been compared
    bool all_submitted = false;
  };
  /// A block on its way in. At a stripe's end it comes in several requests.
  struct Block {
    Started* owner = nullptr;
    const BoundTransfer* transfer = nullptr;
    std::uint64_t begin = 0, bytes = 0;  ///< in the transfer
    std::uint32_t in_flight = 0;         ///< requests
    bool all_submitted = false;
  };
  struct Request {
    IoRequest io;
    Started* owner = nullptr;
    Block* block = nullptr;  ///< of a read
  };

  bool step();             ///< submit and retire what can be; false if nothing could
  bool start_next();       ///< the op at the cursor, if its waits are over
  bool submit();           ///< requests of the newest started op; true when all are submitted
  bool submit_transfer();  ///< of the transfer at the cursor
  void begin_requests();   ///< what was submitted and has not begun
  bool retire();           ///< the oldest started op, if it has finished
  Block* open_block(Started& owner, const BoundTransfer& transfer, std::uint64_t begin, std::uint64_t bytes);
  bool verify_one();  ///< of the blocks that have arrived; false if there is none
  std::size_t wanted_completions() const;
  void sleep();
  void collect(std::size_t min_completions);
  void complete(std::span<IoRequest*> finished);
  void fail(const BoundOp& op, const Error& error);
  std::uint8_t physical_slot(const BoundTransfer& transfer, std::uint64_t iteration) const;
  bool start_request(Started& owner, Block* block, IoOp op, SwapPiece piece, std::byte* data);

  RunState& run_;
  LaneId lane_;
  SwapStore& store_;
  IoQueue& queue_;
  const std::vector<BoundOp>& ops_;
  std::uint8_t first_parity_;
  bool flips_;  ///< the plan commits: slots change places from iteration to iteration

  std::vector<Request> requests_;
  std::vector<Request*> free_;
  std::vector<IoRequest*> finished_;
  std::vector<Block> blocks_;
  std::vector<Block*> free_blocks_;
  std::vector<Block*> arrived_;  ///< ring, in the order in which they are to be verified
  std::size_t first_arrived_ = 0, arrived_count_ = 0;
  Block* block_ = nullptr;       ///< the one that is being submitted
  std::size_t unbegun_ = 0;      ///< requests since the last flush
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
