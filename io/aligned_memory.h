// Memory that direct I/O takes: whole pages, huge ones where the kernel has them. It comes from the system and goes
// back there, so that blocks of several sizes in turns leave no holes in the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice {

/// Of addresses, offsets and sizes: what O_DIRECT takes on every drive.
constexpr std::uint64_t direct_alignment_bytes = 4096;

/// Move-only; its bytes are not initialised.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  /// Rounded up to 4096. Ends the program where there is no memory.
  explicit AlignedMemory(std::uint64_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data(), bytes_}; }

 private:
  struct Unmap {
    std::uint64_t bytes;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Unmap> memory_;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice
