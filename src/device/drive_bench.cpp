#include "src/device/drive_bench.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "sluice/clock.h"
#include "sluice/size.h"

namespace sluice {
namespace {

constexpr std::uint64_t fill_block_bytes = 1u << 20;
/// Completions that are waited for at a time: each sleep is a system call.
constexpr std::size_t batch_max = 8;

using Clock = std::chrono::steady_clock;

double cpu_seconds_of_process() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

/// One thread's requests over its part of the files.
class Stream {
 public:
  struct Part {
    std::uint64_t begin = 0, end = 0;  ///< in the logical space
  };

  Stream(const SwapFile& file, IoQueue& queue, const StreamSetting& setting, Part part, std::byte* memory,
         std::uint64_t seed)
      : file_(file), queue_(queue), setting_(setting), part_(part), random_(seed) {
    const bool reads = setting.mode != StreamMode::write, writes = setting.mode != StreamMode::read;
    slots_.resize(queue.capacity() * ((reads ? 1u : 0u) + (writes ? 1u : 0u)));
    done_.resize(slots_.size());
    buffers_ = buffers_each(setting, slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].memory = memory + i * buffers_ * setting.block_bytes;
      slots_[i].io.user = &slots_[i];
      directions_[reads && (!writes || i % 2 == 0) ? 0 : 1].idle.push_back(&slots_[i]);
    }
    // Reads and writes go over different extents at a time.
    directions_[0].at = part.begin;
    directions_[1].at = reads ? middle() : part.begin;
  }

  static std::uint64_t memory_bytes(const StreamSetting& setting, std::size_t files) {
    const std::size_t slots = setting.depth * files * (setting.mode == StreamMode::mixed ? 2 : 1);
    return setting.block_bytes * slots * buffers_each(setting, slots);
  }

  Status run(double seconds, const std::atomic<bool>* stop, StreamResult& result) {
    const Clock::time_point start = Clock::now();
    const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    Status status;
    Clock::time_point now = start;
    while (status.ok() && now < end) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed))
        status = Error{ErrorCode::cancelled, "stopped by a signal"};
      submit(now);
      const std::size_t batch = std::clamp<std::size_t>(queue_.in_flight() / 2, 1, batch_max);
      const auto finished = queue_.wait(batch, done_);
      now = Clock::now();
      if (!finished.ok()) return finished.error();
      for (std::size_t i = 0; i < *finished && status.ok(); ++i) status = take(*done_[i], now, result);
    }
    result.seconds = std::chrono::duration<double>(now - start).count();
    const Status drained = queue_.drain();
    return status.ok() ? drained : status;
  }

 private:
  struct Slot {
    IoRequest io;
    Clock::time_point begun;
    std::byte* memory = nullptr;  ///< of its own, for `buffers_` blocks
    std::uint64_t turn = 0;
  };
  struct Direction {
    std::vector<Slot*> idle;
    std::uint64_t at = 0, issued = 0;
  };

  static std::uint64_t buffers_each(const StreamSetting& setting, std::size_t slots) {
    return std::max<std::uint64_t>(1, setting.memory_bytes / setting.threads / (setting.block_bytes * slots));
  }

  std::uint64_t middle() const {
    const std::uint64_t blocks = (part_.end - part_.begin) / setting_.block_bytes;
    return part_.begin + blocks / 2 * setting_.block_bytes;
  }

  void submit(Clock::time_point now) {
    const bool mixed = setting_.mode == StreamMode::mixed;
    for (bool more = true; more;) {
      more = false;
      for (std::size_t d = 0; d < 2; ++d) {
        Direction& own = directions_[d];
        // As many of each: neither is ahead by more than a window.
        if (own.idle.empty() || (mixed && own.issued > directions_[1 - d].issued + queue_.capacity())) continue;
        Slot* slot = own.idle.back();
        own.idle.pop_back();
        begin(*slot, d == 0 ? IoOp::read : IoOp::write, own, now);
        more = true;
      }
    }
  }

  void begin(Slot& slot, IoOp op, Direction& direction, Clock::time_point now) {
    if (setting_.random) {
      const std::uint64_t blocks = (part_.end - part_.begin) / setting_.block_bytes;
      direction.at = part_.begin + random_() % blocks * setting_.block_bytes;
    } else if (direction.at >= part_.end) {
      direction.at = part_.begin;
    }
    const SwapPiece piece = file_.piece(direction.at, std::min(setting_.block_bytes, part_.end - direction.at));
    slot.io.op = op;
    slot.io.file = piece.file;
    slot.io.offset = piece.offset;
    slot.io.bytes = piece.bytes;
    slot.io.data = slot.memory + slot.turn++ % buffers_ * setting_.block_bytes;
    slot.begun = now;
    direction.at += piece.bytes;
    ++direction.issued;
    SLUICE_CHECK(queue_.submit(&slot.io), "(window of %zu)", queue_.depth());
  }

  Status take(IoRequest& request, Clock::time_point now, StreamResult& result) {
    if (request.error != 0) return queue_.status(request);
    auto* const slot = static_cast<Slot*>(request.user);
    const bool read = request.op == IoOp::read;
    (read ? result.read_bytes : result.write_bytes) += request.done_bytes;
    result.latency.add(static_cast<std::uint64_t>(std::chrono::nanoseconds(now - slot->begun).count()));
    directions_[read ? 0 : 1].idle.push_back(slot);
    return success();
  }

  const SwapFile& file_;
  IoQueue& queue_;
  const StreamSetting& setting_;
  Part part_;
  std::mt19937_64 random_;
  std::uint64_t buffers_ = 1;
  std::vector<Slot> slots_;
  std::vector<IoRequest*> done_;
  std::array<Direction, 2> directions_;  ///< reads, writes
};

