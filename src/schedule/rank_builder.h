// The moves that a schedule is composed of. Each method appends ops in program order; the driver (build.cpp) calls
// them.
//
// Where things are while the plan is written down:
//   home       parameters and optimizer states between steps, persistent on host or nvme
//   open       a unit's whole parameters (or fp32 gradient) on the device, for one pass
//   parked     an activation, accumulator or boundary gradient sent to host or nvme, to be brought back
#pragma once

#include <array>
#include <string>
#include <vector>

#include "src/schedule/emitter.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Of StepPlan::groups: who has the other shards, who votes on a step, who has the same shard, and who of the first is
/// close.
constexpr std::int32_t sharding_group = 0, control_group = 1, replica_group = 2, close_group = 3;

/// One transfer and optimizer tile: elements [element, element + numel) of the rank's shard of the unit.
struct TileRef {
  UnitId unit;
  int index;
  std::uint64_t element, numel;
};
std::vector<TileRef> unit_tiles(const Workload& workload, const Schedule& schedule, UnitId unit);

class RankBuilder {
 public:
  RankBuilder(Emitter& emitter, const Workload& workload, const Schedule& schedule, PlanKind kind);

  // parameters on the device
  void open_parameters(UnitId u);
  bool is_open(UnitId u) const { return units_[static_cast<std::size_t>(u)].open.valid(); }
  /// home -> the rank's part of the open parameters; `retain` keeps the tile in host memory for its update.
  void fetch_tile(const TileRef& t, bool retain);
  void expect_no_retained_tiles(UnitId u) { unit(u).fetched_before = true; }
  void gather(UnitId u);
  /// The rank's part of the open parameters into host memory, and from there back into open ones, with those of close
  /// ranks.
  void keep_second_copy(UnitId u);
  void fetch_second_copy(UnitId u);
  void close_parameters(UnitId u);

  // optimizer tiles
  void read_tile(const TileRef& t);
  /// Whether there is a place for the parameters on the device, or they are in host memory to be staged.
  bool can_load(const TileRef& t);
  /// host -> device, where the device updates the unit; parameters into their place if that is open.
  void load_tile(const TileRef& t);
  void update_tile(const TileRef& t);
  void write_tile(const TileRef& t);
  /// updated parameters -> the rank's part of the open (or resident) parameters
  void publish_tile(const TileRef& t);
  /// Behind the last update: what the device has counted of parameters that diverged.
  void verify();
  void mark_updated(UnitId u) { unit(u).updated = true; }

  // activations of one micro-batch
  void load_tokens(int mb);
  void touch_tokens(Op& op, UnitId u, int mb);
  void bring_inputs(UnitId u, int mb, bool backward);
  void forward(UnitId u, int mb);
  void recompute(UnitId u, int mb);
  void backward(UnitId u, int mb);
  void head(int mb);
  void evaluate_head(int mb);
  void decode_head();
  void park_outputs(UnitId u, int mb, bool backward);

  // gradients
  void bring_gradients(UnitId u);
  void park_gradients(UnitId u);
  void park_tied_gradients();
  /// The unit's gradient over the ranks; behind a lot that is not the last its shard waits for the others.
  void reduce(UnitId u, int lot);
  /// gradient tile -> host (and its norm) -> where it waits, or the staging of its update
  void drain_tile(const TileRef& t);
  void close_gradient(UnitId u);

  // step control
  void collect_losses();
  void control();
  void step_end();
  void commit();

 private:
  struct Parked {
    Place place = Place::device;
    Part part;
  };
  struct PerMicroBatch {
    Part x, saved, d;  ///< on the device: input, saved activations, gradient of the input
    Part produced;     ///< the input as its producer left it, until it is parked
    Parked parked_x, parked_saved, parked_d;
  };
  /// The tile of each state while it is worked on.
  struct Tile {
    std::array<Part, state_names.size()> parts;
    Part& operator[](StateKind k) { return parts[static_cast<std::size_t>(k)]; }
  };
  struct PerUnit {
    Part resident, open, shard_gradient;
    std::vector<Part> gradients;  ///< partial sums on the device, that of the current lot last
    std::array<Part, 4> home;     ///< by StateKind, one shard each
    std::array<Part, 4> mirror;   ///< the durable copy on nvme of a home in host memory
    Part second_copy;             ///< in host memory, of this step
    Part gradient_wait;
    std::vector<Parked> parked_gradients;
    std::vector<Parked> shard_sums;  ///< partial sums of what was reduced: parked, or on the device
    bool updated = false;         ///< in this iteration
    bool fetched_before = false;  ///< its last backward pass fetches nothing: the update reads the parameters itself
    std::vector<PerMicroBatch> mb;
    std::vector<Tile> tile;         ///< in host memory
    std::vector<Tile> device_tile;  ///< where the device updates the unit
  };

