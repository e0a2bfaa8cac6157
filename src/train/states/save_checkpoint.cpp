#include "src/train/states/save_checkpoint.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "io/checkpoint/state_writer.h"
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
  std::filesystem::path there = parent;
  std::error_code ignored;
  while (!std::filesystem::exists(there, ignored) && there.has_parent_path() && there != there.parent_path())
    there = there.parent_path();
  struct statvfs space {};
  if (statvfs(there.empty() ? "." : there.c_str(), &space) != 0) return success();
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (bytes <= free) return success();
  return bad_request(parent + ": a checkpoint takes " + format_bytes(bytes) + ", and " + format_bytes(free) +
                     " are free there; make room, or give another directory");
}

Result<std::string> save_checkpoint(States& states, World* world, const CheckpointRequest& request,
                                    const States::Watch& watch) {
  Manifest manifest;
  manifest.step = request.step;
  manifest.formats = states.formats();
  manifest.tensors = states.tensors();
  manifest.model = request.model;
  manifest.run = request.run;
  std::vector<StoredFile> files = states.files();  // of all ranks
  const bool leads = world == nullptr || world->leads();
  std::optional<NewCheckpoint> made;
  const auto make = [&]() -> Status {
    if (!leads) return success();
    SLUICE_TRY(check_checkpoint_room(request.parent, states.checkpoint_bytes()));
    SLUICE_ASSIGN(made, NewCheckpoint::create(request.parent, request.step, request.replace));
    return success();
  };
  SLUICE_TRY(agreed(world, make()));
  std::string directory = leads ? made->directory() : "", path = leads ? made->path() : "";
  if (world != nullptr) {
    SLUICE_ASSIGN(directory, from_leader(*world, directory));
    SLUICE_ASSIGN(path, from_leader(*world, path));
  }
  const RankRange here = states.here();
  std::uint64_t done = 0, all = 0;
  for (RankId r = here.first; r < here.end(); ++r)
    for (const StoredUnit& unit : files[r].units)
      for (const StoredState& s : unit.states) all += s.bytes;
  const auto write_here = [&]() -> Status {
    std::error_code ignored;
    if (!std::filesystem::is_directory(directory, ignored))
      return bad_request(request.parent + " is not on a file system that all ranks see: " + directory +
                         ", which rank 0 has made, is not there");
    for (RankId r = here.first; r < here.end(); ++r) {
      SLUICE_ASSIGN(const auto writer, StateWriter::create(directory, manifest, files[r], request.queue));
      SLUICE_TRY(states.copy_out(r, *writer, [&](std::uint64_t more) -> Status {
        return watch ? watch(static_cast<double>(done += more) / static_cast<double>(all)) : success();
      }));
      SLUICE_ASSIGN(files[r], writer->close());
    }
    return success();
  };
  SLUICE_TRY(agreed(world, write_here()));
  if (world != nullptr && !world->is_alone()) SLUICE_TRY(share_files(*world, files, here));
  const auto publish = [&]() -> Status {
    if (!leads) return success();
    std::erase_if(files, [](const StoredFile& file) { return file.units.empty(); });
    manifest.files = std::move(files);
    return made->publish(manifest);
  };
  SLUICE_TRY(agreed(world, publish()));
  return path;
}

}  // namespace sluice
