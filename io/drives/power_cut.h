// A power cut in the middle of writes: what is on the drive afterwards is what a real one could hold.
//
// Queues that share one PowerCut (FaultOptions::power_cut) are on one machine: their transfers are counted together and
// go dark together. The journal keeps what each write overwrites until a sync has made the write durable: one that
// started after the write had been handed back by its queue, and was handed back itself. At the cut every other write,
// those in flight too, is kept, lost, or torn (a prefix, or any subset, of its units), by seed and number of the write.
// Later writes to the same place stand where they were kept. A unit is the file's alignment, at least 512 bytes: it is
// never torn itself.
//
// Use: make one, put it into the FaultOptions of some queues, run until their requests fail with EIO (or call cut_now),
// drain or destroy the queues, then read the files by other means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "io/drives/queue.h"

namespace sluice {

/// Any thread may call anything. It holds descriptors of its own, so that files may be closed before it.
class PowerCut {
 public:
  /// Cuts at the `cut_nth` transfer of any kind that reaches a backend that shares this (1-based; 0: never by itself).
  /// That transfer is in flight at the cut if it is a write.
  explicit PowerCut(std::uint64_t seed, std::uint64_t cut_nth = 0) : seed_(seed), cut_nth_(cut_nth) {}
  ~PowerCut();
  PowerCut(const PowerCut&) = delete;
  PowerCut& operator=(const PowerCut&) = delete;

  /// From here on every transfer fails with EIO, also those in flight. Writes that the kernel works on must land before
  /// the files can be set back: that happens here if there are none, else when the last of them has been reaped.
  void cut_now();
  /// Whether the power is gone and the files hold what is left. Final.
  bool happened() const;

  // For the fault backend, once per transfer in this order: begin, (withdraw | landed), finish.

  /// The number of each file here: the same for every descriptor of one file.
  std::vector<std::uint32_t> attach(std::span<const IoFile> files);
  /// A ticket for the calls below, or -errno with which the transfer ends. `moves`: it will reach the drive.
  std::int64_t begin(std::uint32_t file, const IoTransfer& transfer, bool moves);
  void withdraw(std::int64_t ticket);  ///< it was not started: it will begin anew
  void landed(std::int64_t ticket);    ///< the inner backend has finished it
  /// False when it fails because of the cut. Else its result is what the queue learns.
  bool finish(std::uint32_t file, const IoTransfer& transfer, std::int64_t ticket);

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Bytes = std::unique_ptr<std::byte, Free>;

  struct File {
    std::uint64_t device = 0, inode = 0;
    int fd = -1;
    std::uint64_t unit_bytes = 512;
  };
  struct Write {
    std::int64_t ticket = 0;
    std::uint64_t number = 0;  ///< among all transfers
    std::uint32_t file = 0;
    std::uint64_t begin = 0, end = 0;     ///< whole units
    Bytes old;                            ///< what was there; null once durable
    const IoTransfer* running = nullptr;  ///< until its queue has it back
    bool landed = false;
    std::int64_t finished = 0;  ///< when its queue got it back, in tickets
  };

  std::uint32_t attach(const IoFile& file);
  int remember(std::uint32_t file, const IoTransfer& transfer);
  Write* find(std::int64_t ticket);
  void make_durable(std::uint32_t file, std::int64_t sync_ticket);
  void turn_off();
  void roll_back();
  std::vector<bool> fate(const Write& write) const;
  void restore(const Write& write, std::size_t first_unit, std::size_t last_unit) const;

  const std::uint64_t seed_, cut_nth_;
  mutable std::mutex mutex_;
  std::vector<File> files_;
  std::deque<Write> journal_;  ///< by ticket
  std::int64_t clock_ = 0;     ///< of begins and finishes
  std::uint64_t transfers_ = 0;
  std::size_t landing_ = 0;  ///< writes in inner backends
  bool off_ = false, settled_ = false;
};

}  // namespace sluice
