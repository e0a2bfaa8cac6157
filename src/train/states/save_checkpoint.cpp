#include "src/train/states/save_checkpoint.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "io/files/publish.h"
#include "sluice/size.h"

namespace sluice {
namespace {

Status agreed(World* world, const Status& own) { return world == nullptr ? own : agree(*world, own); }

/// What only who wrote a file knows of it.
std::vector<std::uint64_t> written_numbers(const StoredFile& file) {
  std::vector<std::uint64_t> numbers{file.bytes, file.structure, file.sums};
  for (const StoredUnit& unit : file.units)
    for (const StoredState& s : unit.states) numbers.push_back(s.offset);
  return numbers;
}

void take_numbers(StoredFile& file, std::span<const std::uint64_t> numbers) {
  file.bytes = numbers[0];
  file.structure = numbers[1];
  file.sums = numbers[2];
  std::size_t i = 3;
  for (StoredUnit& unit : file.units)
    for (StoredState& s : unit.states) s.offset = numbers[i++];
}

/// Every process gives what it knows of its files, one after the other.
Status share_files(World& world, std::vector<StoredFile>& files, RankRange here) {
  std::string own;
  for (RankId r = 0; r < files.size(); ++r) {
    if (!here.contains(r)) continue;
    const std::vector<std::uint64_t> numbers = written_numbers(files[r]);
    own.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::uint64_t));
  }
  SLUICE_ASSIGN(const std::vector<std::string> all, world.exchange(own));
  std::string joined;
  for (const std::string& text : all) joined += text;
  std::vector<std::uint64_t> numbers(joined.size() / sizeof(std::uint64_t));
  std::copy(joined.begin(), joined.end(), reinterpret_cast<char*>(numbers.data()));
  std::span<const std::uint64_t> rest(numbers);
  for (StoredFile& file : files) {
    const std::size_t count = written_numbers(file).size();
    if (rest.size() < count) return fault("processes know of other files of a checkpoint");
    take_numbers(file, rest.first(count));
    rest = rest.subspan(count);
  }
  return success();
}

}  // namespace

Status check_checkpoint_room(const std::string& parent, std::uint64_t bytes) {
  struct statvfs space {};
  const std::string above = nearest_directory(parent);
  if (access(above.c_str(), W_OK | X_OK) != 0)
    return bad_request(parent + ": no checkpoint can be made there: " + std::strerror(errno) +
                       "; give another directory");
  if (statvfs(above.c_str(), &space) != 0) return success();
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (bytes <= free) return success();
  return bad_request(parent + ": a checkpoint takes " + format_bytes(bytes) + ", and " + format_bytes(free) +
                     " are free there; make room, or give another directory");
}

Result<std::unique_ptr<CheckpointSave>> CheckpointSave::begin(States& states, World* world,
                                                              const CheckpointRequest& request) {
  std::unique_ptr<CheckpointSave> save(new CheckpointSave);
  save->world_ = world;
  save->here_ = states.here();
  Manifest& manifest = save->manifest_;
  manifest.step = request.step;
  manifest.formats = states.formats();
  manifest.tensors = states.tensors();
  manifest.model = request.model;
  save->files_ = states.files();
  const bool leads = world == nullptr || world->leads();
  const auto make = [&]() -> Status {
    if (!leads) return success();
    SLUICE_TRY(check_checkpoint_room(request.parent, state_bytes(save->files_)));
    SLUICE_ASSIGN(save->made_, NewCheckpoint::create(request.parent, request.step, request.replace));
    return success();
  };
  SLUICE_TRY(agreed(world, make()));
  std::string directory = leads ? save->made_->directory() : "";
  save->path_ = leads ? save->made_->path() : "";
  if (world != nullptr) {
    SLUICE_ASSIGN(directory, from_leader(*world, directory));
    SLUICE_ASSIGN(save->path_, from_leader(*world, save->path_));
  }
  const auto open_here = [&]() -> Status {
    std::error_code ignored;
    if (!std::filesystem::is_directory(directory, ignored))
      return bad_request(request.parent + " is not on a file system that all ranks see: " + directory +
                         ", which rank 0 has made, is not there");
    for (RankId r = save->here_.first; r < save->here_.end(); ++r) {
      SLUICE_ASSIGN(save->writers_.emplace_back(),
                    StateWriter::create(directory, manifest, save->files_[r], request.queue));
    }
    return success();
  };
  SLUICE_TRY(agreed(world, open_here()));
  return save;
}

std::uint64_t CheckpointSave::bytes_here() const {
  std::uint64_t bytes = 0;
  for (RankId r = here_.first; r < here_.end(); ++r) bytes += files_[r].state_bytes();
  return bytes;
}

Result<std::string> CheckpointSave::publish(const Status& own, const std::string& run) {
  const auto close = [&]() -> Status {
    SLUICE_TRY(own);
    for (RankId r = here_.first; r < here_.end(); ++r) {
      SLUICE_ASSIGN(files_[r], writer(r).close());
    }
    return success();
  };
  SLUICE_TRY(agreed(world_, close()));
  if (world_ != nullptr && !world_->is_alone()) SLUICE_TRY(share_files(*world_, files_, here_));
  const auto publish = [&]() -> Status {
    if (!made_) return success();
    std::erase_if(files_, [](const StoredFile& file) { return file.units.empty(); });
    manifest_.files = std::move(files_);
    manifest_.run = run;
    return made_->publish(manifest_);
  };
  SLUICE_TRY(agreed(world_, publish()));
  return path_;
}

Result<std::string> save_checkpoint(States& states, World* world, const CheckpointRequest& request,
                                    const States::Watch& watch) {
  SLUICE_ASSIGN(const auto save, CheckpointSave::begin(states, world, request));
  const RankRange here = states.here();
  const auto all = static_cast<double>(save->bytes_here());
  std::uint64_t done = 0;
  const auto write_here = [&]() -> Status {
    for (RankId r = here.first; r < here.end(); ++r)
      SLUICE_TRY(states.copy_out(r, save->writer(r), [&](std::uint64_t more) -> Status {
        return watch ? watch(static_cast<double>(done += more) / all) : success();
      }));
    return success();
  };
  return save->publish(write_here(), request.run);
}

}  // namespace sluice
