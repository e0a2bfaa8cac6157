#include "io/aligned_memory.h"

#include <sys/mman.h>

#include <cstdint>

#include "sluice/status.h"

namespace sluice {
namespace {

constexpr std::uint64_t page_bytes = 4096, huge_page_bytes = 2u << 20;

}  // namespace

AlignedMemory::AlignedMemory(std::uint64_t bytes) : bytes_((bytes + page_bytes - 1) / page_bytes * page_bytes) {
  if (bytes_ == 0) return;
  const bool huge = bytes_ >= huge_page_bytes;
  // Huge pages begin at their multiples: what is mapped before the first of them, and behind the end, is given back.
  const std::uint64_t mapped = huge ? bytes_ + huge_page_bytes : bytes_;
  void* const at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SLUICE_CHECK(at != MAP_FAILED, "no memory for %llu bytes", static_cast<unsigned long long>(bytes_));
  auto* const begin = static_cast<std::byte*>(at);
  const std::uint64_t before = huge ? -reinterpret_cast<std::uintptr_t>(begin) % huge_page_bytes : 0;
  if (before > 0) munmap(begin, before);
  if (mapped > before + bytes_) munmap(begin + before + bytes_, mapped - before - bytes_);
  memory_ = std::unique_ptr<std::byte, Unmap>(begin + before, Unmap{bytes_});
  // A request of a megabyte is then of one page and not of 256. Where the kernel has none it is as well as without.
  if (huge) static_cast<void>(madvise(memory_.get(), bytes_, MADV_HUGEPAGE));
}

void AlignedMemory::Unmap::operator()(std::byte* p) const { munmap(p, bytes); }

}  // namespace sluice
