// A step as people look at it: what each lane does when, what kinds of work take, and what memory holds. Of a size that
// does not grow with the plan: what is short is merged.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/plan/simulate.h"

namespace sluice {

/// Ops of a lane that follow each other, as one where they are short. On a windowed lane each lasts from the end of the
/// one before it.
struct LaneSlice {
  double start = 0, end = 0;  ///< seconds from the start of the first op
  double busy = 0;            ///< of that time
  std::uint32_t ops = 0;
  std::string name;  ///< "forward L3.mlp mb1", "read L0.mlp to L2.mlp", "forward and others L0.mlp": what takes most
                     ///< comes first
};
struct LanePicture {
  LaneKind lane{};
  double busy_seconds = 0;
  std::vector<LaneSlice> slices;
};

/// Ops of a kind on a lane.
struct WorkPicture {
  LaneKind lane{};
  OpKind kind{};
  std::uint32_t ops = 0;
  double seconds = 0;  ///< in which at least one of them was under way
  std::uint64_t bytes = 0;
  double flop = 0;
};

/// What a buffer is there for. durable_copies: second slots, which a step writes beside those that it reads, and what
/// the drive has of states in host memory.
enum class Content : std::uint8_t {
  parameters,
  gradients,
  optimizer_states,
  durable_copies,
  activations,
  workspace,
  other
};
constexpr std::array<const char*, 7> content_names{
    "parameters", "gradients", "optimizer states", "durable copies", "activations", "workspace", "other"};
using ContentBytes = std::array<std::uint64_t, content_names.size()>;

/// What is alive of a tier: persistent buffers always, transients from the start of their first op to the end of their
/// last.
struct MemoryPicture {
  Arena arena{};
  std::uint64_t peak_bytes = 0;  ///< most alive at one time
  struct Point {
    double seconds = 0;  ///< from then on
    ContentBytes bytes{};
  };
  std::vector<Point> points;
};

struct StepPicture {
  double seconds = 0;  ///< from the start of the first op to the end of the last
  std::vector<LanePicture> lanes;
  std::vector<WorkPicture> work;  ///< by lane, then in the order of kinds
  std::vector<MemoryPicture> memory;
};
/// `timeline` is of one iteration.
StepPicture step_picture(const StepPlan& plan, const Timeline& timeline);

/// Of each buffer.
std::vector<Content> contents_of(const StepPlan& plan);
std::vector<MemoryPicture> memory_picture(const StepPlan& plan, const Timeline& timeline);

}  // namespace sluice
