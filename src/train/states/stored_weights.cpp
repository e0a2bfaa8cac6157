#include "src/train/states/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sluice/adamw.h"
#include "src/model/hf_weights.h"
#include "src/train/run/companions.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/checkpoint_weights.h"
#include "src/train/states/hugging_face.h"
#include "src/train/states/joined_parts.h"

namespace sluice {
namespace {

constexpr std::uint64_t model_piece_numel = 1u << 19;

/// model.safetensors of a run that is complete.
class ModelWeights final : public StoredWeights {
 public:
  explicit ModelWeights(const RunDirectory& directory) : StoredWeights(directory) {}
  Status open(std::uint64_t steps) {
    SLUICE_ASSIGN(const ModelConfig config, load_config(directory_.path() + "/config.json"));
    model_ = build_model(config);
    step_ = steps;
    SLUICE_ASSIGN(weights_, HuggingFaceWeights::open(directory_.path(), model_));
    return success();
  }
  Place place() const override { return Place::model; }

  Status visit(bool masters, const Visit& visit_piece) override {
    WeightPieces pieces(model_, ShardMap(model_, 1), {0, 1}, model_piece_numel);
    SLUICE_ASSIGN(const auto stream, WeightStream::open(weights_, pieces, masters ? Dtype::f32 : dtype()));
    while (const std::optional<WeightPiece> piece = pieces.next()) {
      SLUICE_ASSIGN(const WeightValues values, stream->next());
      SLUICE_TRY(visit_piece(piece->unit, piece->first, values.first(piece->content_numel)));
    }
    return success();
  }

 private:
  HuggingFaceWeights weights_;
};

/// States of a run that can go on.
class StateWeights : public StoredWeights {
 public:
  explicit StateWeights(const RunDirectory& directory) : StoredWeights(directory) {}

 protected:
  Status prepare_states() {
    const RunDescription& run = *directory_.run();
    const DriveLayout layout{run.block_bytes, run.stripe_weights};
    RunConfig config = run.config;
    config.run = directory_.path();  // wherever it was when it began
    SLUICE_ASSIGN(prepared_, prepare_stored(config, run.schedule, layout));
    model_ = prepared_->model;
    return check_same_states(directory_, *prepared_);
  }

  std::unique_ptr<Prepared> prepared_;
};

/// The committed slots of a durable run.
class SlotWeights final : public StateWeights {
 public:
  explicit SlotWeights(const RunDirectory& directory) : StateWeights(directory) {}
  Status open(const RestoreListener& listener) {
    SLUICE_TRY(prepare_states());
    SLUICE_ASSIGN(engine_, Engine::open_states(*prepared_, run().id));
    SLUICE_ASSIGN(journal_, open_journal(directory_, *prepared_, *engine_, false, listener));
    SLUICE_ASSIGN(step_, take_newest(directory_, *engine_, *journal_));
    return success();
  }
  Place place() const override { return Place::slots; }
  Status verify(const RestoreListener& listener) override {
    SLUICE_ASSIGN(step_, restore_newest(directory_, *engine_, *journal_, listener));
    verified_ = true;
    return success();
  }

  Status visit(bool masters, const Visit& visit_weights) override {
    const SplitModel* const split = prepared_->workload.split;
    if (split == nullptr)
      return visit_parts(masters, [&](const WeightPiece& piece, const WeightValues& values) {
        return visit_weights(piece.unit, piece.first, values);
      });
    const bool wide = masters || dtype() == Dtype::f32;
    JoinedParts whole(*split, model_, wide ? 4 : 2, [&](UnitId unit, std::span<const std::byte> data) {
      const std::size_t n = data.size() / (wide ? 4 : 2);
      return visit_weights(unit, 0,
                           wide ? WeightValues(std::span(reinterpret_cast<const float*>(data.data()), n))
                                : WeightValues(std::span(reinterpret_cast<const bf16*>(data.data()), n)));
    });
    return visit_parts(masters, [&](const WeightPiece& piece, const WeightValues& values) {
      return whole.add(piece.unit, piece.part, piece.first_of_part, values.bytes());
    });
  }

