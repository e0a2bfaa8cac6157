// Threads that encode batches of text beside the one that reads and writes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "io/tokens/text_source.h"
#include "io/tokens/tokenize.h"

namespace sluice {

struct EncodeBatch {
  std::vector<TextPiece> pieces;
  std::size_t used = 0;  ///< of pieces; the others keep their memory for later
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;  ///< of the tokens, where the encoding has one
  std::vector<std::size_t> ends;   ///< of each piece's tokens
  std::uint64_t text_bytes = 0;
  Status result;
  bool done = false;
};

/// A ring of batches, handed back in the order in which they were started. With one thread, start() encodes in the
/// caller's. All members are for one thread; `source` and `encoding` outlive the pool.
class EncodePool {
 public:
  EncodePool(const TextSource& source, const TextEncoding& encoding, int threads);
  ~EncodePool();
  EncodePool(const EncodePool&) = delete;
  EncodePool& operator=(const EncodePool&) = delete;

  std::size_t capacity() const { return ring_.size(); }
  std::size_t busy() const { return busy_; }  ///< started and not released
  EncodeBatch& next_free();                   ///< busy() < capacity()
  void start(EncodeBatch& batch);             ///< the one that next_free() gave
  const EncodeBatch& wait_for_oldest();       ///< busy() > 0
  void release_oldest();

 private:
  void work();
  const TextSource& source_;
  const TextEncoding& encoding_;
  std::vector<EncodeBatch> ring_;
  std::size_t oldest_ = 0, busy_ = 0;
  std::unique_ptr<TextEncoder> own_;  ///< where there are no threads
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  std::deque<EncodeBatch*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
