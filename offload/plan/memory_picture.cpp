// What memory holds over a step, by tier and by what it is there for.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "offload/plan/finish.h"
#include "offload/plan/step_picture.h"

namespace sluice {
namespace {

/// More points than that are thinned out to one a bin, that with the most alive.
constexpr std::size_t points_max = 600;

Content content_of(StateKind state) {
  if (state == StateKind::parameter) return Content::parameters;
  return state == StateKind::gradient ? Content::gradients : Content::optimizer_states;
}

/// None where a role says where bytes go, and not what they are.
std::optional<Content> content_of(Role role) {
  switch (role) {
    case Role::src:
    case Role::dst: return std::nullopt;
    case Role::parameters:
    case Role::tied_parameters: return Content::parameters;
    case Role::gradient:
    case Role::tied_gradient: return Content::gradients;
    case Role::remainder:
    case Role::exp_avg:
    case Role::exp_avg_sq: return Content::optimizer_states;
    case Role::workspace: return Content::workspace;
    case Role::tokens:
    case Role::loss:
    case Role::logits:
    case Role::control:
    case Role::diverged: return Content::other;
    default: return Content::activations;
  }
}

std::optional<Content> content_of(const Buffer& buffer) {
  switch (buffer.holds) {
    case Holds::work: return std::nullopt;
    case Holds::home: return content_of(buffer.state);
    case Holds::mirror: return Content::durable_copies;
    case Holds::resident: return Content::parameters;
    case Holds::rope:
    case Holds::logits: return Content::other;
  }
  return std::nullopt;
}

/// Changes of what is alive, in the order of time.
class Changes {
 public:
  explicit Changes(const StepPlan& plan) : plan_(plan), contents_(contents_of(plan)) {}

  void add(double seconds, BufferId buffer, bool begins) {
    const Buffer& b = plan_.buffers[buffer];
    const auto sign = begins ? std::int64_t{1} : std::int64_t{-1};
    const bool is_mirror = b.holds == Holds::mirror;
    const auto slot = static_cast<std::int64_t>(padded_bytes(b.bytes));
    put(b.tier, seconds, contents_[buffer], sign * slot);
    if (b.slots > 1) put(b.tier, seconds, is_mirror ? contents_[buffer] : Content::durable_copies, sign * slot);
  }
  std::vector<MemoryPicture::Point> points(Tier tier) const {
    std::vector<MemoryPicture::Point> all;
    const auto found = tiers_.find(tier);
    if (found == tiers_.end()) return all;
    MemoryPicture::Point now;
    for (const auto& [seconds, change] : found->second) {
      now.seconds = seconds;
      for (std::size_t i = 0; i < change.size(); ++i) now.bytes[i] += static_cast<std::uint64_t>(change[i]);
      if (all.empty() || all.back().bytes != now.bytes) all.push_back(now);
    }
    return all;
  }

 private:
  using Change = std::array<std::int64_t, content_names.size()>;
  void put(Tier tier, double seconds, Content content, std::int64_t bytes) {
    tiers_[tier][seconds][static_cast<std::size_t>(content)] += bytes;
  }
  const StepPlan& plan_;
  std::vector<Content> contents_;
  std::map<Tier, std::map<double, Change>> tiers_;
};

std::uint64_t sum(const MemoryPicture::Point& point) {
  return std::accumulate(point.bytes.begin(), point.bytes.end(), std::uint64_t{0});
}

/// The highest point of each bin stays, so that peaks do.
std::vector<MemoryPicture::Point> thinned(std::vector<MemoryPicture::Point> points, double seconds) {
  if (points.size() <= points_max) return points;
  std::vector<MemoryPicture::Point> kept;
  const double bin = seconds / static_cast<double>(points_max);
  double bin_end = -1;
  for (const MemoryPicture::Point& point : points) {
    if (point.seconds >= bin_end) {
      kept.push_back(point);
      bin_end = point.seconds + bin;
    } else if (sum(point) > sum(kept.back())) {
      kept.back().bytes = point.bytes;
    }
  }
  return kept;
}

}  // namespace

std::vector<Content> contents_of(const StepPlan& plan) {
  std::vector<std::optional<Content>> known;
  known.reserve(plan.buffers.size());
  for (const Buffer& buffer : plan.buffers) known.push_back(content_of(buffer));
  for (const Op& op : plan.ops)
    for (const Access& a : op.accesses)
      if (!known[a.buffer]) known[a.buffer] = content_of(a.role);
  // What is only copied is what it is copied from, or to.
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const Op& op : plan.ops) {
      std::optional<Content> moved;
      for (const Access& a : op.accesses)
        if (!moved && !content_of(a.role)) moved = known[a.buffer];
      for (const Access& a : op.accesses)
        if (moved && !known[a.buffer]) known[a.buffer] = moved, goes_on = true;
    }
  }
  std::vector<Content> contents;
  contents.reserve(known.size());
  for (const std::optional<Content>& content : known) contents.push_back(content.value_or(Content::other));
  return contents;
}

std::vector<MemoryPicture> memory_picture(const StepPlan& plan, const Timeline& timeline) {
  struct Alive {
    double start = std::numeric_limits<double>::infinity(), end = 0;
    double carried_end = 0;  ///< of what was carried into the iteration
  };
  std::vector<Alive> lives(plan.buffers.size());
  const Lives ops = lives_of(plan);
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const Span& span : timeline) {
    begin = std::min(begin, span.start);
    end = std::max(end, span.end);
    for (const Access& a : plan.ops[span.op].accesses) {
      if (ops.was_carried(a.buffer, plan.buffers[a.buffer].life, span.op)) {
        lives[a.buffer].carried_end = std::max(lives[a.buffer].carried_end, span.end);
        continue;
      }
      lives[a.buffer].start = std::min(lives[a.buffer].start, span.start);
      lives[a.buffer].end = std::max(lives[a.buffer].end, span.end);
    }
  }
  Changes changes(plan);
  for (BufferId b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].life == Life::persistent) {
      changes.add(0, b, true);
      continue;
    }
    if (lives[b].carried_end > 0) {
      changes.add(0, b, true);
      changes.add(lives[b].carried_end - begin, b, false);
    }
    if (lives[b].start > lives[b].end) continue;
    changes.add(lives[b].start - begin, b, true);
    if (is_transient(plan.buffers[b].life)) changes.add(lives[b].end - begin, b, false);
  }
  std::vector<MemoryPicture> pictures;
  for (const Arena& arena : plan.arenas) {
    MemoryPicture picture{.arena = arena, .points = changes.points(arena.tier)};
    for (const MemoryPicture::Point& point : picture.points)
      picture.peak_bytes = std::max(picture.peak_bytes, sum(point));
    picture.points = thinned(std::move(picture.points), end - begin);
    pictures.push_back(std::move(picture));
  }
  return pictures;
}

}  // namespace sluice
