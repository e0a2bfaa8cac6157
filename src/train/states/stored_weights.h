// The weights of a run that stands still, wherever it left them: in its model, in the committed slots of its swap file,
// or in the
// checkpoint in its directory. Read without arenas or lanes, and with nothing of the run changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "src/model/model.h"
#include "src/train/run/run_directory.h"
#include "src/train/states/restore.h"

namespace sluice {

class StoredWeights {
 public:
  enum class Place : std::uint8_t { model, slots, saved };

  /// The state that the run would go on from, or the model that it ended with. Such a checkpoint is verified; of slots,
  /// which have checksums of their own, only what is read is, as it is read. `directory`, which keeps the run locked,
  /// outlives it. bad_request when it holds no run, when nothing of the run was kept, or when what was kept is not
  /// whole.
  static Result<std::unique_ptr<StoredWeights>> open(const RunDirectory& directory, const RestoreListener& listener);
  virtual ~StoredWeights() = default;

  /// Reads everything that a checksum covers, whether it is of weights or not, and takes the newest state that is
  /// whole: step() may be an older one then. bad_request when none is.
  virtual Status verify(const RestoreListener&) { return success(); }

  virtual Place place() const = 0;
  const RunDescription& run() const { return *directory_.run(); }
  const ModelSpec& model() const { return model_; }
  /// Where the run keeps what lies beside the weights, if it does.
  std::string companions() const { return directory_.companions(); }
  std::uint64_t step() const { return step_; }
  /// Of the parameters that steps compute with.
  Dtype dtype() const { return run().config.dtype; }
  /// Whether fp32 values can be had: of a bf16 run only until it is complete.
  bool has_masters() const { return dtype() == Dtype::f32 || place() != Place::model; }

  /// Calls `visit` with consecutive pieces of each unit's flat buffer, without padding at its end: the parameters, as
  /// they are, or where `masters` is true and there are any the fp32 values that they are rounded from. Reading runs
  /// ahead of `visit`. Needs less than 48 MiB. damaged when what is read is not what was kept, or can not be read, and
  /// verify() may find an older state that is whole.
  using Visit = std::function<Status(UnitId unit, std::uint64_t first, const WeightValues& values)>;
  virtual Status visit(bool masters, const Visit& visit) = 0;

 protected:
  explicit StoredWeights(const RunDirectory& directory) : directory_(directory) {}

  const RunDirectory& directory_;
  ModelSpec model_;
  std::uint64_t step_ = 0;
};

}  // namespace sluice