  PerUnit& unit(UnitId u) { return units_[static_cast<std::size_t>(u)]; }
  const UnitSpec& spec(UnitId u) const { return work_.model->units[static_cast<std::size_t>(u)]; }
  const UnitChoice& choice(UnitId u) const { return schedule_.units[static_cast<std::size_t>(u)]; }
  PerMicroBatch& micro(UnitId u, int mb) { return unit(u).mb[static_cast<std::size_t>(mb)]; }
  Tile& tile(const TileRef& t) { return unit(t.unit).tile[static_cast<std::size_t>(t.index)]; }
  Tile& device_tile(const TileRef& t) { return unit(t.unit).device_tile[static_cast<std::size_t>(t.index)]; }
  UnitId head_unit() const { return static_cast<UnitId>(work_.model->units.size()) - 1; }
  std::string label(UnitId u, const char* what, int mb = -1) const;  ///< empty where the plan has no names
  std::uint64_t element_bytes() const { return dtype_bytes(work_.dtype); }
  bool has_state(StateKind k) const;
  std::uint64_t state_bytes(StateKind k, std::uint64_t numel) const;  ///< of the first `numel` elements of a shard
  bool has_remainder() const { return work_.dtype == Dtype::bf16; }

  void declare_persistent();
  void declare_home(UnitId u);
  Part declare_state(UnitId u, StateKind k, Place place);
  Part device(const std::string& name, std::uint64_t bytes, Life life = Life::brief);
  Part stage(const std::string& name, std::uint64_t bytes);
  Part home_tile(const TileRef& t, StateKind k, bool write);
  Part slot_tile(const Part& whole, const TileRef& t, StateKind k, bool write);
  Part host_tile(const TileRef& t, StateKind k);
  Part bring_home_tile(const TileRef& t, StateKind k);
  void save_home_tile(const TileRef& t, StateKind k, const Part& host);
  Part tile_of(const Part& whole, const TileRef& t, std::uint64_t bytes_per_element) const;
  Part own_tile(const Part& parameters, const TileRef& t) const;
  std::string tile_label(const TileRef& t, StateKind k) const;
  Part state_tile(const Part& whole, const TileRef& t, StateKind k) const;
  Parked park(const Part& device_part, Place place, const std::string& name, UnitId u, int mb);
  Part bring(const Parked& parked, const std::string& name, UnitId u, int mb, Life life);
  bool travels(UnitId u) const;  ///< activations between passes do not stay on the device
  Op& compute(OpKind kind, UnitId u, int mb);
  std::int32_t cost_of(Sublayer sublayer, OpKind kind);
  void touch_parameters(Op& op, UnitId u);
  void touch_workspace(OpKind kind, UnitId u, Part& out);
  bool has_tied_gradient() const { return kind_ == PlanKind::train && work_.model->config.tied; }
  std::string lot_label(UnitId u, const char* what, int lot) const;
  Mode open_lot(UnitId u, int mb);
  void close_lot(UnitId u, int mb);
  Part& tied_gradient(int lot);
  void add(const Part& from, const Part& to, UnitId u);
  void gather_parts(UnitId u, const Part& whole, std::int32_t group);
  Part own_part(const Part& whole, std::int32_t group) const;
  void reduce_parts(UnitId u, const Part& whole, const Part& own, std::int32_t group);
  Part reduced(UnitId u, const Part& gradient);

  Emitter& emit_;
  const Workload& work_;
  const Schedule& schedule_;
  MomentLayout moments_;
  PlanKind kind_;
  std::vector<PerUnit> units_;
  std::vector<Part> tokens_;
  std::vector<SublayerCost> costs_;
  std::array<std::array<std::int32_t, op_names.size()>, 4> cost_index_;  ///< in the plan's cost keys, -1 not asked yet
  std::vector<Part> kv_;
  Part losses_, control_, logits_;
  Part diverged_;  ///< per unit, counted on the device
  LotSums lot_sums_;
  /// The head's part of a tied matrix's gradient, by lot: on the device, or parked.
  struct Tied {
    Part open;
    Parked parked;
  };
  std::vector<Tied> tied_;
  bool has_norm_ = false;  ///< the step's norm has been begun
};

}  // namespace sluice
