// A workload of fewer layers and micro-batches that stands for a large one.
//
// Layers of a transformer are alike, and so are the micro-batches that pass a pipeline once it is full: what a step
// takes grows in a straight line with both. So a large step is simulated with a few layers of every place along the
// pipeline, and with two numbers of micro-batches whose line is followed to the whole.
#pragma once

#include <optional>
#include <vector>

#include "src/schedule/needs.h"

namespace sluice {

class Sample {
 public:
  /// The workload outlives it.
  explicit Sample(const Workload& whole, const PipelineChoice& pipeline = {});
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  /// Whether it is the workload itself, with all layers and micro-batches.
  bool is_whole() const { return !has_fewer_layers() && !fewer_micro_batches_; }

  /// How many micro-batches stand for the whole's in a schedule with groups of that size: two ends of a line, or all
  /// of them twice.
  struct Lengths {
    int few, more;
  };
  Lengths lengths(const Schedule& schedule) const;
  /// With the whole's budgets.
  Workload workload(int micro_batches) const;
  /// With budgets that leave each of its layers as much room as the whole's have: what does not grow with layers is
  /// that of schedules that keep on the device what they can, or of those that stream all of it.
  enum class Kind : std::uint8_t { keeping, streaming };
  Workload with_room(const Schedule& like, Kind kind) const;

  /// Each layer with the choices of the one that lies as far along its place.
  Schedule of(const Schedule& whole) const;
  Schedule whole(const Schedule& sampled) const;

  /// Of a step of the whole, from those of the two lengths, which are `few` and `more` apart.
  double whole_seconds(double few, double more, Lengths lengths) const;
  /// How much larger the whole's largest stage is, by FLOP.
  double scale() const { return scale_; }

 private:
  bool has_fewer_layers() const { return !model_.units.empty(); }
  TierBytes fixed_needs(const Schedule& like, Kind kind) const;
  Schedule mapped(const Schedule& from, const Workload& from_work, const Workload& to_work) const;

  const Workload& whole_;
  PipelineChoice pipeline_;
  ModelSpec model_;  ///< empty: the whole's
  std::optional<SplitModel> split_;
  Workload few_;
  bool fewer_micro_batches_ = false;
  double scale_ = 1;
};

/// Of a streamed step with tiles of the usual size, roughly, of all stages.
double expected_ops(const Workload& workload);

}  // namespace sluice