 private:
  using VisitPart = std::function<Status(const WeightPiece& piece, const WeightValues& values)>;
  Status visit_parts(bool masters, const VisitPart& visit_piece) {
    const bool joined = masters && dtype() == Dtype::bf16;
    const std::vector<StateKind> kinds{StateKind::parameter, StateKind::remainder};
    std::vector<std::byte> parameters;  // of the piece whose remainder comes next
    std::vector<float> values;
    const auto convert = [&](const StatePiece& piece, std::span<const std::byte> data) -> Status {
      const std::uint64_t n = piece.weights.content_numel;
      if (n == 0) return success();
      if (dtype() == Dtype::f32)
        return visit_piece(piece.weights, std::span(reinterpret_cast<const float*>(data.data()), n));
      if (!joined) return visit_piece(piece.weights, std::span(reinterpret_cast<const bf16*>(data.data()), n));
      if (piece.kind == StateKind::parameter) {
        parameters.assign(data.begin(), data.end());
        return success();
      }
      values.resize(n);
      join_master(reinterpret_cast<const bf16*>(parameters.data()), reinterpret_cast<const std::int16_t*>(data.data()),
                  values.data(), static_cast<std::int64_t>(n));
      return visit_piece(piece.weights, std::span<const float>(values));
    };
    return scan(std::span(kinds).first(joined ? 2 : 1), convert);
  }

  /// These states of each piece, one after the other.
  Status scan(std::span<const StateKind> kinds, const States::VisitPiece& visit) {
    bool visit_failed = false;
    const Status scanned =
        engine_->states().scan_states(kinds, [&](const StatePiece& piece, std::span<const std::byte> data) {
          const Status visited = visit(piece, data);
          visit_failed = !visited.ok();
          return visited;
        });
    if (scanned.ok() || visit_failed || verified_) return scanned;
    return Error{ErrorCode::damaged, fmt::format("step {} can not be used: {}", step_, scanned.error().message)};
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepJournal> journal_;
  bool verified_ = false;
};

/// The checkpoint that a run keeps in its directory.
class SavedWeights final : public StateWeights {
 public:
  explicit SavedWeights(const RunDirectory& directory) : StateWeights(directory) {}
  Status open(const RestoreListener& listener) {
    SLUICE_TRY(prepare_states());
    SLUICE_ASSIGN(step_, verify_saved(directory_, *prepared_, listener.watch("verifying the states that were saved")));
    SLUICE_ASSIGN(checkpoint_, open_saved(directory_, directory_.newest_saved()));
    return success();
  }
  Place place() const override { return Place::saved; }

  Status visit(bool masters, const Visit& visit_weights) override {
    StoredFormats formats = checkpoint_.manifest().formats;
    if (masters) formats.parameters = Dtype::f32;
    SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(*prepared_));
    return visit_checkpoint(checkpoint_, model_, formats, StateKind::parameter, queue, visit_weights);
  }
  bool has_moments() const override { return true; }
  Status visit_moments(StateKind kind, const Visit& visit_values) override {
    SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(*prepared_));
    return visit_checkpoint(checkpoint_, model_, {}, kind, queue, visit_values);
  }

 private:
  Checkpoint checkpoint_;
};

template <class Weights, class Argument>
Result<std::unique_ptr<StoredWeights>> opened(const RunDirectory& directory, const Argument& argument) {
  auto weights = std::make_unique<Weights>(directory);
  SLUICE_TRY(weights->open(argument));
  return std::unique_ptr<StoredWeights>(std::move(weights));
}

}  // namespace

/// Runs that began before there were copies have what is still there.
std::string StoredWeights::companions() const {
  std::error_code ignored;
  const bool kept = std::filesystem::exists(directory_.companions(), ignored);
  return kept ? directory_.companions() : source_directory(run().config);
}

nlohmann::ordered_json StoredWeights::marks() const {
  return {{export_mark, {{"run", fmt::format("{:016x}", run().id)}, {"step", step_}}}};
}

Result<std::unique_ptr<StoredWeights>> StoredWeights::open(const RunDirectory& directory,
                                                           const RestoreListener& listener) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory.path(), ignored))
    return bad_request("there is no " + directory.path() + "; give the directory of a run");
  if (!directory.run()) return bad_request(directory.path() + " holds no run: there is no run.json in it");
  SLUICE_ASSIGN(const auto result, directory.result());
  if (result) return opened<ModelWeights>(directory, (*result)["steps"].get<std::uint64_t>());
  // Of a durable run too, while it is laid out otherwise.
  if (directory.has_saved()) return opened<SavedWeights>(directory, listener);
  if (directory.run()->config.durable == Durable::on && directory.has_commits())
    return opened<SlotWeights>(directory, listener);
  return bad_request(directory.path() +
                     ": the run was cut short before anything of it was kept; go on with it (sluice train --run " +
                     directory.path() + " --resume)");
}

}  // namespace sluice
