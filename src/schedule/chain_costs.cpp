#include "src/schedule/chain_costs.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "offload/plan/cost.h"
#include "src/device/calibrate.h"
#include "src/model/sublayer.h"
#include "src/schedule/build.h"
#include "src/schedule/parked.h"
#include "src/schedule/passes.h"
#include "src/schedule/pipeline.h"
#include "src/schedule/stages.h"

namespace sluice {
namespace {

ResourceSeconds operator*(ResourceSeconds s, double by) {
  for (double& seconds : s) seconds *= by;
  return s;
}
ResourceSeconds& operator+=(ResourceSeconds& to, const ResourceSeconds& s) {
  for (std::size_t r = 0; r < to.size(); ++r) to[r] += s[r];
  return to;
}

/// Of one op, as the time law counts them, but compute as long as it was measured to take. A drive reads and writes as
/// much: what it gains by doing both at once it gains for all. Flushes are left out: no way back or forward is theirs.
ResourceSeconds seconds_of(const planning::OpCost& c, bool computes, const HardwareProfile& hw) {
  const double read = 1 / hw.drive.read_bytes_per_second, write = 1 / hw.drive.write_bytes_per_second;
  const double gain = planning::drive_seconds(hw, 1, 1) / (read + write);
  const double a_byte = c.drive == planning::DriveUse::read ? read : c.drive == planning::DriveUse::write ? write : 0;
  return {computes ? c.seconds : 0,
          hw.ranks * c.core_seconds / hw.cores,
          hw.ranks * c.memory_seconds,
          hw.ranks * c.drive_bytes * a_byte * gain,
          planning::ranks_of_link(hw) * c.link_down_seconds,
          planning::ranks_of_link(hw) * c.link_up_seconds,
          c.network_seconds};
}

/// Transfers of a thing of some bytes.
class Travel {
 public:
  explicit Travel(const HardwareProfile& hw) : hw_(hw) {
    for (const LaneKind kind : {LaneKind::h2d, LaneKind::d2h, LaneKind::nvme_read, LaneKind::nvme_write}) {
      Lane lane;
      lane.kind = kind;
      lane.windowed = true;
      plan_.lanes.push_back(lane);
    }
    plan_.lanes.push_back({LaneKind::compute, false});
    plan_.buffers.emplace_back();
  }
  ResourceSeconds down(std::uint64_t bytes) const { return of(OpKind::copy, 0, bytes); }
  ResourceSeconds up(std::uint64_t bytes) const { return of(OpKind::copy, 1, bytes); }
  ResourceSeconds from(Place place, std::uint64_t bytes) const {
    ResourceSeconds s = down(bytes);
    return place == Place::nvme ? s += of(OpKind::read, 2, bytes) : s;
  }
  ResourceSeconds to(Place place, std::uint64_t bytes) const {
    ResourceSeconds s = up(bytes);
    return place == Place::nvme ? s += of(OpKind::write, 3, bytes) : s;
  }
  /// Of an activation, which may be packed first, and unpacked at the end.
  ResourceSeconds from(Place place, const ParkedLayout& layout) const {
    ResourceSeconds s = from(place, layout.bytes);
    return s += packing(OpKind::dequantize, layout);
  }
  ResourceSeconds to(Place place, const ParkedLayout& layout) const {
    ResourceSeconds s = to(place, layout.bytes);
    return s += packing(OpKind::quantize, layout);
  }

