// The frozen arenas of device and host memory: reserved and populated once, before the first step.
//
//   auto memory = Memory::create({{Tier::device, device_bytes}, {Tier::host, host_bytes}}, device);
//   std::byte* p = memory->at(Tier::host, buffer.offset);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// Memory of one device as the engine sees it. Addresses may be opaque to the host (CUDA); only `copy` and `fill` touch
/// them. `copy` and `fill` are synchronous and may be called from several threads at once.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Aligned to 2 MiB, every page present; bytes > 0. Errors: bad_request with the size that could not be had.
  virtual Result<std::byte*> allocate(std::uint64_t bytes) = 0;
  virtual void free(std::byte* address, std::uint64_t bytes) = 0;
  /// Between device and host in either direction, or within the device.
  virtual Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) = 0;
  virtual Status fill(std::byte* dst, std::byte value, std::uint64_t bytes) = 0;
  /// Lets the device reach an arena of the host, before its first use and until unpin. bad_request when it may not.
  virtual Status pin(std::byte*, std::uint64_t) { return success(); }
  virtual void unpin(std::byte*, std::uint64_t) {}
  /// Whether what is pinned is locked in memory by that alone.
  virtual bool pinning_locks() const { return false; }
};

/// Host memory that plays the device: the CPU backend.
class HostDevice final : public DeviceMemory {
 public:
  Result<std::byte*> allocate(std::uint64_t bytes) override;
  void free(std::byte* address, std::uint64_t bytes) override;
  Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) override;
  Status fill(std::byte* dst, std::byte value, std::uint64_t bytes) override;
};

/// Anonymous pages, aligned to 2 MiB, huge pages advised, every page present. bad_request if they cannot be had.
Result<std::byte*> map_pages(std::uint64_t bytes);
void unmap_pages(std::byte* address, std::uint64_t bytes);

/// Owner of mapped pages. Move-only; unmaps on destruction.
class Pages {
 public:
  static Result<Pages> make(std::uint64_t bytes);  ///< at least one byte
  Pages() = default;
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

struct ArenaSpec {
  Tier tier = Tier::host;
  std::uint64_t bytes = 0;  ///< 0: no arena
};

/// The device and host arenas of one rank. Move-only; frees on destruction. Reads are thread-safe.
class Memory {
 public:
  /// Specs of nvme arenas are ignored (SwapStore has them). `device` must outlive the Memory. Host arenas are locked in
  /// memory where the limit of the process allows it.
  /// Errors: bad_request naming the arena and its bytes if the machine does not have them.
  static Result<Memory> create(std::span<const ArenaSpec> specs, DeviceMemory& device);

  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* at(Tier tier, std::uint64_t offset) const;
  std::uint64_t bytes(Tier tier) const;  ///< 0 where there is no such arena
  DeviceMemory& device() const { return *device_; }
  std::uint64_t locked_bytes() const { return locked_bytes_; }  ///< of host arenas

 private:
  struct Arena {
    ArenaSpec spec;
    std::byte* base = nullptr;
    bool pinned = false;
  };
  explicit Memory(DeviceMemory& device) : device_(&device) {}
  const Arena* find(Tier tier) const;
  void unpin_and_unmap(const Arena& arena);
  void release();

  DeviceMemory* device_ = nullptr;
  std::vector<Arena> arenas_;
  std::uint64_t locked_bytes_ = 0;
};

}  // namespace sluice
