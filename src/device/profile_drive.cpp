// Drive streams: a window of block-sized O_DIRECT requests over a temporary file.
#include <algorithm>
#include <vector>

#include "io/queue.h"
#include "io/swap_file.h"
#include "offload/run/memory.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

constexpr std::uint64_t small_bytes = 64u << 10;

/// What the i-th request of a stream is.
using Direction = IoOp (*)(std::uint64_t i);
IoOp only_read(std::uint64_t) { return IoOp::read; }
IoOp only_write(std::uint64_t) { return IoOp::write; }
IoOp alternate(std::uint64_t i) { return i % 2 == 0 ? IoOp::read : IoOp::write; }

class Stream {
 public:
  Stream(IoQueue& queue, std::byte* memory, const DriveOptions& options)
      : queue_(queue), memory_(memory), options_(options), requests_(queue.depth()), done_(queue.depth()) {}

  /// Bytes per second, with `depth` requests of `block_bytes` kept in flight. Ends after `seconds` but not before
  /// `bytes_min` were moved; what was written is made durable and that time counts.
  Result<double> run(Direction direction, double seconds, std::uint64_t bytes_min, std::size_t depth,
                     std::uint64_t block_bytes) {
    const double start = now_seconds();
    std::uint64_t moved = 0, issued = 0;
    bool wrote = false;
    std::vector<IoRequest*> idle;
    for (IoRequest& r : requests_)
      if (idle.size() < depth) idle.push_back(&r);
    for (;;) {
      const bool more = now_seconds() - start < seconds || moved < bytes_min;
      if (!more && queue_.in_flight() == 0) break;
      while (more && !idle.empty()) {
        IoRequest* request = idle.back();
        idle.pop_back();
        prepare(*request, direction(issued), issued, block_bytes);
        wrote = wrote || request->op == IoOp::write;
        ++issued;
        SLUICE_CHECK(queue_.submit(request), "window of %zu", queue_.depth());
      }
      SLUICE_ASSIGN(const std::size_t finished, queue_.wait(1, done_));
      for (std::size_t i = 0; i < finished; ++i) {
        SLUICE_TRY(queue_.status(*done_[i]));
        moved += done_[i]->done_bytes;
        idle.push_back(done_[i]);
      }
    }
    if (wrote) SLUICE_TRY(transfer_now(queue_, IoOp::sync, 0, 0, {}));
    return static_cast<double>(moved) / (now_seconds() - start);
  }

 private:
  void prepare(IoRequest& request, IoOp op, std::uint64_t number, std::uint64_t block_bytes) {
    const std::uint64_t slot = static_cast<std::uint64_t>(&request - requests_.data());
    request = IoRequest{};
    request.op = op;
    request.offset = number % (options_.file_bytes / block_bytes) * block_bytes;
    request.bytes = block_bytes;
    request.data = memory_ + slot * options_.block_bytes;
  }

  IoQueue& queue_;
  std::byte* memory_;
  const DriveOptions& options_;
  std::vector<IoRequest> requests_;
  std::vector<IoRequest*> done_;
};

}  // namespace

Result<DriveRates> measure_drive(const DriveOptions& options) {
  if (options.block_bytes < small_bytes || options.block_bytes % 4096 != 0 || options.file_bytes < options.block_bytes)
    return bad_request("the block size must be a multiple of 4096, at least 64 KiB and no larger than the file");
  SwapOptions swap;
  swap.directories = {options.directory};
  swap.bytes = options.file_bytes / options.block_bytes * options.block_bytes;
  SLUICE_ASSIGN(SwapFile file, SwapFile::create(swap));
  SLUICE_ASSIGN(const Pages memory, Pages::make(options.block_bytes * 2 * options.depth));
  QueueOptions queue_options;
  queue_options.depth = 2 * options.depth;  // reads and writes have a window each
  queue_options.files = file.files();
  queue_options.buffers = {{memory.data(), memory.bytes()}};
  SLUICE_ASSIGN(const std::unique_ptr<IoQueue> queue, make_queue(queue_options));
  Stream stream(*queue, memory.data(), options);
  // Blocks that were never written are not read from the drive, and first writes change the file's extents.
  const std::size_t depth = options.depth;
  const std::uint64_t block = options.block_bytes;
  SLUICE_TRY(stream.run(only_write, 0, swap.bytes, depth, block));
  DriveRates rates;
  SLUICE_ASSIGN(rates.write_bytes_per_second, stream.run(only_write, options.seconds, 0, depth, block));
  SLUICE_ASSIGN(rates.read_bytes_per_second, stream.run(only_read, options.seconds, 0, depth, block));
  SLUICE_ASSIGN(rates.mixed_bytes_per_second, stream.run(alternate, options.seconds, 0, 2 * depth, block));
  // Small requests show what a request costs beside its bytes, alone and in a full window.
  const auto seconds_of_small = [&](Direction direction, std::size_t window) -> Result<double> {
    SLUICE_ASSIGN(const double rate, stream.run(direction, options.seconds / 4, 0, window, small_bytes));
    return static_cast<double>(small_bytes) / rate;
  };
  const auto beyond = [](double seconds, double rate) { return std::max(0.0, seconds - small_bytes / rate); };
  SLUICE_ASSIGN(const double dense, seconds_of_small(only_read, depth));
  SLUICE_ASSIGN(const double read_alone, seconds_of_small(only_read, 1));
  SLUICE_ASSIGN(const double write_alone, seconds_of_small(only_write, 1));
  rates.request_seconds = beyond(dense, rates.read_bytes_per_second);
  rates.read_latency_seconds = std::max(0.0, beyond(read_alone, rates.read_bytes_per_second) - rates.request_seconds);
  rates.write_latency_seconds =
      std::max(0.0, beyond(write_alone, rates.write_bytes_per_second) - rates.request_seconds);
  return rates;
}

}  // namespace sluice
