#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <vector>

#include "io/drives/backend.h"
#include "io/drives/fault.h"
#include "io/drives/power_cut.h"

namespace sluice {
namespace {

using Deadline = IoBackend::Deadline;

/// When a drive of the given latency and rate would be done.
class DriveClock {
 public:
  DriveClock(const FaultOptions& faults, std::size_t files)
      : faults_(faults),
        timed_(faults.latency_us > 0 || faults.latency_random_us > 0 || faults.sync_latency_us > 0 ||
               faults.bytes_per_second > 0),
        idle_from_(files, Deadline::min()) {}

  /// Of a transfer that starts now and moves `bytes`. Without latency and rate that is long ago.
  Deadline due(IoOp op, std::uint32_t file, std::uint64_t bytes, std::uint64_t random) {
    using std::chrono::microseconds;
    if (!timed_) return Deadline::min();
    const Deadline now = std::chrono::steady_clock::now();
    if (op == IoOp::sync) return now + microseconds(faults_.sync_latency_us);
    const auto latency = microseconds(faults_.latency_us + random % (faults_.latency_random_us + 1ull));
    if (faults_.bytes_per_second == 0) return now + latency;
    const double ns = 1e9 * static_cast<double>(bytes) / static_cast<double>(faults_.bytes_per_second);
    Deadline& idle_from = idle_from_[file];
    idle_from = std::max(now, idle_from) + std::chrono::nanoseconds(static_cast<std::int64_t>(ns));
    return idle_from + latency;
  }

 private:
  const FaultOptions& faults_;
  bool timed_;
  std::vector<Deadline> idle_from_;  ///< [file]
};

class FaultBackend final : public IoBackend {
 public:
  FaultBackend(std::unique_ptr<IoBackend> inner, const FaultOptions& faults, std::span<const IoFile> files,
               std::size_t capacity)
      : inner_(std::move(inner)),
        faults_(faults),
        random_(faults.seed),
        release_random_(~faults.seed),
        drive_(faults_, files.size()),
        from_inner_(capacity) {
    for (const IoFile& file : files) alignments_.push_back(file.alignment_bytes);
    if (faults_.power_cut != nullptr) power_files_ = faults_.power_cut->attach(files);
    running_.reserve(capacity);
    held_.reserve(capacity);
  }

  bool start(IoTransfer* t) override {
    const Counts before = counts_;
    Running record;
    record.transfer = t;
    record.bytes = t->bytes;
    std::int64_t answer = decide(*t, record);
    PowerCut* const power = faults_.power_cut.get();
    if (power != nullptr) {
      record.ticket = power->begin(power_files_[t->file], *t, answer == passes);
      if (record.ticket < 0) answer = record.ticket;
    }
    if (answer == passes && !inner_->start(t)) {
      if (power != nullptr) power->withdraw(record.ticket);
      counts_ = before;
      return false;
    }
    if (faults_.hold_max > 0) record.hold = static_cast<std::uint32_t>(random_() % (faults_.hold_max + 1ull));
    record.due = drive_.due(t->op, t->file, answer < 0 ? 0 : t->bytes, random_());
    if (answer == passes) {
      running_.push_back(record);
    } else {
      t->result = answer;
      hold(record);
    }
    return true;
  }

  void flush() override { inner_->flush(); }
  void cancel() override { inner_->cancel(); }

  Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) override {
    const bool block = min_completions > 0;
    for (;;) {
      release_stuck();
      const Deadline due = next_due();
      const bool sleep = block && !is_past(due);
      SLUICE_ASSIGN(Reaped arrived,
                    inner_->reap(from_inner_, sleep ? 1 : 0, sleep ? std::min(due, deadline) : deadline));
      for (std::size_t i = 0; i < arrived.count; ++i) arrive(from_inner_[i]);
      release_stuck();
      const Reaped reaped{hand_out(out), arrived.woken};
      if (reaped.count > 0 || reaped.woken || !block) return reaped;
      if (is_past(deadline)) return reaped;
    }
  }

  void wake() override { inner_->wake(); }

 private:
  static constexpr std::int64_t passes = 1ll << 62;
  enum class Disguise : std::uint8_t { none, flip, full };
  struct Running {
    IoTransfer* transfer = nullptr;
    std::uint64_t bytes = 0;             ///< that were asked for
    Disguise disguise = Disguise::none;  ///< what to do to the result
    std::uint32_t hold = 0;              ///< completions still to come first
    Deadline due;                        ///< no sooner than this
    std::uint64_t flip = 0;              ///< which bit, of as many as there are
    std::int64_t ticket = 0;             ///< of the power cut
  };
  struct Counts {
    std::uint64_t targets = 0, reads = 0, writes = 0;
  };

  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }

  static bool is_past(Deadline time) {
    return time == Deadline::min() || (time != no_deadline && time <= std::chrono::steady_clock::now());
  }

  /// Of what is not held back for others.
  Deadline next_due() const {
    const auto free = std::find_if(held_.begin(), held_.end(), [](const Running& r) { return r.hold == 0; });
    return free == held_.end() ? no_deadline : free->due;
  }

