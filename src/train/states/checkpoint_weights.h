// A checkpoint as the weights of a model: its run need not be there.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"
#include "src/train/states/whole_weights.h"

namespace sluice {

/// A state of every unit, as WholeWeights visits them, in these formats. bad_request, naming file and block, for what
/// is damaged.
Status visit_checkpoint(Checkpoint& checkpoint, const ModelSpec& model, const StoredFormats& formats, StateKind kind,
                        const QueueOptions& queue, const WholeWeights::Visit& visit);

class CheckpointWeights final : public WholeWeights {
 public:
  /// `path` as Checkpoint::open takes it.
  static Result<std::unique_ptr<CheckpointWeights>> open(const std::string& path);

  const std::string& path() const { return checkpoint_.path(); }
  Dtype dtype() const override { return checkpoint_.manifest().formats.parameters; }
  /// Without remainders they are the parameters.
  bool has_masters() const override { return true; }
  bool has_moments() const override;
  std::string companions() const override;
  nlohmann::ordered_json marks() const override;
  Status visit(bool masters, const Visit& visit) override;
  Status visit_moments(StateKind kind, const Visit& visit) override;

 private:
  CheckpointWeights() = default;
  Checkpoint checkpoint_;
};

}  // namespace sluice
