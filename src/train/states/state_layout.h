// The files of a checkpoint for a layout that no run has: which rank has which shard of which unit.
//
// Units are cut over stages; a stage's ranks are data x context x tensor. Each of the tensor's parts of a unit
// (src/model/split.h) is cut into as many shards as the stage has ranks of data and context. Ranks are numbered stage
// by stage, then shard by shard, then part by part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "src/model/model.h"

namespace sluice {

struct LayoutDegrees {
  std::uint32_t stages = 1, data = 1, tensor = 1, context = 1;
  std::uint32_t shards() const { return data * context; }  ///< of each part
  std::uint32_t ranks() const { return stages * shards() * tensor; }
  bool operator==(const LayoutDegrees&) const = default;
};

/// Elements of a state that are made and written at a time: whole blocks of every format.
constexpr std::uint64_t state_window_numel = 1u << 19;

/// bad_request where a degree is 0, there are more stages than units, or the model can not be cut into so many parts.
Status check_degrees(const ModelSpec& model, const LayoutDegrees& degrees);

/// The first unit of each stage, and behind them the count of all: neighbours, and of all such cuts one whose largest
/// stage is as small as it can be.
std::vector<std::size_t> cut_into_stages(const ModelSpec& model, std::uint32_t stages);

/// The states that a checkpoint has in these formats, in order.
std::vector<StateKind> state_kinds(const StoredFormats& formats, bool with_remainders, bool with_moments);

/// One file for each rank, in order, some without units: whose shards would be padding alone. The degrees have passed
/// check_degrees. Tensors are numbered as stored_tensors(model) has them.
std::vector<StoredFile> files_of_layout(const ModelSpec& model, const LayoutDegrees& degrees,
                                        const StoredFormats& formats, std::span<const StateKind> kinds);

}  // namespace sluice
