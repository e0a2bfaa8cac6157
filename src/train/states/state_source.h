// States out of a checkpoint, in the layout and the formats of whoever asks: what is asked for is cut into windows, and
// while one is put together the blocks of the next ones are read.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/checkpoint/block_reader.h"
#include "io/checkpoint/pieces.h"
#include "offload/state/moment_layout.h"

namespace sluice {

/// Of a target's flat buffer in a state.
struct StateWindow {
  const std::vector<TensorPiece>* pieces = nullptr;  ///< of the target's buffer; outlive the window
  StateKind kind = StateKind::parameter;
  std::uint64_t first = 0, numel = 0;  ///< multiples of 4096, and with 8-bit moments whole groups, or up to the end
  std::size_t target = 0;              ///< the caller's
};

class StateSource {
 public:
  /// Blocks that are held, or on their way, at once: what memory does, and no more than keeps a drive at work.
  static constexpr std::uint64_t ahead_bytes_default = 64u << 20;

  /// Of the checkpoint, which outlives it, in these formats. Of `queue` files and buffers are filled in here. Blocks
  /// take at most `ahead_bytes`, or what one window is made of.
  StateSource(Checkpoint& checkpoint, const StoredFormats& formats, QueueOptions queue,
              std::uint64_t ahead_bytes = ahead_bytes_default);
  ~StateSource();

  /// The number of each of these tensors in the checkpoint. bad_request, naming the tensor, where the checkpoint has
  /// another shape, lacks it, or has one that is not among them.
  Result<std::vector<std::uint32_t>> tensors(const std::vector<StoredTensor>& wanted) const;
  /// What is not there is zero: moments of a checkpoint of parameters alone, and remainders of bf16 without them.
  bool has_moments() const { return with_moments_ && index_.has(StateKind::exp_avg); }
  /// Those that there are count for nothing.
  void leave_out_moments() { with_moments_ = false; }
  bool has_remainders() const { return index_.has(StateKind::remainder); }
  /// Of 8-bit moments: blocks that were encoded anew, since other elements are in them than when they were saved.
  std::uint64_t encoded_blocks() const { return encoded_blocks_; }
  std::uint64_t read_bytes() const { return reader_ == nullptr ? 0 : reader_->read_bytes(); }

  /// Names windows in order, and is empty after the last. It is some windows ahead of what is taken. Pieces have the
  /// tensors' numbers in the checkpoint.
  using Next = std::function<std::optional<StateWindow>()>;
  /// What take() gives from now on. What was begun before is over.
  Status begin(Next next);
  struct Taken {
    StateWindow window;
    std::span<const std::byte> data;  ///< until the next call; what no piece has is zero
  };
  /// Empty after the last. Errors as BlockReader's.
  Result<std::optional<Taken>> take();
  /// All of them.
  using Visit = std::function<Status(const StateWindow& window, std::span<const std::byte> data)>;
  Status scan(Next next, const Visit& visit);

  /// Of the blocks that the windows are made of, each once: nothing is read.
  std::uint64_t block_bytes(std::span<const StateWindow> windows) const;

 private:
  /// A window with where its elements come from.
  struct Planned;
  struct Fetched;
  Status open_reader();
  Planned plan(const StateWindow& window) const;
  void add_blocks(const StateCopy& copy, std::vector<BlockId>& blocks) const;
  std::uint64_t longest_block(const BlockId& id) const {
    return checkpoint_.manifest().files[id.file].units[id.unit].states[id.state].block_bytes;
  }
  Status plan_ahead();
  Status make(Planned& planned);
  void make_parameters(const Planned& planned, const Fetched& fetched);
  void make_moments(const Planned& planned, const Fetched& fetched);
  void make_codes(const Planned& planned, const Fetched& fetched);
  void read_values(const StateCopy& copy, const Fetched& fetched, float* values) const;

  Checkpoint& checkpoint_;
  StoredFormats formats_;
  QueueOptions queue_;
  PieceIndex index_;
  bool with_moments_ = true;
  std::uint64_t ahead_bytes_;
  std::unique_ptr<BlockReader> reader_;
  Next next_;                                   ///< none when there are no more
  std::unique_ptr<Planned> planned_;            ///< the next one, which there was no room for
  std::deque<std::unique_ptr<Planned>> ahead_;  ///< their blocks are wanted
  AlignedMemory memory_;                        ///< of a window
  std::span<std::byte> data_;                   ///< the part of it that the window has
  std::vector<float> values_;
  std::uint64_t encoded_blocks_ = 0;
};

}  // namespace sluice
