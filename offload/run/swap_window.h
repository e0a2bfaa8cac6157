// Host memory in pieces, through which bytes go to and from nvme buffers outside a step with several transfers in
// flight: initial weights, hashes, export.
//
//     SwapWindow window(store, piece_bytes);
//     SLUICE_ASSIGN(SwapWindow::Piece * piece, window.take());  // fill piece->data(), then
//     SLUICE_TRY(window.write(*piece, buffer, Slot::current, offset_bytes, bytes));  // and so on, at last
//     SLUICE_TRY(window.finish());
#pragma once

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>

#include "offload/run/store.h"

namespace sluice {

constexpr std::size_t window_pieces = 8;

/// One thread; no executor runs a plan on the store meanwhile.
class SwapWindow {
 public:
  class Piece {
   public:
    std::byte* data() const { return data_; }  ///< aligned to 4096

   private:
    friend class SwapWindow;
    std::byte* data_ = nullptr;
    SwapTransfer transfer_;
  };

  /// `store` outlives the window; it may be null where only memory is asked for. piece_bytes is a multiple of 4096, and
  /// not less than the blocks of any buffer that is scanned.
  SwapWindow(SwapStore* store, std::uint64_t piece_bytes);
  ~SwapWindow();  ///< waits for what is in flight
  SwapWindow(const SwapWindow&) = delete;
  SwapWindow& operator=(const SwapWindow&) = delete;

  /// The piece that was taken longest ago, once its write is over; it is the caller's until it has been taken as often
  /// as there are pieces. Error: of that write.
  Result<Piece*> take();
  /// Write the first `bytes` of the piece.
  Status write(Piece& piece, BufferId buffer, Slot slot, std::uint64_t offset_bytes, std::uint64_t bytes);
  /// Wait for every write.
  Status finish();

  /// Calls `visit` with consecutive pieces of a buffer's slot, verified, while the next ones are read.
  using Visit = std::function<Status(std::uint64_t offset_bytes, std::span<const std::byte> data)>;
  Status scan(BufferId buffer, Slot slot, const Visit& visit);

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  SwapStore* store_;
  std::uint64_t piece_bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  std::array<Piece, window_pieces> pieces_;
  std::size_t next_ = 0;
};

}  // namespace sluice
