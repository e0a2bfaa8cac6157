#include "offload/plan/step_picture.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sluice {
namespace {

/// A lane shows at most twice as many slices.
constexpr double bins_of_lane = 500;

double first_start(const Timeline& timeline) {
  const auto first = std::ranges::min_element(timeline, {}, &Span::start);
  return first == timeline.end() ? 0 : first->start;
}

std::string unit_of(const StepPlan& plan, const Op& op) {
  return op.unit >= 0 ? plan.units[static_cast<std::size_t>(op.unit)] : "";
}

/// Merges ops of a lane, which come by their start.
class LaneDrawer {
 public:
  LaneDrawer(const StepPlan& plan, LaneKind lane, double begin, double bin) : plan_(plan), begin_(begin), bin_(bin) {
    picture_.lane = lane;
  }

  void add(const Span& span) {
    const Op& op = plan_.ops[span.op];
    const double start = std::max(span.start - begin_, end_), end = std::max(span.end - begin_, start);
    picture_.busy_seconds += end - start;
    end_ = end;
    std::vector<LaneSlice>& slices = picture_.slices;
    if (slices.empty() || end - slices.back().start > bin_) {
      name();
      slices.push_back({start, end, end - start, 1, ""});
      first_ = last_ = &op;
      busy_ = {{op.kind, end - start}};
      return;
    }
    LaneSlice& slice = slices.back();
    slice.end = end;
    slice.busy += end - start;
    ++slice.ops;
    last_ = &op;
    busy_[op.kind] += end - start;
  }
  LanePicture finish() {
    name();
    return std::move(picture_);
  }

 private:
  void name() {
    if (first_ == nullptr) return;
    LaneSlice& slice = picture_.slices.back();
    const auto most = std::ranges::max_element(busy_, {}, [](const auto& kind) { return kind.second; });
    slice.name = op_names[static_cast<std::size_t>(most->first)];
    if (busy_.size() > 1) slice.name += " and others";
    const std::string from = unit_of(plan_, *first_), to = unit_of(plan_, *last_);
    if (!from.empty()) slice.name += " " + from;
    if (!to.empty() && to != from) slice.name += " to " + to;
    if (slice.ops == 1 && first_->micro_batch >= 0) slice.name += " mb" + std::to_string(first_->micro_batch);
    if (slice.ops == 1 && first_->tile >= 0) slice.name += " tile " + std::to_string(first_->tile);
  }

  const StepPlan& plan_;
  double begin_, bin_, end_ = 0;
  LanePicture picture_;
  const Op *first_ = nullptr, *last_ = nullptr;
  std::map<OpKind, double> busy_;  ///< seconds of the last slice
};

/// Sums up ops of a kind on a lane, which come by their start.
class WorkCounter {
 public:
  void add(const StepPlan& plan, const Span& span) {
    const Op& op = plan.ops[span.op];
    const LaneKind lane = plan.lanes[op.lane].kind;
    auto& [work, end] = by_kind_[{lane, op.kind}];
    work.lane = lane;
    work.kind = op.kind;
    ++work.ops;
    work.bytes += op.bytes;
    work.flop += op.flop;
    const double start = work.ops > 1 ? std::max(span.start, end) : span.start;
    work.seconds += std::max(0.0, span.end - start);
    end = std::max(start, span.end);
  }
  std::vector<WorkPicture> finish() const {
    std::vector<WorkPicture> all;
    for (const auto& [kind, counted] : by_kind_) all.push_back(counted.first);
    return all;
  }

 private:
  std::map<std::pair<LaneKind, OpKind>, std::pair<WorkPicture, double>> by_kind_;  ///< and the end of the last
};

}  // namespace

StepPicture step_picture(const StepPlan& plan, const Timeline& timeline) {
  StepPicture picture;
  if (timeline.empty()) return picture;
  const double begin = first_start(timeline);
  picture.seconds = std::ranges::max_element(timeline, {}, &Span::end)->end - begin;
  Timeline spans = timeline;
  std::ranges::stable_sort(spans, {}, &Span::start);
  WorkCounter work;
  std::map<LaneKind, LaneDrawer> lanes;
  for (const Span& span : spans) {
    work.add(plan, span);
    const LaneKind lane = plan.lanes[plan.ops[span.op].lane].kind;
    lanes.try_emplace(lane, plan, lane, begin, picture.seconds / bins_of_lane).first->second.add(span);
  }
  for (auto& [kind, lane] : lanes) picture.lanes.push_back(lane.finish());
  picture.work = work.finish();
  picture.memory = memory_picture(plan, timeline);
  return picture;
}

}  // namespace sluice
