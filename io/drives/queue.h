// Asynchronous reads and writes on a few files, with a sliding window of requests.
//
//     IoQueue (windows, continuation of short transfers, retries, counters)
//         -> IoBackend: io_uring | libaio | threads | injected faults around any of them (io/drives/backend.h)
//
// Each file has a window for reads and one for writes: `depth` requests are in flight in each. What is submitted beyond
// that waits in its own line, so that neither a slow drive nor a stream of writes keeps the others from working.
//
// Use: make_queue, then submit() until it refuses, wait() for completions, submit more. Requests belong to the caller
// and must stay where they are until wait() has handed them back. Nothing allocates after make_queue. A submitted
// request begins at the latest with the next wait() or flush(): many begin with one system call.
//
// Threads: one thread at a time owns the queue and calls submit, flush, wait, cancel and drain; it may differ from the
// one that made the queue. wake() and counters() may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/drives/fault.h"
#include "sluice/status.h"

namespace sluice {

enum class IoOp : std::uint8_t {
  read,
  write,
  sync,  ///< fdatasync of the file: covers writes that had completed before it was submitted; bytes is 0
};
const char* io_op_name(IoOp op);

/// An open file of a queue. The queue does not close it. `alignment_bytes` is what the file asks of offsets, sizes and
/// addresses: 4096 with O_DIRECT, 1 otherwise.
struct IoFile {
  int fd = -1;
  std::string path;
  std::uint32_t alignment_bytes = 1;
};

struct IoRequest;

/// One attempt at (the rest of) a request: what a backend sees.
struct IoTransfer {
  IoOp op = IoOp::read;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
  std::int64_t result = 0;     ///< bytes moved, or -errno; set by the backend
  IoTransfer* next = nullptr;  ///< for the list that holds it
  IoRequest* request = nullptr;
};

/// First in, first out, through IoTransfer::next.
class IoTransferList {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(IoTransfer* t) {
    t->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = t;
    last_ = t;
  }
  IoTransfer* pop() {
    IoTransfer* t = first_;
    first_ = t->next;
    return t;
  }

 private:
  IoTransfer* first_ = nullptr;
  IoTransfer* last_ = nullptr;
};

/// Filled by the caller, completed by the queue.
struct IoRequest {
  IoOp op = IoOp::read;
  std::uint32_t file = 0;    ///< index in QueueOptions::files
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
  void* user = nullptr;  ///< the caller's, untouched

  /// Set when wait() returns the request: bytes moved (all of them unless it failed) and 0 or an errno value. EOF on a
  /// read is ENODATA. IoQueue::status makes the message.
  std::uint64_t done_bytes = 0;
  int error = 0;

  IoTransfer transfer;  ///< the queue's, as are these
  std::uint64_t number = 0;
  std::uint32_t retries = 0;
};

struct IoCounters {
  std::uint64_t read_bytes = 0, write_bytes = 0;  ///< moved by the kernel
  std::uint64_t requests = 0;                     ///< completed, failed ones included
  std::uint64_t transfers = 0;                    ///< attempts: requests + continuations + retries
  std::uint64_t in_flight_max = 0;
};

class IoBackend;

class IoQueue {
 public:
  IoQueue(std::unique_ptr<IoBackend> backend, std::vector<IoFile> files, std::size_t depth, std::string description);
  /// Waits for requests in flight, so that no memory is written to afterwards; their completions are dropped.
  ~IoQueue();  // NOLINT(bugprone-exception-escape): see queue.cpp
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  /// Take a request. False when capacity() of its direction are taken: wait first. A request that can not be started
  /// (misaligned, bad file index) completes with an error.
  [[nodiscard]] bool submit(IoRequest* request);

  /// Begin what was submitted now: for callers that do something else before they wait.
  void flush();

