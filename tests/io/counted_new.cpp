// operator new of the whole test program, counting. In a file of its own: where the compiler sees through both
// operators, it takes malloc and free for a mismatch.
#include <atomic>
#include <cstdlib>
#include <new>

#include "support.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

std::uint64_t sluice::allocation_count() { return allocations.load(); }
