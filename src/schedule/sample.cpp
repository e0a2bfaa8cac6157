#include "src/schedule/sample.h"

#include <algorithm>
#include <cmath>

#include "src/schedule/stages.h"

namespace sluice {
namespace {

/// A plan of so many ops is simulated in about a tenth of a second.
constexpr double ops_max = 16000;
/// A pipeline's are, where they are no more than that: a sample knows nothing of where it is cut.
constexpr double pipeline_ops_max = 64000;
constexpr std::int64_t layers_min = 6, layers_of_place_min = 2;

std::size_t places_of(const Workload& w, const PipelineChoice& pipeline) {
  return w.stages() == 1 ? 1 : w.stages() * static_cast<std::size_t>(pipeline.chunks);
}

/// Units of each place along the pipeline: where they begin, and behind the last one their count.
std::vector<std::size_t> borders(const Schedule& s) {
  std::vector<std::size_t> list{0};
  for (const UnitId first : s.cut) list.push_back(static_cast<std::size_t>(first));
  list.push_back(s.units.size());
  return list;
}

/// FLOP of the largest place.
double largest_place(const Workload& w) {
  const std::vector<UnitId> cut = cut_evenly(w, w.stages());
  double largest = 0, flop = 0;
  std::size_t place = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    if (place < cut.size() && static_cast<std::size_t>(cut[place]) == u) ++place, flop = 0;
    const SublayerCost cost = sublayer_cost(*w.model, w.model->units[u], w.shape, w.dtype, *w.kernels);
    flop += cost.forward_flop + cost.backward_flop;
    largest = std::max(largest, flop);
  }
  return largest;
}

}  // namespace

double expected_ops(const Workload& w) {
  double shards = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u)
    shards += static_cast<double>(w.shard_numel(static_cast<UnitId>(u)));
  const double tiles = shards / static_cast<double>(tile_for(w, 1u << 18, 2048));
  const double passes = static_cast<double>(w.model->units.size()) * w.micro_batches;
  // Slices meet those before them in attention, both ways, and what they meet may come and go.
  const double slices = static_cast<double>(w.shape.slices);
  const double met = slices > 1 ? passes / 2 * (slices - 1) / 2 : 0;
  return 6 * passes + 20 * tiles + 6 * met;
}

Sample::Sample(const Workload& whole, const PipelineChoice& pipeline) : whole_(whole), pipeline_(pipeline) {
  const double ops = expected_ops(whole);
  const ModelConfig& config = whole.model->config;
  std::int64_t layers = config.layers;
  if (whole.stages() == 1) {
    layers = std::max(layers_min, static_cast<std::int64_t>(static_cast<double>(config.layers) * ops_max / ops));
  } else if (ops > pipeline_ops_max) {
    fewer_micro_batches_ = whole.lots == 1 && !whole.inference;
    layers = layers_of_place_min * static_cast<std::int64_t>(places_of(whole, pipeline));
  }
  if (layers >= config.layers) return;
  ModelConfig fewer = whole.split == nullptr ? config : whole.split->whole().config;
  fewer.layers = layers;
  model_ = build_model(fewer);
  few_ = whole;
  few_.model = &model_;
  if (whole.split != nullptr) {
    few_.split = &split_.emplace(model_, whole.split->ranks());
    few_.model = &split_->part();
  }
  scale_ = whole.stages() == 1
               ? static_cast<double>(whole.model->parameters) / static_cast<double>(few_.model->parameters)
               : largest_place(whole) / largest_place(few_);
}

Sample::Lengths Sample::lengths(const Schedule& schedule) const {
  const int all = whole_.micro_batches, group = schedule.group, stages = whole_.stages();
  // GPipe holds all of them.
  if (!fewer_micro_batches_ || schedule.pipeline.order == PipelineOrder::gpipe) return {all, all};
  // Behind the first rounds each takes as long, and of what a step does once little is left to wait for.
  const int few = 2 * stages, more = 3 * stages;
  if (more * group >= all) return {all, all};
  return {few * group, more * group};
}

Workload Sample::workload(int micro_batches) const {
  Workload w = has_fewer_layers() ? few_ : whole_;
  w.micro_batches = micro_batches;
  return w;
}

