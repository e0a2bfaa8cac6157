#include "src/train/states/reshape_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "sluice/size.h"
#include "src/train/states/save_checkpoint.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/state_source.h"
#include "src/train/states/write_ring.h"

namespace sluice {
namespace {

constexpr std::uint64_t window_bytes = state_window_numel * 4;  ///< of the widest format
constexpr std::uint64_t program_bytes = 48u << 20;              ///< with a manifest and what HDF5 keeps
constexpr std::uint64_t converting_bytes = 4 * window_bytes;    ///< StateSource's window, and what it is made from
constexpr std::size_t buffers_min = 6;

constexpr std::size_t open_files_max = 16;  ///< that are written at once, if parts are no more

/// Files that are written side by side: some shards of one stage with all their parts. What lies in two shards is then
/// read once.
struct Group {
  std::span<StoredFile> files;  ///< shard by shard, the parts of one together; those have the same units
  std::size_t parts = 1;
  std::size_t shards() const { return files.size() / parts; }
  const std::vector<StoredUnit>& units(std::size_t shard) const { return files[shard * parts].units; }
};

/// The windows of a group's states: all parts of one, then the next state, then the next elements, then the next shard
/// that has some of the unit.
class GroupWindows {
 public:
  struct Place {
    std::size_t file = 0, unit = 0, state = 0;
    std::uint64_t first = 0, numel = 0;
  };
  explicit GroupWindows(const Group& group) : group_(group) {
    // A shard has no units that are padding there. One has all of them.
    std::size_t fullest = 0;
    for (std::size_t s = 1; s < group.shards(); ++s)
      if (group.units(s).size() > group.units(fullest).size()) fullest = s;
    std::vector<std::size_t> next(group.shards(), 0);
    for (const StoredUnit& unit : group.units(fullest))
      for (std::size_t s = 0; s < group.shards(); ++s)
        if (next[s] < group.units(s).size() && group.units(s)[next[s]].name == unit.name)
          turns_.push_back({s, next[s]++});
    for (std::size_t s = 0; s < group.shards(); ++s)
      SLUICE_CHECK(next[s] == group.units(s).size(), "(shard %zu has a unit that the fullest one has not)", s);
  }
  /// Empty after the last.
  std::optional<Place> next() {
    if (turn_ == turns_.size()) return std::nullopt;
    const auto [shard, index] = turns_[turn_];
    const StoredUnit& unit = group_.units(shard)[index];
    const Place place{shard * group_.parts + part_, index, state_, first_,
                      std::min(state_window_numel, unit.numel - first_)};
    if (++part_ < group_.parts) return place;
    part_ = 0;
    if (++state_ < unit.states.size()) return place;
    state_ = 0;
    if ((first_ += place.numel) < unit.numel) return place;
    first_ = 0;
    ++turn_;
    return place;
  }

 private:
  struct Turn {
    std::size_t shard, unit;
  };
  Group group_;
  std::vector<Turn> turns_;
  std::size_t turn_ = 0, state_ = 0, part_ = 0;
  std::uint64_t first_ = 0;
};

class Reshaping {
 public:
  Reshaping(Checkpoint& from, const ReshapeRequest& request, const std::function<Status(double)>& watch)
      : from_(from), request_(request), watch_(watch) {}

  Result<ReshapeResult> run();

 private:
  Status plan();
  Status check_memory();
  Result<std::string> described_model() const;
  Status write_group(const std::string& directory, StateSource& source, const Group& group);
  std::vector<Group> groups();
  /// The pieces of a group's units, by file and unit, with the tensors' numbers in the source.
  using Pieces = std::vector<std::vector<std::vector<TensorPiece>>>;
  Pieces pieces_of(const Group& group) const;
  std::size_t buffers() const { return request_.degrees.tensor + buffers_min; }
  std::uint64_t fixed_bytes() const { return program_bytes + converting_bytes + buffers() * window_bytes; }

