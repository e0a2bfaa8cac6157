#include "io/tokens/text_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "io/files/os_error.h"

namespace sluice {
namespace {

constexpr std::size_t input_bytes_max = 1u << 18, input_bytes_min = 1u << 12;

enum class Packing { none, gzip, zstd };

struct EndInflate {
  void operator()(z_stream* z) const {
    inflateEnd(z);
    delete z;
  }
};

struct FreeZstd {
  void operator()(ZSTD_DCtx* z) const { ZSTD_freeDCtx(z); }
};

}  // namespace

struct TextStream::State {
  std::string name;
  int fd = -1;
  Packing packing = Packing::none;
  std::vector<char> input;
  std::size_t begin = 0, end = 0;  ///< what of `input` is not yet used
  bool at_end = false;             ///< of the file
  bool inside = false;             ///< a member (gzip) or frame (zstd) has begun and not ended
  std::uint64_t bytes_read = 0;
  std::unique_ptr<z_stream, EndInflate> gzip;
  std::unique_ptr<ZSTD_DCtx, FreeZstd> zstd;

  ~State() {
    if (fd > STDIN_FILENO) close(fd);
  }

  Error wrong(const std::string& what) const { return bad_request(fmt::format("{} {}", name, what)); }
  Error truncated() const { return wrong("ends in the middle of its compressed data; is it copied whole?"); }

  Result<std::size_t> from_file(std::span<char> out) {
    for (;;) {
      const ssize_t n = ::read(fd, out.data(), out.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error(fmt::format("can not read {}", name), errno);
      at_end = n == 0;
      bytes_read += static_cast<std::uint64_t>(n);
      return static_cast<std::size_t>(n);
    }
  }

  /// More input behind what is there.
  Status refill() {
    std::copy(input.begin() + static_cast<std::ptrdiff_t>(begin), input.begin() + static_cast<std::ptrdiff_t>(end),
              input.begin());
    end -= std::exchange(begin, 0);
    SLUICE_ASSIGN(const std::size_t n, from_file(std::span(input).subspan(end)));
    end += n;
    return success();
  }

  Status recognize();
  Result<std::size_t> read_plain(std::span<char> out);
  Result<std::size_t> read_packed(std::span<char> out);
  Result<std::size_t> inflate_some(std::span<char> out);
  Result<std::size_t> decompress_some(std::span<char> out);
};

Status TextStream::State::recognize() {
  while (end < 4 && !at_end) SLUICE_TRY(refill());
  const std::string_view first(input.data(), end);
  const bool gz = first.starts_with("\x1f\x8b"), zst = first.starts_with("\x28\xb5\x2f\xfd");
  if ((name.ends_with(".gz") || name.ends_with(".dz")) && !gz) return wrong("is not gzip data, as its ending says");
  if (name.ends_with(".zst") && !zst) return wrong("is not zstd data, as its ending says");
  if (gz) {
    packing = Packing::gzip;
    gzip.reset(new z_stream{});
    if (inflateInit2(gzip.get(), 15 + 16) != Z_OK) return fault(fmt::format("{}: zlib can not start", name));
  } else if (zst) {
    packing = Packing::zstd;
    zstd.reset(ZSTD_createDCtx());
    if (zstd == nullptr) return fault(fmt::format("{}: zstd can not start", name));
  }
  return success();
}

Result<std::size_t> TextStream::State::read_plain(std::span<char> out) {
  std::size_t done = std::min(out.size(), end - begin);
  std::copy_n(input.data() + begin, done, out.data());
  begin += done;
  while (done < out.size() && !at_end) {
    SLUICE_ASSIGN(const std::size_t n, from_file(out.subspan(done)));
    done += n;
  }
  return done;
}

/// One call of zlib; the bytes that it made.
Result<std::size_t> TextStream::State::inflate_some(std::span<char> out) {
  if (!inside && inflateReset(gzip.get()) != Z_OK) return fault(fmt::format("{}: zlib can not start", name));
  inside = true;
  gzip->next_in = reinterpret_cast<Bytef*>(input.data() + begin);
  gzip->avail_in = static_cast<uInt>(end - begin);
  gzip->next_out = reinterpret_cast<Bytef*>(out.data());
  gzip->avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
  const std::size_t room = gzip->avail_out;
  const int rc = inflate(gzip.get(), Z_NO_FLUSH);
  begin = end - gzip->avail_in;
  if (rc == Z_STREAM_END) inside = false;
  if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
    return wrong(fmt::format("is damaged: {}", gzip->msg != nullptr ? gzip->msg : zError(rc)));
  return room - gzip->avail_out;
}

/// One call of zstd; the bytes that it made.
Result<std::size_t> TextStream::State::decompress_some(std::span<char> out) {
  ZSTD_inBuffer in{input.data(), end, begin};
  ZSTD_outBuffer made{out.data(), out.size(), 0};
  const std::size_t rc = ZSTD_decompressStream(zstd.get(), &made, &in);
  begin = in.pos;
  if (ZSTD_isError(rc) != 0)
    return wrong(fmt::format("is damaged, or needs too large a window: {}", ZSTD_getErrorName(rc)));
  inside = rc != 0;
  return made.pos;
}

Result<std::size_t> TextStream::State::read_packed(std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (begin == end && !at_end) SLUICE_TRY(refill());
    if (begin == end && at_end && !inside) break;
    SLUICE_ASSIGN(const std::size_t n,
                  packing == Packing::gzip ? inflate_some(out.subspan(done)) : decompress_some(out.subspan(done)));
    if (n == 0 && begin == end && at_end && inside) return truncated();
    done += n;
  }
  return done;
}

TextStream::TextStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

Result<TextStream> TextStream::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->name = path == "-" ? "standard input" : path;
  state->fd = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (state->fd < 0) return os_error(fmt::format("can not open {}", path), errno);
  struct stat st {};
  if (fstat(state->fd, &st) == 0 && S_ISDIR(st.st_mode)) return state->wrong("is a directory; name the files in it");
  // Of a thousand small files none needs the memory of a large one.
  const bool is_sized = S_ISREG(st.st_mode) && st.st_size > 0;
  state->input.resize(is_sized ? std::clamp(static_cast<std::size_t>(st.st_size), input_bytes_min, input_bytes_max)
                               : input_bytes_max);
  SLUICE_TRY(state->recognize());
  return TextStream(std::move(state));
}

Result<std::size_t> TextStream::read(std::span<char> out) {
  return state_->packing == Packing::none ? state_->read_plain(out) : state_->read_packed(out);
}

std::uint64_t TextStream::bytes_read() const { return state_->bytes_read; }

std::string unpacked_name(const std::string& path) {
  for (const std::string ending : {".gz", ".dz", ".zst"})
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  return path;
}

}  // namespace sluice
