// The swap file: one preallocated file per directory; with several directories one logical space striped over them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/drives/queue.h"
#include "sluice/status.h"

namespace sluice {

struct SwapOptions {
  std::vector<std::string> directories;
  std::uint64_t bytes = 0;                ///< logical size; rounded up to 4096
  std::uint64_t stripe_bytes = 2u << 20;  ///< multiple of 4096: the mean stripe, where there are several directories
  /// Empty: a temporary file "sluice-swap.<pid>.<n>", removed on close; files of that kind that a killed run left in
  /// the directories are removed first. Otherwise the kept file "<name>" in each directory.
  std::string name;
  bool direct = true;      ///< O_DIRECT where the file system has it
  bool anonymous = false;  ///< a temporary file loses its name at once and goes with the process, however that ends
  /// Relative bandwidth of each directory's drive, which its stripes are as large as: all drives then take the same
  /// time for their part. Empty: equal.
  std::vector<double> weights;
};

/// Where a part of the logical space lies.
struct SwapPiece {
  std::uint32_t file = 0;    ///< index in files()
  std::uint64_t offset = 0;  ///< in that file
  std::uint64_t bytes = 0;
};

/// Owns the descriptors. Files are 0600 and locked (flock) against a second run. Move-only.
class SwapFile {
 public:
  /// Create and preallocate. bad_request, before anything is left behind, when a directory is missing, not writable or
  /// lacks the space (naming it, needed and free bytes), or when a kept file of that name exists.
  static Result<SwapFile> create(const SwapOptions& options);
  /// Open kept files. bad_request when one is missing, smaller than the options imply, or in use.
  static Result<SwapFile> open_existing(const SwapOptions& options);
  /// Make kept files as large as the options imply, if they are smaller; what is in them stays. bad_request, with the
  /// files as they were, when a directory lacks the space, or when one is missing or in use.
  static Status grow(const SwapOptions& options);
  /// Remove kept files of that name, those that exist. bad_request when one is in use.
  static Status remove(const SwapOptions& options);

  SwapFile() = default;
  ~SwapFile();
  SwapFile(SwapFile&& other) noexcept;
  SwapFile& operator=(SwapFile&& other) noexcept;

  /// A kept file is removed when it is closed.
  void discard() { remove_on_close_ = true; }
  /// Give back what files that were opened have behind the size that the options imply.
  Status trim();

  std::uint64_t bytes() const { return bytes_; }
  /// For QueueOptions::files.
  const std::vector<IoFile>& files() const { return files_; }
  /// The first piece of [offset, offset + bytes): never longer than `bytes`, never beyond a stripe when there are
  /// several files. Call again with what is left.
  SwapPiece piece(std::uint64_t offset, std::uint64_t bytes) const;
  /// Make the piece read as zeros: without writing them where the file system can.
  Status zero(const SwapPiece& piece);
  /// fdatasync every file. A failure is final: what was written since the last success must be taken as lost.
  Status sync();
  /// "/nvme: 1.5 GiB O_DIRECT" or why not, for people.
  const std::string& description() const { return description_; }

 private:
  static Result<SwapFile> open_files(const SwapOptions& options, bool create);
  void close();

  std::vector<IoFile> files_;
  std::vector<std::uint64_t> file_bytes_;  ///< of each file
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> stripe_ends_;  ///< a turn is one stripe of each file: where in the turn each one ends
  bool remove_on_close_ = false;
  std::string description_;
};

}  // namespace sluice
