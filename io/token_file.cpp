#include "io/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/checksum.h"
#include "io/token_header.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

std::uint32_t token_bytes_for(std::uint64_t vocabulary) {
  if (vocabulary <= 1u << 8) return 1;
  return vocabulary <= 1u << 16 ? 2 : 4;
}

std::uint64_t header_checksum(const TokenHeader& h) {
  return checksum(std::as_bytes(std::span(&h, 1)).first(offsetof(TokenHeader, checksum)));
}

namespace {

/// What is wrong with a header that a file of `file_bytes` begins with; empty if nothing.
std::string find_fault(const TokenHeader& h, std::uint64_t file_bytes) {
  if (std::memcmp(h.magic, token_magic, sizeof h.magic) != 0) return "is not a token file (wrong magic)";
  if (h.schema_version != token_file_schema_version)
    return fmt::format("has schema version {}, this program reads {}", h.schema_version, token_file_schema_version);
  if (h.checksum != header_checksum(h)) return "has a damaged header";
  if (h.token_bytes != 1 && h.token_bytes != 2 && h.token_bytes != 4)
    return fmt::format("has tokens of {} bytes", h.token_bytes);
  if (h.vocabulary == 0 || h.vocabulary > 0x7fffffffu) return fmt::format("has a vocabulary of {}", h.vocabulary);
  const std::uint64_t room = (file_bytes - sizeof h) / h.token_bytes;
  if (h.count > room) return fmt::format("is truncated: {} of {} tokens are there", room, h.count);
  if (file_bytes - sizeof h != h.count * h.token_bytes) return "has bytes after its last token";
  return {};
}

/// Stored tokens to `out`; returns the largest.
template <class T>
std::uint32_t widen(const std::byte* data, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, data + i * sizeof token, sizeof token);
    largest = std::max<std::uint32_t>(largest, token);
    out[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& path, const Requirements& requirements) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return bad_request(fmt::format("can not open {}: {}", path, std::strerror(errno)));
  TokenFile file;
  file.path_ = path;
  struct stat st {};
  std::string wrong;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    wrong = "is not a regular file";
  } else if (static_cast<std::uint64_t>(st.st_size) < sizeof(TokenHeader)) {
    wrong = fmt::format("is not a token file: {} bytes are fewer than its header has", st.st_size);
  } else if (requirements.own && (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
    wrong = "may have been written by another user";
  } else {
    file.map_bytes_ = static_cast<std::uint64_t>(st.st_size);
    void* map = mmap(nullptr, file.map_bytes_, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      wrong = fmt::format("can not be mapped: {}", std::strerror(errno));
    } else {
      file.map_ = map;
    }
  }
  ::close(fd);
  if (wrong.empty()) {
    TokenHeader header;
    std::memcpy(&header, file.map_, sizeof header);
    wrong = find_fault(header, file.map_bytes_);
    file.count_ = header.count;
    file.vocabulary_ = header.vocabulary;
    file.token_bytes_ = header.token_bytes;
  }
  if (wrong.empty() && requirements.vocabulary_limit > 0 && file.vocabulary_ > requirements.vocabulary_limit)
    wrong = fmt::format("has a vocabulary of {}, the model's is {}: use the model's tokenizer", file.vocabulary_,
                        requirements.vocabulary_limit);
  if (wrong.empty() && file.count_ < requirements.tokens_min)
    wrong = fmt::format("has {} tokens, at least {} are needed", file.count_, requirements.tokens_min);
  if (!wrong.empty()) return bad_request(fmt::format("{} {}", path, wrong));
  return file;
}

TokenFile::~TokenFile() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

TokenFile::TokenFile(TokenFile&& other) noexcept { *this = std::move(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  if (this == &other) return *this;
  if (map_ != nullptr) munmap(map_, map_bytes_);
  path_ = std::move(other.path_);
  map_ = std::exchange(other.map_, nullptr);
  map_bytes_ = other.map_bytes_;
  count_ = std::exchange(other.count_, 0);
  vocabulary_ = other.vocabulary_;
  token_bytes_ = other.token_bytes_;
  return *this;
}

std::uint64_t TokenFile::hash() const { return checksum({static_cast<const std::byte*>(map_), map_bytes_}); }

Status TokenFile::read(std::uint64_t start, std::span<std::int32_t> out) const {
  SLUICE_CHECK(start <= count_ && out.size() <= count_ - start, "tokens [%llu, +%zu) of %llu",
               static_cast<unsigned long long>(start), out.size(), static_cast<unsigned long long>(count_));
  const auto* data = static_cast<const std::byte*>(map_) + sizeof(TokenHeader) + start * token_bytes_;
  std::uint32_t largest = 0;
  if (token_bytes_ == 1) largest = widen<std::uint8_t>(data, out);
  if (token_bytes_ == 2) largest = widen<std::uint16_t>(data, out);
  if (token_bytes_ == 4) largest = widen<std::uint32_t>(data, out);
  if (largest < vocabulary_) return success();
  std::size_t bad = 0;
  while (static_cast<std::uint32_t>(out[bad]) < vocabulary_) ++bad;
  return bad_request(fmt::format("{}: token {} at position {} is not in the vocabulary of {}", path_,
                                 static_cast<std::uint32_t>(out[bad]), start + bad, vocabulary_));
}

}  // namespace sluice
