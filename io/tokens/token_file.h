// Token files: what a model trains on, memory-mapped. Sluice's own format, and those of Megatron-LM, llm.c and nanoGPT.
//
// Sluice's: a header and the tokens. Header, little endian: magic "SLUICTOK", u32 schema version, u32 bytes per
// token (1, 2, 4), u64 vocabulary, u64 count, u64 documents, u64 flags, u64 sequence, u64 XXH3 of the 56 bytes before.
// Version 2 has a table behind the tokens, at the next multiple of 8: for each document one u64, the position behind
// its last token. A file of one document is version 1, which has no table. Version 3 has the table and may have, behind
// it, a loss mask (flag 1): for each token one bit, lowest first, that says whether it is to be predicted. Where
// `sequence` is not 0, documents are packed whole into sequences of so many tokens: none crosses a multiple of it, and
// the count is one. Files that need neither are versions 1 and 2, in which both are zero.
//
// Version 4 is any of these with checksums. Its header has 8 bytes more, and there is a
// table of documents if there are a flag, a sequence, or more documents than 0. Behind everything, at the next multiple
// of 8, is a table of u64: the XXH3 of each 64 KiB of what lies between the header and this table, the last of which
// may be shorter. Its own XXH3 is the u64 at the header's end. Versions 1 to 3 are read as they are: nothing in them
// tells damaged tokens from others.
//
// Version 5 is version 4 with 8 bytes more at the header's end: which tokenizer made the tokens (Tokenizer::hash, or
// byte_tokenizer). They count as the end of the table of checksums in that table's own XXH3. It is what is written;
// version 4 is, where nobody knows the tokenizer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "io/files/mapped_file.h"
#include "io/tokens/token_layout.h"
#include "sluice/status.h"

namespace sluice {

constexpr std::uint32_t token_file_schema_version = 5;

/// Stands for the hash of a tokenizer where bytes are tokens.
constexpr std::uint64_t byte_tokenizer = 0x7365'7479'6220'3d20;

/// A read-only view of a token file. Move-only; const members may be called from several threads. Where the file has
/// checksums, a block is verified before the first byte of it is used, and whoever asks for one that is damaged is told
/// so (bad_request, naming the file and the bytes). That takes a byte of memory for each 64 KiB.
class TokenFile {
 public:
  struct Requirements {
    std::uint64_t vocabulary_limit = 0;  ///< the model's; 0: no limit. The file's may not be larger.
    std::uint64_t tokens_min = 0;        ///< needed for one sequence
    std::optional<uid_t> owner = {};     ///< the file is this user's or that one's, and writable by nobody else
    /// What errors say is to be done about a damaged file; may be empty.
    std::string if_damaged = "make it again, or put a copy of it back";
  };
  /// The format is seen in the file; nanoGPT's, which has no mark, in the ending .bin. Megatron's is named by NAME.bin,
  /// NAME.idx or NAME. bad_request for everything that is wrong with the file.
  static Result<TokenFile> open(const std::string& path, const Requirements& requirements);
  static Result<TokenFile> open(const std::string& path) { return open(path, Requirements()); }

  TokenFormat format() const { return layout_.format; }
  std::uint64_t count() const { return layout_.count; }
  std::uint64_t token_bytes() const { return layout_.token_bytes; }
  /// Tokens that read() gives are below it. Where the format does not say it: the limit required, or what its type of
  /// token can hold.
  std::uint64_t vocabulary() const { return layout_.vocabulary; }
  bool vocabulary_known() const { return layout_.vocabulary_known; }
  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return tokens_.bytes().size() + index_.bytes().size(); }
  /// XXH3 of the whole file; of Megatron's index and then its tokens. With checksums: what it would be without them, so
  /// that it does not depend on the version.
  Result<std::uint64_t> hash() const;
  std::uint32_t version() const { return layout_.version; }  ///< of sluice's own format; 0: another one
  bool has_checksums() const { return layout_.sums_byte != 0; }
  /// Tokenizer::hash() of what made the tokens, or byte_tokenizer; 0: the file does not say it.
  std::uint64_t tokenizer() const { return layout_.tokenizer; }
  /// Everything is as it was written, by its checksums; success where there are none. Reads what was not read yet.
  Status verify() const;
  /// Tokens [start, start + out.size()), which must lie in the file. bad_request, naming the position, when one is not
  /// in the vocabulary.
  Status read(std::uint64_t start, std::span<std::int32_t> out) const;

  /// All tokens are in the vocabulary, as read() says it. Reads the whole file, unless that says its vocabulary or its
  /// type of token can hold no others; `watch` hears how much of it has been read.
  Status check_tokens(const std::function<void(double fraction)>& watch = {}) const;

  /// Whether the file says which tokens count in the loss.
  bool has_mask() const { return layout_.mask_known; }
  /// out[i] is 1 if token start + i is to be predicted, else 0, for tokens that lie in the file; all 1 without a mask.
  Status read_mask(std::uint64_t start, std::span<std::uint8_t> out) const;
  /// Not 0: no document crosses a multiple of it, and count() is one.
  std::uint64_t packed_sequence() const { return layout_.packed_sequence; }

  /// Positions [begin, end) of a document's tokens. Documents follow one another without gaps and may be empty.
  struct Document {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t count() const { return end - begin; }
  };
  /// Where the format does not know documents, the file is one.
  std::uint64_t documents() const;
  bool documents_known() const { return layout_.documents_known; }
  /// `i` < documents(). bad_request when the table contradicts itself there: opening does not read all of it.
  Result<Document> document(std::uint64_t i) const;
  /// Documents [first, last) that have tokens among the `length` > 0 at `start`, which must lie in the file (and the
  /// empty ones between them): what packing needs to keep attention inside documents. In O(log documents).
  struct DocumentRange {
    std::uint64_t first = 0, last = 0;
  };
  Result<DocumentRange> documents_in(std::uint64_t start, std::uint64_t length) const;

 private:
  std::uint64_t end_of(std::uint64_t document) const;
  Result<std::uint64_t> first_ending_after(std::uint64_t position, std::uint64_t from) const;
  Status verify_bytes(std::uint64_t at, std::uint64_t count) const;
  Status verify_end_of(std::uint64_t document) const;
  Error damaged(const std::string& what) const;
  std::string path_, if_damaged_;
  MappedFile tokens_, index_;
  TokenLayout layout_;
  std::unique_ptr<std::atomic<bool>[]> verified_;  ///< by block
};

/// The format of the token file at `path` (or of Megatron's NAME.bin and NAME.idx); none for anything else, such as a
/// text. What ends in .tokens is sluice's, whatever is left of it: damaged tokens are no text. bad_request when it can
/// not be read.
Result<std::optional<TokenFormat>> recognize_tokens(const std::string& path);
/// Whether the file has a format's mark, or the index that belongs to it does: a name alone is none.
bool has_token_mark(const std::string& path);

}  // namespace sluice
