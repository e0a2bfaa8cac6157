#include "offload/run/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/copy.h"

namespace sluice {
namespace {

constexpr std::uint64_t huge_page_bytes = 2ull << 20;
constexpr std::uint64_t populate_threads_max = 16, populate_bytes_min = 1ull << 30;  ///< of a thread
/// A copy of so many bytes is a tile's, which is seldom read before caches have lost it.
constexpr std::uint64_t copy_past_caches_min = 256u << 10;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes; }

int populate_part(std::byte* address, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
#endif
  std::memset(address, 0, bytes);
  return 0;
}

/// Make every page of the range present, so that running out of memory shows here and not in the middle of a step. A
/// large range by several threads: one alone takes seconds for every dozen GiB. Returns an errno, or 0.
int populate(std::byte* address, std::uint64_t bytes) {
  const std::uint64_t workers = std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 1, populate_threads_max);
  const std::uint64_t part = std::max(rounded((bytes + workers - 1) / workers), populate_bytes_min);
  std::atomic<int> error{0};
  std::vector<std::jthread> threads;
  for (std::uint64_t at = part; at < bytes; at += part)
    threads.emplace_back([=, &error] {
      if (const int code = populate_part(address + at, std::min(part, bytes - at)); code != 0) error = code;
    });
  if (const int code = populate_part(address, std::min(part, bytes)); code != 0) error = code;
  threads.clear();
  return error;
}

}  // namespace

Result<std::byte*> map_pages(std::uint64_t bytes) {
  const std::uint64_t size = rounded(bytes);
  const std::uint64_t mapped = size + huge_page_bytes;
  const auto refuse = [&](int error) {
    return bad_request("cannot reserve " + std::to_string(bytes) + " bytes of memory: " + std::strerror(error));
  };
  if (size < bytes || mapped < size) return refuse(ENOMEM);
  void* const raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return refuse(errno);
  const std::uint64_t before = -reinterpret_cast<std::uintptr_t>(raw) % huge_page_bytes;
  std::byte* const address = static_cast<std::byte*>(raw) + before;
  if (before > 0) munmap(raw, before);
  munmap(address + size, huge_page_bytes - before);
  madvise(address, size, MADV_HUGEPAGE);
  madvise(address, size, MADV_DONTDUMP);
  if (const int error = populate(address, size); error != 0) {
    munmap(address, size);
    return refuse(error);
  }
  return address;
}

void unmap_pages(std::byte* address, std::uint64_t bytes) { munmap(address, rounded(bytes)); }

Result<Pages> Pages::make(std::uint64_t bytes) {
  Pages pages;
  pages.bytes_ = std::max<std::uint64_t>(bytes, 1);
  SLUICE_ASSIGN(pages.data_, map_pages(pages.bytes_));
  return pages;
}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) unmap_pages(data_, bytes_);
}

Result<std::byte*> HostDevice::allocate(std::uint64_t bytes) { return map_pages(bytes); }
void HostDevice::free(std::byte* address, std::uint64_t bytes) { unmap_pages(address, bytes); }
Status HostDevice::copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
  if (bytes < copy_past_caches_min)
    std::memcpy(dst, src, bytes);
  else
    kernels::copy_past_caches(dst, src, bytes);
  return success();
}
Status HostDevice::fill(std::byte* dst, std::byte value, std::uint64_t bytes) {
  std::memset(dst, std::to_integer<int>(value), bytes);
  return success();
}

Result<Memory> Memory::create(std::span<const ArenaSpec> specs, DeviceMemory& device) {
  Memory memory(device);
  for (const ArenaSpec& spec : specs) {
    if (spec.tier == Tier::nvme || spec.bytes == 0) continue;
    const std::string where = std::string(tier_names[static_cast<std::size_t>(spec.tier)]) + " arena";
    if (memory.find(spec.tier) != nullptr) return bad_request(where + " is given twice");
    Result<std::byte*> base = spec.tier == Tier::device ? device.allocate(spec.bytes) : map_pages(spec.bytes);
    if (!base.ok())
      return bad_request(where + ": " + base.error().message + "; give a smaller --" +
                         tier_names[static_cast<std::size_t>(spec.tier)] + "-memory");
    memory.arenas_.push_back({spec, *base, false});
    if (spec.tier == Tier::host) {
      if (const Status pinned = device.pin(*base, spec.bytes); !pinned.ok()) return pinned.error().in(where);
      memory.arenas_.back().pinned = true;
    }
    if (spec.tier == Tier::host && (device.pinning_locks() || mlock(*base, spec.bytes) == 0))
      memory.locked_bytes_ += spec.bytes;
  }
  return memory;
}

Memory::Memory(Memory&& other) noexcept
    : device_(other.device_), arenas_(std::exchange(other.arenas_, {})), locked_bytes_(other.locked_bytes_) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = other.device_;
  arenas_ = std::exchange(other.arenas_, {});
  locked_bytes_ = other.locked_bytes_;
  return *this;
}

Memory::~Memory() { release(); }

void Memory::unpin_and_unmap(const Arena& arena) {
  if (arena.pinned) device_->unpin(arena.base, arena.spec.bytes);
  unmap_pages(arena.base, arena.spec.bytes);
}

void Memory::release() {
  for (const Arena& arena : arenas_) {
    if (arena.spec.tier == Tier::device)
      device_->free(arena.base, arena.spec.bytes);
    else
      unpin_and_unmap(arena);
  }
  arenas_.clear();
}

const Memory::Arena* Memory::find(Tier tier) const {
  for (const Arena& arena : arenas_)
    if (arena.spec.tier == tier) return &arena;
  return nullptr;
}

std::byte* Memory::at(Tier tier, std::uint64_t offset) const {
  const Arena* const arena = find(tier);
  SLUICE_CHECK(arena != nullptr && offset <= arena->spec.bytes, "(tier %d offset %llu)", static_cast<int>(tier),
               static_cast<unsigned long long>(offset));
  return arena->base + offset;
}

std::uint64_t Memory::bytes(Tier tier) const {
  const Arena* const arena = find(tier);
  return arena == nullptr ? 0 : arena->spec.bytes;
}

}  // namespace sluice
