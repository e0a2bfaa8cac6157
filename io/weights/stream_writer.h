// A new file written from its first byte to its last, with several writes in flight, around the page cache where the
// file system allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/aligned_memory.h"
#include "io/drives/queue.h"
#include "sluice/status.h"

namespace sluice {

/// One thread.
class StreamWriter {
 public:
  struct Options {
    std::uint64_t chunk_bytes = 1u << 20;  ///< of a write; a multiple of 4096
    std::size_t in_flight = 16;            ///< writes, and chunks of memory
    bool direct = true;                    ///< O_DIRECT where the file system has it
    QueueOptions queue;                    ///< depth, files and buffers are filled in here
  };
  /// `fd` is of an empty file that is open for writing, and stays the caller's; nobody else uses it until finish().
  /// Takes the room for `bytes`, all that will be appended. fault when it can not be had.
  static Result<std::unique_ptr<StreamWriter>> create(int fd, const std::string& path, std::uint64_t bytes,
                                                      const Options& options);
  ~StreamWriter();  ///< waits for what is in flight
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  /// fault when this or an earlier write failed.
  Status append(std::span<const std::byte> data);
  /// Waits for every write. The file has its size then; it is not synced.
  Status finish();
  std::uint64_t appended_bytes() const { return end_; }

 private:
  StreamWriter(int fd, std::string path, std::uint64_t bytes) : fd_(fd), path_(std::move(path)), bytes_(bytes) {}
  Status open(const Options& options);
  void write_chunk();
  Status wait_for(const IoRequest& request);

  int fd_;
  std::string path_;
  std::uint64_t bytes_, end_ = 0;
  int flags_ = 0;  ///< of the descriptor before
  std::uint64_t unit_ = 1, chunk_bytes_ = 0, filled_ = 0;
  AlignedMemory memory_;
  std::vector<IoRequest> requests_;  ///< of each chunk; in flight while user is not null
  std::size_t current_ = 0;
  std::unique_ptr<IoQueue> queue_;  ///< goes first
};

}  // namespace sluice
