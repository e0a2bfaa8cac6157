#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "io/checksum.h"
#include "io/token_file.h"
#include "io/token_header.h"
#include "io/user_cache.h"

namespace sluice {
namespace {

constexpr std::size_t chunk_bytes = 1u << 20;

/// A name in the cache that stands for the content of the text and nothing else.
Result<std::string> cache_name(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    return bad_request(fmt::format("{} is not a regular file", path));
  std::ifstream text(path, std::ios::binary);
  StreamingChecksum sum;
  std::vector<char> chunk(chunk_bytes);
  while (text) {
    text.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    sum.add(std::as_bytes(std::span(chunk)).first(static_cast<std::size_t>(text.gcount())));
  }
  if (!text.eof()) return bad_request(fmt::format("can not read {}: {}", path, std::strerror(errno)));
  return fmt::format("{:016x}.tokens", sum.value());
}

Result<bool> has_magic(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return bad_request(fmt::format("can not open {}: {}", path, std::strerror(errno)));
  char magic[8] = {};
  const ssize_t n = pread(fd, magic, sizeof magic, 0);
  close(fd);
  if (n < 0) return bad_request(fmt::format("can not read {}: {}", path, std::strerror(errno)));
  return n == sizeof magic && std::memcmp(magic, token_magic, sizeof magic) == 0;
}

/// The whole text, not yet published.
Result<TokenWriter> tokens_of(const std::string& text_path, const std::string& token_path) {
  // zlib hands plain files through unchanged.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> text(gzopen(text_path.c_str(), "rbe"), gzclose);
  if (text == nullptr) return bad_request(fmt::format("can not open {}: {}", text_path, std::strerror(errno)));
  gzbuffer(text.get(), 1u << 18);
  SLUICE_ASSIGN(TokenWriter writer, TokenWriter::create(token_path, 256));
  std::vector<std::byte> chunk(chunk_bytes);
  for (;;) {
    const int n = gzread(text.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    if (n > 0) SLUICE_TRY(writer.append_bytes(std::span(chunk).first(static_cast<std::size_t>(n))));
    int code = Z_OK;
    const char* message = gzerror(text.get(), &code);
    if (code == Z_ERRNO) message = std::strerror(errno);
    // A compressed file that ends early is noticed as Z_BUF_ERROR after its last bytes have been handed out.
    if (n < 0 || (code != Z_OK && code != Z_STREAM_END))
      return bad_request(fmt::format("can not read {}: {}", text_path, message));
    if (n == 0) return writer;
  }
}

}  // namespace

Result<TokenWriter> TokenWriter::create(const std::string& path, std::uint64_t vocabulary) {
  if (vocabulary == 0 || vocabulary > 0x7fffffffu)
    return bad_request(fmt::format("a vocabulary of {} is not possible", vocabulary));
  TokenWriter writer;
  SLUICE_ASSIGN(writer.file_, AtomicFile::create(path));
  writer.vocabulary_ = vocabulary;
  writer.token_bytes_ = token_bytes_for(vocabulary);
  const TokenHeader empty{};
  SLUICE_TRY(writer.file_.append(std::as_bytes(std::span(&empty, 1))));
  return writer;
}

Status TokenWriter::append(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::uint64_t>(token) >= vocabulary_)
      return bad_request(
          fmt::format("token {} at position {} is not in the vocabulary of {}", token, count_, vocabulary_));
    pending_.append(reinterpret_cast<const char*>(&token), token_bytes_);
    ++count_;
    if (pending_.size() >= chunk_bytes) SLUICE_TRY(flush());
  }
  return success();
}

Status TokenWriter::append_bytes(std::span<const std::byte> text) {
  SLUICE_CHECK(vocabulary_ >= 256, "bytes need a vocabulary of 256");
  if (token_bytes_ == 1) {
    SLUICE_TRY(flush());
    count_ += text.size();
    return file_.append(text);
  }
  for (const std::byte b : text) {
    const auto token = std::to_integer<std::int32_t>(b);
    SLUICE_TRY(append(std::span(&token, 1)));
  }
  return success();
}

Status TokenWriter::flush() {
  SLUICE_TRY(file_.append(std::as_bytes(std::span(pending_))));
  pending_.clear();
  return success();
}

Status TokenWriter::finish() {
  SLUICE_TRY(flush());
  TokenHeader header{};
  std::memcpy(header.magic, token_magic, sizeof header.magic);
  header.schema_version = token_file_schema_version;
  header.token_bytes = token_bytes_;
  header.vocabulary = vocabulary_;
  header.count = count_;
  header.checksum = header_checksum(header);
  SLUICE_TRY(file_.write_at(0, std::as_bytes(std::span(&header, 1))));
  return file_.publish();
}

Status tokenize_bytes(const std::string& text_path, const std::string& token_path) {
  SLUICE_ASSIGN(TokenWriter writer, tokens_of(text_path, token_path));
  return writer.finish();
}

Result<TokenFile> open_or_tokenize(const std::string& path, std::string cache_dir,
                                   const TokenFile::Requirements& requirements) {
  SLUICE_ASSIGN(const bool tokens, has_magic(path));
  if (tokens) return TokenFile::open(path, requirements);
  if (cache_dir.empty()) {
    const auto user = user_cache_directory();
    if (!user.ok())
      return bad_request(
          fmt::format("no place for the tokens of {}: {}; give a token file that 'sluice data tokenize' "
                      "makes of it",
                      path, user.error().message));
    cache_dir = *user + "/tokens";
  }
  SLUICE_ASSIGN(const std::string name, cache_name(path));
  std::error_code error;
  std::filesystem::create_directories(cache_dir, error);
  if (error) return bad_request(fmt::format("can not make directory {}: {}", cache_dir, error.message()));
  const std::string cached = cache_dir + "/" + name;
  // A damaged or foreign entry is made anew; what does not fit the model is wrong either way.
  if (!TokenFile::open(cached, {.own = true}).ok()) {
    SLUICE_ASSIGN(TokenWriter writer, tokens_of(path, cached));
    SLUICE_ASSIGN(const std::string still, cache_name(path));
    if (still != name) return bad_request(fmt::format("{} changed while it was read; start again", path));
    SLUICE_TRY(writer.finish());
  }
  auto file = TokenFile::open(cached, requirements);
  if (!file.ok()) return file.error().in(path);
  return file;
}

}  // namespace sluice