 private:
  ResourceSeconds packing(OpKind kind, const ParkedLayout& layout) const {
    ResourceSeconds all{};
    for (const ParkedLayout::Values& v : layout.values) {
      Op op;
      op.kind = kind;
      op.lane = 4;
      op.accesses = {{0, 0, v.of.bytes, Role::src, Mode::read}, {0, 0, v.packed.bytes, Role::dst, Mode::write}};
      all += seconds_of(planning::CostModel(plan_, hw_).cost(op), true, hw_);
    }
    return all;
  }
  ResourceSeconds of(OpKind kind, LaneId lane, std::uint64_t bytes) const {
    Op op;
    op.kind = kind;
    op.lane = lane;
    op.bytes = bytes;
    return seconds_of(planning::CostModel(plan_, hw_).cost(op), false, hw_);
  }
  const HardwareProfile& hw_;
  StepPlan plan_;
};

bool goes_back(OpKind kind) {
  static const std::set<OpKind> kinds{OpKind::backward,
                                      OpKind::backward_again,
                                      OpKind::backward_input,
                                      OpKind::backward_weight,
                                      OpKind::expose,
                                      OpKind::enter_backward,
                                      OpKind::part_backward,
                                      OpKind::out_backward,
                                      OpKind::core_backward,
                                      OpKind::qkv_backward,
                                      OpKind::forward_backward,
                                      OpKind::part_logits,
                                      OpKind::core_earlier_backward,
                                      OpKind::part_gradient};
  return kinds.contains(kind);
}

/// On the compute lane, but not a sublayer's own: packing, unpacking, sums of blocks.
bool comes_along(OpKind kind) {
  static const std::set<OpKind> kinds{OpKind::quantize, OpKind::dequantize, OpKind::dequantize_sum, OpKind::accumulate};
  return kinds.contains(kind);
}

bool makes_again(OpKind kind) { return kind == OpKind::recompute || kind == OpKind::part_recompute; }

/// What the compute ops of the first micro-batch of each unit take: forward, once more for what is saved, and back. Of
/// one that is a slice, in the mean over those of its sequences.
struct UnitSeconds {
  ResourceSeconds forward{}, again{}, backward{};
};

class Stage {
 public:
  Stage(const Workload& stage, const Schedule& schedule, const HardwareProfile& hw)
      : work_(stage), hw_(hw), units_(stage.model->units.size()) {
    const StepPlan plan = build_ops(PlanKind::train, stage, schedule);
    const planning::CostModel model(plan, hw);
    std::set<std::tuple<UnitId, OpKind, std::int32_t, std::int32_t>> seen;
    const std::int32_t slices = work_.slices();
    bool is_back = false;
    for (const Op& op : plan.ops) {
      const bool computes = plan.lanes[op.lane].kind == LaneKind::compute;
      const ResourceSeconds s = seconds_of(model.cost(op), computes, hw);
      const bool is_of_sublayer = computes && op.unit >= 0 && !comes_along(op.kind);
      if (is_of_sublayer) is_back = goes_back(op.kind) || makes_again(op.kind);
      (is_back ? all.back : all.forward) += s;
      if (!is_of_sublayer || first_sequences(op.unit, op.micro_batch / slices) != op.micro_batch / slices) continue;
      UnitSeconds& unit = units_[static_cast<std::size_t>(op.unit)];
      if (op.kind == OpKind::backward_again) {
        const double share = share_again(op);
        unit.again += s * share;
        unit.backward += s * (1 - share);
      } else if (goes_back(op.kind))
        unit.backward += s;
      else if (makes_again(op.kind) || !seen.emplace(op.unit, op.kind, op.step, op.micro_batch).second)
        unit.again += s;
      else
        unit.forward += s;
    }
    for (UnitSeconds& unit : units_)
      for (ResourceSeconds* s : {&unit.forward, &unit.again, &unit.backward}) *s = *s * (1.0 / slices);
  }
  const UnitSeconds& unit(UnitId u) const { return units_[static_cast<std::size_t>(u)]; }
  ByWay all;

 private:
  /// Of what backward_again takes, beyond what backward would.
  double share_again(const Op& op) const {
    const UnitSpec& unit = work_.model->units[static_cast<std::size_t>(op.unit)];
    const auto seconds = [&](OpKind kind) {
      const auto known = hw_.op_seconds.find(cost_key(work_, unit.kind, kind));
      return known == hw_.op_seconds.end() ? 0.0 : known->second;
    };
    const double whole = seconds(OpKind::backward_again), back = seconds(OpKind::backward);
    if (whole > 0 && back > 0) return std::clamp(1 - back / whole, 0.0, 1.0);
    const SublayerCost cost = sublayer_cost(*work_.model, unit, work_.shape, work_.dtype, *work_.kernels);
    return cost.recompute_flop / op.flop;
  }

