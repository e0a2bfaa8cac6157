#include "offload/run/swap_window.h"

#include <algorithm>

namespace sluice {

SwapWindow::SwapWindow(std::uint64_t piece_bytes) : piece_bytes_(piece_bytes), memory_(piece_bytes * window_pieces) {
  for (std::size_t i = 0; i < window_pieces; ++i) pieces_[i].data_ = memory_.data() + i * piece_bytes;
}

SwapWindow::~SwapWindow() {
  for (const Piece& piece : pieces_)
    if (piece.store_ != nullptr) piece.store_->drain();
}

Result<SwapWindow::Piece*> SwapWindow::take() {
  Piece& piece = pieces_[next_++ % window_pieces];
  if (piece.store_ != nullptr) SLUICE_TRY(piece.store_->finish(piece.transfer_));
  return &piece;
}

Status SwapWindow::write(Piece& piece, SwapStore& store, BufferId buffer, Slot slot, std::uint64_t offset_bytes,
                         std::uint64_t bytes) {
  piece.store_ = &store;
  return store.start(IoOp::write, buffer, slot, offset_bytes, {piece.data_, bytes}, piece.transfer_);
}

Status SwapWindow::finish() {
  for (std::size_t i = 0; i < window_pieces; ++i) {
    SLUICE_ASSIGN([[maybe_unused]] Piece * piece, take());
  }
  return success();
}

Status SwapWindow::scan(const Next& next, const Visit& visit) {
  std::array<std::optional<Part>, window_pieces> parts;  // of what is in each piece
  std::size_t reading = 0;
  for (bool more = true; more || reading > 0;) {
    std::optional<Part>& part = parts[next_ % window_pieces];
    SLUICE_ASSIGN(Piece * piece, take());
    if (part) {
      SLUICE_TRY(visit(*part, {piece->data_, part->bytes}));
      --reading;
    }
    part = more ? next() : std::nullopt;
    more = part.has_value();
    if (!part) continue;
    SLUICE_CHECK(part->bytes <= piece_bytes_, "(%llu)", static_cast<unsigned long long>(part->bytes));
    piece->store_ = part->store;
    SLUICE_TRY(part->store->start(IoOp::read, part->buffer, Slot::current, part->offset_bytes,
                                  {piece->data_, part->bytes}, piece->transfer_));
    ++reading;
  }
  return success();
}

Status SwapWindow::scan(SwapStore& store, std::span<const BufferId> buffers, const Visit& visit) {
  std::uint64_t offset = 0;
  const auto next = [&]() -> std::optional<Part> {
    if (buffers.empty()) return std::nullopt;
    const Buffer& b = store.bound_plan()->buffers[buffers.front()];
    SLUICE_CHECK(b.block_bytes <= piece_bytes_, "(%s)", b.name.c_str());
    const std::uint64_t step = piece_bytes_ / b.block_bytes * b.block_bytes;
    const Part part{&store, buffers.front(), offset, std::min(step, b.bytes - offset)};
    offset += part.bytes;
    if (offset == b.bytes) {
      offset = 0;
      buffers = buffers.subspan(1);
    }
    return part;
  };
  return scan(next, visit);
}

}  // namespace sluice
