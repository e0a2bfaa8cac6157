#include "offload/run/swap_window.h"

#include <algorithm>

namespace sluice {

SwapWindow::SwapWindow(SwapStore* store, std::uint64_t piece_bytes)
    : store_(store),
      piece_bytes_(piece_bytes),
      memory_(static_cast<std::byte*>(std::aligned_alloc(buffer_alignment_bytes, piece_bytes * window_pieces))) {
  SLUICE_CHECK(memory_ != nullptr, "no memory for %zu pieces of %llu bytes", window_pieces,
               static_cast<unsigned long long>(piece_bytes));
  for (std::size_t i = 0; i < window_pieces; ++i) pieces_[i].data_ = memory_.get() + i * piece_bytes;
}

SwapWindow::~SwapWindow() {
  if (store_ != nullptr) store_->drain();
}

Result<SwapWindow::Piece*> SwapWindow::take() {
  Piece& piece = pieces_[next_++ % window_pieces];
  if (store_ != nullptr) SLUICE_TRY(store_->finish(piece.transfer_));
  return &piece;
}

Status SwapWindow::write(Piece& piece, BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::uint64_t bytes) {
  return store_->start(IoOp::write, buffer, slot, offset_bytes, {piece.data_, bytes}, piece.transfer_);
}

Status SwapWindow::finish() {
  for (std::size_t i = 0; i < window_pieces; ++i) {
    SLUICE_ASSIGN([[maybe_unused]] Piece * piece, take());
  }
  return success();
}

Status SwapWindow::scan(BufferId buffer, Slot slot, const Visit& visit) {
  const Buffer& b = store_->bound_plan()->buffers[buffer];
  SLUICE_CHECK(b.block_bytes <= piece_bytes_, "(%s)", b.name.c_str());
  const std::uint64_t bytes = b.bytes, step = piece_bytes_ / b.block_bytes * b.block_bytes;
  const std::uint64_t ahead = window_pieces * step;
  const auto part = [&](const Piece& piece, std::uint64_t offset) {
    return std::span(piece.data_, std::min(step, bytes - offset));
  };
  for (std::uint64_t offset = 0; offset < bytes + ahead; offset += step) {
    SLUICE_ASSIGN(Piece * piece, take());
    if (offset >= ahead && offset - ahead < bytes) SLUICE_TRY(visit(offset - ahead, part(*piece, offset - ahead)));
    if (offset < bytes)
      SLUICE_TRY(store_->start(IoOp::read, buffer, slot, offset, part(*piece, offset), piece->transfer_));
  }
  return success();
}

}  // namespace sluice
