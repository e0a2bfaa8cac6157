// Where tokens go: files of tokens that appear whole when finish() succeeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checksum.h"
#include "io/files/publish.h"
#include "io/tokens/token_header.h"
#include "io/tokens/token_layout.h"
#include "sluice/status.h"

namespace sluice {

/// What sluice's own format alone can say (io/tokens/token_file.h).
struct TokenFeatures {
  bool mask = false;            ///< which tokens count in the loss
  std::uint64_t sequence = 0;   ///< documents are packed whole for sequences of so many tokens; 0: they are not
  std::uint64_t tokenizer = 0;  ///< which one makes the tokens, as TokenFile::tokenizer; 0: not known
};

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// `mask`, only for a sink that keeps one: 1 for each token that counts in the loss, else 0; empty: all of them do.
  /// bad_request for a token that is not in the vocabulary.
  Status append(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask = {}) {
    return put(tokens, mask);
  }
  /// What was appended since the last call is a document. Where it is never called, all is one document.
  virtual void end_document() = 0;
  virtual Status finish() = 0;

 private:
  virtual Status put(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) = 0;
};

/// Tokens, packed, to a file that is not yet published. Remembers the ends of documents, 8 bytes each, and checksums if
/// they are kept.
class PackedTokens {
 public:
  static Result<PackedTokens> create(const std::string& path, std::uint64_t vocabulary, std::uint32_t token_bytes);
  Status append(std::span<const std::int32_t> tokens);
  void end_document() { ends_.push_back(count_); }
  Status flush();
  /// From here on, of all that is written. Not of what is written to file().
  void keep_sums();
  /// Behind what was flushed.
  Status append_bytes(std::span<const std::byte> bytes);
  const std::vector<std::uint64_t>& close_sums() { return sums_->close(); }
  AtomicFile& file() { return file_; }
  std::uint64_t count() const { return count_; }
  std::uint64_t vocabulary() const { return vocabulary_; }
  std::uint32_t token_bytes() const { return token_bytes_; }
  /// Tokens behind the last end_document() are a document too.
  const std::vector<std::uint64_t>& close_documents();

 private:
  AtomicFile file_;
  std::uint64_t vocabulary_ = 0, count_ = 0;
  std::uint32_t token_bytes_ = 1;
  std::vector<std::byte> pending_;
  std::size_t used_ = 0;
  std::vector<std::uint64_t> ends_;
  std::optional<BlockSums> sums_;
};

/// Sluice's own format, with checksums: 8 bytes for each 64 KiB are remembered. Tokens are stored in the smallest of 1,
/// 2, 4 bytes that holds the vocabulary. A mask is remembered, a bit a token, until the end. Move-only.
class TokenWriter final : public TokenSink {
 public:
  static Result<TokenWriter> create(const std::string& path, std::uint64_t vocabulary,
                                    const TokenFeatures& features = {});
  void end_document() override { tokens_.end_document(); }
  Status finish() override;
  std::uint64_t count() const { return tokens_.count(); }

 private:
  std::uint32_t version() const { return features_.tokenizer == 0 ? 4 : 5; }
  std::uint64_t header_bytes() const { return token_header_bytes(version()); }
  Status fill_up(std::uint64_t bytes);
  Status put(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) override;
  PackedTokens tokens_;
  TokenFeatures features_;
  std::vector<std::uint8_t> mask_;  ///< as it lies in the file
};

/// NAME.bin and NAME.idx as Megatron's own tools write them: each document one sequence; uint16 below a vocabulary of
/// 65500, else int32. The index appears last.
class MegatronWriter final : public TokenSink {
 public:
  static Result<MegatronWriter> create(const std::string& path, std::uint64_t vocabulary);
  void end_document() override { tokens_.end_document(); }
  /// bad_request for a document of 2^31 tokens or more.
  Status finish() override;

 private:
  Status put(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) override;
  Result<std::string> index();
  std::string name_;
  PackedTokens tokens_;
};

/// A sink of `format`, which is sluice or megatron. bad_request for features that the format lacks.
Result<std::unique_ptr<TokenSink>> make_token_sink(TokenFormat format, const std::string& path,
                                                   std::uint64_t vocabulary, const TokenFeatures& features = {});

}  // namespace sluice
