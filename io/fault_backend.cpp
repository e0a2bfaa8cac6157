#include <algorithm>
#include <cerrno>
#include <random>
#include <vector>

#include "io/backend.h"
#include "io/fault.h"

namespace sluice {
namespace {

class FaultBackend final : public IoBackend {
 public:
  FaultBackend(std::unique_ptr<IoBackend> inner, const FaultOptions& faults, std::span<const IoFile> files,
               std::size_t depth)
      : inner_(std::move(inner)), faults_(faults), random_(faults.seed), from_inner_(depth) {
    for (const IoFile& file : files) alignments_.push_back(file.alignment_bytes);
    running_.reserve(depth);
    held_.reserve(depth);
  }

  bool start(IoTransfer* t) override {
    const Counts before = counts_;
    Running record{t, t->bytes, Disguise::none, 0};
    const std::int64_t answer = decide(*t, record);
    if (answer != passes) {
      t->result = answer;
      hold(record);
      return true;
    }
    if (!inner_->start(t)) {
      counts_ = before;
      return false;
    }
    running_.push_back(record);
    return true;
  }

  void flush() override { inner_->flush(); }
  void cancel() override { inner_->cancel(); }

  Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) override {
    const bool block = min_completions > 0;
    for (;;) {
      const bool block_inner = block && (held_.empty() || (!running_.empty() && !any_ripe()));
      const auto room = std::span(from_inner_);
      SLUICE_ASSIGN(Reaped arrived, inner_->reap(room, block_inner ? 1 : 0, deadline));
      for (std::size_t i = 0; i < arrived.count; ++i) arrive(from_inner_[i]);
      if (!held_.empty() && running_.empty() && !any_ripe()) held_[random_() % held_.size()].hold = 0;
      Reaped reaped{0, arrived.woken};
      for (std::size_t i = 0; i < held_.size() && reaped.count < out.size();) {
        if (held_[i].hold > 0) {
          ++i;
          continue;
        }
        out[reaped.count++] = held_[i].transfer;
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (reaped.count > 0 || reaped.woken || !block) return reaped;
      if (deadline != no_deadline && std::chrono::steady_clock::now() >= deadline) return reaped;
    }
  }

  void wake() override { inner_->wake(); }

 private:
  static constexpr std::int64_t passes = 1ll << 62;
  enum class Disguise : std::uint8_t { none, flip, full };
  struct Running {
    IoTransfer* transfer;
    std::uint64_t bytes;  ///< that were asked for
    Disguise disguise;    ///< what to do to the result
    std::uint32_t hold;   ///< completions still to come first
  };
  struct Counts {
    std::uint64_t targets = 0, reads = 0, writes = 0;
  };

  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }
  bool any_ripe() const {
    return std::any_of(held_.begin(), held_.end(), [](const Running& r) { return r.hold == 0; });
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
    if (t.op == IoOp::read && ++counts_.reads == faults_.flip_read_nth) record.disguise = Disguise::flip;
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
    Running record = *it;
    *it = running_.back();
    running_.pop_back();
    if (record.disguise == Disguise::flip && t->result > 0) {
      const std::uint64_t bit = random_() % (static_cast<std::uint64_t>(t->result) * 8);
      t->data[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    if (record.disguise == Disguise::full && t->result >= 0) t->result = static_cast<std::int64_t>(record.bytes);
    hold(record);
  }

  void hold(Running record) {
    for (Running& r : held_)
      if (r.hold > 0) --r.hold;
    record.hold = faults_.hold_max == 0 ? 0 : static_cast<std::uint32_t>(random_() % (faults_.hold_max + 1ull));
    held_.push_back(record);
  }

  std::unique_ptr<IoBackend> inner_;
  FaultOptions faults_;
  std::mt19937_64 random_;
  Counts counts_;
  std::vector<std::uint64_t> alignments_;
  std::vector<Running> running_, held_;
  std::vector<IoTransfer*> from_inner_;
};

}  // namespace

std::unique_ptr<IoBackend> make_fault_backend(std::unique_ptr<IoBackend> inner, const FaultOptions& faults,
                                              std::span<const IoFile> files, std::size_t depth) {
  return std::make_unique<FaultBackend>(std::move(inner), faults, files, depth);
}

}  // namespace sluice
