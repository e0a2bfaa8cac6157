// A checkpoint on the drive: made under another name and published whole, opened with nothing believed that has not its
// checksum.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "io/files/publish.h"

namespace sluice {

/// "step-120".
std::string checkpoint_name(std::uint64_t step);
/// The number in such a name.
std::optional<std::uint64_t> step_of_name(const std::string& name);

/// Whether a directory may give way to a checkpoint: bad_request, naming it, for a file that is of none.
Status check_replaceable(const std::string& path);

/// A checkpoint that is being written: files are put into directory(), and publish gives it its name. Not published: it
/// is removed. What a killed process has left is removed by the next one of that name. Move-only.
class NewCheckpoint {
 public:
  /// Of this step in the directory `parent`, which is made if it is missing. bad_request where it is there already,
  /// unless it may take that one's place, and where the directory can not be written to.
  static Result<NewCheckpoint> create(const std::string& parent, std::uint64_t step, bool replace = false);
  const std::string& directory() const { return staged_.staging(); }
  const std::string& path() const { return path_; }  ///< that it will have
  /// Every file is on the drive. Writes model.h5 and the manifest, syncs the directory, renames it, syncs `parent`, and
  /// makes LATEST name it.
  Status publish(const Manifest& manifest);

 private:
  std::string parent_, path_;
  std::uint64_t step_ = 0;
  bool replaces_ = false;
  MadeDirectories made_;  ///< on the way to it
  StagedDirectory staged_;
};

/// A published checkpoint whose manifest is whole. Move-only.
class Checkpoint {
 public:
  /// `path` is a checkpoint, or a directory of several, of which LATEST, or else the last one, is meant. bad_request,
  /// naming what is wrong, also for what other tools write.
  static Result<Checkpoint> open(const std::string& path);
  Checkpoint() = default;
  ~Checkpoint();
  Checkpoint(Checkpoint&& other) noexcept { *this = std::move(other); }
  Checkpoint& operator=(Checkpoint&& other) noexcept;

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// A file of states, once its size, its structure, its checksums and what HDF5 sees in it are as the manifest says.
  /// bad_request, naming the file, otherwise.
  struct OpenFile {
    int fd = -1;
    std::uint32_t alignment_bytes = 1;
    std::string path;
    std::vector<std::uint64_t> sums;
  };
  Result<const OpenFile*> file(std::uint32_t index);
  /// Whether all files of states and their checksums are there, no links, and as long as the manifest says. Soon known:
  /// nothing of them is read. Errors as file()'s.
  Status check_present() const;
  /// Of a block, to people: "rank-00000.h5: block 3 of /L0.mlp/exp_avg (model.layers.0.mlp.up_proj.weight)".
  std::string block_name(std::uint32_t file, std::uint32_t unit, std::uint32_t state, std::uint64_t block) const;

 private:
  Result<int> open_beneath(const std::string& name, int flags) const;
  Result<int> open_states(const StoredFile& stored) const;

  std::string path_;
  int directory_ = -1;
  Manifest manifest_;
  std::vector<std::unique_ptr<OpenFile>> files_;
};

/// Manifest::model of a checkpoint. Errors as Checkpoint::open's.
Result<std::string> checkpoint_model(const std::string& path);
/// Whether Checkpoint::open would find one there, whole or not: a manifest, LATEST, or a directory step-N.
bool is_checkpoint(const std::string& path);

struct ListedCheckpoint {
  std::string path;
  std::uint64_t step = 0;
  bool latest = false;    ///< LATEST names it
  bool is_whole = false;  ///< it has a manifest, which comes last
};
/// Those of a directory by step, whole or not. bad_request where it is no directory.
Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& parent);
/// LATEST names that one: what the last step of a save does, for one whose process ended before it.
Status name_latest(const std::string& parent, std::uint64_t step);
/// Removes what killed processes have left of others, and all whole ones but the last `keep`, which 0 means all of;
/// else never the one that LATEST names. Those that went.
Result<std::vector<std::string>> prune_checkpoints(const std::string& parent, std::size_t keep);

}  // namespace sluice
