#include "io/drives/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/drives/backend.h"

namespace sluice {
namespace {

/// One system call moves at most this much; longer requests are continued. A multiple of every alignment.
constexpr std::uint64_t transfer_bytes_max = 1u << 30;
/// Attempts without progress after which EINTR or EAGAIN counts as a failure.
constexpr std::uint32_t retries_max = 10000;

std::size_t direction_of(IoOp op) { return op == IoOp::read ? 0 : 1; }

}  // namespace

const char* io_op_name(IoOp op) {
  switch (op) {
    case IoOp::read: return "read";
    case IoOp::write: return "write";
    case IoOp::sync: return "sync";
  }
  return "?";
}

IoQueue::IoQueue(std::unique_ptr<IoBackend> backend, std::vector<IoFile> files, std::size_t depth,
                 std::string description)
    : backend_(std::move(backend)),
      files_(std::move(files)),
      depth_(depth),
      description_(std::move(description)),
      windows_(files_.size() * 2),
      reaped_(depth * files_.size() * 2) {}

// NOLINTNEXTLINE(bugprone-exception-escape): only the text of a failure allocates, and without memory for it all ends.
IoQueue::~IoQueue() { static_cast<void>(drain()); }

int IoQueue::refuse_reason(const IoRequest& request) const {
  if (request.file >= files_.size()) return EBADF;
  if (request.op == IoOp::sync) return 0;
  const std::uint64_t unit = files_[request.file].alignment_bytes;
  const bool aligned = request.offset % unit == 0 && request.bytes % unit == 0 &&
                       reinterpret_cast<std::uintptr_t>(request.data) % unit == 0;
  return aligned ? 0 : EINVAL;
}

IoQueue::Window& IoQueue::window_of(const IoRequest& request) {
  return windows_[request.file * 2 + direction_of(request.op)];
}

bool IoQueue::submit(IoRequest* request) {
  std::size_t& taken = taken_[direction_of(request->op)];
  if (taken >= capacity()) return false;
  ++taken;
  if (in_flight() > in_flight_max_.load(std::memory_order_relaxed))
    in_flight_max_.store(in_flight(), std::memory_order_relaxed);
  request->done_bytes = 0;
  request->retries = 0;
  request->number = ++submitted_;
  request->transfer.request = request;
  request->error = refuse_reason(*request);
  if (request->error != 0 || (request->bytes == 0 && request->op != IoOp::sync)) {
    completed_.push(&request->transfer);
    return true;
  }
  Window& window = window_of(*request);
  window.line.push(&request->transfer);
  start_line(window);
  return true;
}

void IoQueue::flush() {
  start_pending();
  backend_->flush();
}

void IoQueue::start_line(Window& window) {
  while (window.running < depth_ && !window.line.empty()) {
    ++window.running;
    start_rest(window.line.pop()->request);
  }
}

void IoQueue::start_rest(IoRequest* request) {
  IoTransfer& t = request->transfer;
  t.op = request->op;
  t.file = request->file;
  t.offset = request->offset + request->done_bytes;
  t.bytes = std::min(request->bytes - request->done_bytes, transfer_bytes_max);
  t.data = request->data + request->done_bytes;
  t.result = 0;
  if (!backend_->start(&t)) {
    pending_.push(&t);
    return;
  }
  transfers_.fetch_add(1, std::memory_order_relaxed);
}

void IoQueue::start_pending() {
  IoTransferList waiting = std::exchange(pending_, {});
  while (!waiting.empty()) start_rest(waiting.pop()->request);
}

void IoQueue::cancel() {
  cancelled_ = submitted_;
  const auto give_up = [this](IoTransferList& list, bool running) {
    while (!list.empty()) {
      IoRequest* request = list.pop()->request;
      request->error = ECANCELED;
      if (running) --window_of(*request).running;
      completed_.push(&request->transfer);
    }
  };
  for (Window& window : windows_) give_up(window.line, false);
  give_up(pending_, true);
  backend_->cancel();
}

/// Whether the request is complete now; if not, its rest has been started.
bool IoQueue::finish_transfer(IoTransfer* transfer) {
  IoRequest* request = transfer->request;
  const std::int64_t result = transfer->result;
  const bool cancelled = request->number <= cancelled_;
  if ((result == -EINTR || result == -EAGAIN) && !cancelled) {
    if (++request->retries < retries_max) {
      start_rest(request);
      return false;
    }
    request->error = static_cast<int>(-result);
    return true;
  }
  if (result < 0) {
    request->error = static_cast<int>(-result);
    return true;
  }
  if (request->op == IoOp::sync) return true;
  request->done_bytes += static_cast<std::uint64_t>(result);
  auto& counter = request->op == IoOp::read ? read_bytes_ : write_bytes_;
  counter.fetch_add(static_cast<std::uint64_t>(result), std::memory_order_relaxed);
  if (request->done_bytes == request->bytes) return true;
  if (result == 0) {
    request->error = request->op == IoOp::read ? ENODATA : EIO;
    return true;
  }
  if (cancelled) {
    request->error = ECANCELED;
    return true;
  }
  request->retries = 0;
  start_rest(request);
  return false;
}

Result<std::size_t> IoQueue::wait(std::size_t min_completions, std::span<IoRequest*> out, Duration timeout) {
  SLUICE_CHECK(min_completions <= out.size(), "%zu wanted, room for %zu", min_completions, out.size());
  auto deadline = IoBackend::no_deadline;
  if (timeout != forever) deadline = std::chrono::steady_clock::now() + timeout;
  std::size_t count = 0;
  const auto hand_back = [&](IoRequest* request) {
    --taken_[direction_of(request->op)];
    requests_.fetch_add(1, std::memory_order_relaxed);
    out[count++] = request;
  };
  while (!completed_.empty() && count < out.size()) hand_back(completed_.pop()->request);
  while (count < out.size()) {
    start_pending();
    const auto room = std::span(reaped_).first(std::min(out.size() - count, reaped_.size()));
    auto reaped = backend_->reap(room, min_completions - std::min(count, min_completions), deadline);
    if (!reaped) return reaped.error();
    for (std::size_t i = 0; i < reaped->count; ++i) {
      IoRequest* request = reaped_[i]->request;
      if (!finish_transfer(reaped_[i])) continue;
      Window& window = window_of(*request);
      --window.running;
      start_line(window);
      hand_back(request);
    }
    if (reaped->woken || count >= min_completions) break;
    if (deadline != IoBackend::no_deadline && std::chrono::steady_clock::now() >= deadline) break;
  }
  return count;
}

void IoQueue::wake() { backend_->wake(); }

Status IoQueue::drain() {
  Status first;
  std::array<IoRequest*, 16> done;
  while (in_flight() > 0) {
    auto count = wait(1, done);
    if (!count) return count.error();
    for (std::size_t i = 0; i < *count; ++i)
      if (done[i]->error != 0 && first.ok()) first = status(*done[i]);
  }
  return first;
}

Status IoQueue::status(const IoRequest& request) const {
  if (request.error == 0) return success();
  if (request.file >= files_.size())
    return fault(fmt::format("request for file {} of {}", request.file, files_.size()));
  const IoFile& file = files_[request.file];
  if (request.op == IoOp::sync)
    return fault(fmt::format("{}: sync failed: {}; what was written since the last one may be lost", file.path,
                             std::strerror(request.error)));
  const std::string what =
      fmt::format("{}: {} of {} bytes at offset {}", file.path, io_op_name(request.op), request.bytes, request.offset);
  if (request.error == ENODATA)
    return fault(fmt::format("{} found the end of the file after {} bytes", what, request.done_bytes));
  if (request.error == EINVAL && refuse_reason(request) == EINVAL)
    return fault(fmt::format("{} is not aligned to {} bytes", what, file.alignment_bytes));
  return fault(fmt::format("{} failed after {} bytes: {}", what, request.done_bytes, std::strerror(request.error)));
}

IoCounters IoQueue::counters() const {
  IoCounters c;
  c.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  c.write_bytes = write_bytes_.load(std::memory_order_relaxed);
  c.requests = requests_.load(std::memory_order_relaxed);
  c.transfers = transfers_.load(std::memory_order_relaxed);
  c.in_flight_max = in_flight_max_.load(std::memory_order_relaxed);
  return c;
}

Status transfer_now(IoQueue& queue, IoOp op, std::uint32_t file, std::uint64_t offset, std::span<std::byte> data) {
  SLUICE_CHECK(queue.in_flight() == 0, "%zu requests in flight", queue.in_flight());
  IoRequest request;
  request.op = op;
  request.file = file;
  request.offset = offset;
  request.bytes = data.size();
  request.data = data.data();
  SLUICE_CHECK(queue.submit(&request), "an empty queue refused");
  std::array<IoRequest*, 1> done;
  for (;;) {
    SLUICE_ASSIGN(const std::size_t count, queue.wait(1, done));
    if (count == 1) return queue.status(request);
  }
}

}  // namespace sluice