  Checkpoint& from_;
  const ReshapeRequest& request_;
  const std::function<Status(double)>& watch_;
  Manifest to_;                         ///< without its files until all are written
  std::vector<StoredFile> files_;       ///< of all ranks
  std::vector<std::uint32_t> numbers_;  ///< of the tensors, in the source
  std::uint64_t ahead_bytes_ = 0, done_bytes_ = 0, all_bytes_ = 0;
};

std::vector<Group> Reshaping::groups() {
  std::vector<Group> groups;
  const std::size_t parts = request_.degrees.tensor, of_stage = parts * request_.degrees.shards();
  const std::size_t most = parts * std::max<std::size_t>(1, open_files_max / parts);
  for (std::size_t stage = 0; stage < files_.size(); stage += of_stage) {
    const std::span<StoredFile> files(files_.data() + stage, of_stage);
    std::size_t begin = 0, n = 0;
    const auto add = [&] {
      if (n > 0) groups.push_back({files.subspan(begin, n), parts});
      n = 0;
    };
    for (std::size_t f = 0; f < of_stage; f += parts) {
      if (n == most || files[f].units.empty()) add();
      if (files[f].units.empty()) continue;
      if (n == 0) begin = f;
      n += parts;
    }
    add();
  }
  return groups;
}

Reshaping::Pieces Reshaping::pieces_of(const Group& group) const {
  Pieces all;
  for (const StoredFile& file : group.files) {
    auto& units = all.emplace_back();
    for (const StoredUnit& unit : file.units) {
      units.push_back(unit.pieces);
      for (TensorPiece& piece : units.back()) piece.tensor = numbers_[piece.tensor];
    }
  }
  return all;
}

/// The configuration with the dtype that its weights now have.
Result<std::string> Reshaping::described_model() const {
  const std::string& text = from_.manifest().model;
  if (to_.formats.parameters == from_.manifest().formats.parameters) return text;
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return bad_request(from_.path() + ": its model is not a JSON object");
  json["torch_dtype"] = to_.formats.parameters == Dtype::bf16 ? "bfloat16" : "float32";
  return json.dump();
}

/// What is to be written, and whether that can be done.
Status Reshaping::plan() {
  const Manifest& from = from_.manifest();
  SLUICE_ASSIGN(const ModelSpec model, model_of(from_));
  SLUICE_TRY(check_degrees(model, request_.degrees));
  to_.step = from.step;
  to_.run = from.run;
  to_.formats = from.formats;
  to_.formats.parameters = request_.parameters.value_or(from.formats.parameters);
  to_.formats.moments = request_.moments.value_or(from.formats.moments);
  if (to_.formats.moments != from.formats.moments)
    to_.formats.moment_group_numel = MomentLayout::of(to_.formats.moments, state_window_numel).group_numel;
  SLUICE_ASSIGN(to_.model, described_model());
  to_.tensors = stored_tensors(model);
  const StateSource source(from_, to_.formats, {});
  SLUICE_ASSIGN(numbers_, source.tensors(to_.tensors));
  const bool with_remainders = from.formats.parameters == Dtype::f32 || source.has_remainders();
  files_ = files_of_layout(model, request_.degrees, to_.formats,
                           state_kinds(to_.formats, with_remainders, source.has_moments()));
  all_bytes_ = state_bytes(files_);
  SLUICE_TRY(check_memory());
  return check_checkpoint_room(request_.parent, all_bytes_);
}

/// What is left for blocks of the source must have those of all parts of any window: then each is read once.
Status Reshaping::check_memory() {
  const StateSource source(from_, to_.formats, {});
  std::uint64_t most = 0;
  for (const Group& group : groups()) {
    const Pieces pieces = pieces_of(group);
    GroupWindows windows(group);
    std::vector<StateWindow> together;
    while (const auto w = windows.next()) {
      const StateKind kind = group.files[w->file].units[w->unit].states[w->state].kind;
      together.push_back({&pieces[w->file][w->unit], kind, w->first, w->numel, 0});
      if (together.size() < group.parts) continue;
      most = std::max(most, source.block_bytes(together));
      together.clear();
    }
  }
  const std::uint64_t needed_mib = ((fixed_bytes() + most) >> 20) + 1;
  if (request_.memory_bytes < needed_mib << 20)
    return bad_request(fmt::format("--host-memory {} is too little for this: it takes {}MiB; give at least that",
                                   format_bytes(request_.memory_bytes), needed_mib));
  ahead_bytes_ = request_.memory_bytes - fixed_bytes();
  return success();
}

Status Reshaping::write_group(const std::string& directory, StateSource& source, const Group& group) {
  WriteRing ring(buffers(), window_bytes);
  std::vector<std::unique_ptr<StateWriter>> writers;
  for (const StoredFile& file : group.files) {
    SLUICE_ASSIGN(auto writer, StateWriter::create(directory, to_, file, request_.writes));
    writers.push_back(std::move(writer));
  }
  const Pieces pieces = pieces_of(group);
  GroupWindows ahead(group), windows(group);
  const auto next = [&]() -> std::optional<StateWindow> {
    const auto w = ahead.next();
    if (!w) return std::nullopt;
    return StateWindow{&pieces[w->file][w->unit], group.files[w->file].units[w->unit].states[w->state].kind, w->first,
                       w->numel, 0};
  };
  const auto write = [&](const StateWindow& window, std::span<const std::byte> data) -> Status {
    const auto w = windows.next();
    SLUICE_ASSIGN(std::byte* const memory, ring.take());
    std::memcpy(memory, data.data(), data.size());
    SLUICE_TRY(ring.write(*writers[w->file], w->unit, w->state, stored_bytes(to_.formats, window.kind, window.first),
                          data.size()));
    done_bytes_ += data.size();
    return watch_ ? watch_(static_cast<double>(done_bytes_) / static_cast<double>(all_bytes_)) : success();
  };
  SLUICE_TRY(source.scan(next, write));
  SLUICE_TRY(ring.finish());
  for (std::size_t file = 0; file < group.files.size(); ++file) {
    SLUICE_ASSIGN(group.files[file], writers[file]->close());
  }
  return success();
}

Result<ReshapeResult> Reshaping::run() {
  SLUICE_TRY(plan());
  SLUICE_ASSIGN(NewCheckpoint made, NewCheckpoint::create(request_.parent, to_.step));
  StateSource source(from_, to_.formats, request_.reads, ahead_bytes_);
  for (const Group& group : groups()) SLUICE_TRY(write_group(made.directory(), source, group));
  std::erase_if(files_, [](const StoredFile& file) { return file.units.empty(); });
  to_.files = std::move(files_);
  SLUICE_TRY(made.publish(to_));
  ReshapeResult result;
  result.path = made.path();
  result.step = to_.step;
  result.files = to_.files.size();
  result.state_bytes = all_bytes_;
  result.read_bytes = source.read_bytes();
  result.formats = to_.formats;
  result.has_moments = source.has_moments();
  result.encoded_blocks = source.encoded_blocks();
  const MomentFormat before = from_.manifest().formats.moments, now = to_.formats.moments;
  const bool widened = now == MomentFormat::f32;  // has every value that the others have
  result.exact = !result.has_moments || widened || (before == now && result.encoded_blocks == 0);
  return result;
}

}  // namespace

Result<ModelSpec> model_of(const Checkpoint& checkpoint) {
  SLUICE_ASSIGN(const ModelConfig config, parse_hf_config(checkpoint.manifest().model, checkpoint.path()));
  return build_model(config);
}

Result<ReshapeResult> reshape_checkpoint(Checkpoint& from, const ReshapeRequest& request,
                                         const std::function<Status(double)>& watch) {
  return Reshaping(from, request, watch).run();
}

}  // namespace sluice