  /// With nothing left to come, one that waits for others must not.
  void release_stuck() {
    if (held_.empty() || !running_.empty() || next_due() != no_deadline) return;
    held_[release_random_() % held_.size()].hold = 0;
  }

  std::size_t hand_out(std::span<IoTransfer*> out) {
    std::size_t count = 0;
    for (auto it = held_.begin(); it != held_.end() && count < out.size();) {
      if (!is_past(it->due)) break;
      if (it->hold > 0) {
        ++it;
        continue;
      }
      finish(*it);
      out[count++] = it->transfer;
      it = held_.erase(it);
    }
    return count;
  }

  void finish(const Running& record) {
    if (faults_.power_cut == nullptr) return;
    IoTransfer& t = *record.transfer;
    if (!faults_.power_cut->finish(power_files_[t.file], t, record.ticket)) t.result = -EIO;
  }

  bool is_target(IoOp op) const {
    switch (faults_.fail_target) {
      case FaultOptions::Target::any: return true;
      case FaultOptions::Target::read: return op == IoOp::read;
      case FaultOptions::Target::write: return op == IoOp::write;
      case FaultOptions::Target::sync: return op == IoOp::sync;
    }
    return false;
  }

  /// The result to report without asking the inner backend, or `passes`, with the transfer changed where it should go
  /// wrong on its way.
  std::int64_t decide(IoTransfer& t, Running& record) {
    if (is_target(t.op)) {
      const std::uint64_t n = ++counts_.targets;
      const bool hit = faults_.fail_persistent ? n >= faults_.fail_nth : n == faults_.fail_nth;
      if (faults_.fail_nth > 0 && hit) return -faults_.fail_errno;
    }
    if (chance(faults_.interrupt_probability)) return chance(0.5) ? -EINTR : -EAGAIN;
    if (t.op == IoOp::sync) return passes;
    const std::uint64_t unit = alignments_[t.file];
    if (t.op == IoOp::read && ++counts_.reads == faults_.flip_read_nth) {
      record.disguise = Disguise::flip;
      record.flip = random_();
    }
    if (t.op == IoOp::write) {
      const std::uint64_t n = ++counts_.writes;
      if (n == faults_.lost_write_nth) return static_cast<std::int64_t>(t.bytes);
      if (n == faults_.torn_write_nth && t.bytes > unit) {
        record.disguise = Disguise::full;
        t.bytes = t.bytes / 2 / unit * unit;
        return t.bytes == 0 ? static_cast<std::int64_t>(record.bytes) : passes;
      }
      if (n == faults_.misdirect_write_nth) {
        const std::uint64_t step = std::max<std::uint64_t>(unit, 512);
        t.offset = t.offset >= step ? t.offset - step : t.offset + step;
      }
    }
    const std::uint64_t units = t.bytes / unit;
    if (units > 1 && record.disguise == Disguise::none && chance(faults_.short_probability))
      t.bytes = unit * (1 + random_() % (units - 1));
    return passes;
  }

  void arrive(IoTransfer* t) {
    const auto it = std::find_if(running_.begin(), running_.end(), [t](const Running& r) { return r.transfer == t; });
    SLUICE_CHECK(it != running_.end(), "completion of a transfer that was not started");
    const Running record = *it;
    *it = running_.back();
    running_.pop_back();
    if (faults_.power_cut != nullptr) faults_.power_cut->landed(record.ticket);
    if (record.disguise == Disguise::flip && t->result > 0) {
      const std::uint64_t bit = record.flip % (static_cast<std::uint64_t>(t->result) * 8);
      t->data[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    if (record.disguise == Disguise::full && t->result >= 0) t->result = static_cast<std::int64_t>(record.bytes);
    hold(record);
  }

  void hold(const Running& record) {
    for (Running& r : held_)
      if (r.hold > 0) --r.hold;
    const auto later = [](Deadline due, const Running& r) { return due < r.due; };
    held_.insert(std::upper_bound(held_.begin(), held_.end(), record.due, later), record);
  }

  std::unique_ptr<IoBackend> inner_;
  FaultOptions faults_;
  std::mt19937_64 random_;          ///< decides when a transfer starts
  std::mt19937_64 release_random_;  ///< by itself: when it is asked depends on the drive
  DriveClock drive_;
  Counts counts_;
  std::vector<std::uint64_t> alignments_;
  std::vector<std::uint32_t> power_files_;  ///< the power cut's number of each file
  std::vector<Running> running_;
  std::vector<Running> held_;  ///< finished inside, by due time
  std::vector<IoTransfer*> from_inner_;
};

}  // namespace

std::unique_ptr<IoBackend> make_fault_backend(std::unique_ptr<IoBackend> inner, const FaultOptions& faults,
                                              std::span<const IoFile> files, std::size_t capacity) {
  return std::make_unique<FaultBackend>(std::move(inner), faults, files, capacity);
}

}  // namespace sluice