  std::int32_t first_sequences(UnitId u, std::int32_t sequences) { return first_.emplace(u, sequences).first->second; }
  const Workload& work_;
  const HardwareProfile& hw_;
  std::vector<UnitSeconds> units_;
  std::map<UnitId, std::int32_t> first_;
};

/// Groups that have gone forward and not yet back, at the most, of all chunks of a stage.
int alive_of(const PassOrder& order) {
  int alive = 0, most = 1;
  for (const std::size_t first : order.turns) {
    const Phase phase = order.passes[first].phase;
    if (phase == Phase::backward_weight) continue;
    alive += phase == Phase::forward || phase == Phase::head ? 1 : -1;
    most = std::max(most, alive);
  }
  return most;
}

}  // namespace

void choose(Schedule& schedule, const PlaceChain& place, const ChainChoices& choices) {
  for (std::size_t i = 0; i + 1 < place.chain.size(); ++i) {
    UnitChoice& unit = schedule.units[static_cast<std::size_t>(place.first) + i];
    const bool saves = std::ranges::any_of(place.chain[i].ways, [](const SavedWay& way) { return way.bytes > 0; });
    unit.saved = saves ? choices[i].saved : Saved::keep;
    unit.core = choices[i].core;
    if (i == 0) continue;
    unit.sweep = static_cast<std::uint8_t>(std::min(choices[i].sweep, 255));
    unit.boundary = choices[i].boundary;
  }
}

ChainChoices choices_of(const Schedule& schedule, const PlaceChain& place) {
  ChainChoices choices(place.chain.size());
  for (std::size_t i = 0; i + 1 < place.chain.size(); ++i) {
    const UnitChoice& unit = schedule.units[static_cast<std::size_t>(place.first) + i];
    choices[i] = {i == 0 ? 0 : unit.sweep, unit.boundary, unit.saved, unit.core};
  }
  return choices;
}

namespace {

void forbid_ways(ChainUnit& unit, Saved saved) {
  std::erase_if(unit.ways, [&](const SavedWay& way) { return way.saved == saved || way.core == saved; });
}

std::size_t count_of(const PlaceChain& place, double share) {
  return static_cast<std::size_t>(share * static_cast<double>(place.chain.size()));
}

}  // namespace

void keep_off_host(PlaceChain& place, double share) {
  for (std::size_t i = count_of(place, share); i < place.chain.size(); ++i) forbid_ways(place.chain[i], Saved::host);
}

void keep_inputs_off_host(PlaceChain& place) {
  for (ChainUnit& unit : place.chain)
    std::erase_if(unit.parking, [](const ParkingUse& use) { return use.place == Place::host; });
}

void keep_off_drive(PlaceChain& place, double share) {
  for (std::size_t i = 0; i < place.chain.size() - count_of(place, share); ++i) {
    forbid_ways(place.chain[i], Saved::nvme);
    std::erase_if(place.chain[i].parking, [](const ParkingUse& use) { return use.place == Place::nvme; });
  }
}

void count_waits(PlaceChain& place) {
  const auto add_wait = [](const ResourceSeconds& pass, ResourceSeconds& parking) {
    constexpr auto compute = static_cast<std::size_t>(Resource::compute);
    ResourceSeconds both = pass;
    both += parking;
    const double covered = std::max(*std::ranges::max_element(pass), both[compute]);
    parking[compute] += *std::ranges::max_element(both) - covered;
  };
  for (ChainUnit& unit : place.chain) {
    for (SavedWay& way : unit.ways) {
      add_wait(unit.forward, way.away);
      add_wait(unit.backward, way.back);
    }
    for (ParkingUse& use : unit.parking) {
      add_wait(unit.forward, use.away);
      add_wait(unit.backward, use.back);
    }
  }
}

std::uint64_t most_bytes(const PlaceChain& place) {
  std::uint64_t all = place.working;
  for (const ChainUnit& unit : place.chain) {
    all += unit.input_bytes;
    for (const SavedWay& way : unit.ways) all += way.bytes;
  }
  return all;
}

double activation_gap(const Workload& workload, const Schedule& schedule, const HardwareProfile& hw) {
  const std::uint64_t budget = workload.budget_bytes[static_cast<std::size_t>(Tier::device)];
  double gap = 0;
  for (const PlaceChain& place : chains_of(workload, schedule, hw)) {
    const RankId s = Stages(workload, schedule).stage_of(place.first);
    const std::uint64_t all = most_bytes(place);
    std::uint64_t held = 0;
    for (const Buffer& b : build_lives(PlanKind::train, at_stage(workload, s), schedule).buffers)
      if (b.tier == Tier::device && b.life == Life::persistent) held += footprint_bytes(b);
    const std::uint64_t room = budget == 0 ? all : std::min(all, budget - std::min(budget, held));
    const double asked = seconds_of(place.rest, chain_cost(place.chain, choices_of(schedule, place)).use, place.times);
    const BalancedChain best = balance(place.chain, place.rest, place.times, room);
    if (!best.choices) continue;
    const double bound = chain_bound(place.chain, place.rest, place.times, room, best.prices);
    if (bound > 0) gap = std::max(gap, asked / bound - 1);
  }
  return gap;
}

std::vector<PlaceChain> places_of(const Workload& workload, const Schedule& schedule) {
  const Stages stages(workload, schedule);
  const auto head = static_cast<UnitId>(workload.model->units.size()) - 1;
  const auto place_of = [&](UnitId u) { return std::pair(stages.stage_of(u), stages.owner(u).chunk); };
  std::vector<PlaceChain> list;
  for (UnitId u = 0; u <= head; ++u) {
    if (u == 0 || place_of(u) != place_of(u - 1)) list.emplace_back().first = u;
    list.back().chain.emplace_back();
    if (u < head && place_of(u + 1) != place_of(u)) list.back().chain.emplace_back();
  }
  std::erase_if(list, [](const PlaceChain& place) { return place.chain.size() < 2; });
  return list;
}

std::vector<PlaceChain> chains_of(const Workload& workload, const Schedule& schedule, const HardwareProfile& hw) {
  Schedule base = schedule;
  for (UnitChoice& unit : base.units) {
    unit.saved = Saved::recompute;
    unit.core.reset();
    unit.sweep = 0;
  }
  const Travel travel(hw);
  const Stages stages(workload, schedule);
  const auto head = static_cast<UnitId>(workload.model->units.size()) - 1;
  std::vector<PlaceChain> list = places_of(workload, schedule);
  for (RankId s = 0; s < workload.stages(); ++s) {
    const Workload work = at_stage(workload, s);
    const Stage stage(work, base, hw);
    const auto groups = micro_batch_groups(work, base, PlanKind::train);
    const int alive = alive_of(order_passes(PlanKind::train, work, base));
    const auto together = static_cast<std::uint64_t>(groups.front().end - groups.front().first);
    // Attention may keep its core and make q, k and v again, or the other way round, and may park one of them.
    const auto add_ways_of_core = [&](UnitId u, const SublayerCost& cost, ChainUnit& unit) {
      if (cost.core_bytes == 0) return;
      const double many = static_cast<double>(together), part = cost.core_flop / cost.recompute_flop;
      const std::uint64_t rest = cost.saved_bytes - cost.core_bytes;
      const ParkedLayout parked_core = parked_saved(work, cost, SavedPart::core),
                         parked_rest = parked_saved(work, cost, SavedPart::rest);
      const auto seconds = [&](OpKind kind, double share) {
        const auto known =
            hw.op_seconds.find(cost_key(work, work.model->units[static_cast<std::size_t>(u)].kind, kind));
        const double whole = unit.again[static_cast<std::size_t>(Resource::compute)];
        if (known == hw.op_seconds.end() || whole == 0) return unit.again * share;
        return unit.again * std::min(1.0, known->second * many / whole);
      };
      const ResourceSeconds qkv_again = seconds(OpKind::recompute_qkv, 1 - part),
                            core_again = seconds(OpKind::recompute_core, part);
      unit.ways.push_back({Saved::recompute, Saved::keep, together * cost.core_bytes, {}, qkv_again});
      unit.ways.push_back({Saved::keep, Saved::recompute, together * rest, {}, core_again});
      for (const Place place : {Place::host, Place::nvme}) {
        const Saved parked = place == Place::host ? Saved::host : Saved::nvme;
        ResourceSeconds back = travel.from(place, parked_core) * many;
        unit.ways.push_back({Saved::recompute, parked, 0, travel.to(place, parked_core) * many, back += qkv_again});
        unit.ways.push_back({parked, Saved::keep, together * cost.core_bytes, travel.to(place, parked_rest) * many,
                             travel.from(place, parked_rest) * many});
      }
    };
    const auto unit_of = [&](UnitId u) {
      const UnitChoice& choice = base.units[static_cast<std::size_t>(u)];
      const SublayerCost cost = sublayer_cost(*work.model, work.model->units[static_cast<std::size_t>(u)], work.shape,
                                              work.dtype, *work.kernels);
      ChainUnit unit;
      const double many = static_cast<double>(together);
      unit.forward = stage.unit(u).forward * many;
      unit.again = stage.unit(u).again * many;
      unit.backward = stage.unit(u).backward * many;
      if (!choice.resident && !choice.held)
        unit.forward += travel.from(choice.parameter_home, work.shard_numel(u) * dtype_bytes(work.dtype));
      unit.input_bytes = u == 0 ? 0 : together * cost.boundary_bytes;
      unit.backward_bytes_kept = cost.backward_workspace_bytes + 2 * cost.boundary_bytes;
      const bool again_in_chunks =
          cost.backward_again_workspace_bytes > 0 && work.split == nullptr && !splits_backward(schedule.pipeline.order);
      unit.backward_bytes = again_in_chunks ? cost.backward_again_workspace_bytes + 2 * cost.boundary_bytes
                                            : unit.backward_bytes_kept + cost.saved_bytes;
      if (u == head) {
        unit.backward += std::exchange(unit.forward, {});
        return unit;
      }
      unit.ways.push_back({Saved::keep, std::nullopt, together * cost.saved_bytes, {}, {}});
      add_ways_of_core(u, cost, unit);
      const ParkedLayout saved = parked_saved(work, cost, SavedPart::all), input = parked_input(work, cost);
      const bool travels = !base.hold && base.group > 1;
      for (const Place place : {Place::host, Place::nvme}) {
        if (cost.saved_bytes > 0) {
          unit.ways.push_back({place == Place::host ? Saved::host : Saved::nvme, std::nullopt, 0,
                               travel.to(place, saved) * many, travel.from(place, saved) * many});
        }
        if (u == 0) continue;
        if (parks_input_in_bits(work, travels))
          unit.parking.push_back({place, travel.to(place, input) * many, travel.from(place, input) * many});
        else
          unit.parking.push_back(
              {place, travel.to(place, cost.boundary_bytes) * many, travel.from(place, cost.boundary_bytes) * many});
      }
      return unit;
    };
    for (PlaceChain& place : list) {
      if (stages.stage_of(place.first) != s) continue;
      place.times = static_cast<double>(groups.size());
      place.alive = alive;
      // Behind the last unit is what another stage goes on with, unless the head is.
      for (std::size_t i = 0; i < place.chain.size(); ++i) {
        const UnitId u = place.first + static_cast<UnitId>(i);
        if (i + 1 < place.chain.size() || u == head) place.chain[i] = unit_of(u);
      }
      for (const ChainUnit& unit : place.chain) place.working = std::max(place.working, unit.backward_bytes);
      place.rest = stage.all;
      const ByWay own = chain_cost(place.chain, choices_of(base, place)).use;
      for (std::size_t r = 0; r < own.forward.size(); ++r) {
        place.rest.forward[r] = std::max(0.0, place.rest.forward[r] - place.times * own.forward[r]);
        place.rest.back[r] = std::max(0.0, place.rest.back[r] - place.times * own.back[r]);
      }
    }
  }
  return list;
}

}  // namespace sluice
