// The bytes of a text, whatever it is packed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// Reads a file, a pipe or standard input ("-") from its beginning to its end. Names ending in .gz or .dz are gzip,
/// those ending in .zst zstd; under any other name, both are known by their first bytes. Move-only.
class TextStream {
 public:
  /// bad_request when it can not be opened, is a directory, or is not what its ending says.
  static Result<TextStream> open(const std::string& path);
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();

  /// Fills `out`; less only at the end of the text. bad_request, naming the file, when the rest is missing or damaged.
  Result<std::size_t> read(std::span<char> out);
  /// Bytes of the file, as packed, that were read so far.
  std::uint64_t bytes_read() const;

 private:
  struct State;
  explicit TextStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// `path` without .gz, .dz or .zst.
std::string unpacked_name(const std::string& path);

}  // namespace sluice
