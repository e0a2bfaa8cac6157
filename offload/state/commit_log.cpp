#include "offload/state/commit_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "io/checksum.h"
#include "io/files/file_lock.h"
#include "io/files/publish.h"

namespace sluice {
namespace {

constexpr std::uint32_t commit_schema_version = 1;
constexpr std::array<char, 8> commit_magic{'S', 'L', 'U', 'I', 'C', 'C', 'M', 'T'};

struct Head {
  std::array<char, 8> magic{};
  std::uint32_t version = 0, rank = 0;
  std::uint64_t run_id = 0, layout = 0, sequence = 0, step = 0;
  std::uint32_t parity = 0, results = 0;
  std::uint64_t sums = 0;
  std::uint64_t checksum = 0;  ///< XXH3 of the record with 0 here
};
static_assert(sizeof(Head) == 72 && sizeof(StepResult) == 40);

constexpr std::uint64_t results_offset = sizeof(Head);
constexpr std::uint64_t sums_offset = results_offset + CommitLog::results_max * sizeof(StepResult);

std::uint64_t record_bytes(std::uint64_t sums) { return sums_offset + sums * sizeof(std::uint64_t); }

std::uint64_t record_checksum(std::span<std::byte> record) {
  Head head;
  std::memcpy(&head, record.data(), sizeof head);
  head.checksum = 0;
  std::memcpy(record.data(), &head, sizeof head);
  return checksum(record);
}

}  // namespace

CommitLog::CommitLog(const Identity& identity, std::string path)
    : identity_(identity), place_bytes_(padded_bytes(record_bytes(identity.sums))) {
  file_.path = std::move(path);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(buffer_alignment_bytes, place_bytes_)));
}

CommitLog::~CommitLog() {
  queue_.reset();
  if (file_.fd < 0) return;
  flock(file_.fd, LOCK_UN);  // a ring may hold the file a little longer, the lock should not
  close(file_.fd);
}

Result<std::unique_ptr<CommitLog>> CommitLog::open(const std::string& path, const Identity& identity,
                                                   QueueOptions queue, bool create) {
  std::unique_ptr<CommitLog> log(new CommitLog(identity, create ? path + ".new" : path));
  const auto refuse = [&](const std::string& why) { return bad_request("commit record " + path + " " + why); };
  if (!log->memory_) return refuse(fmt::format("needs {} bytes of memory, which are not there", log->place_bytes_));
  const std::uint64_t bytes = 2 * log->place_bytes_;
  const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0);
  log->file_.fd = ::open(log->file_.path.c_str(), flags, 0600);
  if (log->file_.fd < 0) return refuse(std::string("can not be opened: ") + std::strerror(errno));
  if (!lock_patiently(log->file_.fd)) return refuse("is used by another run");
  struct stat st {};
  if (fstat(log->file_.fd, &st) != 0 || !S_ISREG(st.st_mode)) return refuse("is not a regular file");
  if (create) {
    if (ftruncate(log->file_.fd, 0) != 0) return refuse(std::string("can not be emptied: ") + std::strerror(errno));
    if (const int error = posix_fallocate(log->file_.fd, 0, static_cast<off_t>(bytes)); error != 0)
      return refuse(fmt::format("can not reserve {} bytes: {}", bytes, std::strerror(error)));
    if (fsync(log->file_.fd) != 0) return fault("commit record " + path + ": sync failed");
  } else if (static_cast<std::uint64_t>(st.st_size) != bytes) {
    return refuse(fmt::format("has {} bytes, {} expected: it belongs to another run or is cut off", st.st_size, bytes));
  }
  const std::span<std::byte> place(log->memory_.get(), log->place_bytes_);
  for (std::size_t k = 0; k < 2 && !create; ++k) {
    if (pread(log->file_.fd, place.data(), place.size(), static_cast<off_t>(k * place.size())) !=
        static_cast<ssize_t>(place.size()))
      return fault("commit record " + path + ": read failed: " + std::strerror(errno));
    log->read_place(k, place);
  }
  std::sort(log->records_.begin(), log->records_.end(),
            [](const CommitRecord& a, const CommitRecord& b) { return a.sequence > b.sequence; });
  if (!log->records_.empty()) log->continue_from(log->records_.front());
  // Where direct I/O works a power cut can tear pages, but not lose what the drive has said to have.
  const int status_flags = fcntl(log->file_.fd, F_GETFL);
  if (status_flags >= 0 && fcntl(log->file_.fd, F_SETFL, status_flags | O_DIRECT) == 0)
    log->file_.alignment_bytes = buffer_alignment_bytes;
  queue.depth = 1;
  queue.files = {log->file_};
  queue.buffers.clear();
  SLUICE_ASSIGN(log->queue_, make_queue(queue));
  return log;
}

