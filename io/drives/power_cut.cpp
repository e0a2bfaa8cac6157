#include "io/drives/power_cut.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "io/aligned_memory.h"
#include "sluice/round.h"

namespace sluice {
namespace {

/// What lies behind the end of the file reads as zeros. Returns 0 or an errno.
int read_all(int fd, std::byte* data, std::uint64_t bytes, std::uint64_t offset) {
  std::memset(data, 0, bytes);
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, data + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
  }
  return 0;
}

void write_all(int fd, const std::byte* data, std::uint64_t bytes, std::uint64_t offset) {
  while (bytes > 0) {
    const ssize_t got = pwrite(fd, data, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    SLUICE_CHECK(got > 0, "setting %llu bytes at %llu back: %s", static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(offset), std::strerror(errno));
    data += got;
    bytes -= static_cast<std::uint64_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace

PowerCut::~PowerCut() {
  for (const File& file : files_) close(file.fd);
}

bool PowerCut::happened() const {
  const std::lock_guard lock(mutex_);
  return settled_;
}

void PowerCut::cut_now() {
  const std::lock_guard lock(mutex_);
  turn_off();
}

std::vector<std::uint32_t> PowerCut::attach(std::span<const IoFile> files) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> numbers;
  for (const IoFile& file : files) numbers.push_back(attach(file));
  return numbers;
}

std::uint32_t PowerCut::attach(const IoFile& file) {
  struct stat st {};
  SLUICE_CHECK(fstat(file.fd, &st) == 0, "%s: %s", file.path.c_str(), std::strerror(errno));
  const auto known = std::find_if(files_.begin(), files_.end(),
                                  [&](const File& f) { return f.device == st.st_dev && f.inode == st.st_ino; });
  if (known != files_.end()) return static_cast<std::uint32_t>(known - files_.begin());
  const int fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
  SLUICE_CHECK(fd >= 0, "%s: %s", file.path.c_str(), std::strerror(errno));
  files_.push_back({st.st_dev, st.st_ino, fd, std::max<std::uint64_t>(file.alignment_bytes, 512)});
  return static_cast<std::uint32_t>(files_.size() - 1);
}

std::int64_t PowerCut::begin(std::uint32_t file, const IoTransfer& transfer, bool moves) {
  const std::lock_guard lock(mutex_);
  if (off_) return -EIO;
  const std::int64_t ticket = ++clock_;
  const bool cuts = ++transfers_ == cut_nth_;
  if (moves && transfer.op == IoOp::write) {
    const int error = remember(file, transfer);
    if (cuts) turn_off();
    return error == 0 ? ticket : -error;
  }
  if (!cuts) return ticket;
  turn_off();
  return -EIO;
}

int PowerCut::remember(std::uint32_t file, const IoTransfer& transfer) {
  const File& f = files_[file];
  Write write;
  write.ticket = clock_;
  write.number = transfers_;
  write.file = file;
  write.begin = round_down(transfer.offset, f.unit_bytes);
  write.end = round_up(transfer.offset + transfer.bytes, f.unit_bytes);
  write.running = &transfer;
  const std::uint64_t bytes = write.end - write.begin;
  write.old.reset(
      static_cast<std::byte*>(std::aligned_alloc(direct_alignment_bytes, round_up(bytes, direct_alignment_bytes))));
  if (write.old == nullptr) return ENOMEM;
  if (const int error = read_all(f.fd, write.old.get(), bytes, write.begin); error != 0) return error;
  // A write to the same place may be landing just now: it came before this one.
  for (const Write& other : journal_) {
    if (other.file != file || other.running == nullptr) continue;
    const IoTransfer& t = *other.running;
    const std::uint64_t from = std::max(t.offset, write.begin), to = std::min(t.offset + t.bytes, write.end);
    if (from < to) std::memcpy(write.old.get() + (from - write.begin), t.data + (from - t.offset), to - from);
  }
  journal_.push_back(std::move(write));
  ++landing_;
  return 0;
}

PowerCut::Write* PowerCut::find(std::int64_t ticket) {
  const auto it = std::lower_bound(journal_.begin(), journal_.end(), ticket,
                                   [](const Write& w, std::int64_t wanted) { return w.ticket < wanted; });
  return it != journal_.end() && it->ticket == ticket ? &*it : nullptr;
}

void PowerCut::withdraw(std::int64_t ticket) {
  const std::lock_guard lock(mutex_);
  --transfers_;
  const bool was_write = std::erase_if(journal_, [&](const Write& w) { return w.ticket == ticket; }) > 0;
  if (!was_write) return;
  --landing_;
  if (off_ && !settled_ && landing_ == 0) roll_back();
}

void PowerCut::landed(std::int64_t ticket) {
  const std::lock_guard lock(mutex_);
  Write* const write = find(ticket);
  if (write == nullptr || write->landed) return;
  write->landed = true;
  --landing_;
  if (off_ && landing_ == 0) roll_back();
}

bool PowerCut::finish(std::uint32_t file, const IoTransfer& transfer, std::int64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (off_) return false;
  const std::int64_t now = ++clock_;
  if (Write* const write = find(ticket); write != nullptr) {
    write->finished = now;
    write->running = nullptr;
  }
  if (transfer.op == IoOp::sync && transfer.result >= 0) make_durable(file, ticket);
  return true;
}

void PowerCut::make_durable(std::uint32_t file, std::int64_t sync_ticket) {
  for (Write& write : journal_)
    if (write.file == file && write.finished != 0 && write.finished < sync_ticket) write.old.reset();
  // Behind one that may still be lost, a durable write is needed: that one must not be set back over it.
  while (!journal_.empty() && journal_.front().old == nullptr) journal_.pop_front();
}

void PowerCut::turn_off() {
  if (off_) return;
  off_ = true;
  if (landing_ == 0) roll_back();
}

// From the last write to the first. A unit that a later write has been kept in is that write's; the other lost ones
// come to hold what was there before the first of them.
void PowerCut::roll_back() {
  std::set<std::pair<std::uint32_t, std::uint64_t>> kept;  // file, offset
  for (auto write = journal_.rbegin(); write != journal_.rend(); ++write) {
    const std::uint64_t unit_bytes = files_[write->file].unit_bytes;
    const std::vector<bool> keep = fate(*write);
    std::size_t lost = 0;  // a run of units to set back: [lost, i)
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const std::pair at(write->file, write->begin + i * unit_bytes);
      if (keep[i]) kept.insert(at);
      if (!kept.contains(at)) continue;
      restore(*write, lost, i);
      lost = i + 1;
    }
    restore(*write, lost, keep.size());
  }
  journal_.clear();
  settled_ = true;
}

/// Which units of the write are kept. A function of seed and number, so that other writes and their timing do not
/// change it.
std::vector<bool> PowerCut::fate(const Write& write) const {
  std::vector<bool> keep((write.end - write.begin) / files_[write.file].unit_bytes, true);
  if (write.old == nullptr) return keep;
  std::seed_seq sequence{seed_, seed_ >> 32, write.number};
  std::mt19937 random(sequence);
  switch (random() % 4) {
    case 0: break;
    case 1: std::fill(keep.begin(), keep.end(), false); break;
    case 2: std::fill(keep.begin() + static_cast<std::ptrdiff_t>(random() % keep.size()), keep.end(), false); break;
    case 3: std::generate(keep.begin(), keep.end(), [&] { return random() % 2 == 0; }); break;
  }
  return keep;
}

void PowerCut::restore(const Write& write, std::size_t first_unit, std::size_t last_unit) const {
  if (first_unit >= last_unit) return;
  const File& file = files_[write.file];
  struct stat st {};
  SLUICE_CHECK(fstat(file.fd, &st) == 0, "%s", std::strerror(errno));
  // The size stays: a unit that the file ends in must not make it longer.
  const std::uint64_t begin = write.begin + first_unit * file.unit_bytes;
  const std::uint64_t end = std::min(write.begin + last_unit * file.unit_bytes, static_cast<std::uint64_t>(st.st_size));
  if (begin < end) write_all(file.fd, write.old.get() + (begin - write.begin), end - begin, begin);
}

}  // namespace sluice