  using Duration = std::chrono::nanoseconds;
  static constexpr Duration forever = Duration::max();
  /// Completed requests into `out`, failed ones too: look at IoRequest::error or status(). Blocks until
  /// `min_completions` (at most out.size()) are there, wake() is called or `timeout` is over, and returns how many
  /// there are. With 0 it polls. Asking for more than are in flight is how a lane waits for new work: then only wake()
  /// or the timeout ends it. wake() ends a wait for one completion at once, and one for several at the latest when
  /// they are there. Error: the backend itself broke.
  Result<std::size_t> wait(std::size_t min_completions, std::span<IoRequest*> out, Duration timeout = forever);

  /// Make the wait() in progress, or else the next one, return early. Any thread.
  void wake();

  /// Give up what has not begun, as far as the kernel lets it: such requests complete with ECANCELED, others as they
  /// would have. wait() hands all of them back as usual.
  void cancel();

  /// Wait until nothing is in flight; completions are dropped, but the first failure is returned.
  Status drain();

  /// Success, or one line with operation, path, offset, bytes and cause. Allocates: not for the hot path.
  Status status(const IoRequest& request) const;

  std::size_t in_flight() const { return taken_[0] + taken_[1]; }
  std::size_t depth() const { return depth_; }  ///< of each window
  /// Requests of one direction (reads; or writes and syncs) that submit takes.
  std::size_t capacity() const { return depth_ * files_.size(); }
  IoCounters counters() const;
  /// The backend's name, what it got, the depth: "io_uring, fixed files, 2 fixed buffers, depth 32".
  const std::string& description() const { return description_; }

 private:
  /// Of one file and direction.
  struct Window {
    std::size_t running = 0;  ///< at the backend
    IoTransferList line;      ///< not yet
  };
  Window& window_of(const IoRequest& request);
  void start_rest(IoRequest* request);
  void start_line(Window& window);
  void start_pending();
  bool finish_transfer(IoTransfer* transfer);
  int refuse_reason(const IoRequest& request) const;

  std::unique_ptr<IoBackend> backend_;
  std::vector<IoFile> files_;
  std::size_t depth_;
  std::string description_;
  std::vector<Window> windows_;                  ///< [file * 2 + direction]
  std::array<std::size_t, 2> taken_{};           ///< by direction
  std::uint64_t submitted_ = 0, cancelled_ = 0;  ///< requests so far; those that cancel() met
  IoTransferList completed_;                     ///< without having reached the backend
  IoTransferList pending_;                       ///< the backend could not take them yet
  std::vector<IoTransfer*> reaped_;
  std::atomic<std::uint64_t> read_bytes_{0}, write_bytes_{0}, requests_{0}, transfers_{0}, in_flight_max_{0};
};

enum class IoBackendKind : std::uint8_t { automatic, io_uring, libaio, threads };
constexpr const char* io_backend_names[] = {"auto", "io_uring", "libaio", "threads"};
Result<IoBackendKind> parse_io_backend(const std::string& name);

struct QueueOptions {
  /// automatic: io_uring where the kernel allows it, else libaio where all files are O_DIRECT (it blocks on others),
  /// else threads
  IoBackendKind backend = IoBackendKind::automatic;
  std::size_t depth = 32;   ///< requests in flight at most, of each file, of reads and of writes
  std::size_t threads = 0;  ///< of the threads backend; 0: 16, or what can be in flight where that is less
  bool sqpoll = false;      ///< io_uring: a kernel thread submits, which costs a core while there is work
  bool iopoll = false;      ///< io_uring: completions are polled for; O_DIRECT on drives with poll queues only
  std::vector<IoFile> files;
  /// Memory that requests will use (arenas). Registered with the kernel where possible; other memory works too.
  std::vector<std::span<std::byte>> buffers;
  std::optional<FaultOptions> faults;
};

/// bad_request when the backend asked for by name, sqpoll or iopoll is not available, with the kernel's reason.
Result<std::unique_ptr<IoQueue>> make_queue(const QueueOptions& options);

/// One request from start to end on an otherwise idle queue: for set-up, commit records and tests.
Status transfer_now(IoQueue& queue, IoOp op, std::uint32_t file, std::uint64_t offset, std::span<std::byte> data);

}  // namespace sluice
