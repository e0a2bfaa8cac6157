// Streams of requests over temporary files through the I/O queue: what drives reach.
//
//     SLUICE_ASSIGN(DriveBench bench, DriveBench::create({.directories = {"/nvme"}}));
//     SLUICE_TRY(bench.fill({}));
//     SLUICE_ASSIGN(StreamResult r, bench.run({.mode = StreamMode::mixed, .block_bytes = 512 << 10, .depth = 16}, 2));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/drives/queue.h"
#include "io/drives/swap_file.h"
#include "offload/run/memory.h"
#include "sluice/plan.h"
#include "src/device/latency.h"

namespace sluice {

/// mixed is what a training step does: reads of extents and writes of others at once, as many of each.
enum class StreamMode : std::uint8_t { read, write, mixed };
constexpr const char* stream_mode_names[] = {"read", "write", "mixed"};

struct StreamSetting {
  StreamMode mode = StreamMode::mixed;
  bool random = false;  ///< block-aligned places at random; else one after the other
  std::uint64_t block_bytes = drive_block_bytes;
  std::size_t depth =
      drive_window;  ///< requests in flight per directory and thread; mixed: of reads and of writes each
  IoBackendKind backend = IoBackendKind::automatic;
  bool sqpoll = false, iopoll = false;
  std::size_t threads = 1;  ///< each with a queue and a part of the files of its own
  /// Requests go through so much memory in turn, as they do in a run, whose arenas no cache holds; 0: as much as is in
  /// flight, which may be a fifth to a third faster.
  std::uint64_t memory_bytes = 256u << 20;
};

struct StreamResult {
  double seconds = 0;
  std::uint64_t read_bytes = 0, write_bytes = 0;
  LatencyHistogram latency;  ///< from submission until the caller has the completion
  double cpu_seconds = 0;    ///< user and system, of all threads of the process
  double sync_seconds = 0;   ///< fdatasync afterwards; not in `seconds`
  std::string backend;       ///< what it ran on

  std::uint64_t requests() const { return latency.count(); }
  double bytes_per_second() const { return static_cast<double>(read_bytes + write_bytes) / seconds; }
  double iops() const { return static_cast<double>(requests()) / seconds; }
  double cpu_seconds_per_gib() const {
    return cpu_seconds / (static_cast<double>(read_bytes + write_bytes) / (1ull << 30));
  }
};

class DriveBench {
 public:
  struct Options {
    std::vector<std::string> directories;
    std::vector<double> weights;  ///< of the stripes, see SwapOptions
    std::uint64_t file_bytes = 1ull << 30;
    const std::atomic<bool>* stop = nullptr;  ///< ends what runs, with ErrorCode::cancelled
  };
  /// Creates the files, which go when the bench does. Errors: those of SwapFile::create.
  static Result<DriveBench> create(const Options& options);

  /// bad_request for blocks that are no multiple of 4096 (any with buffered files) or larger than a thread's part, and
  /// for backends that are not available.
  Status check(const StreamSetting& setting) const;

  /// Write everything once, since blocks that were never written are not read from the drive and first writes change
  /// extents. `watch`, which may be empty, hears the fraction that is done.
  using Watch = std::function<void(double fraction)>;
  Status fill(const Watch& watch);

  /// Bytes and requests that completed within `seconds`, after fill(). Errors: those of check(); faults of the drive.
  Result<StreamResult> run(const StreamSetting& setting, double seconds);

  const SwapFile& file() const { return file_; }

 private:
  Result<std::unique_ptr<IoQueue>> open_queue(const StreamSetting& setting, std::span<std::byte> memory) const;
  Result<std::byte*> memory(std::uint64_t bytes);

  Options options_;
  SwapFile file_;
  Pages memory_;
};

}  // namespace sluice
