// XXH3-64 of blocks: what goes to the drive carries one, and it is verified when the block comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice {

std::uint64_t checksum(std::span<const std::byte> data);

/// The same value as checksum() over everything added, in order.
class StreamingChecksum {
 public:
  StreamingChecksum();
  ~StreamingChecksum();
  StreamingChecksum(const StreamingChecksum&) = delete;
  StreamingChecksum& operator=(const StreamingChecksum&) = delete;
  void add(std::span<const std::byte> data);
  std::uint64_t value() const;

 private:
  void* state_;
};

/// The checksum of each block of a stream: 8 bytes a block are remembered.
class BlockSums {
 public:
  explicit BlockSums(std::size_t block_bytes) : partial_(block_bytes) {}
  void add(std::span<const std::byte> data);
  /// Also of the last block, which may be shorter: nothing is added behind it.
  const std::vector<std::uint64_t>& close();

 private:
  std::vector<std::byte> partial_;  ///< of a block: the first used_ bytes
  std::size_t used_ = 0;
  std::vector<std::uint64_t> values_;
};

/// One checksum per block. Allocates only when made. Different blocks may be set and verified by different threads.
class BlockChecksums {
 public:
  explicit BlockChecksums(std::size_t blocks = 0) : values_(blocks, 0) {}

  void set(std::size_t block, std::span<const std::byte> data);
  /// damaged when the data differ from what was set, or when nothing was set. `where` names the block to people.
  Status verify(std::size_t block, std::span<const std::byte> data, const char* where = "") const;
  bool is_set(std::size_t block) const { return values_[block] != 0; }
  /// For commit records; 0 means not set.
  std::span<std::uint64_t> values() { return values_; }
  std::span<const std::uint64_t> values() const { return values_; }

 private:
  std::vector<std::uint64_t> values_;
};

}  // namespace sluice