/// Bytes that no drive or host can compress or deduplicate.
void fill_with_noise(std::span<std::byte> memory) {
  std::uint64_t x = 0x9e3779b97f4a7c15ull;
  for (std::size_t i = 0; i + sizeof x <= memory.size(); i += sizeof x) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(memory.data() + i, &x, sizeof x);
  }
}

}  // namespace

Result<DriveBench> DriveBench::create(const Options& options) {
  DriveBench bench;
  bench.options_ = options;
  SwapOptions swap;
  swap.directories = options.directories;
  swap.weights = options.weights;
  swap.bytes = options.file_bytes;
  swap.anonymous = true;
  SLUICE_ASSIGN(bench.file_, SwapFile::create(swap));
  return bench;
}

Status DriveBench::check(const StreamSetting& s) const {
  if (s.block_bytes == 0 || s.depth == 0 || s.threads == 0)
    return bad_request("blocks, depth and threads must be at least 1");
  const std::uint64_t part = file_.bytes() / s.threads;
  if (s.block_bytes > part)
    return bad_request(fmt::format("blocks of {} do not fit into a thread's part of the file, {}: use a larger file",
                                   format_bytes(s.block_bytes), format_bytes(part)));
  for (const IoFile& each : file_.files())
    if (s.block_bytes % each.alignment_bytes != 0)
      return bad_request(fmt::format("blocks of {} bytes are no multiple of {}, which O_DIRECT in {} asks for",
                                     s.block_bytes, each.alignment_bytes, each.path));
  const auto queue = open_queue(s, {});
  return queue.ok() ? success() : Status(queue.error());
}

Result<std::unique_ptr<IoQueue>> DriveBench::open_queue(const StreamSetting& s, std::span<std::byte> memory) const {
  QueueOptions options;
  options.backend = s.backend;
  options.depth = s.depth;
  options.files = file_.files();
  if (!memory.empty()) options.buffers = {memory};
  options.sqpoll = s.sqpoll;
  options.iopoll = s.iopoll;
  return make_queue(options);
}

