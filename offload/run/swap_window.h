// Host memory in pieces, through which bytes go to and from nvme buffers outside a step with several transfers in
// flight: initial weights, hashes, export.
//
//     SwapWindow window(piece_bytes);
//     SLUICE_ASSIGN(SwapWindow::Piece * piece, window.take());  // fill piece->data(), then
//     SLUICE_TRY(window.write(*piece, store, buffer, Slot::current, offset_bytes, bytes));  // and so on, at last
//     SLUICE_TRY(window.finish());
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>

#include "io/aligned_memory.h"
#include "offload/run/store.h"

namespace sluice {

constexpr std::size_t window_pieces = 8;

/// One thread, and stores that outlive the window; no executor runs a plan on them meanwhile.
class SwapWindow {
 public:
  class Piece {
   public:
    std::byte* data() const { return data_; }  ///< aligned to 4096

   private:
    friend class SwapWindow;
    std::byte* data_ = nullptr;
    SwapStore* store_ = nullptr;  ///< of the transfer
    SwapTransfer transfer_;
  };

  /// piece_bytes is a multiple of 4096, and not less than the blocks of any buffer that is scanned.
  explicit SwapWindow(std::uint64_t piece_bytes);
  ~SwapWindow();  ///< waits for what is in flight
  SwapWindow(const SwapWindow&) = delete;
  SwapWindow& operator=(const SwapWindow&) = delete;

  /// The piece that was taken longest ago, once its write is over; it is the caller's until it has been taken as often
  /// as there are pieces. Error: of that write.
  Result<Piece*> take();
  /// Write the first `bytes` of the piece.
  Status write(Piece& piece, SwapStore& store, BufferId buffer, Slot slot, std::uint64_t offset_bytes,
               std::uint64_t bytes);
  /// Wait for every write.
  Status finish();

  /// Of a buffer's current slot: whole blocks, or up to the buffer's end, and not more than a piece.
  struct Part {
    SwapStore* store = nullptr;
    BufferId buffer = 0;
    std::uint64_t offset_bytes = 0, bytes = 0;
  };
  /// Calls `visit` with the parts that `next` names, in order and verified, while the next ones are read. `next` is
  /// some parts ahead, and empty after the last.
  using Next = std::function<std::optional<Part>()>;
  using Visit = std::function<Status(const Part& part, std::span<const std::byte> data)>;
  Status scan(const Next& next, const Visit& visit);
  /// The whole of these buffers one after the other, in parts as large as a piece.
  Status scan(SwapStore& store, std::span<const BufferId> buffers, const Visit& visit);

 private:
  std::uint64_t piece_bytes_;
  AlignedMemory memory_;
  std::array<Piece, window_pieces> pieces_;
  std::size_t next_ = 0;
};

}  // namespace sluice
