// The weights of a run that stands still, wherever it left them: in its model, in the committed slots of its swap file,
// or in the checkpoint in its directory. Read without arenas or lanes, and with nothing of the run changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/train/run/run_directory.h"
#include "src/train/states/whole_weights.h"

namespace sluice {

class StoredWeights : public WholeWeights {
 public:
  enum class Place : std::uint8_t { model, slots, saved };

  /// The state that the run would go on from, or the model that it ended with. Such a checkpoint is verified; of slots,
  /// which have checksums of their own, only what is read is, as it is read. `directory`, which keeps the run locked,
  /// outlives it. bad_request when it holds no run, when nothing of the run was kept, or when what was kept is not
  /// whole.
  static Result<std::unique_ptr<StoredWeights>> open(const RunDirectory& directory, const RestoreListener& listener);
  virtual Place place() const = 0;
  const RunDescription& run() const { return *directory_.run(); }
  std::string companions() const override;
  nlohmann::ordered_json marks() const override;
  Dtype dtype() const override { return run().config.dtype; }
  /// Of a bf16 run only until it is complete.
  bool has_masters() const override { return dtype() == Dtype::f32 || place() != Place::model; }

 protected:
  explicit StoredWeights(const RunDirectory& directory) : directory_(directory) {}

  const RunDirectory& directory_;
};

}  // namespace sluice
