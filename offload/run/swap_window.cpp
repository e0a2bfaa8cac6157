#include "offload/run/swap_window.h"

#include <algorithm>

namespace sluice {

SwapWindow::SwapWindow(SwapStore* store, std::uint64_t piece_bytes)
    : store_(store), piece_bytes_(piece_bytes), memory_(piece_bytes * window_pieces) {
  for (std::size_t i = 0; i < window_pieces; ++i) pieces_[i].data_ = memory_.data() + i * piece_bytes;
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
    SLUICE_TRY(store_->start(IoOp::read, part->buffer, Slot::current, part->offset_bytes, {piece->data_, part->bytes},
                             piece->transfer_));
    ++reading;
  }
  return success();
}

Status SwapWindow::scan(std::span<const BufferId> buffers, const Visit& visit) {
  std::uint64_t offset = 0;
  const auto next = [&]() -> std::optional<Part> {
    if (buffers.empty()) return std::nullopt;
    const Buffer& b = store_->bound_plan()->buffers[buffers.front()];
    SLUICE_CHECK(b.block_bytes <= piece_bytes_, "(%s)", b.name.c_str());
    const std::uint64_t step = piece_bytes_ / b.block_bytes * b.block_bytes;
    const Part part{buffers.front(), offset, std::min(step, b.bytes - offset)};
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
