#include "src/train/states/checkpoint_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/train/run/companions.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/reshape_checkpoint.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/state_source.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t piece_numel = 1u << 19;

}  // namespace

Status visit_checkpoint(Checkpoint& checkpoint, const ModelSpec& model, const StoredFormats& formats, StateKind kind,
                        const QueueOptions& queue, const WholeWeights::Visit& visit) {
  StateSource source(checkpoint, formats, queue);
  SLUICE_ASSIGN(const std::vector<std::uint32_t> numbers, source.tensors(stored_tensors(model)));
  const ShardMap map(model, 1);
  std::vector<std::vector<TensorPiece>> units;
  for (UnitId u = 0; u < static_cast<UnitId>(model.units.size()); ++u) {
    units.push_back(shard_pieces(model, nullptr, map, u, 0));
    for (TensorPiece& piece : units.back()) piece.tensor = numbers[piece.tensor];
  }
  WeightPieces pieces(model, map, {0, 1}, piece_numel);
  const auto next = [&]() -> std::optional<StateWindow> {
    const std::optional<WeightPiece> piece = pieces.next();
    if (!piece) return std::nullopt;
    const auto unit = static_cast<std::size_t>(piece->unit);
    return StateWindow{&units[unit], kind, piece->at, piece->numel, unit};
  };
  const bool is_bf16 = kind == StateKind::parameter && formats.parameters == Dtype::bf16;
  return source.scan(next, [&](const StateWindow& window, std::span<const std::byte> data) -> Status {
    const auto unit = static_cast<UnitId>(window.target);
    const std::uint64_t content = map.unit_numel(unit) - window.first, n = std::min(window.numel, content);
    if (is_bf16) return visit(unit, window.first, std::span(reinterpret_cast<const bf16*>(data.data()), n));
    return visit(unit, window.first, std::span(reinterpret_cast<const float*>(data.data()), n));
  });
}

Result<std::unique_ptr<CheckpointWeights>> CheckpointWeights::open(const std::string& path) {
  std::unique_ptr<CheckpointWeights> weights(new CheckpointWeights);
  SLUICE_ASSIGN(weights->checkpoint_, Checkpoint::open(path));
  SLUICE_ASSIGN(weights->model_, model_of(weights->checkpoint_));
  weights->step_ = weights->checkpoint_.manifest().step;
  return weights;
}

bool CheckpointWeights::has_moments() const {
  for (const StoredFile& file : checkpoint_.manifest().files)
    for (const StoredUnit& unit : file.units)
      for (const StoredState& state : unit.states)
        if (state.kind == StateKind::exp_avg) return true;
  return false;
}

/// Those of the run that wrote it, where it says where it was; else what it began from.
std::string CheckpointWeights::companions() const {
  const Result<SavedRun> saved = saved_run_from_json(checkpoint_.manifest().run);
  if (!saved.ok()) return {};
  const std::string kept = saved->run.place ? companions_of_run(saved->run.place->path) : "";
  std::error_code ignored;
  return std::filesystem::exists(kept, ignored) ? kept : source_directory(saved->run.config);
}

Json CheckpointWeights::marks() const {
  Json mark = Json::object();
  if (const Result<SavedRun> saved = saved_run_from_json(checkpoint_.manifest().run); saved.ok())
    mark["run"] = fmt::format("{:016x}", saved->run.id);
  mark["step"] = step();
  Json marks{{export_mark, mark}};
  marks.update(special_tokens_of(Json::parse(checkpoint_.manifest().model)));
  return marks;
}

Status CheckpointWeights::visit(bool masters, const Visit& visit_weights) {
  StoredFormats formats = checkpoint_.manifest().formats;
  if (masters) formats.parameters = Dtype::f32;
  return visit_checkpoint(checkpoint_, model_, formats, StateKind::parameter, {}, visit_weights);
}

Status CheckpointWeights::visit_moments(StateKind kind, const Visit& visit_values) {
  if (!has_moments()) return bad_request(path() + " has parameters alone, and no moments");
  return visit_checkpoint(checkpoint_, model_, {}, kind, {}, visit_values);
}

}  // namespace sluice
