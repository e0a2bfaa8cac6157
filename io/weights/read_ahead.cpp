#include "io/weights/read_ahead.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/aligned_memory.h"
#include "sluice/round.h"

namespace sluice {
namespace {

/// The same file once more, around the page cache: -1 where the file system has no such thing.
int reopen_direct(int fd) {
  const std::string self = fmt::format("/proc/self/fd/{}", fd);
  return ::open(self.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
}

}  // namespace

Status read_exactly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fault(fmt::format("{}: read at offset {} failed: {}", path, offset, std::strerror(errno)));
    if (n == 0) return fault(fmt::format("{}: ends at offset {}: it was changed while being read", path, offset));
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return success();
}

Result<std::unique_ptr<ReadAhead>> ReadAhead::create(std::span<const File> files, Next next, const Options& options) {
  std::unique_ptr<ReadAhead> reader(new ReadAhead);
  for (const File& file : files) {
    struct stat st {};
    if (fstat(file.fd, &st) != 0) return fault(fmt::format("{}: {}", file.path, std::strerror(errno)));
    Source& source = reader->sources_.emplace_back();
    source.fd = file.fd;
    source.bytes = static_cast<std::uint64_t>(st.st_size);
    if (options.direct) source.direct_fd = reopen_direct(file.fd);
    const bool direct = source.direct_fd >= 0;
    reader->files_.push_back(
        {direct ? source.direct_fd : file.fd, file.path, direct ? std::uint32_t{direct_alignment_bytes} : 1});
  }
  reader->next_ = std::move(next);
  reader->place_bytes_ = round_up(options.range_bytes_max, direct_alignment_bytes) + 2 * direct_alignment_bytes;
  // One more: the range that the caller works on.
  reader->places_.resize(options.ahead + 1);
  reader->memory_ = AlignedMemory(reader->place_bytes_ * reader->places_.size());
  QueueOptions queue = options.queue;
  queue.depth = options.ahead + 1;
  queue.files = reader->files_;
  queue.buffers = {reader->memory_.span()};
  SLUICE_ASSIGN(reader->queue_, make_queue(queue));
  // The last place is empty: it counts as taken, so that the first take() fills it.
  for (std::size_t i = 0; i < options.ahead; ++i)
    reader->start(reader->places_[i], reader->memory_.data() + i * reader->place_bytes_);
  reader->queue_->flush();
  return reader;
}

ReadAhead::~ReadAhead() {
  queue_.reset();
  for (const Source& source : sources_)
    if (source.direct_fd >= 0) close(source.direct_fd);
}

void ReadAhead::start(Place& place, std::byte* memory) {
  const std::optional<Range> range = next_();
  place.used = range.has_value();
  if (!range) return;
  SLUICE_CHECK(range->file < files_.size() && range->bytes + 2 * direct_alignment_bytes <= place_bytes_,
               "%llu bytes of file %u", static_cast<unsigned long long>(range->bytes), range->file);
  place.range = *range;
  const Source& source = sources_[range->file];
  const std::uint64_t unit = files_[range->file].alignment_bytes, end = range->offset + range->bytes;
  const std::uint64_t begin = round_down(range->offset, unit), whole = round_down(source.bytes, unit);
  const std::uint64_t last = std::max(begin, std::min(round_up(end, unit), whole));
  place.tail_bytes = unit > 1 && end > last ? end - std::max(last, range->offset) : 0;
  place.request = IoRequest{};
  place.request.file = range->file;
  place.request.offset = begin;
  // Past the end of a file that has no such bytes the request says so.
  place.request.bytes = unit > 1 ? last - begin : end - begin;
  place.request.data = memory;
  place.request.user = &place;
  place.done = false;
  SLUICE_CHECK(queue_->submit(&place.request), "a window of %zu refused", places_.size());
}

Result<std::span<const std::byte>> ReadAhead::take() {
  const std::size_t before = (head_ + places_.size() - 1) % places_.size();
  start(places_[before], memory_.data() + before * place_bytes_);
  queue_->flush();
  Place& place = places_[head_];
  SLUICE_CHECK(place.used, "(%s)", "there are no more ranges");
  std::array<IoRequest*, 16> done;
  while (!place.done) {
    SLUICE_ASSIGN(const std::size_t count, queue_->wait(1, done));
    for (IoRequest* request : std::span(done).first(count)) static_cast<Place*>(request->user)->done = true;
  }
  SLUICE_TRY(queue_->status(place.request));
  std::byte* const begin = place.request.data + (place.range.offset - place.request.offset);
  if (place.tail_bytes > 0) {
    const std::uint64_t at = place.range.bytes - place.tail_bytes;
    SLUICE_TRY(read_exactly(sources_[place.range.file].fd, files_[place.range.file].path, place.range.offset + at,
                            {begin + at, place.tail_bytes}));
  }
  head_ = (head_ + 1) % places_.size();
  return std::span<const std::byte>(begin, place.range.bytes);
}

}  // namespace sluice