Status DriveBench::fill(const Watch& watch) {
  StreamSetting setting;
  setting.block_bytes = fill_block_bytes;
  SLUICE_ASSIGN(const auto queue, open_queue(setting, {}));
  const std::size_t count = queue->capacity();
  SLUICE_ASSIGN(std::byte* const memory, this->memory(count * fill_block_bytes));
  std::vector<IoRequest> requests(count);
  std::vector<IoRequest*> idle, done(count);
  for (std::size_t i = 0; i < count; ++i) {
    requests[i].op = IoOp::write;
    requests[i].data = memory + i * fill_block_bytes;
    idle.push_back(&requests[i]);
  }
  for (std::uint64_t at = 0; at < file_.bytes();) {
    if (idle.empty()) {
      if (options_.stop != nullptr && *options_.stop) return Error{ErrorCode::cancelled, "stopped by a signal"};
      SLUICE_ASSIGN(const std::size_t finished, queue->wait(1, done));
      for (std::size_t i = 0; i < finished; ++i) SLUICE_TRY(queue->status(*done[i]));
      idle.assign(done.begin(), done.begin() + static_cast<std::ptrdiff_t>(finished));
      if (watch) watch(static_cast<double>(at) / static_cast<double>(file_.bytes()));
    }
    IoRequest* request = idle.back();
    idle.pop_back();
    const SwapPiece piece = file_.piece(at, std::min(fill_block_bytes, file_.bytes() - at));
    request->file = piece.file;
    request->offset = piece.offset;
    request->bytes = piece.bytes;
    SLUICE_CHECK(queue->submit(request), "(window of %zu)", queue->depth());
    at += piece.bytes;
  }
  SLUICE_TRY(queue->drain());
  return file_.sync();
}

Result<std::byte*> DriveBench::memory(std::uint64_t bytes) {
  if (memory_.bytes() < bytes) {
    memory_ = Pages();
    SLUICE_ASSIGN(memory_, Pages::make(bytes));
    fill_with_noise({memory_.data(), memory_.bytes()});
  }
  return memory_.data();
}

Result<StreamResult> DriveBench::run(const StreamSetting& setting, double seconds) {
  SLUICE_TRY(check(setting));
  const std::size_t files = file_.files().size(), threads = setting.threads;
  const std::uint64_t bytes = Stream::memory_bytes(setting, files);
  SLUICE_ASSIGN(std::byte* const memory, this->memory(bytes * threads));
  std::vector<std::unique_ptr<IoQueue>> queues;
  std::vector<Stream> streams;
  streams.reserve(threads);
  const std::uint64_t part = file_.bytes() / threads / setting.block_bytes * setting.block_bytes;
  for (std::size_t t = 0; t < threads; ++t) {
    SLUICE_ASSIGN(std::unique_ptr<IoQueue> queue, open_queue(setting, {memory + t * bytes, bytes}));
    queues.push_back(std::move(queue));
    streams.emplace_back(file_, *queues.back(), setting, Stream::Part{t * part, (t + 1) * part}, memory + t * bytes,
                         t + 1);
  }
  std::vector<StreamResult> results(threads);
  std::vector<Status> ended(threads);
  std::barrier start(static_cast<std::ptrdiff_t>(threads));
  const double cpu = cpu_seconds_of_process();
  std::vector<std::thread> others;
  const auto work = [&](std::size_t t) {
    start.arrive_and_wait();
    ended[t] = streams[t].run(seconds, options_.stop, results[t]);
  };
  for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& t : others) t.join();
  StreamResult sum;
  sum.cpu_seconds = cpu_seconds_of_process() - cpu;
  sum.backend = queues[0]->description();
  for (std::size_t t = 0; t < threads; ++t) {
    SLUICE_TRY(ended[t]);
    sum.seconds = std::max(sum.seconds, results[t].seconds);
    sum.read_bytes += results[t].read_bytes;
    sum.write_bytes += results[t].write_bytes;
    sum.latency.add(results[t].latency);
  }
  if (sum.write_bytes > 0) {
    const double begun = now_seconds();
    SLUICE_TRY(file_.sync());
    sum.sync_seconds = now_seconds() - begun;
  }
  return sum;
}

}  // namespace sluice
