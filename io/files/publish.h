// Files that appear whole or not at all, and lines that are written whole.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/status.h"

namespace sluice {

/// Whether a file can be written there: the file that `path` names where links are followed. bad_request for what is
/// there and no regular file, and where the directory is missing or can not be written to.
Result<std::string> output_path(const std::string& path);
/// The same for files that are written as they come: pipes and terminals serve too.
Status check_stream_path(const std::string& path);
/// Whether a file that is written whole may take the place of what is there: what begins as it does, and is empty, and
/// what is no regular file. bad_request, naming the option, for any other: that is somebody's who did not mean it.
Status check_replaces_own(const std::string& option, const std::string& path, std::string_view begin,
                          const std::string& kind);
/// Whether both name one file, or would.
bool is_same_file(const std::string& a, const std::string& b);

/// Those on the way too; what is made is on the drive, under its name, before anything is put into it.
Status make_directories(const std::string& directory);

/// Directories that are made for work which may come to nothing: gone again on destruction, where they are still empty,
/// unless it was kept. Move-only.
class MadeDirectories {
 public:
  /// make_directories, of those that are not there yet.
  static Result<MadeDirectories> make(const std::string& directory);
  MadeDirectories() = default;
  ~MadeDirectories();
  MadeDirectories(MadeDirectories&& other) noexcept { *this = std::move(other); }
  MadeDirectories& operator=(MadeDirectories&& other) noexcept;
  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;  ///< the innermost first
};

/// The directory, or the nearest one above it that there is.
std::string nearest_directory(const std::string& directory);

/// Temporary files that killed processes have left where `path` was to appear.
void remove_abandoned_files(const std::string& path);

/// A file that takes its name only when it is complete: temporary beside it -> fsync -> rename -> fsync of the
/// directory. Where the name is a link, what it leads to is replaced. Not published: removed on destruction. A killed
/// process leaves "<name>.tmp-<random>", which the next one to be created removes: it is locked (flock) as long as
/// somebody writes it. Move-only.
class AtomicFile {
 public:
  /// Errors as output_path's.
  static Result<AtomicFile> create(const std::string& path, mode_t mode = 0644);
  AtomicFile() = default;
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;

  Status append(std::span<const std::byte> data);
  Status write_at(std::uint64_t offset, std::span<const std::byte> data);
  /// What was written is on the drive: what publish() could still fail of is shown here.
  Status sync();
  /// What has the name goes, before the new file takes it.
  Status remove_old();
  Status publish();
  const std::string& path() const { return path_; }
  int fd() const { return fd_; }  ///< of the temporary file, for who writes it otherwise

 private:
  void discard();
  static Result<AtomicFile> make(const std::string& path, mode_t mode);
  std::string path_, target_, temporary_;
  int fd_ = -1;
  std::uint64_t end_ = 0;
  friend Status publish_file(const std::string& path, std::string_view content, mode_t mode);
};

/// A directory that takes its name only when everything in it is complete: a temporary one beside it -> files (each
/// synced by who writes it) -> fsync -> rename -> fsync of the directory above. Not published: removed with what is in
/// it on destruction. A killed process leaves "<name>.tmp-<random>", which the next one to be created removes: it is
/// locked (flock) as long as somebody works on it. Move-only.
class StagedDirectory {
 public:
  /// Whether a file of that name may have been written into such a directory. One that holds others is nobody's to
  /// remove.
  using IsOurs = std::function<bool(const std::string& name)>;
  /// bad_request where the directory above is missing or can not be written to.
  static Result<StagedDirectory> create(const std::string& path, const IsOurs& is_ours);
  StagedDirectory() = default;
  ~StagedDirectory();
  StagedDirectory(StagedDirectory&& other) noexcept { *this = std::move(other); }
  StagedDirectory& operator=(StagedDirectory&& other) noexcept;

  const std::string& staging() const { return staging_; }  ///< where the files are to be written
  /// With `replace` the directory that has the name changes places with this one and is then removed; else there must
  /// be none, or an empty one.
  Status publish(bool replace);

 private:
  Result<bool> make();
  std::string path_, staging_;
  int lock_ = -1;  ///< the directory, open
};

/// Those in `parent` that killed processes have left, of which `is_meant` says whether they were to have that name.
void remove_abandoned_directories(const std::string& parent,
                                  const std::function<bool(const std::string& name)>& is_meant,
                                  const StagedDirectory::IsOurs& is_ours);

/// A small file, whole or not at all. Pipes and terminals are written to as they are.
Status publish_file(const std::string& path, std::string_view content, mode_t mode = 0644);

/// Make names in the directory durable.
Status sync_directory(const std::string& directory);

/// The whole regular file as text, refused beyond `limit_bytes`.
Result<std::string> read_file(const std::string& path, std::uint64_t limit_bytes = 64u << 20);

/// Appends lines to a file (metrics as JSON lines), each with one write(). A line that can not be written whole is
/// taken back, so that every line in the file is complete. Move-only.
class LineWriter {
 public:
  /// `append` keeps what is there (cutting off an incomplete last line); otherwise the file starts empty.
  static Result<LineWriter> open(const std::string& path, bool append);
  LineWriter() = default;
  ~LineWriter();
  LineWriter(LineWriter&& other) noexcept;
  LineWriter& operator=(LineWriter&& other) noexcept;
  bool is_open() const { return fd_ >= 0; }
  /// `line` without its newline.
  Status write_line(std::string_view line);
  /// What was written is on the drive. Pipes and terminals have nothing to sync.
  Status sync();

 private:
  std::string path_, scratch_;
  int fd_ = -1;
  std::uint64_t end_ = 0;
  bool regular_ = false;  ///< pipes and terminals work too, but nothing can be taken back there
};

}  // namespace sluice