/// Of schedules with groups like that one's.
TierBytes Sample::fixed_needs(const Schedule& like, Kind kind) const {
  const bool keeps = kind == Kind::keeping;
  Schedule s = frugal_schedule(whole_, pipeline_);
  s.group = like.group;
  s.tile_numel = tile_for(few_, 1u << 18, 64);
  for (UnitChoice& c : s.units) {
    c.parameter_home = c.state_home = c.gradient = Place::host;
    c.accumulator = c.boundary = c.blocks = keeps ? Place::device : Place::host;
    c.saved = keeps ? Saved::keep : Saved::recompute;
    c.resident = keeps;
  }
  if (!keeps) {
    s.hold = true;
    s.prefetch = s.lag = 1;
    s.tiles_in_flight = 4;
  }
  const int micro_batches = lengths(s).few;
  Workload all = whole_;
  all.micro_batches = micro_batches;
  const TierBytes of_all = usual_needs(all, s, Plans::main),
                  few = usual_needs(workload(micro_batches), of(s), Plans::main);
  TierBytes fixed;
  for (const Tier t : {Tier::device, Tier::host}) {
    const auto much = static_cast<double>(of_all.of(t)), little = static_cast<double>(few.of(t));
    fixed.of(t) = static_cast<std::uint64_t>(std::clamp((scale_ * little - much) / (scale_ - 1), 0.0, little));
  }
  return fixed;
}

Workload Sample::with_room(const Schedule& like, Kind kind) const {
  Workload w = workload(lengths(like).few);
  if (!has_fewer_layers()) return w;
  const TierBytes fixed = fixed_needs(like, kind);
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme}) {
    std::uint64_t& budget = w.budget_bytes[static_cast<std::size_t>(t)];
    if (budget <= fixed.of(t) || budget == 1) continue;
    const double rest = static_cast<double>(budget - fixed.of(t)) / scale_;
    budget = fixed.of(t) + std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rest));
  }
  return w;
}

Schedule Sample::mapped(const Schedule& from, const Workload& from_work, const Workload& to_work) const {
  Schedule to = from;
  const std::size_t places = places_of(whole_, from.pipeline);
  if (places > 1) to.cut = cut_evenly(to_work, static_cast<int>(places));
  to.units.assign(to_work.model->units.size(), {});
  to.waiting.clear();
  const std::vector<std::size_t> before = borders(from), after = borders(to);
  const auto kind = [](const Workload& w, std::size_t u) { return w.model->units[u].kind; };
  const auto along = [](const std::vector<std::size_t>& at, std::size_t place, std::size_t u) {
    return (static_cast<double>(u - at[place]) + 0.5) / static_cast<double>(at[place + 1] - at[place]);
  };
  for (std::size_t place = 0; place + 1 < after.size(); ++place)
    for (std::size_t u = after[place]; u < after[place + 1]; ++u) {
      double nearest = 2;
      for (std::size_t v = before[place]; v < before[place + 1]; ++v) {
        // Where a place lacks the kind its other units serve.
        const double distance = std::abs(along(after, place, u) - along(before, place, v)) +
                                (kind(to_work, u) == kind(from_work, v) ? 0 : 1);
        if (distance >= nearest) continue;
        nearest = distance;
        to.units[u] = from.units[v];
      }
    }
  return to;
}

Schedule Sample::of(const Schedule& whole) const { return has_fewer_layers() ? mapped(whole, whole_, few_) : whole; }

Schedule Sample::whole(const Schedule& sampled) const {
  if (!has_fewer_layers()) return sampled;
  Schedule s = mapped(sampled, few_, whole_);
  // Tiles are as many.
  const auto usual = [](const Workload& w) { return tile_for(w, 1u << 18, 2048); };
  s.tile_numel = std::min<std::uint64_t>(s.tile_numel * (usual(whole_) / usual(few_)), tile_limit(whole_));
  return s;
}

double Sample::whole_seconds(double few, double more, Lengths l) const {
  const double slope = l.more > l.few ? (more - few) / (l.more - l.few) : 0;
  return scale_ * (few + slope * (whole_.micro_batches - l.few));
}

}  // namespace sluice
