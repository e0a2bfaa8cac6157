#include "io/tokens/encode_pool.h"

#include <string>
#include <string_view>

namespace sluice {
namespace {

Status encode_pieces(EncodeBatch& batch, const TextSource& source, TextEncoder& encoder, bool has_mask) {
  batch.tokens.clear();
  batch.mask.clear();
  batch.ends.clear();
  batch.text_bytes = 0;
  std::string storage;
  for (std::size_t i = 0; i < batch.used; ++i) {
    const TextPiece& piece = batch.pieces[i];
    std::string_view text;
    SLUICE_TRY(source.text_of(piece, storage, text));
    const Status encoded =
        has_mask ? encoder.encode_masked(text, batch.tokens, batch.mask) : encoder.encode(text, batch.tokens);
    if (!encoded.ok()) return encoded.error().in(source.where(piece));
    batch.ends.push_back(batch.tokens.size());
    batch.text_bytes += text.size();
  }
  return success();
}

}  // namespace

EncodePool::EncodePool(const TextSource& source, const TextEncoding& encoding, int threads)
    : source_(source), encoding_(encoding), ring_(threads > 1 ? 2 * static_cast<std::size_t>(threads) : 1) {
  if (threads <= 1) own_ = encoding.make_encoder();
  for (int i = 0; threads > 1 && i < threads; ++i) threads_.emplace_back([this] { work(); });
}

EncodePool::~EncodePool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

EncodeBatch& EncodePool::next_free() { return ring_[(oldest_ + busy_) % ring_.size()]; }

void EncodePool::start(EncodeBatch& batch) {
  ++busy_;
  batch.done = own_ != nullptr;
  if (own_ != nullptr) {
    batch.result = encode_pieces(batch, source_, *own_, encoding_.has_mask);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(&batch);
  }
  started_.notify_one();
}

const EncodeBatch& EncodePool::wait_for_oldest() {
  EncodeBatch& batch = ring_[oldest_];
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return batch.done; });
  return batch;
}

void EncodePool::release_oldest() {
  oldest_ = (oldest_ + 1) % ring_.size();
  --busy_;
}

void EncodePool::work() {
  const auto encoder = encoding_.make_encoder();
  for (;;) {
    EncodeBatch* batch = nullptr;
    {
      std::unique_lock lock(mutex_);
      started_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      batch = waiting_.front();
      waiting_.pop_front();
    }
    Status result = encode_pieces(*batch, source_, *encoder, encoding_.has_mask);
    {
      const std::lock_guard lock(mutex_);
      batch->result = std::move(result);
      batch->done = true;
    }
    finished_.notify_one();
  }
}

}  // namespace sluice
