// Documents out of several inputs, in order: text files (each one document) and JSON lines (each line one document).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokens/text_stream.h"
#include "sluice/status.h"

namespace sluice {

enum class TextKind {
  automatic,  ///< JSON lines for names ending in .jsonl or .ndjson (before .gz, .dz or .zst), else text; what is none
              ///< (io/tokens/text_check.h) is refused
  text,       ///< whatever it is
  jsonl,
};

bool is_jsonl_name(const std::string& path);

/// A document, or a part of one, as it stands in its input.
struct TextPiece {
  std::string data;
  std::uint64_t document = 0;  ///< counted over all inputs
  std::size_t input = 0;
  std::uint64_t line = 0;  ///< of JSON lines, from 1; 0: `data` is text
  bool last = true;        ///< of its document
};

class TextSource {
 public:
  struct Options {
    std::vector<std::string> paths;  ///< files, pipes, or "-" for standard input
    TextKind kind = TextKind::automatic;
    std::string field = "text";  ///< of a JSON line, holds the document
    bool whole_lines = false;    ///< a JSON line is handed out as it stands, unread
    /// Text files come in parts of this many bytes; 0: whole.
    std::size_t part_bytes = 0;
    /// Memory is bounded by the longest line, or text file that comes whole, and these by this.
    std::size_t document_bytes_max = std::size_t{1} << 30;
  };
  /// bad_request when an input can not be opened.
  static Result<TextSource> open(Options options);

  /// The next piece, into memory that `piece` may have already; false behind the last. One thread at a time.
  /// bad_request, naming file and line, for what can not be read or is too long.
  Result<bool> next(TextPiece& piece);
  /// The text of a piece: itself, or the field of its line, which is then in `storage`. From any thread. bad_request,
  /// naming file and line, for a line that is not a JSON object with that field.
  Status text_of(const TextPiece& piece, std::string& storage, std::string_view& text) const;
  /// "book.txt" or "c4.jsonl line 7".
  std::string where(const TextPiece& piece) const;

  /// Bytes read of the inputs, as packed, and how many they have in all; 0 when one of them is a pipe.
  std::uint64_t bytes_read() const { return bytes_before_ + (stream_ ? stream_->bytes_read() : 0); }
  std::uint64_t bytes_total() const { return bytes_total_; }

 private:
  bool is_jsonl(std::size_t input) const;
  std::string name(std::size_t input) const;
  void close();
  Status next_part(TextPiece& piece);
  Result<bool> next_line(TextPiece& piece);
  Result<std::size_t> find_newline();

  Options options_;
  std::uint64_t bytes_total_ = 0, bytes_before_ = 0, documents_ = 0;
  std::size_t input_ = 0;
  std::optional<TextStream> stream_;
  std::string lines_;           ///< read and not yet handed out
  std::size_t lines_at_ = 0;    ///< where the next line begins in it
  std::size_t lines_step_ = 0;  ///< bytes that the last read for it asked for
  std::uint64_t line_ = 0;
  bool checked_ = false;  ///< the input's first bytes
};

}  // namespace sluice
