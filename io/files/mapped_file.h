// A file's bytes in memory, read-only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// Maps a regular file as it is when opened. Move-only; spans of it live as long as the owner.
class MappedFile {
 public:
  /// bad_request, naming the file. `owner`: also unless it is this user's or that one's, and writable by nobody else.
  static Result<MappedFile> open(const std::string& path, std::optional<uid_t> owner = std::nullopt);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(map_), size_}; }

 private:
  void* map_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sluice