Status CommitLog::publish() {
  const std::string path = file_.path.substr(0, file_.path.size() - 4);
  if (rename(file_.path.c_str(), path.c_str()) != 0)
    return fault("commit record " + path + ": rename failed: " + std::strerror(errno));
  file_.path = path;
  const std::size_t slash = path.rfind('/');
  return sync_directory(slash == std::string::npos ? "." : path.substr(0, slash));
}

void CommitLog::read_place(std::size_t place, std::span<const std::byte> bytes) {
  if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) return;
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto damaged = [&](const char* why) {
    damage_.push_back(fmt::format("record {} in {} {}", place, file_.path, why));
  };
  if (head.magic != commit_magic || head.version != commit_schema_version) return damaged("is not one");
  if (head.sums != identity_.sums || head.results > results_max) return damaged("is of another run");
  std::vector<std::byte> copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(record_bytes(head.sums)));
  if (record_checksum(copy) != head.checksum) return damaged("does not have the checksum that was written with it");
  if (head.sequence % 2 != place) return damaged("is in the other one's place");
  if (head.run_id != identity_.run_id || head.layout != identity_.layout || head.rank != identity_.rank)
    return damaged("is of another run");
  CommitRecord record;
  record.sequence = head.sequence;
  record.step = head.step;
  record.parity = static_cast<std::uint8_t>(head.parity & 1);
  record.results.resize(head.results);
  if (head.results > 0)
    std::memcpy(record.results.data(), copy.data() + results_offset, head.results * sizeof(StepResult));
  record.sums.resize(head.sums);
  if (head.sums > 0) std::memcpy(record.sums.data(), copy.data() + sums_offset, head.sums * sizeof(std::uint64_t));
  sequence_ = std::max(sequence_, head.sequence);
  records_.push_back(std::move(record));
}

void CommitLog::continue_from(const CommitRecord& record) {
  next_place_ = (record.sequence + 1) % 2;
  from_ = record.sequence;
}

Status CommitLog::forget_newer() {
  const auto is_newer = [this](const CommitRecord& record) { return record.sequence > from_; };
  if (std::ranges::none_of(records_, is_newer)) return success();
  const std::span<std::byte> place(memory_.get(), place_bytes_);
  std::memset(place.data(), 0, place.size());
  SLUICE_TRY(transfer_now(*queue_, IoOp::write, 0, next_place_ * place_bytes_, place));
  SLUICE_TRY(transfer_now(*queue_, IoOp::sync, 0, 0, {}));
  std::erase_if(records_, is_newer);
  return success();
}

Status CommitLog::write(std::uint64_t step, std::uint8_t parity, std::span<const StepResult> results,
                        std::span<const std::span<const std::uint64_t>> sums) {
  if (results.size() > results_max) results = results.last(results_max);
  // The place follows from the sequence, also after going on from the older of two records.
  ++sequence_;
  if (sequence_ % 2 != next_place_) ++sequence_;
  Head head;
  head.magic = commit_magic;
  head.version = commit_schema_version;
  head.rank = identity_.rank;
  head.run_id = identity_.run_id;
  head.layout = identity_.layout;
  head.sequence = sequence_;
  head.step = step;
  head.parity = parity;
  head.results = static_cast<std::uint32_t>(results.size());
  const std::span<std::byte> place(memory_.get(), place_bytes_);
  std::memset(place.data(), 0, place.size());
  std::memcpy(place.data() + results_offset, results.data(), results.size_bytes());
  for (const std::span<const std::uint64_t> table : sums) {
    SLUICE_CHECK(head.sums + table.size() <= identity_.sums, "%llu", static_cast<unsigned long long>(identity_.sums));
    std::memcpy(place.data() + sums_offset + head.sums * sizeof(std::uint64_t), table.data(), table.size_bytes());
    head.sums += table.size();
  }
  SLUICE_CHECK(head.sums == identity_.sums, "%llu of %llu", static_cast<unsigned long long>(head.sums),
               static_cast<unsigned long long>(identity_.sums));
  const std::span<std::byte> record = place.first(record_bytes(head.sums));
  std::memcpy(record.data(), &head, sizeof head);
  head.checksum = record_checksum(record);
  std::memcpy(record.data(), &head, sizeof head);
  SLUICE_TRY(transfer_now(*queue_, IoOp::write, 0, next_place_ * place_bytes_, place));
  SLUICE_TRY(transfer_now(*queue_, IoOp::sync, 0, 0, {}));
  next_place_ = 1 - next_place_;
  return success();
}

}  // namespace sluice
