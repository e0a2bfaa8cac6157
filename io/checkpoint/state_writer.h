// Writes a rank's states into its file of a checkpoint, through a queue of its own and around the page cache.
//
//     SLUICE_ASSIGN(auto writer, StateWriter::create(directory, manifest, file, {}));
//     for (...) SLUICE_TRY(writer->start(unit, state, offset_bytes, data, transfer));  // data stays until
//     ... SLUICE_TRY(writer->finish(transfer));
//     SLUICE_ASSIGN(const StoredFile stored, writer->close());  // for the manifest
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "io/drives/queue.h"

namespace sluice {

/// Between StateWriter::start and finish: it and its memory stay where they are in between.
class StateTransfer {
 public:
  StateTransfer() = default;
  StateTransfer(const StateTransfer&) = delete;
  StateTransfer& operator=(const StateTransfer&) = delete;
  bool is_open() const { return open_; }

 private:
  friend class StateWriter;
  IoRequest request_;
  bool open_ = false, done_ = false;
};

/// Where bytes lie in another file.
struct FileRange {
  int fd = -1;
  std::uint64_t offset = 0, bytes = 0;
};

/// Whether files in the one directory can share blocks with files in the other: tried with two that have no names.
bool directories_share_blocks(const std::string& from, const std::string& to);

/// One thread.
class StateWriter {
 public:
  /// Makes the file, as create_state_file. Of `queue` files and buffers are filled in here.
  static Result<std::unique_ptr<StateWriter>> create(const std::string& directory, const Manifest& manifest,
                                                     StoredFile file, QueueOptions queue);
  ~StateWriter();  ///< waits for what is in flight
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  const StoredFile& file() const { return file_; }
  /// Whole blocks of a state from `offset_bytes` on, or up to its end, from memory aligned to 4096. Each block once.
  Status start(std::size_t unit, std::size_t state, std::uint64_t offset_bytes, std::span<const std::byte> data,
               StateTransfer& transfer);
  /// The same without writing, where `data` was read from these ranges and the file system lets files share blocks
  /// (XFS, btrfs): false where it does not, and it is to be written. Who writes to the ranges later gets blocks of his
  /// own.
  Result<bool> share(std::size_t unit, std::size_t state, std::uint64_t offset_bytes, std::span<const std::byte> data,
                     std::span<const FileRange> from);
  /// Whether that would do for this file: tried with a block, which anything may be written over.
  bool shares_with(int fd) const;
  static bool can_be_shared(std::uint64_t bytes);  ///< whole blocks of the file system
  /// Shares all blocks of a state that were not written, each with its checksum in `sums`. `places` names the ranges of
  /// so many bytes from an offset of the state on. fault where they can not be shared.
  using Places = std::function<std::vector<FileRange>(std::uint64_t offset_bytes, std::uint64_t bytes)>;
  Status share_rest(std::size_t unit, std::size_t state, std::span<const std::uint64_t> sums, const Places& places);
  /// Waits for it.
  Status finish(StateTransfer& transfer);
  /// Everything that was to be written is there and on the drive, the checksums too.
  Result<StoredFile> close();

 private:
  StateWriter() = default;
  Status reap();
  void set_sums(const StoredState& state, std::uint64_t offset_bytes, std::span<const std::byte> data);

  std::string path_, sums_path_;
  StoredFile file_;
  int fd_ = -1;
  std::vector<std::uint64_t> sums_;  ///< 0: not written
  bool may_share_ = true;            ///< nothing has said no
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace sluice
