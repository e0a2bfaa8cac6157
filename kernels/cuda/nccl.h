// NCCL: collectives and messages between the memories of GPUs, in the order of a stream. The library is opened when it
// is first needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/status.h"

struct CUstream_st;
struct ncclComm;

namespace sluice::kernels::cuda {

/// Names a communicator. One of its ranks makes it, the others get a copy.
using NcclId = std::array<std::byte, 128>;

/// The library. NVIDIA's promises, and no more, hold for who uses it: all ranks issue the work of all communicators of
/// their devices in one order, and a GPU is one rank of a communicator at most.
class Nccl {
 public:
  /// bad_request in one line where this program was built without NCCL, or `files`, by default those of the loader and
  /// of the toolkit, have none, or one older than 2.18. It stays open until the program ends.
  static Result<std::shared_ptr<const Nccl>> open(const std::vector<std::string>& files = {});
  ~Nccl();

  std::string version() const;  ///< "2.28.9"
  Result<NcclId> make_id() const;

 private:
  friend class NcclCommunicator;
  struct Functions;
  explicit Nccl(std::unique_ptr<const Functions> functions, int version);
  std::unique_ptr<const Functions> functions_;
  int version_;
};

/// One rank's end of a communicator, on the device that was current when it joined. Nothing waits for other ranks:
/// behind join() and each call that puts work into a stream has_settled() is asked until it says so, and before that
/// nothing else may be asked and nothing may follow in the stream. One thread at a time.
class NcclCommunicator {
 public:
  static Result<std::unique_ptr<NcclCommunicator>> join(std::shared_ptr<const Nccl> nccl, const NcclId& id,
                                                        std::size_t ranks, std::size_t rank);
  /// What is still in streams ends, with no certain contents, and so it does at the other ranks when they do the same.
  /// Nothing may be asked after it. Also from another thread, while none asks.
  void abort();
  bool is_aborted() const { return comm_ == nullptr; }
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::size_t ranks() const { return ranks_; }
  std::size_t rank() const { return rank_; }
  /// Errors: fault with what has failed, here or at another rank, since it was asked last.
  Result<bool> has_settled();

  /// `full` is ranks() parts of so many bytes; that of this rank is there, the others arrive.
  Status all_gather(std::byte* full, std::uint64_t part_bytes, CUstream_st* stream);
  /// part[i] = sum over ranks of full_r[rank() * numel + i], in an order of NCCL's own. `part` may be that part of
  /// `full`.
  Status reduce_scatter(const float* full, float* part, std::uint64_t numel, CUstream_st* stream);
  struct Outgoing {
    std::size_t to = 0;
    std::span<const std::byte> data;
  };
  struct Incoming {
    std::size_t from = 0;
    std::span<std::byte> data;
  };
  /// All of them at once. What one rank sends another arrives in the order in which it was sent.
  Status exchange(std::span<const Outgoing> out, std::span<const Incoming> in, CUstream_st* stream);

 private:
  NcclCommunicator(std::shared_ptr<const Nccl> nccl, std::size_t ranks, std::size_t rank)
      : nccl_(std::move(nccl)), ranks_(ranks), rank_(rank) {}
  Status asked(int result, const char* what);
  Error failed(int result, const char* what) const;

  std::shared_ptr<const Nccl> nccl_;
  std::size_t ranks_, rank_;
  ncclComm* comm_ = nullptr;
  const char* last_ = "";
};

}  // namespace sluice::kernels::cuda
