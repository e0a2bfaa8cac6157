// Token files: a 64-byte header and the tokens, memory-mapped. Text becomes one with bytes as tokens.
//
// Header, little endian: magic "SLUICTOK", u32 schema version, u32 bytes per token (1, 2, 4), u64 vocabulary, u64
// count, 24 bytes zero, u64 XXH3 of the 56 bytes before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/publish.h"
#include "sluice/status.h"

namespace sluice {

constexpr std::uint32_t token_file_schema_version = 1;

/// A read-only view of a token file. Move-only; read() may be called from several threads.
class TokenFile {
 public:
  struct Requirements {
    std::uint64_t vocabulary_limit = 0;  ///< the model's; 0: no limit. The file's may not be larger.
    std::uint64_t tokens_min = 0;        ///< needed for one sequence
    bool own = false;                    ///< this user's, and writable by nobody else
  };
  /// bad_request for everything that is wrong with the file.
  static Result<TokenFile> open(const std::string& path, const Requirements& requirements);
  static Result<TokenFile> open(const std::string& path) { return open(path, Requirements()); }

  TokenFile() = default;
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;

  std::uint64_t count() const { return count_; }
  std::uint64_t vocabulary() const { return vocabulary_; }
  const std::string& path() const { return path_; }
  std::uint64_t hash() const;  ///< XXH3 of the whole file
  /// Tokens [start, start + out.size()), which must lie in the file. bad_request, naming the position, when one is not
  /// in the vocabulary.
  Status read(std::uint64_t start, std::span<std::int32_t> out) const;

 private:
  std::string path_;
  void* map_ = nullptr;
  std::uint64_t map_bytes_ = 0;
  std::uint64_t count_ = 0, vocabulary_ = 0;
  std::uint32_t token_bytes_ = 1;
};

/// Streams tokens to a file that appears when finish() succeeds. Tokens are stored in the smallest of 1, 2, 4 bytes
/// that holds the vocabulary.
class TokenWriter {
 public:
  static Result<TokenWriter> create(const std::string& path, std::uint64_t vocabulary);
  /// bad_request for a token that is not in the vocabulary.
  Status append(std::span<const std::int32_t> tokens);
  Status append_bytes(std::span<const std::byte> text);  ///< each byte a token; vocabulary >= 256
  Status finish();
  std::uint64_t count() const { return count_; }

 private:
  Status flush();
  AtomicFile file_;
  std::uint64_t vocabulary_ = 0, count_ = 0;
  std::uint32_t token_bytes_ = 1;
  std::string pending_;
};

/// Text, plain or gzip-compatible (.gz, .dz), to a token file with bytes as tokens (vocabulary 256).
Status tokenize_bytes(const std::string& text_path, const std::string& token_path);

/// A token file as it is; anything else is taken as text and tokenized into `cache_dir` (made if missing; empty: the
/// user's cache), again only when its content is new there. What another user may have written there is not trusted.
Result<TokenFile> open_or_tokenize(const std::string& path, std::string cache_dir,
                                   const TokenFile::Requirements& requirements);

}  // namespace sluice
