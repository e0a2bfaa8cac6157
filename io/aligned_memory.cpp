#include "io/aligned_memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "sluice/status.h"

namespace sluice {
namespace {

constexpr std::uint64_t page_bytes = 4096, huge_page_bytes = 2u << 20;

}  // namespace

AlignedMemory::AlignedMemory(std::uint64_t bytes) : bytes_((bytes + page_bytes - 1) / page_bytes * page_bytes) {
  const bool huge = bytes_ >= huge_page_bytes;
  void* memory = nullptr;
  const int failed = posix_memalign(&memory, huge ? huge_page_bytes : page_bytes, bytes_);
  SLUICE_CHECK(failed == 0, "no memory for %llu bytes", static_cast<unsigned long long>(bytes_));
  memory_.reset(static_cast<std::byte*>(memory));
  // A request of a megabyte is then of one page and not of 256. Where the kernel has none it is as well as without.
  if (huge) static_cast<void>(madvise(memory_.get(), bytes_, MADV_HUGEPAGE));
}

}  // namespace sluice
