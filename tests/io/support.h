// What the tests of io share: aligned memory, queues of every kind.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/drives/queue.h"
#include "io/drives/swap_file.h"
#include "tests/scratch_dir.h"

namespace sluice {

/// Memory at 4096-byte borders.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), &std::free),
        size_(bytes) {}
  std::span<std::byte> span() const { return {data_.get(), size_}; }
  std::byte* data() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_;
  std::size_t size_;
};

/// Calls of operator new so far.
std::uint64_t allocation_count();

inline void fill(std::span<std::byte> out, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!out.empty()) {
    const std::uint64_t value = random();
    const std::size_t n = std::min(out.size(), sizeof value);
    std::memcpy(out.data(), &value, n);
    out = out.subspan(n);
  }
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline SwapFile make_swap(const std::vector<std::string>& directories, std::uint64_t bytes, bool direct = true,
                          const std::string& name = {}, std::uint64_t stripe = 1u << 20) {
  auto swap = SwapFile::create({directories, bytes, stripe, name, direct, false, {}});
  EXPECT_TRUE(swap.ok()) << (swap.ok() ? "" : swap.error().message);
  return swap.ok() ? std::move(*swap) : SwapFile();
}

inline std::unique_ptr<IoQueue> open_queue(const QueueOptions& options) {
  auto queue = make_queue(options);
  EXPECT_TRUE(queue.ok()) << (queue.ok() ? "" : queue.error().message);
  return queue.ok() ? std::move(*queue) : nullptr;
}

inline IoRequest request_of(IoOp op, std::uint64_t offset, std::span<std::byte> data, std::uint32_t file = 0) {
  IoRequest r;
  r.op = op;
  r.file = file;
  r.offset = offset;
  r.bytes = data.size();
  r.data = data.data();
  return r;
}

}  // namespace sluice
