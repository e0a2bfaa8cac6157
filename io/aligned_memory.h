// Memory that direct I/O takes: whole pages, huge ones where the kernel has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace sluice {

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
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice
