// Ranges of files in an order that is known before, read ahead: several requests are in flight while the caller works
// on a range, around the page cache where the file system allows it.
//
//     SLUICE_ASSIGN(auto reader, ReadAhead::create(files, next, {}));
//     for (...) { SLUICE_ASSIGN(const std::span<const std::byte> bytes, reader->take()); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/aligned_memory.h"
#include "io/drives/queue.h"
#include "sluice/status.h"

namespace sluice {

/// Exactly that many bytes at once, on this thread. fault with path and offset when the file has no more of them.
Status read_exactly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> out);

/// One thread uses it, which may be another than made it.
class ReadAhead {
 public:
  struct File {
    int fd = -1;  ///< open for reading; stays the caller's, and open
    std::string path;
  };
  struct Range {
    std::uint32_t file = 0;
    std::uint64_t offset = 0, bytes = 0;  ///< of any alignment
  };
  /// The ranges in order; empty after the last.
  using Next = std::function<std::optional<Range>()>;
  struct Options {
    std::uint64_t range_bytes_max = 1u << 20;
    std::size_t ahead = 16;  ///< ranges in flight or waiting to be taken
    bool direct = true;      ///< O_DIRECT where the file system has it
    QueueOptions queue;      ///< depth, files and buffers are filled in here
  };
  /// Needs (ahead + 1) x (range_bytes_max + 8192) bytes. Errors: bad_request of make_queue.
  static Result<std::unique_ptr<ReadAhead>> create(std::span<const File> files, Next next, const Options& options);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next range, which there must be. The bytes stay until the next call. fault when they could not be read, also
  /// where the file ends before them.
  Result<std::span<const std::byte>> take();

 private:
  struct Source {
    int fd = -1;         ///< the caller's
    int direct_fd = -1;  ///< ours; -1 where there is no O_DIRECT
    std::uint64_t bytes = 0;
  };
  struct Place {
    IoRequest request;
    Range range;
    std::uint64_t tail_bytes =
        0;  ///< at the end of the range, that direct I/O can not read: the file's last part block
    bool used = false, done = false;
  };
  ReadAhead() = default;
  void start(Place& place, std::byte* memory);

  std::vector<Source> sources_;
  std::vector<IoFile> files_;
  Next next_;
  std::uint64_t place_bytes_ = 0;
  AlignedMemory memory_;
  std::vector<Place> places_;
  std::size_t head_ = 0;            ///< taken next
  std::unique_ptr<IoQueue> queue_;  ///< goes first: nothing is in flight when what it reads into does
};

}  // namespace sluice
