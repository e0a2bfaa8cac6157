// Memory that goes to the files of a checkpoint: while some of it is written, more is filled.
//
//     SLUICE_ASSIGN(std::byte* const data, ring.take());
//     ... fill it ...
//     SLUICE_TRY(ring.write(writer, unit, state, offset, bytes));
//     ... SLUICE_TRY(ring.finish());  // before a writer is closed
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "io/aligned_memory.h"
#include "io/checkpoint/state_writer.h"

namespace sluice {

/// One thread. Outlives the writers: what is in flight when one goes is waited for by the writer.
class WriteRing {
 public:
  WriteRing(std::size_t buffers, std::uint64_t buffer_bytes) {
    for (std::size_t i = 0; i < buffers; ++i) buffers_.emplace_back().memory = AlignedMemory(buffer_bytes);
  }
  /// The next buffer, when what was in it is written. An error is of that.
  Result<std::byte*> take() {
    Buffer& buffer = buffers_[next_];
    SLUICE_TRY(finish(buffer));
    return buffer.memory.data();
  }
  /// What was put into the buffer that was taken, as StateWriter::start.
  Status write(StateWriter& writer, std::size_t unit, std::size_t state, std::uint64_t offset_bytes,
               std::uint64_t bytes) {
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    buffer.writer = &writer;
    return writer.start(unit, state, offset_bytes, buffer.memory.span().first(bytes), buffer.transfer);
  }
  /// Waits for all of it.
  Status finish() {
    for (Buffer& buffer : buffers_) SLUICE_TRY(finish(buffer));
    return success();
  }

 private:
  struct Buffer {
    AlignedMemory memory;
    StateTransfer transfer;
    StateWriter* writer = nullptr;
  };
  static Status finish(Buffer& buffer) {
    return buffer.writer == nullptr ? success() : buffer.writer->finish(buffer.transfer);
  }

  std::deque<Buffer> buffers_;  ///< which stay where they are
  std::size_t next_ = 0;
};

}  // namespace sluice
