// The weights of a model, wherever they are kept, unit by unit: what exports are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/model/model.h"
#include "src/train/states/restore.h"
#include "src/train/states/weight_pieces.h"

namespace sluice {

class WholeWeights {
 public:
  virtual ~WholeWeights() = default;

  const ModelSpec& model() const { return model_; }
  std::uint64_t step() const { return step_; }
  /// Of the parameters that steps compute with.
  virtual Dtype dtype() const = 0;
  /// Whether fp32 values can be had.
  virtual bool has_masters() const = 0;
  virtual bool has_moments() const { return false; }

  /// The directory that has what lies beside the weights (src/train/run/companions.h), which may be gone; empty where
  /// nothing does.
  virtual std::string companions() const = 0;
  /// What an exported config.json says beside the model: where it comes from, under `export_mark`, and special tokens.
  virtual nlohmann::ordered_json marks() const = 0;

  /// Reads everything that a checksum covers, whether it is of weights or not, and takes the newest state that is
  /// whole: step() may be an older one then. bad_request when none is.
  virtual Status verify(const RestoreListener&) { return success(); }

  /// Calls `visit` with consecutive pieces of each unit's flat buffer, without padding at its end: the parameters, as
  /// they are, or where `masters` is true and there are any the fp32 values that they are rounded from. Reading runs
  /// ahead of `visit`. Needs less than 80 MiB. damaged when what is read is not what was kept, or can not be read, and
  /// verify() may find an older state that is whole.
  using Visit = std::function<Status(UnitId unit, std::uint64_t first, const WeightValues& values)>;
  virtual Status visit(bool masters, const Visit& visit) = 0;
  /// The same of a moment, as fp32. bad_request where there are none.
  virtual Status visit_moments(StateKind, const Visit&) { return bad_request("there are no moments"); }

 protected:
  ModelSpec model_;
  std::uint64_t step_ = 0;
};

/// Of what an export is marked with in its config.json: {"step": N}, and of a run also {"run": "its number"}.
constexpr const char* export_mark = "sluice_export";

}  // namespace sluice
